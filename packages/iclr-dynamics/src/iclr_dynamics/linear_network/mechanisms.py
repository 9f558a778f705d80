"""The three mechanisms of feature learning, alignment, disalignment and rescaling, against the kernel regime."""

import math
from functools import partial
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from iclr_dynamics.function_space import decay, limit, riccati
from iclr_dynamics.linear_network.data import LineData
from iclr_dynamics.linear_network.network import (
    LinearNet,
    alignment,
    check_state,
    function_space,
    invariants,
    log_ntk_ratio,
    output_slope,
)
from iclr_dynamics.linear_network.trajectory import slope_at, times, warn_if_stuck

Label = Literal["kernel", "alignment", "disalignment", "rescaling"]

#: Below this ``|ln(K/K0)|`` nothing but the output has moved.
KERNEL_CHANGE = 0.05
#: Changes of |zeta|, and of ln(|u| |a|), above this count as learning by that mechanism.
CHANGE = 0.05


class Mechanism(NamedTuple):
    """How a network came (or comes) to its slope, ``ln|F/F0| = ln|zeta/zeta0| + ln(N/N0)`` with ``N = gamma |u| |a|``.

    Args:
        label: the dominant mechanism.
        labels: all that take part, the dominant one first.
        F0, F: slope at the start and at the end.
        zeta0, zeta: alignment at the start and at the end.
        log_alignment: ``ln|zeta/zeta0|``; infinite where the network starts at exactly F0 = 0.
        log_rescaling: ``ln(N/N0)``.
        alignment_share: share of the first in the sum of both sizes, in [0, 1].
        rescale_share: share of the second.
        K_ratio: ``K/K0`` of the tangent kernel.
        sign_flip: whether the slope changes its sign.
        theta: scale below which targets are learned lazily, in units of the slope.
    """

    label: Label
    labels: tuple[Label, ...]
    F0: float
    F: float
    zeta0: float
    zeta: float
    log_alignment: float
    log_rescaling: float
    alignment_share: float
    rescale_share: float
    K_ratio: float
    sign_flip: bool
    theta: float


def mechanism(net: LinearNet, data: LineData, u0: ArrayLike, w0: ArrayLike, t: float | None = None) -> Mechanism:
    """Which mechanism brings a network from its start to where it is at time t, or to the end of training.

    The label is ``kernel`` where ``|ln(K/K0)| < 0.05``, else ``alignment`` where |zeta| rises by more than 0.05,
    ``disalignment`` where it falls by more than that, else ``rescaling``. Comparing the sizes of the two logarithms
    instead would call both a small random start and a large correlated one rescaling; both are reported.

    Args:
        net: output scale and rates.
        data: statistics of the data.
        u0: initial second layer, shape (d,).
        w0: initial first layer, shape (d, D).
        t: time >= 0; None for the end of training, in closed form.

    Returns:
        A `Mechanism`.

    Raises:
        InputError: if shapes do not fit or values are not finite.

    Warns:
        RuntimeWarning: where the flow cannot reach its target, as `solve`.
    """
    u, w = check_state(net, data.nhat, u0, w0)
    if t is not None:
        times(t, u.dtype)
    values = _change(
        net, t is None, jnp.asarray(data.nhat, u.dtype), data.A, data.target, u, w, 0.0 if t is None else t
    )
    P, M, F0, F, S, theta, zeta0, zeta, log_K = map(float, values)
    warn_if_stuck(P, M, data.target, u.dtype)
    norm0, norm = (math.hypot(slope, net.kappa * math.sqrt(S)) for slope in (F0, F))
    log_alignment, log_rescaling = log_ratio(zeta, zeta0), log_ratio(norm, norm0)
    share = _share(abs(log_alignment), abs(log_rescaling))
    labels = classify(log_K, abs(zeta) - abs(zeta0), log_rescaling)
    flip = F0 * F < 0
    return Mechanism(
        labels[0],
        labels,
        F0,
        F,
        zeta0,
        zeta,
        log_alignment,
        log_rescaling,
        share,
        1 - share,
        math.exp(log_K),
        flip,
        theta,
    )


def classify(log_K_ratio: float, alignment_change: float, log_rescaling: float) -> tuple[Label, ...]:
    """The labels of a change: dominant one first.

    Args:
        log_K_ratio: ``ln(K/K0)``.
        alignment_change: ``|zeta| - |zeta0|``.
        log_rescaling: ``ln(N/N0)``.
    """
    if abs(log_K_ratio) < KERNEL_CHANGE:
        return ("kernel",)
    turned: tuple[Label, ...] = ()
    if abs(alignment_change) > CHANGE:
        turned = ("alignment",) if alignment_change > 0 else ("disalignment",)
    rescaled: tuple[Label, ...] = ("rescaling",) if abs(log_rescaling) > CHANGE or not turned else ()
    return turned + rescaled


@partial(jax.jit, static_argnums=1)
def _change(net, to_the_end, nhat, A, target, u, w, t):
    """P and M at the start, slope then and later, area, theta, alignment at both times, and ``ln(K/K0)``."""
    a = w @ nhat
    P, M = function_space(net, u, a)
    gain, half = net.flow_constants(A, target)
    end, left = limit(P, M, half), 0.0
    if not to_the_end:
        end, left = riccati(P, M, gain, half, t), decay(P, M, gain, half, t)
    inv, F0 = invariants(net, u, a), output_slope(net, u, a)
    F = slope_at(net, end, F0, target, left)
    zeta0, zeta = (alignment(slope, inv.S, net.kappa) for slope in (F0, F))
    # Aligned layers that shrink to nothing stay aligned.
    zeta = jnp.where((F == 0) & (inv.S == 0), zeta0, zeta)
    return P, M, F0, F, inv.S, inv.theta, zeta0, zeta, log_ntk_ratio(F0, F, inv.theta)


def log_ratio(new: float, old: float) -> float:
    """``ln|new / old|``, with 0 / 0 as no change."""
    if new == old:
        return 0.0
    if new == 0 or old == 0:
        return math.inf if old == 0 else -math.inf
    return math.log(abs(new / old))


def _share(one: float, other: float) -> float:
    """The part of `one` in the sum of two sizes."""
    if math.isinf(one):
        return 1.0 if math.isfinite(other) else 0.5
    return one / (one + other) if one + other > 0 else 0.0

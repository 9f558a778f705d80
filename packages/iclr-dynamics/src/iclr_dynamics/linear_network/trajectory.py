"""The exact learning trajectory from any initialisation, at any width, in closed form."""

import warnings
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from iclr_dynamics.function_space import FunctionSpace, Scalars, decay, layer_scale, time_to_gap
from iclr_dynamics.function_space import rate as flow_rate
from iclr_dynamics.linear_network.data import LineData
from iclr_dynamics.linear_network.network import (
    MEMORY_LIMIT,
    LinearNet,
    alignment,
    check_state,
    function_space,
    invariants,
    kernel,
    layer_norms,
    output_slope,
    rate_weighted,
)
from iclr_shared.errors import InputError

Times = ArrayLike | Sequence[float]
"""A time, a list or an array of times."""


class Trajectory(NamedTuple):
    """A run of gradient flow at T times.

    Args:
        t: times.
        F: slope of the network, in units of y per x.
        K: tangent kernel of the slope, in 1 / (x² time): ``dF/dt = -K A (F - F*)``.
        zeta: alignment of the second layer with the active part of the first, in [-1, 1].
        zeta_w: the same with the whole first layer, ``±|uᵀw| / (|u| |w|)``, which the directions without data dilute.
        u_norm: |u|.
        a_norm: |a|, the norm of the active part of the first layer.
        loss: ``loss_factor E (f - y)²``, in units of y².
        excess: the part of the loss that training can remove, accurate relative to itself.
        u: second layer at each time, shape (T, d), or None.
        w: first layer at each time, shape (T, d, D), or None.
    """

    t: Float[Array, " T"]
    F: Float[Array, " T"]
    K: Float[Array, " T"]
    zeta: Float[Array, " T"]
    zeta_w: Float[Array, " T"]
    u_norm: Float[Array, " T"]
    a_norm: Float[Array, " T"]
    loss: Float[Array, " T"]
    excess: Float[Array, " T"]
    u: Float[Array, "T d"] | None
    w: Float[Array, "T d D"] | None


def solve(
    net: LinearNet, data: LineData, u0: ArrayLike, w0: ArrayLike, t: Times, *, weights: bool = True
) -> Trajectory:
    """The trajectory of gradient flow on ``loss_factor E (f - y)²`` (Xu and Ziyin, ICLR 2025), exact at every time.

    With ``uh = u / sqrt(eta_u)``, ``ah = a / sqrt(eta_w)``, the sum ``p = uh + ah`` and the difference ``q = uh - ah``
    of the layers keep their directions: ``p(t) = c p(0)``, ``q(t) = q(0) / c`` with one factor c for all neurons
    (`iclr_dynamics.function_space.layer_scale`). The part of w outside the line of the data never moves.

    Args:
        net: output scale and rates.
        data: statistics of the data, from `fit_stats`.
        u0: initial second layer, shape (d,).
        w0: initial first layer, shape (d, D).
        t: times >= 0, shape (T,), in any order.
        weights: whether to build u and w at each time, which costs O(T d D) time and memory instead of O(T + d D).

    Returns:
        A `Trajectory` in the precision of the layers.

    Raises:
        InputError: if shapes do not fit, values are not finite, a time is negative, or the weights would take more than
            2 GB.

    Warns:
        RuntimeWarning: if the start is an exact saddle, or aligned and balanced with the wrong sign.

    References:
        arXiv 2401.07085.
    """
    u, w = check_state(net, data.nhat, u0, w0)
    t = times(t, u.dtype)
    if weights:
        size = len(t) * u.size * (1 + len(data.nhat)) * u.dtype.itemsize
        if size > MEMORY_LIMIT:
            raise InputError(
                f"The weights at {len(t)} times take {size / 1e9:.1f} GB, the limit is {MEMORY_LIMIT / 1e9:g} GB. "
                "Ask for scalars only (weights=False) or fewer times."
            )
    nhat = np.asarray(data.nhat, u.dtype)
    path, P, M = _solve(net, weights, nhat, data.A, data.target, data.floor, u, w, t)
    warn_if_stuck(float(P), float(M), data.target, u.dtype)
    return path


def default_times(
    net: LinearNet, data: LineData, u0: ArrayLike, w0: ArrayLike, n: int = 200
) -> Float[np.ndarray, " n"]:
    """Times that show the whole run: `n` of them, log-spaced from 0.01 to 20 in units of 1 / `rate`.

    Raises:
        InputError: if the rate is 0 (F* = 0 and aligned layers, or a saddle without target).
    """
    s = rate(net, data, u0, w0)
    if s == 0:
        raise InputError(
            "The rate is 0 (an algebraic or motionless flow): it sets no time scale, give the times yourself."
        )
    return np.geomspace(1e-2, 20, n) / s


def rate(net: LinearNet, data: LineData, u0: ArrayLike, w0: ArrayLike) -> float:
    """The final exponential rate ``s = kappa A sqrt(4 F*² + theta²)`` of the slope, in 1 / time."""
    u, w = check_state(net, data.nhat, u0, w0)
    gain, half = net.flow_constants(data.A, data.target)
    return float(_rate(*_norms(net, np.asarray(data.nhat, u.dtype), u, w), gain, half))


def time_to(net: LinearNet, data: LineData, u0: ArrayLike, w0: ArrayLike, eps: float) -> float:
    """When the slope has come within `eps` of its target, ``|F - F*| = eps``, in closed form; inf if it never does.

    Raises:
        InputError: if `eps` is not positive.
    """
    if not eps > 0:
        raise InputError(f"eps must be positive, got {eps}.")
    u, w = check_state(net, data.nhat, u0, w0)
    gain, half = net.flow_constants(data.A, data.target)
    P, M = _norms(net, np.asarray(data.nhat, u.dtype), u, w)
    return float(_time(P, M, gain, half, 4 * eps / net.kappa))


def solve_lazy(net: LinearNet, data: LineData, u0: ArrayLike, w0: ArrayLike, t: Times) -> Trajectory:
    """The same run in the kernel regime's approximation: the tangent kernel stays as it was at the start.

    Then ``F = F* + (F0 - F*) exp(-K0 A t)``, and each layer moves along the gradient it had at the start. The
    approximation is good where theta is large against F0 and F*, and is the baseline that the exact solution is held
    against.

    Args:
        net, data, u0, w0, t: as for `solve`.

    Returns:
        A `Trajectory` with weights; K is constant, zeta and norms are those of the weights.
    """
    u, w = check_state(net, data.nhat, u0, w0)
    t = times(t, u.dtype)
    return _solve_lazy(net, np.asarray(data.nhat, u.dtype), data.A, data.target, data.floor, u, w, t)


def times(t: Times, dtype: np.dtype) -> Float[np.ndarray, " T"]:
    """Times as a one-dimensional array.

    Raises:
        InputError: if there is none, or one is negative or not finite.
    """
    t = np.atleast_1d(np.asarray(t))
    if t.ndim != 1 or t.size == 0 or not (np.isfinite(t) & (t >= 0)).all():
        raise InputError("Times must be a list of finite numbers >= 0, at least one.")
    return np.asarray(t, dtype)


def slope_at(net: LinearNet, point: FunctionSpace, F0: Scalars, target: Scalars, left: Scalars) -> Float[Array, "..."]:
    """The slope at a point of the flow, in the better of two ways.

    The difference of the norms, ``kappa (P - M) / 4``, is exact relative to the kernel, ``F* + (F0 - F*) left`` is so
    relative to the target: one keeps the digits of a tiny slope near the saddle, the other those of a wide network.

    Args:
        net: the network.
        point: P and M.
        F0: slope at the start.
        target: slope F*.
        left: what is left of the residual, `iclr_dynamics.function_space.decay`.
    """
    by_norms, half_kernel = (net.kappa * x / 4 for x in (point.P - point.M, point.P + point.M))
    return jnp.where(half_kernel < jnp.abs(target), by_norms, target + (F0 - target) * left)


_rate, _time = jax.jit(flow_rate), jax.jit(time_to_gap)


@jax.jit
def _norms(net, nhat, u, w):
    return function_space(net, u, w @ nhat)


@partial(jax.jit, static_argnums=1)
def _solve(net, weights, nhat, A, target, floor, u, w, t):
    eta_u, eta_w = net.rates
    a = w @ nhat
    uh, ah = rate_weighted(net, u, a)
    P, M = function_space(net, u, a)
    inv = invariants(net, u, a)
    gain, half = net.flow_constants(A, target)
    c = layer_scale(P, M, gain, half, t)
    left = decay(P, M, gain, half, t)

    F0 = output_slope(net, u, a)
    F = slope_at(net, FunctionSpace(P * c**2, M / c**2), F0, target, left)
    u_norm, a_norm = layer_norms(net, F, inv.Pi, inv.Delta)
    outside = w - a[:, None] * nhat
    # uᵀ w outside the line, at u(t) = sqrt(eta_u) (c p + q / c) / 2.
    p_out, q_out = (uh + ah) @ outside, (uh - ah) @ outside
    u_out = eta_u**0.5 / 2 * (c[:, None] * p_out + q_out / c[:, None])
    product = jnp.sqrt((F / net.gamma) ** 2 + jnp.sum(u_out**2, -1))
    length = u_norm * jnp.sqrt(a_norm**2 + jnp.sum(outside**2))
    excess = net.loss_factor * A * ((F0 - target) * left) ** 2
    us = ws = None
    if weights:
        p, q = c[:, None] * (uh + ah), (uh - ah) / c[:, None]
        us = eta_u**0.5 * (p + q) / 2
        ws = outside + (eta_w**0.5 * (p - q) / 2)[:, :, None] * nhat
    path = Trajectory(
        t=t,
        F=F,
        K=kernel(F, inv.theta, net.kappa),
        zeta=alignment(F, inv.S, net.kappa),
        zeta_w=jnp.sign(F) * product / jnp.where(length > 0, length, 1),
        u_norm=u_norm,
        a_norm=a_norm,
        loss=net.loss_factor * floor + excess,
        excess=excess,
        u=us,
        w=ws,
    )
    return path, P, M


@jax.jit
def _solve_lazy(net, nhat, A, target, floor, u, w, t):
    eta_u, eta_w = net.rates
    a = w @ nhat
    F0 = output_slope(net, u, a)
    K0 = kernel(F0, invariants(net, u, a).theta, net.kappa)
    # The integral of the residual A (F - F*) over time.
    moved = -(F0 - target) * jnp.expm1(-K0 * A * t) / jnp.where(K0 > 0, K0, 1)
    us = u - eta_u * net.gamma * moved[:, None] * a
    active = a - eta_w * net.gamma * moved[:, None] * u
    ws = w + (active - a)[:, :, None] * nhat
    u_norm, a_norm = jnp.linalg.norm(us, axis=-1), jnp.linalg.norm(active, axis=-1)
    w_norm = jnp.linalg.norm(ws, axis=(1, 2))
    inner, inner_w = jnp.sum(us * active, -1), jnp.linalg.norm(jnp.einsum("td,tdk->tk", us, ws), axis=-1)
    zeta = inner / jnp.where(u_norm * a_norm > 0, u_norm * a_norm, 1)
    zeta_w = jnp.sign(inner) * inner_w / jnp.where(u_norm * w_norm > 0, u_norm * w_norm, 1)
    left = (F0 - target) * jnp.exp(-K0 * A * t)
    excess = net.loss_factor * A * left**2
    K = jnp.broadcast_to(K0, t.shape)
    loss = net.loss_factor * floor + excess
    return Trajectory(t, target + left, K, zeta, zeta_w, u_norm, a_norm, loss, excess, us, ws)


def warn_if_stuck(P: float, M: float, target: float, dtype: np.dtype) -> None:
    """Say so where the flow will not reach the target; rounding errors of the layers count as zero."""
    rounding = (8 * float(jnp.finfo(dtype).eps)) ** 2
    if max(P, M) == 0:
        message = f"The start is the saddle (all active weights are 0, squared in {dtype}): it stays at zero for ever."
        warnings.warn(message, RuntimeWarning, 3)
    elif (target < 0 and rounding * P >= M) or (target > 0 and rounding * M >= P):
        message = "The layers start aligned and balanced against the target: the flow cannot reach it, it stops at F=0."
        warnings.warn(message, RuntimeWarning, 3)

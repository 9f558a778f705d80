"""Escape: how fast SAM leaves a minimum that is too sharp for it (Zhou et al., P1 and the escape experiment).

Every step here is a complete step of the optimiser, perturbation and descent. (The official escape script only climbs,
so it measures ascent.)
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np
import optax
from jaxtyping import Array, Float, PyTree

from iclr_dynamics.late_sam.sam import TrainState, make_step, sam
from iclr_shared.errors import InputError


class EscapeCurve(NamedTuple):
    """What happens in the first steps after the switch.

    Args:
        losses: training loss before each step, then after the last one.
        projections: displacement ``w_t - w_0`` along `direction`, at the same times; zeros without a direction.
        params: where the steps ended.
    """

    losses: Float[np.ndarray, " times"]
    projections: Float[np.ndarray, " times"]
    params: PyTree

    def rate(self, initial: float | None = None) -> "Growth":
        """Exponential rate of the loss, before it has left the neighbourhood of the minimum; see `before_limit`.

        Near an interpolating minimum it is ``2 ln |1 - eta h (1 + rho h)|``, the logarithm of `stability.usam_factor`.

        Args:
            initial: loss at the start of training.
        """
        return exponential_growth(self.losses[: before_limit(self.losses, initial)])


class Growth(NamedTuple):
    """An exponential fit: `rate` is the slope of the logarithm per step, over steps `first` to `last`; `r2` of it."""

    rate: float
    first: int
    last: int
    r2: float


def escape_curve(
    loss: Callable[..., Array],
    params: PyTree,
    *batch: Any,
    eta: float,
    rho: float,
    steps: int = 50,
    adaptive: bool = False,
    normalize: bool = False,
    direction: PyTree | None = None,
) -> EscapeCurve:
    """Full-batch steps of the SAM family from given weights; USAM by default, plain gradient descent with ``rho=0``.

    Args:
        loss: ``loss(params, *batch) -> scalar``.
        params: weights at the switch.
        batch: the data, on every step.
        eta: learning rate (official escape script: 0.001).
        rho: radius.
        steps: how many (official: 50).
        adaptive, normalize: which member of the family, see `sam.sam`.
        direction: unit vector as a pytree like `params`, such as the Hessian's top eigenvector.
    """
    if steps < 1:
        raise InputError(f"steps={steps}: an escape curve needs at least one step.")
    direction = jax.tree.map(np.zeros_like, params) if direction is None else direction
    losses, projections, params = _curve(loss, steps, float(rho), adaptive, normalize, params, eta, direction, *batch)
    return EscapeCurve(np.asarray(losses), np.asarray(projections), params)


@partial(jax.jit, static_argnums=(0, 1, 2, 3, 4))
def _curve(loss, steps, rho, adaptive, normalize, params, eta, direction, *batch):
    optimizer = sam(optax.sgd(eta), rho, adaptive, normalize)
    step = make_step(lambda params, extra, batch, key: (loss(params, *batch), (extra, None)), optimizer)

    def projection(now):
        return optax.tree.vdot(optax.tree.sub(now, params), direction)

    def body(state, _):
        here = projection(state.params)
        state, (value, _) = step(state, batch, None)
        return state, (value, here)

    state, (losses, projections) = jax.lax.scan(body, TrainState(params, (), optimizer.init(params)), length=steps)
    last = loss(state.params, *batch), projection(state.params)
    append = jax.numpy.append
    return append(losses, last[0]), append(projections, last[1]), state.params


def before_limit(losses: Float[np.ndarray, " times"], initial: float | None = None) -> int:
    """How many times of an escape curve are in its exponential phase at most: before the loss exceeds 100 times its
    start, or a tenth of the loss `initial` at the start of training, whichever comes last."""
    limit = 100 * losses[0] if initial is None else max(100 * losses[0], 0.1 * initial)
    beyond = np.flatnonzero(~(losses <= limit))
    return int(beyond[0]) if beyond.size else len(losses)


def exponential_growth(values: Any, r2: float = 0.95, shortest: int = 5) -> Growth:
    """The exponential rate of a positive series: a line through its logarithm over the longest window that fits.

    Args:
        values: one a step; losses, or absolute projections.
        r2: share of variance that the line has to explain.
        shortest: fewest values in a window.

    Returns:
        The longest window (of equally long ones, the one of best fit); all NaN with ``r2`` 0 where none fits.
    """
    values = np.asarray(values, float)
    best = Growth(float("nan"), 0, 0, 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.log(np.abs(values))
    for first in range(len(logs) - shortest + 1):
        for last in range(first + shortest - 1, len(logs)):
            part = logs[first : last + 1]
            if not np.isfinite(part).all():
                break
            slope, fit = _line(part)
            length, longest = last - first, best.last - best.first
            if fit > r2 and (length > longest or (length == longest and fit > best.r2)):
                best = Growth(slope, first, last, fit)
    return best


def _line(logs: np.ndarray) -> tuple[float, float]:
    times = np.arange(len(logs)) - (len(logs) - 1) / 2
    centred = logs - logs.mean()
    slope = times @ centred / (times @ times)
    total = centred @ centred
    return float(slope), float(slope**2 * (times @ times) / total) if total > 0 else 1.0

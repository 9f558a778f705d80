"""Linear mode connectivity: whether two trained models lie in one valley (Zhou et al., section 4.1)."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from iclr_dynamics.late_sam.objective import Model
from iclr_shared.errors import InputError


class Path(NamedTuple):
    """Losses along the straight line between two models.

    Args:
        alphas: positions, 0 at the first model and 1 at the second.
        losses: at these positions.
        ends: losses of the two models.
        barrier: how far the losses at positions in [0, 1] rise above the line between `ends`, at least 0.
    """

    alphas: Float[np.ndarray, " points"]
    losses: Float[np.ndarray, " points"]
    ends: tuple[float, float]
    barrier: float

    def same_valley(self, tolerance: float = 0.01, scale: float = 1.0) -> bool:
        """Whether the barrier is at most `tolerance` times `scale`, a typical loss such as that at the start."""
        return self.barrier <= tolerance * abs(scale)


@jax.jit
def interpolate(first: PyTree, second: PyTree, alpha: Any) -> PyTree:
    """``(1 - alpha) first + alpha second``, leaf by leaf; running statistics are interpolated with the weights."""
    return jax.tree.map(lambda a, b: (1 - alpha) * a + alpha * b, first, second)


def linear_mode_connectivity(
    first: PyTree, second: PyTree, evaluate: Callable[[PyTree], Any], alphas: Any = None
) -> Path:
    """Losses on ``(1 - alpha) first + alpha second``.

    Args:
        first, second: two models as pytrees of one structure: weights, or weights with running statistics.
        evaluate: ``evaluate(model) -> scalar``: the loss on some data; called once for each position, so jit it.
            `with_batch_norm` makes one that re-estimates batch normalisation first.
        alphas: positions; None takes the official ``linspace(-0.2, 1.2, 40)``.

    Raises:
        InputError: if the two models differ in structure or shapes.
    """
    shapes = [jax.tree.map(jnp.shape, model) for model in (first, second)]
    if shapes[0] != shapes[1]:
        raise InputError(
            "The two models differ in structure or shapes; only models of one architecture can be connected."
        )
    alphas = np.linspace(-0.2, 1.2, 40) if alphas is None else np.asarray(alphas, float)
    ends = float(evaluate(first)), float(evaluate(second))
    losses = np.array([float(evaluate(interpolate(first, second, float(alpha)))) for alpha in alphas])
    line = (1 - alphas) * ends[0] + alphas * ends[1]
    between = (alphas >= 0) & (alphas <= 1)
    barrier = float(np.max((losses - line)[between], initial=0.0))
    return Path(alphas, losses, ends, barrier)


def reestimate_batch_norm(model: Model, params: PyTree, extra: PyTree, batches: Iterable[Array]) -> PyTree:
    """Running statistics of batch normalisation for `params`: the plain mean of the batches' own statistics.

    A running update is ``new = m old + (1 - m) batch``. Starting it once from 0 and once from 1 gives m, and so the
    batch's statistics, without asking the model for its m.

    Args:
        model: the network.
        params: weights.
        extra: running statistics of the right structure; their values do not matter.
        batches: training inputs, several.

    Returns:
        A pytree like `extra`.
    """
    if not jax.tree.leaves(extra):
        return extra
    total, count = None, 0
    for inputs in batches:
        statistics = _batch_statistics(model, params, extra, inputs)
        total = statistics if total is None else jax.tree.map(jnp.add, total, statistics)
        count += 1
    if not count:
        raise InputError("No batches were given to re-estimate batch normalisation from.")
    return jax.tree.map(lambda leaf: leaf / count, total)


@partial(jax.jit, static_argnums=0)
def _batch_statistics(model, params, extra, inputs):
    zeros, ones = jax.tree.map(jnp.zeros_like, extra), jax.tree.map(jnp.ones_like, extra)
    from_zero = model.apply(params, zeros, inputs, True, None)[1]
    from_one = model.apply(params, ones, inputs, True, None)[1]
    return jax.tree.map(lambda low, high: low / (1 - (high - low)), from_zero, from_one)


def with_batch_norm(
    model: Model, loss: Callable[..., Any], batches: list[Array]
) -> Callable[[tuple[PyTree, PyTree]], Any]:
    """An `evaluate` for `linear_mode_connectivity` on ``(params, extra)`` that re-estimates batch normalisation.

    Args:
        model: the network.
        loss: ``loss(params, extra) -> scalar``.
        batches: training inputs.
    """

    def evaluate(pair):
        params, extra = pair
        return loss(params, reestimate_batch_norm(model, params, extra, batches))

    return evaluate

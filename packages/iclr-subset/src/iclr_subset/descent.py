"""The whole search as one compiled JAX loop, for costs that JAX can trace: sweeps over seeds and step lengths by
vmap."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from iclr_shared.errors import InputError
from iclr_subset.distributions import ExactK, ExpectedK, membership
from iclr_subset.mirror import mirror_step
from iclr_subset.optimizer import STEEPEST, Settings


class Trace(NamedTuple):
    """What a compiled search leaves.

    Args:
        w: last weights, shape (n,).
        best: membership of the best subset seen, shape (n,).
        best_cost: its cost.
        mean_cost: of each step's batch, shape (steps,).
        watched: what `watch` gave of the weights before each step, shape (steps, ...).
    """

    w: Array
    best: Array
    best_cost: Array
    mean_cost: Array
    watched: Any


def descend(
    cost: Callable[[Array, Array], Array],
    key: Key[Array, ""],
    settings: Settings,
    eta: Any = None,
    watch: Callable[[Array, Any], Any] = lambda w, step: (),
    dtype: Any = None,
) -> Trace:
    """`settings.steps` steps; jit and vmap it. One for one what `SubsetOptimizer` does, without normalisation.

    Args:
        cost: ``cost(member, key)``, membership (n,) and a key to a scalar; traceable.
        key: of everything random.
        settings: the batch must be constant.
        eta: step length, which may be traced; None is the settings' schedule.
        watch: of the weights and ``step(gradient)``, the mirror step that a gradient would bring; say the exact one.
        dtype: of the weights; None is JAX's default.

    Raises:
        InputError: if the settings normalise or let the batch grow.
    """
    s = settings
    if s.normalise or s.batch.exponent:
        raise InputError("The compiled loop has a constant batch and no normalisation; use SubsetOptimizer.")
    exact, size = s.method == "exact", int(s.batch.scale)
    dtype = jnp.zeros(()).dtype if dtype is None else dtype
    total = 1.0 if exact else s.k
    k = None if exact else s.k

    def step(carry, t):
        w, b, best, best_cost, key = carry
        key, draw, pay = jax.random.split(key, 3)
        law = ExactK(w, int(s.k)) if exact else ExpectedK(w)
        drawn = law.sample(draw, size)
        members = membership(w, drawn) if exact else drawn
        costs = jax.vmap(cost)(members, jax.random.split(pay, size)).astype(dtype)
        if s.baseline == "leave-one-out":
            weighted = costs - (costs.sum() - costs) / (size - 1)
        else:
            weighted = costs - (b if s.baseline == "ema" else 0.0)
        length = s.eta(t) if eta is None else eta
        gradient = weighted @ law.score(drawn, s.score) / size

        def move(g):
            return mirror_step(w, g, length, s.geometry, s.c, k).w

        if s.geometry != "euclidean":
            gradient = jnp.clip(gradient, -STEEPEST / length, STEEPEST / length)
        i = jnp.argmin(costs)
        better = costs[i] < best_cost
        best = jnp.where(better, members[i], best)
        best_cost = jnp.where(better, costs[i], best_cost)
        moved = move(gradient)
        seen = watch(w, move)
        return (moved, b + s.rate * (costs.mean() - b), best, best_cost, key), (costs.mean(), seen)

    start = (
        jnp.full(s.n, total / s.n, dtype), jnp.zeros((), dtype), jnp.zeros(s.n, bool), jnp.asarray(jnp.inf, dtype), key
    )  # fmt: skip
    (w, _, best, best_cost, _), (mean_cost, watched) = jax.lax.scan(step, start, jnp.arange(s.steps))
    return Trace(w, best, best_cost, mean_cost, watched)


def descend_many(
    cost: Callable[[Array, Array], Array], seeds: int, seed: int, settings: Settings, **options: Any
) -> Trace:
    """`descend` from several seeds at once, compiled; every field gets a leading axis (seeds,)."""
    keys = jax.random.split(jax.random.key(seed), seeds)
    return jax.jit(jax.vmap(partial(_run, cost, settings, options)))(keys)


def _run(cost, settings, options, key):
    return descend(cost, key, settings, **options)


def exact_gradient(
    costs: Float[Array | np.ndarray, " subsets"], subsets: Any, w: Float[Array, " n"]
) -> Float[Array, " n"]:
    """Gradient of formulation A's expected cost by enumeration, ``sum_C P_w(C) l(C) grad log P_w(C)``.

    Args:
        costs: of all subsets.
        subsets: their indices, shape (subsets, k).
        w: weights.
    """
    law = ExactK(w, subsets.shape[1])
    return (jnp.exp(law.log_prob(subsets)) * costs) @ law.score(subsets, "set")

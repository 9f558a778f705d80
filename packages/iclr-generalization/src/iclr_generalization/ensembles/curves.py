"""Losses against the number of members, for squared losses exactly and for any other by sampling subsets."""

import itertools
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Shaped

from iclr_generalization.ensembles.decomposition import decompose
from iclr_generalization.ensembles.predictions import Kind, chunks
from iclr_shared.errors import InputError

#: Subsets of each size that are drawn where there are more.
SAMPLES = 200


def squared(f: Float[Array, "*n C"], y: Float[Array, "*n C"]) -> Float[Array, "*n"]:
    """Brier score or squared error, ``sum_c (f_c - y_c)^2``."""
    return jnp.square(f - y).sum(-1)


def nll(f: Float[Array, "*n C"], y: Float[Array, "*n C"]) -> Float[Array, "*n"]:
    """Negative log-likelihood of the averaged probabilities, clipped at 1e-12."""
    return -jnp.log(jnp.clip((f * y).sum(-1), 1e-12))


def error(f: Float[Array, "*n C"], y: Float[Array, "*n C"]) -> Float[Array, "*n"]:
    """Zero-one error of the largest output."""
    return (f.argmax(-1) != y.argmax(-1)).astype(f.dtype)


def welsch(f: Float[Array, "*n C"], y: Float[Array, "*n C"], scale: float = 1.0) -> Float[Array, "*n"]:
    """Welsch loss ``1 - exp(-|f - y|^2 / (2 s^2))``: bounded, smooth, not convex."""
    return 1 - jnp.exp(-squared(f, y) / (2 * scale**2))


#: Loss of each point by name. ``brier`` and ``mse`` are the same sum over outputs.
METRICS: dict[str, Callable[..., Float[Array, "*n"]]] = {
    "brier": squared,
    "mse": squared,
    "nll": nll,
    "error": error,
    "welsch": welsch,
}


def metric_function(metric: str, kind: Kind = "probabilities") -> Callable[..., Float[Array, "*n"]]:
    """The loss of a point by name.

    Raises:
        InputError: with the known names; for a metric of classes where the outputs are values.
    """
    if kind == "values" and metric in ("nll", "error"):
        raise InputError(f"The metric {metric} is one of classes; for regression there are mse and welsch.")
    if metric not in METRICS:
        raise InputError(f"Unknown metric {metric!r}. Choose one of: {', '.join(METRICS)}.")
    return METRICS[metric]


def loss_curve(
    preds: Shaped[np.ndarray, "K n C"],
    y: Shaped[np.ndarray, "..."],
    metric: str = "brier",
    sizes: Sequence[int] | None = None,
    mode: Literal["all", "sampled"] = "all",
    rng: np.random.Generator | None = None,
    kind: Kind = "probabilities",
) -> Float[np.ndarray, " M"]:
    """Mean loss of the ensembles that subsets of the members form, for each size.

    Args:
        preds: shape (K, n, C).
        y: labels, see `predictions.targets`.
        metric: a key of `METRICS`.
        sizes: ensemble sizes M, 1 <= M <= K; None is 1..K.
        mode: ``"all"`` is the mean over all subsets: from the Gram matrix for squared losses, else by enumeration where
            a size has at most `SAMPLES` subsets and by `SAMPLES` random ones where it has more. ``"sampled"`` takes
            nested prefixes of `SAMPLES` random orders for every metric.
        rng: for the random subsets; None is seeded with 0. The spread over them is no confidence interval, since the
            members are always the same.
        kind: ``"values"`` for regression.

    Returns:
        One loss for each size.

    Raises:
        InputError: if a size is out of range or the metric is unknown.
    """
    K, n, _ = preds.shape
    sizes = list(range(1, K + 1)) if sizes is None else list(sizes)
    if not sizes or min(sizes) < 1 or max(sizes) > K:
        raise InputError(f"Ensemble sizes must lie in 1..{K}, the number of members, got {sizes}.")
    point_loss = metric_function(metric, kind)
    if mode == "all" and point_loss is squared:
        return np.asarray(decompose(preds, y, kind).law.loss(np.array(sizes, dtype=float)))
    rng = np.random.default_rng(0) if rng is None else rng
    orders = rng.permuted(np.tile(np.arange(K), (SAMPLES, 1)), axis=1)
    weights = [_weights(K, _subsets(K, size, orders)) for size in sizes]
    ends = np.cumsum([len(w) for w in weights])[:-1]
    total = np.zeros(len(sizes))
    with jax.enable_x64(True):
        for part, truth, _ in chunks(preds, y, kind):
            if mode == "sampled":
                total += np.asarray(_prefix_losses(point_loss, part, truth, orders).mean(0))[np.array(sizes) - 1]
            else:
                sums = np.asarray(_subset_losses(point_loss, part, truth, np.concatenate(weights)))
                total += [group.mean() for group in np.split(sums, ends)]
    return total / n


def _subsets(K: int, size: int, orders: np.ndarray) -> np.ndarray:
    """Indices of subsets, shape (S, size): all of them where they are few, else the beginnings of random orders."""
    if math.comb(K, size) <= SAMPLES:
        return np.array(list(itertools.combinations(range(K), size)))
    return orders[:, :size]


def _weights(K: int, subsets: np.ndarray) -> np.ndarray:
    weights = np.zeros((len(subsets), K))
    np.put_along_axis(weights, subsets, 1 / subsets.shape[1], axis=1)
    return weights


@partial(jax.jit, static_argnums=0)
def _subset_losses(point_loss, preds, truth, weights):
    """Summed loss of each weighted mean of the members; weights (S, K). One subset at a time: memory stays at n C."""
    return jax.lax.map(lambda w: point_loss(jnp.einsum("k,knc->nc", w, preds), truth).sum(), weights)


@partial(jax.jit, static_argnums=0)
def _prefix_losses(point_loss, preds, truth, orders):
    """Summed loss of the first 1, 2, ..., K members in each order; orders (S, K), result (S, K)."""

    def along(order):
        def add(total, member):
            count, mean = total
            mean = mean + (preds[member] - mean) / (count + 1)
            return (count + 1, mean), point_loss(mean, truth).sum()

        return jax.lax.scan(add, (0.0, jnp.zeros_like(preds[0])), order)[1]

    return jax.lax.map(along, orders)

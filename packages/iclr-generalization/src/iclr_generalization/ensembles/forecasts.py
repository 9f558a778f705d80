"""Foresee the loss of larger ensembles from the members at hand, with error bars over points and over members."""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Shaped

from iclr_generalization.ensembles.curves import METRICS, loss_curve, metric_function, squared
from iclr_generalization.ensembles.decomposition import decompose, warn_of_outliers
from iclr_generalization.ensembles.predictions import Kind, chunks, combine, targets
from iclr_shared.errors import InputError

#: Gaussian draws for each point in the forecast of the zero-one error.
DRAWS = 256


@dataclass(frozen=True)
class Forecast:
    """Forecast of one metric.

    Args:
        sizes: ensemble sizes M.
        loss: forecast for each.
        over_points: standard error due to the finite number of points.
        over_members: standard error due to the few members (jackknife); NaN with two members, which cannot tell.
        limit: forecast for infinitely many members; may be negative for a squared loss, whose estimate is unbiased.
        metric: what was forecast.
    """

    sizes: Float[np.ndarray, " M"]
    loss: Float[np.ndarray, " M"]
    over_points: Float[np.ndarray, " M"]
    over_members: Float[np.ndarray, " M"]
    limit: float
    metric: str

    @property
    def std(self) -> Float[np.ndarray, " M"]:
        """Both errors in quadrature; with two members that over points alone, which is too small."""
        return np.hypot(self.over_points, np.nan_to_num(self.over_members))

    def required_members(self, target: float, largest: int = 10**6) -> int | None:
        """The smallest of `sizes` whose forecast meets `target`, or None. For squared losses see `Law`."""
        met = [int(m) for m, loss in zip(self.sizes, self.loss, strict=True) if loss <= target and m <= largest]
        return min(met, default=None)


def forecast(
    preds: Shaped[np.ndarray, "K n C"],
    y: Shaped[np.ndarray, "..."],
    sizes: Sequence[float],
    metric: str = "brier",
    kind: Kind = "probabilities",
    rng: np.random.Generator | None = None,
) -> Forecast:
    """Forecast a metric for ensembles of other sizes than the K members at hand.

    Squared losses follow ``X + (L_1 - X)/M`` with unbiased estimates (exact within the sample). Smooth losses are
    fitted by ``a + b/M``, with a term ``c/M^2`` where four members or more show it beyond two standard errors. The
    zero-one error comes from the normal approximation of each point's outputs, see `error_forecast`.

    Args:
        preds: shape (K, n, C).
        y: labels, see `predictions.targets`.
        sizes: numbers of members to forecast, at least 1.
        metric: ``brier``, ``mse``, ``nll``, ``welsch`` or ``error``.
        kind: ``"values"`` for regression.
        rng: for the Gaussian draws of the zero-one error; None is seeded with 0.

    Raises:
        InputError: for a bad size or metric; as `decompose` for bad predictions.
    """
    sizes = np.asarray(sizes, dtype=float)
    if sizes.ndim != 1 or not len(sizes) or sizes.min() < 1:
        raise InputError(f"Ensemble sizes must be at least 1, got {sizes.tolist()}.")
    point_loss = metric_function(metric, kind)
    seed = int((np.random.default_rng(0) if rng is None else rng).integers(2**31))
    K = len(preds)
    if K < 2:
        raise InputError(f"A forecast needs at least 2 members, got {K}.")
    parts = decompose(preds, y, kind)
    warn_of_outliers(parts.member_losses)
    if point_loss is squared:
        law = parts.law
        per_point = parts.cross + (parts.single - parts.cross) / sizes[:, None]
        left_out = [parts.without(j).loss(sizes) for j in range(K)] if K > 2 else []
        return _with_bars(sizes, law.loss(sizes), per_point, left_out, law.limit, metric)
    estimate = partial(_error_points, seed=seed) if metric == "error" else partial(_fitted_points, metric=metric)
    asked = np.append(sizes, np.inf)
    per_point = estimate(preds, y, asked, kind=kind)
    left_out = []
    if K > 2:
        left_out = [estimate(np.delete(preds, j, 0), y, asked, kind=kind).mean(1)[:-1] for j in range(K)]
    values = per_point.mean(1)
    return _with_bars(sizes, values[:-1], per_point[:-1], left_out, float(values[-1]), metric)


def error_forecast(
    preds: Shaped[np.ndarray, "K n C"],
    y: Shaped[np.ndarray, "..."],
    sizes: Sequence[float],
    kind: Kind = "probabilities",
    rng: np.random.Generator | None = None,
) -> Float[np.ndarray, " M"]:
    """Zero-one error of larger ensembles: each point's averaged outputs as Gaussians around the members' mean.

    The ensemble of M at a point is ``N(mu, S/M)`` where mu itself is known up to ``S/K``; both levels together are one
    draw of ``N(mean, S (1/K + 1/M))``. S is the members' covariance, shrunk by a fifth to a multiple of the identity
    (below four members its diagonal alone). Points whose mean margin is negative get worse with M.

    Returns:
        Error for each size.
    """
    seed = int((np.random.default_rng(0) if rng is None else rng).integers(2**31))
    return _error_points(preds, y, np.asarray(sizes, dtype=float), kind=kind, seed=seed).mean(1)


def binary_error(
    margin: Float[np.ndarray, "*n"] | float,
    sd: Float[np.ndarray, "*n"] | float,
    members: Shaped[np.ndarray, "*n"] | float,
) -> Float[np.ndarray, "*n"] | float:
    """Two classes: the error ``Phi(-sqrt(M) margin / sd)`` of M members whose margins have this mean and deviation."""
    from scipy.stats import norm

    return norm.cdf(-np.sqrt(members) * np.asarray(margin) / np.asarray(sd))


def _with_bars(sizes, loss, per_point, left_out, limit, metric) -> Forecast:
    # The ideal bootstrap (infinitely many resamples) of a mean over n points has this standard error exactly.
    over_points = per_point.std(1) / np.sqrt(per_point.shape[1])
    over_members = np.full(len(sizes), np.nan)
    if left_out:
        K = len(left_out)
        over_members = np.sqrt((K - 1) / K * np.square(left_out - np.mean(left_out, 0)).sum(0))
    else:
        warnings.warn("With two members the error bars leave out the spread over members.", stacklevel=3)
    return Forecast(sizes, np.asarray(loss), over_points, over_members, float(limit), metric)


def _fitted_points(preds, y, sizes, *, metric, kind) -> Float[np.ndarray, "M n"]:
    """The fit of ``a + b/M (+ c/M^2)`` to the curve, spread over points: the shape of M comes from the fitted means."""
    K, n, C = preds.shape
    known = np.arange(1, K + 1, dtype=float)
    observed = loss_curve(preds, y, metric, kind=kind)
    fitted = _fit(known, observed, K)(sizes)
    with jax.enable_x64(True):
        whole = METRICS[metric](jnp.asarray(combine(preds)), jnp.asarray(targets(y, n, C, kind)))
    return fitted[:, None] + np.asarray(whole) - np.asarray(whole).mean()


def _fit(known: np.ndarray, observed: np.ndarray, K: int) -> Callable[[np.ndarray], np.ndarray]:
    """Weighted least squares in powers of 1/M, weights M."""

    def powers(members, degree):
        return np.stack([members**-k for k in range(degree + 1)], -1)

    def solve(degree):
        design, weight = powers(known, degree), np.sqrt(known)[:, None]
        return np.linalg.lstsq(design * weight, observed * weight[:, 0], rcond=None)[0]

    coefficients = solve(1)
    if K >= 4:
        longer = solve(2)
        design = powers(known, 2)
        rest = observed - design @ longer
        scale = (known * rest**2).sum() / (K - 3)
        covariance = scale * np.linalg.inv(design.T @ (known[:, None] * design))
        if abs(longer[2]) > 2 * np.sqrt(covariance[2, 2]):
            coefficients = longer
    return lambda members: powers(members, len(coefficients) - 1) @ coefficients


def _error_points(preds, y, sizes, *, kind, seed) -> Float[np.ndarray, "M n"]:
    K, n, _ = preds.shape
    errors = np.empty((len(sizes), n))
    with jax.enable_x64(True):
        for number, (part, truth, place) in enumerate(chunks(preds, y, kind)):
            key = jax.random.fold_in(jax.random.key(seed), number)
            for row, m in zip(errors, sizes, strict=True):
                row[place] = _gaussian_errors(part, truth.argmax(1), 1 / K + 1 / m, key, K < 4)
    return errors


@partial(jax.jit, static_argnums=4)
def _gaussian_errors(
    preds: Float[Array, "K n C"], truth: Shaped[Array, " n"], factor: Float[Array, ""], key: Array, diagonal: bool
) -> Float[Array, " n"]:
    """Chance that the largest output of ``N(mean, factor S)`` is not the label, from `DRAWS` draws.

    No matrix is factored: ``sum_m z_m (f_m - mean) / sqrt(K - 1)`` with standard normal z has covariance S.
    """
    K = len(preds)
    mean = preds.mean(0)
    apart = preds - mean
    variance = jnp.square(apart).sum(0) / (K - 1)

    def draw(key):
        over_members, over_outputs = jax.random.split(key)
        z = jax.random.normal(over_outputs, mean.shape, mean.dtype)
        if diagonal:
            noise = jnp.sqrt(variance) * z
        else:
            weights = jax.random.normal(over_members, (K, mean.shape[0]), mean.dtype)
            noise = jnp.sqrt(0.8 / (K - 1)) * jnp.einsum("kn,knc->nc", weights, apart)
            noise = noise + jnp.sqrt(0.2 * variance.mean(-1, keepdims=True)) * z
        return (mean + jnp.sqrt(factor) * noise).argmax(-1) != truth

    return jax.lax.map(draw, jax.random.split(key, DRAWS)).mean(0, dtype=mean.dtype)

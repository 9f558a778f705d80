"""Losses of least squares on random features, in closed form, and the sample sizes that follow from them."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from iclr_shared.errors import InputError


def test_loss(
    P: ArrayLike,
    p: ArrayLike,
    n: ArrayLike,
    noise: ArrayLike = 0.0,  # noqa: PT028 - no test
) -> Float[np.ndarray, "..."] | np.float64:
    """Expected test loss of least squares (of minimum norm) on p of P Gaussian features, from n samples.

    The target is ``w . phi`` with ``E w w^T = I/P`` (unit signal) plus noise. What the model cannot see acts as noise,
    ``r = 1 - p/P + noise``, and so

        p < n - 1:  r (1 + p / (n - p - 1))
        p > n + 1:  r (1 + n / (p - n - 1)) + (p/P) (1 - n/p)
        otherwise:  infinite, the peak at the interpolation threshold
        r = 0:      max(0, 1 - n/P), which has no peak.

    Args:
        P: features of the target.
        p: features the model sees, at most P.
        n: samples.
        noise: variance of the labels' noise, over that of the signal; test labels are as noisy as the others.

    Returns:
        Squared error, relative to the signal's variance; arrays broadcast.

    Raises:
        InputError: unless 1 <= p <= P, n >= 0 and noise >= 0.

    References:
        Boopathy et al., ICLR 2025, linear theory (rederived; specification of this package, equation in section 2.2).
    """
    P, p, n, noise = _checked(P, p, n, noise)
    unseen = 1 - p / P + noise
    with np.errstate(divide="ignore", invalid="ignore"):
        under = unseen * (1 + p / (n - p - 1))
        over = unseen * (1 + n / (p - n - 1)) + p / P * (1 - n / p)
    peak = np.where(unseen > 0, np.inf, np.maximum(0.0, 1 - n / P))
    return np.where(p < n - 1, under, np.where(p > n + 1, over, peak))[()]


test_loss.__test__ = False  # no test, though pytest would collect a name like this


def train_loss(
    P: ArrayLike, p: ArrayLike, n: ArrayLike, noise: ArrayLike = 0.0
) -> Float[np.ndarray, "..."] | np.float64:
    """Expected training loss of the same model: ``(1 - p/P + noise) (1 - p/n)`` for p < n, and 0 from there on.

    Args:
        P, p, n, noise: as in `test_loss`, but n >= 1.
    """
    P, p, n, noise = _checked(P, p, n, noise)
    if np.any(n < 1):
        raise InputError("A training loss needs n >= 1 samples.")
    return ((1 - p / P + noise) * np.maximum(0.0, 1 - p / n))[()]


def features(m: int | None = None, *, modules: int | None = None, b: int | None = None, C: float = 3.0) -> float:
    """Features that a target needs: C^m for a function of m dimensions, K C^b for a sum of K functions of b.

    Args:
        m: input dimension of a target without modules.
        modules: K, number of modules; give this and `b` instead of `m`.
        b: dimension of each module's input.
        C: features for each dimension; 3 is this package's choice.

    Raises:
        InputError: unless either `m`, or `modules` and `b`, are given, all of them at least 1, and C > 1.
    """
    if (m is None) == (modules is None) or (modules is None) != (b is None):
        raise InputError("Give either the dimension m, or both the number of modules and their dimension b.")
    if min(value for value in (m, modules, b) if value is not None) < 1 or not 1 < C < np.inf:
        raise InputError(
            f"Dimensions and modules must be at least 1, C above 1 and finite; got {m=}, {modules=}, {b=}, {C=}."
        )
    try:
        return float(C) ** m if m is not None else modules * float(C) ** b
    except OverflowError:
        raise InputError(f"{C:g} features for each of {m or b} dimensions are more than a number can hold.") from None


def sample_complexity(
    m: int | None = None,
    *,
    modules: int | None = None,
    b: int | None = None,
    C: float = 3.0,
    eps: float = 0.1,
    noise: float = 0.0,
) -> float:
    """Samples that bring the test loss of a full model (p = P) down to eps: (1 - eps) P without noise.

    Exponential in m for a monolithic network, and independent of m for a modular one whose projections are known. With
    noise there are two ways there: below the peak at n = P, or beyond it; the smaller n is returned.

    Args:
        m, modules, b, C: as in `features`.
        eps: wanted loss, relative to the signal's variance, in (0, 1).
        noise: variance of the labels' noise; part of the loss, so eps must exceed it.

    Raises:
        InputError: for eps outside (noise, 1).
    """
    P = features(m, modules=modules, b=b, C=C)
    if not 0 <= noise < eps < 1:
        raise InputError(f"eps must lie between the noise ({noise:g}) and 1, got {eps:g}.")
    if noise == 0:
        return (1 - eps) * P
    # Below the peak: 1 + noise - eps - n/P + noise n/(P - n - 1) = 0, times P (P - n - 1): a quadratic in n.
    level = 1 + noise - eps
    roots = np.roots([1.0, -(level * P + P - 1 - noise * P), level * P * (P - 1)])
    below = [float(r.real) for r in roots if abs(r.imag) < 1e-12 * P and 0 < r.real < P - 1]
    beyond = P + 1 + noise * P / (eps - noise)
    return min([*below, beyond])


@dataclass(frozen=True)
class Simulation:
    """Losses of repeated draws, each of shape (repeats,)."""

    train: Float[np.ndarray, " repeats"]
    test: Float[np.ndarray, " repeats"]


def simulate(P: int, p: int, n: int, rng: np.random.Generator, *, repeats: int = 300, noise: float = 0.0) -> Simulation:
    """Least squares of minimum norm on Gaussian features, drawn afresh `repeats` times.

    The test loss is exact given the draw: ``|w - w_hat|² + noise``, because the features are orthonormal.

    Args:
        P, p, n, noise: integers and variance as in `test_loss`.
        rng: generator.
        repeats: draws of target, features and noise.
    """
    _checked(P, p, n, noise)
    train, test = np.empty(repeats), np.empty(repeats)
    size = max(1, 2**25 // (8 * n * P))  # draws at once, so that features take at most 32 MiB
    for start in range(0, repeats, size):
        draws = min(size, repeats - start)
        phi = rng.normal(size=(draws, n, P))
        w = rng.normal(size=(draws, P, 1)) / np.sqrt(P)
        y = phi @ w + np.sqrt(noise) * rng.normal(size=(draws, n, 1))
        seen = phi[:, :, :p]
        fitted = np.linalg.pinv(seen) @ y
        train[start : start + draws] = np.square(seen @ fitted - y).mean((1, 2))
        missed = np.square(w[:, :p] - fitted).sum((1, 2)) + np.square(w[:, p:]).sum((1, 2))
        test[start : start + draws] = missed + noise
    return Simulation(train, test)


def _checked(*values: ArrayLike) -> tuple[np.ndarray, ...]:
    P, p, n, noise = (np.asarray(value, dtype=np.float64) for value in values)
    for holds, assumption in (
        (p >= 1, "the model sees at least one feature, p >= 1"),
        (p <= P, "the model's features are among the target's, p <= P"),
        (n >= 0, "n >= 0"),
        (noise >= 0, "the noise is a variance, noise >= 0"),
    ):
        if not np.all(holds):
            raise InputError(f"The theory assumes that {assumption}; got P={P}, p={p}, n={n}, noise={noise}.")
    return P, p, n, noise

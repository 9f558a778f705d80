"""Dictionaries of orthonormal features on the cube [-1, 1]^m: all products over coordinates, or over modules alone."""

from collections.abc import Callable

import numpy as np
from jaxtyping import Float

from iclr_shared.errors import InputError

Dictionary = Callable[[Float[np.ndarray, "n m"]], Float[np.ndarray, "n P"]]


def grid_features(t: Float[np.ndarray, " n"], C: int = 3) -> Float[np.ndarray, "n C"]:
    """The first C of ``1, sqrt2 cos(pi t), sqrt2 sin(pi t), sqrt2 cos(2 pi t), ...``: orthonormal for uniform t.

    Args:
        t: one coordinate in [-1, 1], shape (n,).
        C: features for each dimension.
    """
    angles = np.pi * t[:, None] * np.arange(1, C // 2 + 1)
    waves = np.sqrt(2) * np.stack([np.cos(angles), np.sin(angles)], 2).reshape(len(t), -1)
    return np.concatenate([np.ones((len(t), 1)), waves], 1)[:, :C]


def monolithic_features(x: Float[np.ndarray, "n m"], C: int = 3) -> Float[np.ndarray, "n P"]:
    """All products over the m coordinates: P = C^m features; the first is constant.

    Args:
        x: uniform on the cube, shape (n, m).
        C: features for each dimension.
    """
    products = np.ones((len(x), 1))
    for column in x.T:
        products = (products[:, :, None] * grid_features(column, C)[:, None, :]).reshape(len(x), -1)
    return products


def modular_features(x: Float[np.ndarray, "n m"], modules: int, b: int, C: int = 3) -> Float[np.ndarray, "n P"]:
    """Products within K blocks of b coordinates, the constant kept once: P = K (C^b - 1) + 1 features.

    Args:
        x: uniform on the cube, shape (n, m); module k reads coordinates k b to (k + 1) b - 1.
        modules: K.
        b: coordinates of each module.
        C: features for each dimension.

    Raises:
        InputError: if the modules need more than m coordinates.
    """
    if modules * b > x.shape[1]:
        raise InputError(f"{modules} modules of {b} coordinates need {modules * b} of them, got {x.shape[1]}.")
    blocks = [monolithic_features(x[:, k * b : (k + 1) * b], C)[:, 1:] for k in range(modules)]
    return np.concatenate([np.ones((len(x), 1)), *blocks], 1)


def interpolation_error(
    learner: Dictionary, target: Dictionary, m: int, n: int, rng: np.random.Generator, repeats: int = 50
) -> float:
    """Mean test loss of least squares of minimum norm from n samples of random targets in a dictionary.

    Args:
        learner: the features that are fitted. Where it is the target's own, the loss is exact given the sample
            (``|w - w_hat|²``); otherwise it is measured on 2,000 fresh points.
        target: the features, P' of them, that make the target, with weights of variance 1/P'.
        m: dimension of the cube.
        n: samples.
        rng: generator.
        repeats: targets and samples.
    """
    losses = np.empty(repeats)
    for index in range(repeats):
        x = rng.uniform(-1, 1, (n, m))
        phi, truth = learner(x), target(x)
        w = rng.normal(size=truth.shape[1]) / np.sqrt(truth.shape[1])
        fitted = _minimum_norm(phi, truth @ w)
        if learner is target:
            losses[index] = np.square(w - fitted).sum()
        else:
            fresh = rng.uniform(-1, 1, (2000, m))
            losses[index] = np.square(target(fresh) @ w - learner(fresh) @ fitted).mean()
    return float(losses.mean())


def smallest_sample(
    learner: Dictionary,
    target: Dictionary,
    m: int,
    rng: np.random.Generator,
    *,
    eps: float = 0.1,
    most: int = 10_000,
    repeats: int = 50,
) -> int | None:
    """The smallest n whose mean test loss is below eps, by bisection, with fresh draws for each n.

    Args:
        learner, target, m, rng, repeats: as in `interpolation_error`.
        eps: wanted loss; the signal has variance 1.
        most: n to give up at.

    Returns:
        n, or None where `most` samples do not suffice.
    """
    low, high = 0, most
    if interpolation_error(learner, target, m, most, rng, repeats) >= eps:
        return None
    while high - low > 1:
        middle = (low + high) // 2
        if interpolation_error(learner, target, m, middle, rng, repeats) < eps:
            high = middle
        else:
            low = middle
    return high


def _minimum_norm(phi: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Least squares through the smaller Gram matrix; `lstsq` where that is singular."""
    n, p = phi.shape
    try:
        if n <= p:
            return phi.T @ np.linalg.solve(phi @ phi.T, y)
        return np.linalg.solve(phi.T @ phi, phi.T @ y)
    except np.linalg.LinAlgError:
        return np.linalg.lstsq(phi, y, rcond=None)[0]

"""The UV model as a network: its weights, their initialisation, and plain gradient descent on them.

One training example (x, y); ``f = v.(U x) / sqrt(n_eff)`` with ``n_eff = n^(1-p)``; ``L = (f - y)^2 / 2``. Everything
that happens to f, the kernel and the sharpness depends on two numbers only (`to_function_space`, `maps`), and the
weights can be rebuilt from them (`reconstruct`).
"""

from dataclasses import dataclass, field
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from iclr_shared.errors import InputError


def demo_input(d: int = 32) -> np.ndarray:
    """An input of unit norm in `d` dimensions."""
    return np.full(d, d**-0.5)


@dataclass(frozen=True)
class UVParams:
    """A UV model and its one training example (Kalra, He, Barkeshli, ICLR 2025, section 2 of the paper's model).

    The paper's own widths and scales could not be read; defaults are a choice that shows progressive sharpening.

    Args:
        x: the input, one vector (d,), not zero. Default: unit norm, d = 32.
        y: its target.
        n: width.
        p: parameterisation in [0, 1]: 0 is NTK-like (lazy), 1 maximal-update-like (rich).
        sigma_w: weights start as N(0, sigma_w^2 / n^p).
    """

    x: Float[np.ndarray, "..."] = field(default_factory=demo_input)
    y: float = 2.0
    n: int = 512
    p: float = 1.0
    sigma_w: float = 0.5

    def __post_init__(self):
        if np.ndim(self.x) != 1 or not np.isfinite(self.x).all():
            raise InputError("x must be one finite vector of shape (d,).")
        if not np.any(self.x):
            raise InputError("The input has zero norm: k=0, nothing can be learned. Give an x that is not zero.")
        if not np.isfinite(self.y):
            raise InputError(f"y={self.y} must be finite.")
        if self.n < 1:
            raise InputError(f"n={self.n}: the width must be at least 1.")
        if not 0 <= self.p <= 1:
            raise InputError(f"p={self.p}: the parameterisation must lie in [0, 1].")
        if not self.sigma_w >= 0 or not np.isfinite(self.sigma_w):
            raise InputError(f"sigma_w={self.sigma_w} must be finite and not negative.")

    @property
    def norm(self) -> float:
        """``|x|``."""
        return float(np.linalg.norm(self.x))

    @property
    def n_eff(self) -> float:
        """The divisor of the output, ``n^(1-p)``."""
        return float(self.n ** (1 - self.p))

    @property
    def k(self) -> float:
        """The coupling ``|x| / sqrt(n_eff)``, all that function space keeps of width and parameterisation."""
        return self.norm / self.n_eff**0.5

    @property
    def mean_ntk(self) -> float:
        """Mean tangent kernel at initialisation, ``2 sigma_w^2 |x|^2`` for every p."""
        return 2 * self.sigma_w**2 * self.norm**2

    @property
    def output_std(self) -> float:
        """Standard deviation of the output at initialisation, ``|x| sigma_w^2 n^(-p/2)``."""
        return self.norm * self.sigma_w**2 * self.n ** (-self.p / 2)


class UVState(NamedTuple):
    """Weights: `U` of the first layer, `v` of the second."""

    U: Float[Array, "n d"]
    v: Float[Array, " n"]


class Coordinates(NamedTuple):
    """The state in function space: ``P = |a + v|^2 / 2``, ``M = |v - a|^2 / 2`` with ``a = U x / |x|``, and k."""

    P: Float[Array, ""]
    M: Float[Array, ""]
    k: float


def init(key: PRNGKeyArray, params: UVParams) -> UVState:
    """Weights with iid entries N(0, sigma_w^2 / n^p), in jax's default float type."""
    first, second = jax.random.split(key)
    std = params.sigma_w * params.n ** (-params.p / 2)
    return UVState(
        std * jax.random.normal(first, (params.n, len(params.x))), std * jax.random.normal(second, (params.n,))
    )


def initial_coordinates(key: PRNGKeyArray, params: UVParams, count: int) -> tuple[Array, Array]:
    """(P, M) of `count` independent initialisations, without their weights: only a and v matter, iid like v.

    Returns:
        P and M, each (count,).
    """
    std = params.sigma_w * params.n ** (-params.p / 2)
    a, v = std * jax.random.normal(key, (2, count, params.n))
    return jnp.sum((a + v) ** 2, -1) / 2, jnp.sum((v - a) ** 2, -1) / 2


def output(state: UVState, params: UVParams) -> Float[Array, ""]:
    """``f = v.(U x) / sqrt(n_eff)``."""
    return state.v @ (state.U @ jnp.asarray(params.x, state.v.dtype)) / params.n_eff**0.5


def loss(state: UVState, params: UVParams) -> Float[Array, ""]:
    """``L = (f - y)^2 / 2``. The half matters: without it every critical learning rate halves."""
    return (output(state, params) - params.y) ** 2 / 2


def gradient_step(state: UVState, params: UVParams, eta: float | Float[Array, ""]) -> UVState:
    """One step of gradient descent on both layers, from the old values of both."""
    gradient = jax.grad(loss)(state, params)
    return jax.tree.map(lambda weight, slope: weight - eta * slope, state, gradient)


def to_function_space(state: UVState, params: UVParams) -> Coordinates:
    """The two numbers that carry the dynamics, and the coupling k."""
    a = _effective(state, params)
    return Coordinates(jnp.sum((a + state.v) ** 2) / 2, jnp.sum((state.v - a) ** 2) / 2, params.k)


def reconstruct(state: UVState, params: UVParams, delta: Float[Array, " steps"]) -> UVState:
    """The weights after the steps whose `delta` (see `maps.simulate`) is given, without training them.

    ``(v + a)_t = (v + a)_0 prod(1 - delta)``, ``(v - a)_t = (v - a)_0 prod(1 + delta)``; the part of U orthogonal to x
    never moves: ``U_t = U_0 + (a_t - a_0) x^T / |x|``.

    Args:
        state: weights before the first of these steps.
        params: the model.
        delta: ``eta k (f - y)`` of every step, (steps,).
    """
    a = _effective(state, params)
    plus, minus = (state.v + a) * jnp.prod(1 - delta), (state.v - a) * jnp.prod(1 + delta)
    direction = jnp.asarray(params.x / params.norm, state.v.dtype)
    return UVState(state.U + jnp.outer((plus - minus) / 2 - a, direction), (plus + minus) / 2)


def _effective(state: UVState, params: UVParams) -> Float[Array, " n"]:
    return state.U @ jnp.asarray(params.x / params.norm, state.v.dtype)

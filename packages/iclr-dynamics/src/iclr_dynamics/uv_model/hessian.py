"""The Hessian spectrum of the UV model's loss ``(f - y)^2 / 2``, in closed form."""

from typing import NamedTuple

import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int, Num

Scalars = Num[ArrayLike, "..."]


class HessianSpectrum(NamedTuple):
    """Distinct eigenvalues, descending where they come first, with how often each occurs: n (d + 1) in all."""

    values: Float[Array, " kinds"]
    multiplicities: Int[Array, " kinds"]


def sharpness(residual: Scalars, ntk: Scalars, k: Scalars, y: Scalars) -> Float[Array, "..."]:
    """The largest eigenvalue: ``lambda_H = (lambda + sqrt(lambda^2 + 4 k^2 Df (3 Df + 2 y))) / 2``.

    It equals the tangent kernel lambda only where Df = 0.

    Args:
        residual: ``Df = f - y``.
        ntk: ``lambda``, at least ``2 k |f|``.
        k: coupling.
        y: target.
    """
    return _outer(residual, ntk, k, y)[0]


def hessian_spectrum(residual: float, ntk: float, k: float, y: float, n: int, d: int) -> HessianSpectrum:
    """All eigenvalues: two outer ones, ``+k Df`` and ``-k Df`` (n - 1 times each), and 0 (n (d - 1) times).

    Args:
        residual: ``Df = f - y``.
        ntk: ``lambda``; it is the trace.
        k: coupling.
        y: target.
        n: width.
        d: input dimension.
    """
    top, bottom = _outer(residual, ntk, k, y)
    bulk = jnp.asarray(k * residual)
    values = jnp.stack([top, bulk, jnp.zeros_like(bulk), -bulk, bottom])
    return HessianSpectrum(values, jnp.array([1, n - 1, n * (d - 1), n - 1, 1]))


def _outer(residual, ntk, k, y):
    residual, ntk = jnp.asarray(residual), jnp.asarray(ntk)
    # Rounding can push the root's argument below 0 only on the feasible region's corner, where it is 0.
    root = jnp.sqrt(jnp.maximum(ntk**2 + 4 * k**2 * residual * (3 * residual + 2 * y), 0))
    return (ntk + root) / 2, (ntk - root) / 2

"""Curvature of a training loss: leading Hessian eigenvalues, trace and Frobenius norm, from Hessian-vector products.

The *sharpness* is the largest eigenvalue of the Hessian of the loss that is minimised, factor 1/2 included: with
``L = mean |f - y|^2 / 2`` gradient descent is stable where sharpness < 2 / learning rate; for ``mean |f - y|^2`` every
learning rate has to be halved. It is not the largest eigenvalue of the neural tangent kernel; the two agree only at
zero loss.

A loss is any function ``loss(params, *batch) -> scalar`` of a pytree of arrays (Flax, Equinox, Haiku, a dict). Pass
data through `batch`: it is then an argument of the compiled product. One product is compiled for each loss *function*
and each set of shapes, so define the loss once and reuse it; a new lambda for each call compiles anew.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Float, PRNGKeyArray, PyTree
from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigsh

from iclr_shared.errors import InputError

Loss = Callable[..., Any]

# Up to this many parameters the dense Hessian is cheaper than Lanczos, which also needs k < size.
_DENSE = 64


class Spectrum(NamedTuple):
    """Leading eigenpairs of a Hessian H, largest eigenvalue first.

    Args:
        values: eigenvalues, descending.
        vectors: unit eigenvectors, a pytree shaped like the parameters with a leading axis over eigenvalues.
        residuals: ``|H v - value v|_2`` of each pair.
        products: Hessian-vector products that were spent.
    """

    values: Float[np.ndarray, " k"]
    vectors: PyTree
    residuals: Float[np.ndarray, " k"]
    products: int


class Estimate(NamedTuple):
    """A Monte Carlo estimate and its standard error."""

    value: float
    standard_error: float


def hvp(loss: Loss, params: PyTree, vector: PyTree, *batch: Any) -> PyTree:
    """The Hessian of the loss at `params` times a vector, forward over reverse: about the price of two gradients.

    Args:
        loss: ``loss(params, *batch) -> scalar``.
        params: pytree of arrays.
        vector: pytree like `params`.
        batch: further arguments of the loss.

    Returns:
        A pytree like `params`.
    """
    return jax.jvp(lambda at: jax.grad(loss)(at, *batch), (params,), (vector,))[1]


def top_eigenvalues(
    loss: Loss,
    params: PyTree,
    *batch: Any,
    k: int = 1,
    tol: float = 1e-6,
    key: PRNGKeyArray | None = None,
    start: PyTree | None = None,
    basis: int | None = None,
) -> Spectrum:
    """The `k` largest Hessian eigenvalues, by the implicitly restarted Lanczos method (ARPACK through scipy).

    Args:
        loss: ``loss(params, *batch) -> scalar``.
        params: pytree of arrays; the products are computed in its precision, the Lanczos recursion in float64.
        batch: further arguments of the loss, usually the data.
        k: how many, at most the number of parameters.
        tol: relative accuracy asked of the eigenvalues.
        key: draws the start vector; None takes the same vector at each call.
        start: start vector as a pytree like `params`, such as the eigenvector found a few steps earlier. A tenth of a
            random vector is mixed in, so that a direction which has overtaken it meanwhile is not missed.
        basis: Lanczos vectors kept between restarts, more than k; None takes 20 or more. With a good `start` 8 of them
            give the leading eigenvalue along a training run at half the price.

    Returns:
        A `Spectrum`; index 0 is the sharpness.

    Raises:
        InputError: if `k` does not fit, the Hessian is not finite (the parameters have diverged), or Lanczos does not
            reach `tol`.
    """
    flat, unravel = ravel_pytree(params)
    size = flat.size
    if not 1 <= k <= size:
        raise InputError(f"k={k} eigenvalues were asked of a loss with {size} parameters; take 1 <= k <= {size}.")
    products = 0

    def product(vector: np.ndarray) -> np.ndarray:
        nonlocal products
        products += 1
        image = np.asarray(_flat_hvp(loss, params, jnp.asarray(vector.ravel(), flat.dtype), *batch), np.float64)
        if not np.isfinite(image).all():
            raise InputError("The Hessian at these parameters is not finite: the run has diverged or the data has NaN.")
        return image

    if size <= _DENSE:
        dense = np.stack([product(row) for row in np.eye(size)])
        values, vectors = np.linalg.eigh((dense + dense.T) / 2)
        values, vectors = values[::-1][:k], vectors[:, ::-1][:, :k]
        images = dense @ vectors
    else:
        if key is not None:
            first = np.asarray(jax.random.normal(key, (size,)), np.float64)
        else:
            first = np.random.default_rng(0).standard_normal(size)
        if start is not None:
            guess = np.asarray(ravel_pytree(start)[0], np.float64)
            first = guess / (np.linalg.norm(guess) or 1.0) + 0.1 * first / np.linalg.norm(first)
        operator = LinearOperator((size, size), matvec=product, dtype=np.float64)
        if k > size // 2:  # ARPACK needs room for its basis; this many eigenvalues are a dense problem
            values, vectors = np.linalg.eigh(operator @ np.eye(size))
        elif not operator.matvec(first).any():  # a flat loss; ARPACK would stop at H v = 0
            values, vectors = np.zeros(k), np.eye(size, k)
        else:
            try:
                values, vectors = eigsh(operator, k=k, which="LA", tol=tol, v0=first, ncv=basis)
            except ArpackNoConvergence as error:
                raise InputError(f"Lanczos did not reach tol={tol:g}; take a larger one, or a larger basis.") from error
        order = np.argsort(values)[::-1][:k]
        values, vectors = values[order], vectors[:, order]
        images = np.stack([product(vector) for vector in vectors.T], axis=1)
    residuals = np.linalg.norm(images - values * vectors, axis=0)
    return Spectrum(values, jax.vmap(unravel)(jnp.asarray(vectors.T, flat.dtype)), residuals, products)


def sharpness(loss: Loss, params: PyTree, *batch: Any, tol: float = 1e-6) -> float:
    """The largest Hessian eigenvalue; see `top_eigenvalues` for its eigenvector and accuracy."""
    return float(top_eigenvalues(loss, params, *batch, k=1, tol=tol).values[0])


def trace(loss: Loss, params: PyTree, *batch: Any, key: PRNGKeyArray, samples: int = 64) -> Estimate:
    """Hutchinson's estimate of the Hessian's trace, ``E v^T H v`` over random sign vectors v.

    Args:
        loss: ``loss(params, *batch) -> scalar``.
        params: pytree of arrays.
        batch: further arguments of the loss.
        key: of the sign vectors.
        samples: how many, at least 2.

    Returns:
        Value and standard error.
    """
    forms, _ = _probe(loss, params, key, _samples(samples), *batch)
    return _mean(forms)


def frobenius_norm(loss: Loss, params: PyTree, *batch: Any, key: PRNGKeyArray, samples: int = 64) -> Estimate:
    """Estimate of the Hessian's Frobenius norm, from ``E |H v|^2 = |H|_F^2`` over random sign vectors v.

    Args:
        loss: ``loss(params, *batch) -> scalar``.
        params: pytree of arrays.
        batch: further arguments of the loss.
        key: of the sign vectors.
        samples: how many, at least 2.

    Returns:
        Value and standard error (first order in the error of the square).
    """
    _, squares = _probe(loss, params, key, _samples(samples), *batch)
    square = _mean(squares)
    root = square.value**0.5
    return Estimate(root, square.standard_error / (2 * root) if root > 0 else 0.0)


@partial(jax.jit, static_argnums=0)
def _flat_hvp(loss, params, vector, *batch):
    _, unravel = ravel_pytree(params)
    return ravel_pytree(hvp(loss, params, unravel(vector), *batch))[0]


@partial(jax.jit, static_argnums=(0, 3))
def _probe(loss, params, key, samples, *batch):
    flat, unravel = ravel_pytree(params)

    def one(key):
        signs = jax.random.rademacher(key, flat.shape, flat.dtype)
        image = ravel_pytree(hvp(loss, params, unravel(signs), *batch))[0]
        return signs @ image, image @ image

    return jax.lax.map(one, jax.random.split(key, samples))


def _mean(draws) -> Estimate:
    draws = np.asarray(draws, np.float64)
    return Estimate(float(draws.mean()), float(draws.std(ddof=1) / np.sqrt(len(draws))))


def _samples(samples: int) -> int:
    if samples < 2:
        raise InputError(f"samples={samples}: a standard error needs at least 2 samples.")
    return samples

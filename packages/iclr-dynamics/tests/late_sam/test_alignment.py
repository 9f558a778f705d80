import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

from iclr_dynamics.late_sam.alignment import noise_alignment
from iclr_dynamics.networks import MLP


def test_against_dense_matrices(x64):
    model = MLP((4, 3), activation="tanh")
    rng = np.random.default_rng(0)
    x, y = jnp.asarray(rng.normal(size=(7, 2))), jnp.asarray(rng.normal(size=(7, 3)))
    params = jax.jit(model.init)(jax.random.key(2), x)
    flat, unravel = ravel_pytree(params)
    jacobians = np.asarray(jax.jit(jax.jacrev(lambda w: model.apply(unravel(w), x)))(flat))  # (7, 3, weights)
    residuals = np.asarray(jax.jit(model.apply)(params, x)) - np.asarray(y)
    gauss_newton = np.einsum("scp,scq->pq", jacobians, jacobians) / 7
    grads = np.einsum("scp,sc->sp", jacobians, residuals)
    covariance = grads.T @ grads / 7 - np.outer(grads.mean(0), grads.mean(0))
    loss = (residuals**2).sum() / 14
    result = noise_alignment(model.apply, params, x, y)
    assert result.noise == pytest.approx(np.trace(covariance @ gauss_newton), rel=1e-9)
    assert result.frobenius == pytest.approx(np.linalg.norm(gauss_newton), rel=1e-9)
    assert result.gamma == pytest.approx(result.noise / (2 * loss * result.frobenius**2), rel=1e-9)
    # At zero loss there is no alignment.
    nothing = jax.tree.map(np.zeros_like, params)
    assert np.isnan(noise_alignment(model.apply, nothing, x, jnp.asarray(np.zeros((7, 3)))).gamma)

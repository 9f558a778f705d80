import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from scipy.sparse.linalg import ArpackNoConvergence

from iclr_dynamics.networks import MLP, digits, network_loss
from iclr_dynamics.sharpness import _flat_hvp, frobenius_norm, hvp, sharpness, top_eigenvalues, trace
from iclr_shared.errors import InputError

pytestmark = pytest.mark.usefixtures("x64")


def quadratic(params, matrix):
    flat = ravel_pytree(params)[0]
    return flat @ matrix @ flat / 2


def symmetric(size, seed=0):
    draw = np.random.default_rng(seed).standard_normal((size, size))
    return jnp.asarray(draw + draw.T)


def tree(size):
    return {"a": jnp.zeros(size // 2), "b": [jnp.zeros((size - size // 2, 1))]}


@pytest.fixture(scope="module")
def network():
    with jax.enable_x64(True):
        data = digits(jax.random.key(0), train=20)
        model = MLP((3, 10), "tanh")
        loss, params = network_loss(model), jax.jit(model.init)(jax.random.key(1), data.x)
        flat, unravel = ravel_pytree(params)
        dense = jax.jit(jax.hessian(lambda w: loss(unravel(w), data.x, data.y)))(flat)
        return loss, params, (data.x, data.y), np.asarray(dense)


def test_hvp_is_the_dense_hessian_times_the_vector(network):
    loss, params, batch, dense = network
    flat, unravel = ravel_pytree(params)
    vector = np.random.default_rng(1).standard_normal(flat.size)
    got = ravel_pytree(hvp(loss, params, unravel(jnp.asarray(vector)), *batch))[0]
    np.testing.assert_allclose(got, dense @ vector, atol=1e-12)


@pytest.mark.parametrize("k", [1, 4])
def test_leading_eigenvalues_of_a_network(network, k):
    loss, params, batch, dense = network
    spectrum = top_eigenvalues(loss, params, *batch, k=k, tol=1e-10)
    np.testing.assert_allclose(spectrum.values, np.linalg.eigvalsh(dense)[::-1][:k], rtol=1e-9)
    assert spectrum.residuals.max() < 1e-6
    flat = np.asarray(jax.vmap(lambda v: ravel_pytree(v)[0])(spectrum.vectors))
    np.testing.assert_allclose(flat @ flat.T, np.eye(k), atol=1e-8)
    np.testing.assert_allclose(flat @ dense, spectrum.values[:, None] * flat, atol=1e-6)
    assert sharpness(loss, params, *batch) == pytest.approx(spectrum.values[0], rel=1e-5)


@pytest.mark.parametrize(("size", "k"), [(1, 1), (7, 3), (64, 64), (70, 2), (70, 69)])
def test_every_size_and_count(size, k):
    matrix = symmetric(size)
    spectrum = top_eigenvalues(quadratic, tree(size), matrix, k=k, tol=1e-12, key=jax.random.key(3))
    np.testing.assert_allclose(spectrum.values, np.linalg.eigvalsh(matrix)[::-1][:k], atol=1e-8)
    assert jax.tree.structure(spectrum.vectors) == jax.tree.structure(tree(size))


def test_a_start_vector_saves_products():
    matrix = symmetric(200)
    cold = top_eigenvalues(quadratic, tree(200), matrix)
    first = jax.tree.map(lambda v: v[0], cold.vectors)
    warm = top_eigenvalues(quadratic, tree(200), matrix, start=first)
    assert warm.values[0] == pytest.approx(cold.values[0], rel=1e-6)
    short = top_eigenvalues(quadratic, tree(200), matrix, start=first, basis=8)
    assert short.values[0] == pytest.approx(cold.values[0], rel=1e-6)
    assert warm.products < cold.products


def test_a_start_that_was_overtaken_does_not_hide_the_new_leader():
    matrix = jnp.diag(jnp.arange(1.0, 101.0))
    stale = {"a": jnp.zeros(50), "b": [jnp.zeros((50, 1)).at[-2].set(1.0)]}  # an exact eigenvector, second largest
    assert top_eigenvalues(quadratic, tree(100), matrix, start=stale, basis=8).values[0] == pytest.approx(100.0)


def test_a_flat_loss_has_zero_sharpness_and_no_convergence_is_said(monkeypatch):
    assert top_eigenvalues(quadratic, tree(70), jnp.zeros((70, 70))).values[0] == 0

    def stuck(*_, **__):
        raise ArpackNoConvergence("", np.zeros(0), np.zeros(0))

    monkeypatch.setattr("iclr_dynamics.sharpness.eigsh", stuck)
    with pytest.raises(InputError, match="did not reach tol=1e-06"):
        top_eigenvalues(quadratic, tree(70), symmetric(70))


def test_one_compilation_for_one_loss():
    matrix = symmetric(70)
    top_eigenvalues(quadratic, tree(70), matrix)
    before = _flat_hvp._cache_size()
    top_eigenvalues(quadratic, tree(70), matrix + 1.0, k=2)
    assert _flat_hvp._cache_size() == before


def test_single_precision_parameters():
    matrix = symmetric(80).astype(jnp.float32)
    params = jax.tree.map(lambda a: a.astype(jnp.float32), tree(80))
    spectrum = top_eigenvalues(quadratic, params, matrix)
    assert spectrum.values[0] == pytest.approx(np.linalg.eigvalsh(matrix)[-1], rel=1e-5)
    assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(spectrum.vectors))


def test_trace_and_frobenius_norm_cover_the_truth(network):
    loss, params, batch, dense = network
    for estimate, truth in (
        (trace(loss, params, *batch, key=jax.random.key(2), samples=400), np.trace(dense)),
        (frobenius_norm(loss, params, *batch, key=jax.random.key(2), samples=400), np.linalg.norm(dense)),
    ):
        assert abs(estimate.value - truth) < 4 * estimate.standard_error
        assert estimate.standard_error < 0.1 * truth


def test_bad_input():
    with pytest.raises(InputError, match="k=3 eigenvalues were asked of a loss with 2 parameters"):
        top_eigenvalues(quadratic, tree(2), symmetric(2), k=3)
    with pytest.raises(InputError, match="not finite"):
        top_eigenvalues(quadratic, tree(2), symmetric(2) * jnp.nan)
    with pytest.raises(InputError, match="at least 2 samples"):
        trace(quadratic, tree(2), symmetric(2), key=jax.random.key(0), samples=1)

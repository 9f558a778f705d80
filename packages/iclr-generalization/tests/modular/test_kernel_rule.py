"""The objective: reference values, its meaning as a ridge cost, its gradient, invariances."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.kernel_ridge import KernelRidge

from iclr_generalization.modular.kernel_rule import KERNELS, additive_residual, objectives, orthonormal
from iclr_generalization.modular.kernel_rule import gram as plain_gram
from iclr_generalization.modular.kernel_rule import objective as plain_objective

KINDS = sorted(KERNELS)
objective = jax.jit(plain_objective, static_argnums=(4, 5))
gram = jax.jit(plain_gram, static_argnums=(2, 3))
slope = jax.jit(jax.grad(plain_objective), static_argnums=(4, 5))


@pytest.fixture
def data(x64):
    rng = np.random.default_rng(0)
    return jnp.asarray(rng.normal(size=(40, 5))), jnp.asarray(rng.normal(size=(40, 2))), rng


def test_points_far_apart(x64):
    x, y = 100.0 * jnp.arange(4.0)[:, None], jnp.array([[1.0], [2.0], [-1.0], [3.0]])
    value = objective(jnp.ones((1, 1)), x, y, 1.0)
    assert float(value) == pytest.approx(float(jnp.square(y).mean()) / 2)


def test_a_constant_projection(x64):
    x = jnp.array([[0.0, 1.0], [0.0, -1.0]])
    value = objective(jnp.array([[1.0, 0.0]]), x, jnp.array([[1.0], [-1.0]]), 1.0)
    assert float(value) == pytest.approx(1.0)


@pytest.mark.parametrize("kernel", KINDS)
def test_it_is_the_ridge_cost(data, kernel):
    x, y, rng = data
    A, lam = jnp.asarray(rng.normal(size=(2, 5))), 0.3
    G = np.asarray(gram(orthonormal(A), x, kernel))
    alpha = KernelRidge(alpha=lam, kernel="precomputed").fit(G, np.asarray(y)).dual_coef_
    cost = np.square(np.asarray(y) - G @ alpha).sum() + lam * np.trace(alpha.T @ G @ alpha)
    assert float(objective(A, x, y, lam, kernel)) == pytest.approx(cost / (lam * len(x)), rel=1e-10)


@pytest.mark.parametrize("kernel", KINDS)
@pytest.mark.parametrize("b", [1, 2])
def test_gradient_against_differences(data, kernel, b):
    x, y, rng = data
    A = rng.normal(size=(b, 5))
    gradient = slope(A, x, y, 1.0, kernel)
    for _ in range(5):
        direction = rng.normal(size=A.shape)
        step = 1e-5 * direction
        numeric = (objective(A + step, x, y, 1.0, kernel) - objective(A - step, x, y, 1.0, kernel)) / 2e-5
        assert float(np.vdot(gradient, direction)) == pytest.approx(float(numeric), rel=1e-5, abs=1e-9)


@pytest.mark.parametrize("kernel", KINDS)
def test_kernels_are_kernels(data, kernel):
    x, _, rng = data
    for b in (1, 5):
        G = np.asarray(gram(orthonormal(jnp.asarray(rng.normal(size=(b, 5)))), x, kernel))
        np.testing.assert_allclose(G, G.T, atol=1e-12)
        assert np.linalg.eigvalsh(G).min() > -1e-10


def test_both_ways_to_distances_agree(data):
    x, _, _ = data
    small = KERNELS["rbf"](x[:, :4], 1.0)
    large = KERNELS["rbf"](jnp.concatenate([x[:, :4], jnp.zeros((40, 1))], 1), 1.0)
    np.testing.assert_allclose(small, large, atol=1e-12)


def test_arccos_kernel_is_that_of_relu_features(data):
    x, _, rng = data
    z = np.concatenate([np.asarray(x[:3, :2]), np.ones((3, 1))], 1)
    features = np.maximum(rng.normal(size=(400_000, 3)) @ z.T, 0)
    np.testing.assert_allclose(
        KERNELS["arccos"](x[:3, :2], 1.0), 2 * features.T @ features / 400_000, rtol=0.02, atol=0.02
    )


def test_the_subspace_decides_alone(data):
    x, y, rng = data
    A = jnp.asarray(rng.normal(size=(2, 5)))
    mixed = jnp.array([[2.0, 1.0], [0.5, -3.0]]) @ A
    assert float(objective(A, x, y)) == pytest.approx(float(objective(mixed, x, y)), rel=1e-10)
    V = orthonormal(A)
    np.testing.assert_allclose(V @ V.T, np.eye(2), atol=1e-12)


def test_more_dimensions_cost_less_by_nothing_but_freedom(data):
    """Why objectives of different b are not compared: pure noise gets cheaper."""
    x, _, rng = data
    noise = jnp.asarray(rng.normal(size=(40, 1)))
    values = [float(objective(jnp.eye(5)[:b], x, noise, 0.1)) for b in (1, 3, 5)]
    assert values[0] > values[1] > values[2]


def test_batched_is_one_by_one(data):
    x, y, rng = data
    V = rng.normal(size=(3, 1, 5))
    one = [float(objective(v, x, y, 0.5)) for v in V]
    np.testing.assert_allclose(objectives(V, x, y, 0.5, "rbf", 1.0), one, rtol=1e-12)


def test_residual_is_what_ridge_leaves(data):
    x, y, rng = data
    V = jax.vmap(orthonormal)(jnp.asarray(rng.normal(size=(2, 1, 5))))
    G = np.mean([gram(v, x) for v in V], 0)
    left = np.asarray(y) - KernelRidge(alpha=0.4, kernel="precomputed").fit(G, np.asarray(y)).predict(G)
    np.testing.assert_allclose(additive_residual(V, x, y, 0.4), left, atol=1e-10)


def test_float32_is_kept():
    assert objective(jnp.ones((1, 2)), jnp.ones((4, 2)), jnp.ones((4, 1))).dtype == jnp.float32

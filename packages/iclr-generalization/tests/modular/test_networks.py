import jax
import jax.numpy as jnp
import numpy as np
import pytest

from iclr_generalization.modular.networks import (
    ModularNet,
    Monolithic,
    Training,
    count,
    equal_width,
    fit,
    initialise,
    with_projections,
)
from iclr_shared.errors import InputError

# The sizes of test_regressor.py, so that compiled functions are shared.
NET = ModularNet(2, 1, (16, 16, 1))
QUICK = Training(steps=300, learning_rate=5e-3)


@pytest.fixture(scope="module")
def params():
    return initialise(NET, 6, jax.random.key(0))


def test_it_is_a_sum_of_functions_of_projections(params):
    x = jax.random.normal(jax.random.key(1), (5, 6))
    parts = NET.apply(params, x, method="parts")
    assert parts.shape == (2, 5, 1)
    np.testing.assert_allclose(NET.apply(params, x), parts.sum(0), atol=1e-6)
    U = params["params"]["U"]
    np.testing.assert_allclose(jnp.linalg.norm(U, axis=2), 1, atol=1e-6)
    # Steps along directions that a module does not see leave it unchanged.
    blind = jnp.linalg.svd(U[0])[2][-1]
    moved = NET.apply(params, x + 3 * blind, method="parts")
    np.testing.assert_allclose(moved[0], parts[0], atol=1e-5)
    assert float(jnp.abs(moved[1] - parts[1]).max()) > 1e-3


def test_modules_start_differently(params):
    kernel = params["params"]["h"]["Dense_1"]["kernel"]
    assert kernel.shape == (2, 16, 16)
    assert float(jnp.abs(kernel[0] - kernel[1]).max()) > 0.01


@pytest.mark.parametrize(("m", "c", "parameters"), [(2, 1, 13_000), (16, 1, 13_100), (256, 40, 50_000)])
def test_equal_size(m, c, parameters):
    width = equal_width(m, c, parameters)
    have = count(initialise(Monolithic((width, width, c)), m, jax.random.key(0)))
    assert have == width**2 + (m + c + 2) * width + c
    assert have == pytest.approx(parameters, rel=0.02)


def test_found_projections_come_first(params):
    U = np.eye(6)[:1, None]
    changed = with_projections(params, U)["params"]["U"]
    np.testing.assert_array_equal(changed[0], U[0])
    np.testing.assert_array_equal(changed[1], params["params"]["U"][1])
    with pytest.raises(InputError, match="do not fit"):
        with_projections(params, np.eye(6)[:3, None])
    with pytest.raises(InputError, match="do not fit"):
        with_projections(params, np.zeros((1, 2, 6)))


def test_training_learns_and_projections_go_slowly(params):
    x = jax.random.normal(jax.random.key(2), (150, 6))
    y = jnp.sin(x[:, :1])
    fitted, losses = fit(NET, params, x, y, jax.random.key(3), training=QUICK)
    assert float(losses[-20:].mean()) < 0.5 * float(losses[:5].mean())
    moved = jnp.abs(fitted["params"]["U"] - params["params"]["U"]).max()
    others = jnp.abs(fitted["params"]["h"]["Dense_1"]["kernel"] - params["params"]["h"]["Dense_1"]["kernel"]).max()
    assert 0 < float(moved) < float(others)
    again, _ = fit(NET, params, x, y, jax.random.key(3), training=QUICK)
    np.testing.assert_array_equal(again["params"]["U"], fitted["params"]["U"])


def test_several_positions_at_once():
    net = Monolithic((8, 6))
    x = jax.random.normal(jax.random.key(0), (100, 3))
    y = (x[:, :2] > 0).astype(jnp.int32)  # two positions, three classes
    training = Training(steps=150, batch=32, learning_rate=3e-2, loss="cross_entropy")
    fitted, _ = fit(net, initialise(net, 3, jax.random.key(1)), x, y, jax.random.key(2), training=training)
    told = net.apply(fitted, x).reshape(100, 2, 3).argmax(2)
    assert float((told == y).mean()) > 0.9


def test_bad_training(params):
    x, y = np.zeros((150, 6)), np.zeros((150, 1))
    key = jax.random.key(0)
    with pytest.raises(InputError, match="no loss 'hinge'"):
        fit(NET, params, x, y, key, training=Training(loss="hinge"))
    with pytest.raises(InputError, match="must be positive"):
        fit(NET, params, x, y, key, training=Training(steps=0))
    with pytest.raises(InputError, match="149 labels for 150"):
        fit(NET, params, x, y[1:], key)
    with pytest.raises(InputError, match="diverged"):
        fit(NET, params, x, y + np.inf, key, training=QUICK)

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from iclr_dynamics.networks import MLP, digits, error_rate, gradient_descent, mse_loss, network_loss
from iclr_shared.errors import InputError

MOMENTUM = partial(optax.sgd, momentum=0.9)


def test_digits_split_scales_and_labels():
    split = digits(jax.random.key(0), train=600)
    assert split.x.shape == (600, 64)
    assert split.x_test.shape == (1197, 64)
    assert jnp.abs(jnp.concatenate([split.x, split.x_test]).mean(0)).max() < 1e-4
    unit = digits(jax.random.key(0), train=600, scale="unit")
    assert (float(unit.x.min()), float(unit.x.max())) == (0.0, 1.0)
    np.testing.assert_array_equal(unit.y, split.y)
    assert not jnp.array_equal(digits(jax.random.key(1), train=600).y, split.y)


def test_random_labels_touch_only_that_fraction_of_the_training_set():
    clean, noisy = (digits(jax.random.key(0), train=600, random_labels=r) for r in (0.0, 0.5))
    changed = float((clean.y.argmax(1) != noisy.y.argmax(1)).mean())
    assert 0.38 < changed < 0.5  # half drawn, a tenth of them by chance as before
    np.testing.assert_array_equal(clean.y_test, noisy.y_test)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"train": 1797}, "train=1797"),
        ({"random_labels": 1.5}, "random_labels=1.5"),
        ({"scale": "other"}, "scale='other'"),
    ],
)
def test_digits_bad_input(options, message):
    with pytest.raises(InputError, match=message):
        digits(jax.random.key(0), **options)


def test_standard_and_ntk_parameterisations_start_with_the_same_outputs():
    x = jax.random.normal(jax.random.key(0), (5, 64))
    standard, ntk = MLP((32, 10), "tanh", sigma_w=1.5), MLP((32, 10), "tanh", sigma_w=1.5, p=0.0)
    outputs = [jax.jit(model.init_with_output)(jax.random.key(1), x)[0] for model in (standard, ntk)]
    np.testing.assert_allclose(*outputs, rtol=1e-4, atol=1e-5)


def test_maximal_update_shrinks_the_output_and_raises_the_rate():
    x = jax.random.normal(jax.random.key(0), (5, 64))
    ntk, mup = MLP((32, 10), p=0.0), MLP((32, 10), p=1.0)
    params = jax.jit(ntk.init)(jax.random.key(1), x)
    np.testing.assert_allclose(mup.apply(params, x) * 32**0.5, ntk.apply(params, x), rtol=1e-4, atol=1e-6)
    assert (ntk.learning_rate_factor, mup.learning_rate_factor) == (1.0, 32.0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"activation": "step"}, "activation='step'"),
        ({"p": 2.0}, r"p=2\.0"),
        ({"sigma_w": float("nan")}, "sigma_w=nan"),
        ({"features": (0, 3)}, "at least 1 wide"),
    ],
)
def test_bad_networks(options, message):
    with pytest.raises(InputError, match=message):
        MLP(**{"features": (4, 3), **options})


def test_mse_has_the_half():
    outputs, targets = jnp.array([[3.0, 0.0], [1.0, 1.0]]), jnp.array([[1.0, 0.0], [1.0, 0.0]])
    assert float(mse_loss(outputs, targets)) == (4 + 1) / 2 / 2
    assert float(error_rate(outputs, targets)) == 0.0


def test_gradient_descent_continues_where_it_stopped():
    data = digits(jax.random.key(0), train=40)
    model = MLP((6, 10), "tanh")
    loss, params = network_loss(model), jax.jit(model.init)(jax.random.key(1), data.x)
    assert network_loss(MLP((6, 10), "tanh")) is loss
    go = partial(gradient_descent, loss, learning_rate=0.02, optimizer=MOMENTUM)
    whole = go(params, data.x, data.y, steps=8)
    half = go(params, data.x, data.y, steps=4)
    rest = go(half.params, data.x, data.y, steps=4, state=half.state)
    np.testing.assert_allclose(whole.losses, jnp.concatenate([half.losses, rest.losses]), rtol=1e-5)
    assert whole.losses[-1] < whole.losses[0]
    with pytest.raises(InputError, match="steps=0"):
        go(params, data.x, data.y, steps=0)

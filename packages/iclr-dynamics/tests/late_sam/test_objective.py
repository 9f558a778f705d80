import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from iclr_dynamics.late_sam.objective import (
    cross_entropy,
    evaluate,
    flax_model,
    function_model,
    loss_function,
    one_hot,
    smoothed_targets,
    training_loss,
)
from iclr_dynamics.networks import MLP, mse_loss
from iclr_shared.errors import InputError


def test_smoothed_targets_reference_values():
    targets = np.asarray(smoothed_targets(one_hot([3], 10), 0.1))[0]
    assert targets[3] == pytest.approx(0.9)
    np.testing.assert_allclose(np.delete(targets, 3), 0.0111111, rtol=1e-5)
    assert targets.sum() == pytest.approx(1)


def test_cross_entropy_is_the_divergence():
    outputs = jnp.asarray(np.random.default_rng(0).standard_normal((4, 5), np.float32))
    targets = one_hot([0, 1, 4, 2], 5)
    q, p = np.asarray(smoothed_targets(targets, 0.2)), np.asarray(jax.nn.softmax(outputs))
    assert float(cross_entropy(outputs, targets, 0.2)) == pytest.approx((q * np.log(q / p)).sum(1).mean(), rel=1e-5)
    plain = -np.log(p[np.arange(4), [0, 1, 4, 2]]).mean()
    assert float(cross_entropy(outputs, targets)) == pytest.approx(plain, rel=1e-5)


def test_losses_by_name():
    assert loss_function("mse") is mse_loss
    assert loss_function("cross-entropy", 0.1) is loss_function("cross-entropy", 0.1)
    with pytest.raises(InputError, match="'hinge' is unknown"):
        loss_function("hinge")
    with pytest.raises(InputError, match=r"\[0, 1\)"):
        loss_function("cross-entropy", 1.0)


@pytest.mark.parametrize(
    ("labels", "message"), [([0, 3], "Label 3 of sample 1"), ([-1, 0], "Label -1"), ([0.5], "float")]
)
def test_labels_out_of_range(labels, message):
    with pytest.raises(InputError, match=message):
        one_hot(np.array(labels), 3)


def test_one_class_and_no_samples():
    with pytest.raises(InputError, match="at least two classes"):
        cross_entropy(jnp.zeros((3, 1)), jnp.ones((3, 1)))
    with pytest.raises(InputError, match="no samples"):
        evaluate(function_model(lambda params, x: x), {}, {}, jnp.zeros((0, 3)), jnp.zeros((0, 3)))


class Small(nn.Module):
    @nn.compact
    def __call__(self, x, train: bool = False):
        x = nn.BatchNorm(use_running_average=not train, momentum=0.9)(nn.Dense(4)(x))
        return nn.Dense(3)(nn.Dropout(0.5, deterministic=not train)(nn.relu(x)))


def test_flax_model_with_batch_norm_and_dropout():
    model = flax_model(Small())
    assert model is flax_model(Small())
    x = jnp.asarray(np.random.default_rng(0).standard_normal((8, 5), np.float32))
    params, extra = model.init(jax.random.key(1), x)
    apply = jax.jit(model.apply, static_argnums=3)
    still, unchanged = apply(params, extra, x, False, None)
    np.testing.assert_array_equal(still, apply(params, extra, x, False, jax.random.key(3))[0])
    jax.tree.map(np.testing.assert_array_equal, unchanged, extra)
    moved, updated = apply(params, extra, x, True, jax.random.key(2))
    np.testing.assert_array_equal(moved, apply(params, extra, x, True, jax.random.key(2))[0])
    assert not np.array_equal(moved, apply(params, extra, x, True, jax.random.key(3))[0])
    assert not np.allclose(updated["batch_stats"]["BatchNorm_0"]["mean"], 0)


def test_function_model_takes_any_pytree():
    model = function_model(lambda params, x: x @ params[0] + params[1])
    outputs, extra = model.apply((jnp.ones((2, 3)), jnp.zeros(3)), {}, jnp.ones((1, 2)))
    np.testing.assert_array_equal(outputs, [[2, 2, 2]])
    assert extra == {}
    with pytest.raises(InputError, match="no init"):
        model.init(jax.random.key(0), jnp.ones((1, 2)))


def test_training_loss_in_batches_is_the_whole():
    model = flax_model(MLP((4, 3)))
    x, y = jnp.asarray(np.random.default_rng(0).standard_normal((10, 2), np.float32)), one_hot(np.arange(10) % 3, 3)
    params, extra = model.init(jax.random.key(1), x)
    whole = evaluate(model, params, extra, x, y).loss
    losses = [training_loss(model, cross_entropy, size) for size in (3, None)]
    both = jax.jit(lambda *arguments: [jax.value_and_grad(loss)(*arguments) for loss in losses])
    (value, split), (_, plain) = both(params, extra, x, y)
    assert float(value) == pytest.approx(whole, rel=1e-5)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), split, plain)
    assert evaluate(model, params, extra, x, y, batch_size=5).loss == pytest.approx(whole, rel=1e-5)

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from iclr_dynamics.late_sam.architectures import VGG16, Normalized, ResNet, WideResNet, architecture
from iclr_dynamics.late_sam.objective import flax_model
from iclr_shared.errors import InputError


def shapes(module):
    model = flax_model(module)
    return jax.eval_shape(lambda: model.init(jax.random.key(0), jnp.zeros((1, 32, 32, 3))))


@pytest.mark.parametrize(
    ("name", "weights"),
    [
        ("wrn-16-8", 10_961_370),
        ("resnet20", 269_722),
        ("VGG16-BN", 14_728_266 - 4_224),  # no biases in convolutions, and one layer on top
    ],
)
def test_known_numbers_of_weights(name, weights):
    params, _ = shapes(architecture(name, 10))
    assert sum(leaf.size for leaf in jax.tree.leaves(params)) == weights


@pytest.mark.parametrize(
    "network", [WideResNet(4, 10, 1), VGG16(4, 1), ResNet(4, 1, 2)], ids=lambda net: type(net).__name__
)
def test_forward_pass_in_training(network):
    model = flax_model(Normalized(network))
    variables = shapes(Normalized(network))
    images = jnp.asarray(np.random.default_rng(0).random((2, 32, 32, 3), np.float32))
    forward = jax.jit(lambda variables, images: model.apply(*variables, images, True, None))
    outputs, updated = jax.eval_shape(forward, variables, images)
    assert outputs.shape == (2, 4)
    assert jax.tree.structure(updated) == jax.tree.structure(variables[1])
    if isinstance(network, ResNet):  # one of the three is worth compiling
        outputs, updated = forward(jax.tree.map(lambda leaf: np.full(leaf.shape, 0.1, leaf.dtype), variables), images)
        assert np.isfinite(outputs).all()
        assert all(np.isfinite(leaf).all() and (leaf != 0.1).any() for leaf in jax.tree.leaves(updated))


def test_too_small_images():
    with pytest.raises(InputError, match="32x32 pixels at least"):
        jax.eval_shape(VGG16().init, jax.random.key(0), jnp.zeros((1, 8, 8, 3)))


class ChannelMeans(nn.Module):
    @nn.compact
    def __call__(self, x, train: bool = False):
        return x.mean((1, 2))


def test_normalisation_is_inside():
    image = jnp.broadcast_to(jnp.array([0.4914, 0.4822, 0.4465]), (1, 2, 2, 3))
    np.testing.assert_allclose(Normalized(ChannelMeans()).apply({}, image), 0, atol=1e-6)
    np.testing.assert_allclose(Normalized(ChannelMeans(), None, None).apply({}, image), image[:, 0, 0], rtol=1e-6)


@pytest.mark.parametrize("name", ["resnet21", "wrn-17-8", "alexnet"])
def test_unknown_networks(name):
    with pytest.raises(InputError, match="is unknown"):
        architecture(name, 10)

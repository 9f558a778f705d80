"""The paper's networks for 32x32 colour images (channels last), in Flax: VGG16-BN, ResNet20, wide residual networks.

All take images in [0, 1] and normalise them inside. Batch normalisation keeps 0.9 of its running statistics each step,
PyTorch's default. Convolutions start with He's normal initialisation.
"""

import re
from functools import partial

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float

from iclr_dynamics.late_sam.augmentation import CIFAR_MEAN, CIFAR_STD
from iclr_shared.errors import InputError

Images = Float[Array, "batch height width channels"]

_Conv = partial(nn.Conv, use_bias=False, kernel_init=nn.initializers.variance_scaling(2.0, "fan_out", "normal"))


def _norm(train: bool) -> nn.BatchNorm:
    return nn.BatchNorm(use_running_average=not train, momentum=0.9, epsilon=1e-5)


class Normalized(nn.Module):
    """A network behind ``(x - mean) / std`` for each channel.

    Args:
        network: called as ``network(x, train=...)``.
        mean, std: of the channels; None leaves images as they are.
    """

    network: nn.Module
    mean: tuple[float, ...] | None = CIFAR_MEAN
    std: tuple[float, ...] | None = CIFAR_STD

    @nn.compact
    def __call__(self, x: Images, train: bool = False) -> Float[Array, "batch classes"]:
        if self.mean is not None:
            x = (x - jnp.asarray(self.mean, x.dtype)) / jnp.asarray(self.std, x.dtype)
        return self.network(x, train=train)


class VGG16(nn.Module):
    """Configuration D of Simonyan and Zisserman with batch normalisation and one linear layer on top.

    Args:
        classes: outputs.
        width: channels of the first block (64).
    """

    classes: int = 10
    width: int = 64

    @nn.compact
    def __call__(self, x: Images, train: bool = False) -> Float[Array, "batch classes"]:
        if min(x.shape[1:3]) < 32:
            raise InputError(f"VGG16 halves images five times: they need 32x32 pixels at least, not {x.shape[1:3]}.")
        for factor, layers in ((1, 2), (2, 2), (4, 3), (8, 3), (8, 3)):
            for _ in range(layers):
                x = nn.relu(_norm(train)(_Conv(factor * self.width, (3, 3))(x)))
            x = nn.max_pool(x, (2, 2), strides=(2, 2))
        return nn.Dense(self.classes)(x.mean((1, 2)))


class ResNet(nn.Module):
    """The residual network for CIFAR of He et al., depth ``6 blocks + 2``, with shortcuts that pad (option A).

    Args:
        classes: outputs.
        blocks: of each of the three stages; 3 gives ResNet20.
        width: channels of the first stage.
    """

    classes: int = 10
    blocks: int = 3
    width: int = 16

    @nn.compact
    def __call__(self, x: Images, train: bool = False) -> Float[Array, "batch classes"]:
        x = nn.relu(_norm(train)(_Conv(self.width, (3, 3))(x)))
        for stage in range(3):
            for block in range(self.blocks):
                strides = 2 if stage and not block else 1
                y = nn.relu(_norm(train)(_Conv(self.width * 2**stage, (3, 3), strides)(x)))
                y = _norm(train)(_Conv(self.width * 2**stage, (3, 3))(y))
                if strides > 1:
                    x = jnp.pad(x[:, ::2, ::2], ((0, 0), (0, 0), (0, 0), (0, y.shape[-1] - x.shape[-1])))
                x = nn.relu(x + y)
        return nn.Dense(self.classes)(x.mean((1, 2)))


class WideResNet(nn.Module):
    """WRN-depth-factor of Zagoruyko and Komodakis: pre-activation blocks, projection where the shape changes.

    Args:
        classes: outputs.
        depth: 6 n + 4.
        factor: widening; the paper's Fig. 1 has WRN-16-8.
    """

    classes: int = 10
    depth: int = 16
    factor: int = 8

    @nn.compact
    def __call__(self, x: Images, train: bool = False) -> Float[Array, "batch classes"]:
        x = _Conv(16, (3, 3))(x)
        for stage in range(3):
            features = 16 * self.factor * 2**stage
            for block in range((self.depth - 4) // 6):
                strides = 2 if stage and not block else 1
                y = nn.relu(_norm(train)(x))
                if x.shape[-1] != features or strides > 1:
                    x = _Conv(features, (1, 1), strides)(y)
                y = nn.relu(_norm(train)(_Conv(features, (3, 3), strides)(y)))
                x = x + _Conv(features, (3, 3))(y)
        return nn.Dense(self.classes)(nn.relu(_norm(train)(x)).mean((1, 2)))


def architecture(name: str, classes: int, normalize: bool = True) -> nn.Module:
    """A network by its name in the paper: ``"vgg16-bn"``, ``"resnet20"`` (6 n + 2), ``"wrn-16-8"`` (6 n + 4, factor).

    Args:
        name: lower or upper case.
        classes: outputs.
        normalize: whether images are normalised by the CIFAR colours inside.
    """
    name = name.lower()
    if name == "vgg16-bn":
        network = VGG16(classes)
    elif (found := re.fullmatch(r"resnet(\d+)", name)) and int(found[1]) >= 8 and (int(found[1]) - 2) % 6 == 0:
        network = ResNet(classes, (int(found[1]) - 2) // 6)
    elif (found := re.fullmatch(r"wrn-(\d+)-(\d+)", name)) and int(found[1]) >= 10 and (int(found[1]) - 4) % 6 == 0:
        network = WideResNet(classes, int(found[1]), int(found[2]))
    else:
        raise InputError(f"The network {name!r} is unknown; take vgg16-bn, resnet20 (6 n + 2) or wrn-16-8 (6 n + 4).")
    return Normalized(network) if normalize else Normalized(network, None, None)

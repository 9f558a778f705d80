"""Augmentation of small colour images, as in the official recipes: on images in [0, 1], inside the compiled step.

Normalisation is part of the model (`architectures.Normalized`), so that attacks see plain images. A cut-out square then
has to be filled with the mean colour, which is what zero means after normalisation.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from iclr_shared.errors import InputError

#: Mean and standard deviation of the CIFAR-10 colour channels that the official code uses.
CIFAR_MEAN = (0.4914, 0.4822, 0.4465)
CIFAR_STD = (0.2023, 0.1994, 0.2010)

Images = Float[Array, "batch height width channels"]


def random_crop(key: PRNGKeyArray, images: Images, pad: int = 4) -> Images:
    """Shift each image by up to `pad` pixels in each direction; what comes in is black."""
    padded = jnp.pad(images, ((0, 0), (pad, pad), (pad, pad), (0, 0)))
    corners = jax.random.randint(key, (len(images), 2), 0, 2 * pad + 1)

    def crop(image, corner):
        return jax.lax.dynamic_slice(image, (corner[0], corner[1], 0), images.shape[1:])

    return jax.vmap(crop)(padded, corners)


def random_flip(key: PRNGKeyArray, images: Images) -> Images:
    """Mirror each image left to right with probability 1/2."""
    flip = jax.random.bernoulli(key, 0.5, (len(images), 1, 1, 1))
    return jnp.where(flip, images[:, :, ::-1], images)


def cutout(
    key: PRNGKeyArray, images: Images, size: int = 16, probability: float = 0.5, fill: tuple[float, ...] = CIFAR_MEAN
) -> Images:
    """Paint a square of `size` pixels with the mean colour, each image with this probability; it may stick out."""
    place_key, whether_key = jax.random.split(key)
    batch, height, width, _ = images.shape
    centre = jax.random.randint(place_key, (batch, 2), 0, jnp.array([height, width]))
    low = centre - size // 2
    rows, columns = jnp.arange(height), jnp.arange(width)
    inside_rows = (rows >= low[:, :1]) & (rows < low[:, :1] + size)
    inside_columns = (columns >= low[:, 1:]) & (columns < low[:, 1:] + size)
    whether = jax.random.bernoulli(whether_key, probability, (batch, 1, 1))
    square = inside_rows[:, :, None] & inside_columns[:, None, :] & whether
    return jnp.where(square[..., None], jnp.asarray(fill, images.dtype), images)


def crop_flip(key: PRNGKeyArray, images: Array) -> Images:
    """The recipe of VGG16 and ResNet20: crop with padding 4, flip.

    Raises:
        InputError: if the inputs are no images.
    """
    if images.ndim != 4:
        raise InputError(f"Only images (batch, height, width, channels) can be augmented, not inputs {images.shape}.")
    crop_key, flip_key = jax.random.split(key)
    return random_flip(flip_key, random_crop(crop_key, images))


def crop_flip_cutout(key: PRNGKeyArray, images: Array) -> Images:
    """The recipe of wide residual networks: `crop_flip`, then a 16x16 cutout on half of the images."""
    first, second = jax.random.split(key)
    return cutout(second, crop_flip(first, images))

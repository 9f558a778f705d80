from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from iclr_dynamics.late_sam.augmentation import (
    CIFAR_MEAN,
    crop_flip,
    crop_flip_cutout,
    cutout,
    random_crop,
    random_flip,
)
from iclr_shared.errors import InputError

IMAGES = jnp.asarray(np.random.default_rng(0).random((16, 8, 8, 3), np.float32))


def test_crops_are_windows_of_the_padded_image():
    padded = np.pad(IMAGES, ((0, 0), (2, 2), (2, 2), (0, 0)))
    crops = np.asarray(jax.jit(partial(random_crop, pad=2))(jax.random.key(1), IMAGES))
    places = []
    for image, crop in zip(padded, crops, strict=True):
        found = [(i, j) for i in range(5) for j in range(5) if np.array_equal(image[i : i + 8, j : j + 8], crop)]
        assert found
        places.append(found[0])
    assert len(set(places)) > 3


def test_flip_mirrors_about_half():
    flipped = np.asarray(jax.jit(random_flip)(jax.random.key(1), IMAGES))
    same = (flipped == np.asarray(IMAGES)).all((1, 2, 3))
    mirrored = (flipped == np.asarray(IMAGES)[:, :, ::-1]).all((1, 2, 3))
    assert (same | mirrored).all()
    assert 3 < mirrored.sum() < 13


def test_cutout_paints_a_square_of_the_mean():
    paint = jax.jit(partial(cutout, size=4), static_argnames="probability")
    painted = np.asarray(paint(jax.random.key(2), IMAGES, probability=0.5))
    changed = (painted != np.asarray(IMAGES)).any(-1)
    assert 0 < changed.any((1, 2)).sum() < 16
    np.testing.assert_allclose(painted[changed], np.broadcast_to(CIFAR_MEAN, painted[changed].shape), rtol=1e-6)
    assert changed.sum((1, 2)).max() <= 16
    np.testing.assert_array_equal(paint(jax.random.key(2), IMAGES, probability=0.0), IMAGES)


def test_only_images_are_augmented():
    with pytest.raises(InputError, match="Only images"):
        crop_flip_cutout(jax.random.key(0), jnp.zeros((2, 64)))


def test_recipes_keep_shape_and_dtype():
    for recipe in (crop_flip, crop_flip_cutout):
        out = jax.eval_shape(recipe, jax.random.key(0), IMAGES.astype(jnp.float32))  # test_commands trains with one
        assert (out.shape, out.dtype) == (IMAGES.shape, jnp.float32)

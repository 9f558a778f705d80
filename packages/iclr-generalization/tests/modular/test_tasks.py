import jax
import jax.numpy as jnp
import numpy as np
import pytest

from iclr_generalization.modular.tasks import Compositional, SineTask, digit_images
from iclr_shared.errors import InputError


def test_sines_are_what_they_say():
    task = SineTask(m=5, modules=2, b=2, waves=3, key=jax.random.key(1))
    x, y = task.sample(7, jax.random.key(2))
    a, w, s = task._waves
    lengths = jnp.linalg.norm(w, axis=2)
    assert 1 <= lengths.min() <= lengths.max() <= 3
    np.testing.assert_allclose(jnp.einsum("kbm,kcm->kbc", task.U, task.U), np.tile(np.eye(2), (2, 1, 1)), atol=1e-5)
    by_hand = sum(
        a[k, j] * jnp.sin(w[k, j] @ (task.U[k] @ x[0]) + s[k, j]) for k in range(2) for j in range(3)
    ) / np.sqrt(3)
    assert float(y[0, 0]) == pytest.approx(float(by_hand), abs=1e-5)


def test_targets_have_about_unit_variance():
    y = jnp.stack([SineTask(6, key=jax.random.key(i)).sample(200, jax.random.key(i))[1] for i in range(30)])
    assert float(y.var(1).mean()) == pytest.approx(1, abs=0.3)


def test_scale_and_seed():
    task = SineTask(4)
    x, _ = task.sample(2000, jax.random.key(0), scale=2.0)
    assert float(x.std()) == pytest.approx(2, rel=0.05)
    np.testing.assert_array_equal(x, SineTask(4).sample(2000, jax.random.key(0), 2.0)[0])


@pytest.mark.parametrize("bad", [{"b": 3}, {"b": 0}, {"modules": 0}, {"waves": 0}])
def test_bad_sines(bad):
    with pytest.raises(InputError, match="sine task needs"):
        SineTask(2, **bad)


@pytest.fixture(scope="module")
def pictures():
    rng = np.random.default_rng(0)
    return rng.normal(size=(60, 6)), np.repeat(np.arange(5), 12)


def test_compositions(pictures):
    images, labels = pictures
    plain = Compositional(images, labels, 3, jax.random.key(0), mix=False)
    mixed = Compositional(images, labels, 3, jax.random.key(0))
    x, y = plain.sample(50, np.random.default_rng(1))
    z, same = mixed.sample(50, np.random.default_rng(1))
    np.testing.assert_array_equal(y, same)
    np.testing.assert_allclose(z @ mixed.mixing, x, atol=1e-10)
    for position in range(3):
        part = x[:, 6 * position : 6 * position + 6]
        which = np.argmin(np.square(part[:, None] - images[None]).sum(2), 1)
        np.testing.assert_array_equal(labels[which], y[:, position])


@pytest.mark.parametrize("k", [2, 3])
def test_held_out_pairs_never_occur_in_training(pictures, k):
    task = Compositional(*pictures, k, jax.random.key(0), holdout=0.2)
    assert task.held_out.sum() == 5
    rng = np.random.default_rng(0)
    seen, other = task.sample(300, rng)[1], task.sample(300, rng, held_out=True)[1]
    pairs = [task.held_out[y[:, :-1], y[:, 1:]].any(1) for y in (seen, other)]
    assert not pairs[0].any()
    assert pairs[1].all()


def test_true_modules_see_their_image_alone(pictures):
    task = Compositional(*pictures, 2, jax.random.key(0))
    U = task.U(3)
    np.testing.assert_allclose(np.einsum("kbm,kcm->kbc", U, U), np.tile(np.eye(3), (2, 1, 1)), atol=1e-10)
    np.testing.assert_allclose((U @ task.mixing)[0][:, 6:], 0, atol=1e-10)
    np.testing.assert_allclose(U[0] @ U[1].T, 0, atol=1e-10)


def test_images_kept_apart(pictures):
    images, labels = pictures
    x, _ = Compositional(images, labels, 1, jax.random.key(0), mix=False).sample(
        40, np.random.default_rng(0), among=np.arange(3)
    )
    assert {tuple(row) for row in x} <= {tuple(row) for row in images[:3]}


def test_bad_compositions(pictures):
    images, labels = pictures
    key = jax.random.key(0)
    with pytest.raises(InputError, match="60 labels for 59"):
        Compositional(images[1:], labels, 2, key)
    with pytest.raises(InputError, match="k must be"):
        Compositional(images, labels, 0, key)
    with pytest.raises(InputError, match="holdout"):
        Compositional(images, labels, 2, key, holdout=1.0)
    with pytest.raises(InputError, match="no held-out pairs"):
        Compositional(images, labels, 1, key).sample(3, np.random.default_rng(0), held_out=True)
    with pytest.raises(InputError, match="without held-out pairs"):
        Compositional(images, labels, 2, key, holdout=0.99).sample(3, np.random.default_rng(0))
    with pytest.raises(InputError, match=r"1\.\.6"):
        Compositional(images, labels, 2, key).U(7)


def test_digits():
    images, labels = digit_images()
    assert images.shape == (1797, 64)
    assert np.square(images).mean() == pytest.approx(1)
    assert set(labels) == set(range(10))

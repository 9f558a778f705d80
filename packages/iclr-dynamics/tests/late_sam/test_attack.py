import jax
import jax.numpy as jnp
import numpy as np
import pytest

from iclr_dynamics.late_sam.attack import Attack, pgd, robust_error
from iclr_dynamics.late_sam.objective import evaluate, function_model, one_hot
from iclr_shared.errors import InputError

X = jnp.asarray(np.random.default_rng(0).random((6, 4), np.float32))
Y = one_hot([0, 1, 0, 1, 0, 1], 2)
W = jnp.asarray(np.random.default_rng(1).standard_normal((4, 2), np.float32))


def linear(params, x, y):
    return -jnp.mean(jnp.sum((x @ params) * y, axis=1))


def test_linear_loss_goes_to_the_corner():
    """On a linear loss the sign steps end at the corner of the ball, cut to [0, 1]."""
    moved = pgd(linear, W, X, Y, eps=0.1, alpha=0.04, steps=5)
    direction = np.sign(-np.asarray(Y @ W.T))
    np.testing.assert_allclose(moved, np.clip(X + 0.1 * direction, 0, 1), atol=1e-6)


@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize("key", [None, jax.random.key(3)])
def test_stays_in_the_ball_and_the_box(norm, key):
    moved = pgd(linear, W, X, Y, eps=0.05, alpha=0.03, steps=4, norm=norm, key=key)
    delta = np.asarray(moved - X)
    size = np.abs(delta).max() if norm == "linf" else np.linalg.norm(delta, axis=1).max()
    assert 0 < size <= 0.05 + 1e-6
    assert moved.min() >= 0
    assert moved.max() <= 1
    assert linear(W, moved, Y) > linear(W, X, Y)


def test_radius_zero_and_zero_gradient():
    np.testing.assert_allclose(pgd(linear, W, X, Y, eps=0.0, alpha=0.1, norm="l2"), X, atol=1e-7)
    still = pgd(linear, jnp.zeros_like(W), X, Y, eps=0.1, alpha=0.1, norm="l2")
    np.testing.assert_allclose(still, X)


def test_random_start_only_with_a_key():
    one, two = (pgd(linear, W, X, Y, eps=0.1, alpha=0.0, steps=1, key=jax.random.key(k)) for k in (1, 2))
    assert not np.allclose(one, two)
    np.testing.assert_allclose(pgd(linear, W, X, Y, eps=0.1, alpha=0.0, steps=1), X)


def test_robust_error_is_not_below_the_clean_one():
    model = function_model(lambda params, x: x @ params)
    clean = evaluate(model, W, {}, X, Y).error
    assert robust_error(model, W, {}, X, Y, Attack(0.0, 0.0, 1)) == pytest.approx(clean)
    assert robust_error(model, W, {}, X, Y, Attack(0.3, 0.1, 5), batch_size=3) >= clean


def test_bad_input():
    with pytest.raises(InputError, match="floating-point"):
        pgd(linear, W, jnp.ones((2, 4), jnp.uint8), Y[:2])
    with pytest.raises(InputError, match=r"inputs in \[0, 1\], got"):
        pgd(linear, W, 255 * X, Y)
    for eps in (-0.1, float("nan")):
        with pytest.raises(InputError, match="at least 0"):
            pgd(linear, W, X, Y, eps=eps)
    with pytest.warns(UserWarning, match="divide it by 255"):
        pgd(linear, W, X, Y, eps=8.0, alpha=2.0, steps=1)
    with pytest.raises(InputError, match="no inputs to attack"):
        pgd(linear, W, X[:0], Y[:0])
    with pytest.raises(InputError, match="take 'linf' or 'l2'"):
        Attack(norm="l1").check()

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import iclr_welfare as iw
from iclr_shared.errors import InputError
from iclr_welfare.dynamics import Shocks


def state_of(U):
    zero = jnp.zeros(U.shape, jnp.int32)
    return iw.State(jnp.int32(0), U, U, zero, zero, jnp.zeros((), U.dtype))


def quiet(dtype):
    return Shocks(jnp.zeros((), dtype), jnp.zeros((), dtype), jnp.int32(10))


def test_one_step_is_simultaneous_and_moves_everyone(mixed):
    key = jax.random.key(0)
    with jax.enable_x64(True):
        before = state_of(jnp.asarray(mixed.U0))
        options = {"policy": "rawlsian", "M": 3, "noisy": False, "rounded": False}
        step = jax.jit(iw.step, static_argnames=tuple(options))
        after = step(before, mixed.f, mixed.g, key, key, quiet(jnp.float64), **options)
        helped = np.argsort(mixed.U0)[:3]
        expected = mixed.U0 - mixed.g(mixed.U0)
        expected[helped] = (mixed.U0 + mixed.f(mixed.U0))[helped]
        np.testing.assert_allclose(np.asarray(after.welfare), expected, rtol=1e-14)
        np.testing.assert_array_equal(np.flatnonzero(after.counts), np.sort(helped))
        rounded = step(before, mixed.f, mixed.g, key, key, quiet(jnp.float64), **options | {"rounded": True})
        moved = np.asarray(rounded.welfare) - mixed.U0
        np.testing.assert_allclose(moved, np.round(moved), atol=1e-9)


def test_official_noise(reference):
    noise = iw.Noise.official(reference, 3)
    assert noise.variance == 3 * 11060
    assert iw.Noise.official(reference, 3, scale_with_budget=False).variance == 11060
    assert noise.bound == 2 * noise.variance
    assert iw.Noise(4.0, clip=1.5).bound == 1.5


@pytest.mark.parametrize(
    ("arguments", "message"), [((-1.0,), "variance"), ((np.nan,), "variance"), ((1.0, 0.0), "bound")]
)
def test_bad_noise(arguments, message):
    with pytest.raises(InputError, match=message):
        iw.Noise(*arguments)


def test_shocks_have_the_variance_and_keep_the_bound():
    flat = iw.Population(np.zeros(2000), 1.0, 1.0)
    free = iw.simulate(flat, "rawlsian", 1, 2, key=jax.random.key(1), noise=iw.Noise(9.0)).U_half + 1
    assert free[1:].std() == pytest.approx(3.0, rel=0.06)
    assert abs(free[1:].mean()) < 4 * 3 / np.sqrt(2000)
    tight = iw.simulate(flat, "rawlsian", 1, 2, key=jax.random.key(1), noise=iw.Noise(9.0, clip=2.0)).U_half + 1
    assert np.abs(tight[1:]).max() == pytest.approx(2.0)
    np.testing.assert_allclose(tight[1:], np.clip(free[1:], -2, 2))


@given(st.lists(st.floats(0.01, 100.0), min_size=2, max_size=12), st.floats(0.1, 10.0))
@settings(max_examples=60, deadline=None)
def test_gini_is_the_mean_difference_and_ignores_the_unit(values, unit):
    U = np.array(values)
    by_hand = np.abs(U[:, None] - U[None, :]).mean() / (2 * U.mean())
    assert iw.gini(U) == pytest.approx(by_hand, abs=1e-12)
    assert iw.gini(unit * U) == pytest.approx(by_hand, abs=1e-12)


def test_gini_of_negative_welfare_is_refused_unless_shifted():
    U = np.array([-1.0, 1.0, 4.0])
    with pytest.raises(InputError, match="least is -1"):
        iw.gini(U)
    with pytest.raises(InputError, match="not all zero"):
        iw.gini(np.zeros(3))
    with pytest.raises(InputError, match="least is nan"):
        iw.gini(np.array([1.0, np.nan]))
    with pytest.raises(InputError, match="there is none"):
        iw.gini(np.zeros(0))
    assert iw.gini(U, shift=1.0) == pytest.approx(iw.gini(np.array([0.0, 2.0, 5.0])))
    assert iw.gini(np.array([0.0, 0.0, 3.0])) == pytest.approx(2 / 3)

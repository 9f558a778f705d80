import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from iclr_shared.errors import InputError
from iclr_welfare import POLICIES, select

KEY = jax.random.key(0)
levels = st.lists(st.integers(-3, 3), min_size=6, max_size=6)


compiled = jax.jit(select, static_argnames=("policy", "M"))


def chosen(policy, U, f, g, M, key=KEY):
    arrays = (jnp.asarray(np.float32(v)) for v in (U, f, g))
    return np.flatnonzero(np.asarray(compiled(policy, *arrays, M, key))).tolist()


@given(levels, levels, levels, st.sampled_from((1, 3)))
@settings(max_examples=40, deadline=None)
def test_against_sorting_with_ties_to_the_smallest_index(U, f, g, M):
    keys = {
        "rawlsian": lambda i: (U[i], i),
        "util_gain": lambda i: (-f[i] - g[i], i),
        "util_return": lambda i: (-f[i], i),
        "util_need": lambda i: (-g[i], U[i], i),
        "max_welfare": lambda i: (-U[i], i),
    }
    for policy, key in keys.items():
        assert chosen(policy, U, f, g, M) == sorted(sorted(range(6), key=key)[:M]), policy


@given(levels, levels, st.sampled_from((1, 3)))
@settings(max_examples=25, deadline=None)
def test_util_gain_maximises_the_next_steps_total(f, g, M):
    def total(S):
        return sum(f[i] if i in S else -g[i] for i in range(6))

    S = chosen("util_gain", [0] * 6, f, g, M)
    assert total(S) == max(total(other) for other in itertools.combinations(range(6), M))


def test_random_draws_everyone_equally_without_replacement():
    zero = jnp.zeros(5)
    draw = jax.jit(jax.vmap(lambda k: select("random", zero, zero, zero, 2, k)))
    masks = np.asarray(draw(jax.random.split(KEY, 4000)))
    assert (masks.sum(axis=1) == 2).all()
    share = masks.mean(axis=0)
    assert np.abs(share - 0.4).max() < 4 * np.sqrt(0.24 / 4000)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("M", [1, 3])
def test_exactly_M_are_helped(policy, M):
    assert len(chosen(policy, [1] * 6, [2] * 6, [3] * 6, M)) == M


def test_an_unknown_policy_lists_those_there_are():
    with pytest.raises(InputError, match=r"no policy 'maximin'; choose among rawlsian, util_gain"):
        chosen("maximin", [1] * 6, [2] * 6, [3] * 6, 1)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_selection_against_sorting_at_size(dtype):
    rng = np.random.default_rng(0)
    spread = np.concatenate(
        [rng.normal(size=200) * 10.0 ** rng.integers(-8, 9, 200), np.zeros(20), -np.zeros(20)]
    ).astype(dtype)
    with jax.enable_x64(dtype == np.float64):
        for M in (2, 100, 110, 239):
            mask = np.asarray(compiled("max_welfare", *(jnp.asarray(spread),) * 3, M, KEY))
            np.testing.assert_array_equal(np.flatnonzero(mask), np.sort(np.argsort(-spread, kind="stable")[:M]))

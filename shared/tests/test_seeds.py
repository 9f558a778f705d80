import random

import jax
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from iclr_shared.seeds import SeedTree, deterministic, root, seed_everything

names = st.lists(st.one_of(st.text(max_size=5), st.integers(0, 99)), max_size=3)


def test_a_stream_depends_on_its_path_only():
    before = root(7).child("model").int64()
    root(7).child("data", 3).numpy().random(100)
    assert root(7).child("model").int64() == before
    assert root(7).child("a").child("b") == root(7).child("a", "b")


def test_known_values_never_change():
    # Records made by an earlier version must stay reproducible.
    assert root(0).int64() == 12394014135065446812
    assert root(0).child("data", 3).int64() == 1145425987415597926


@given(names, names, st.integers(0, 2**31))
def test_different_paths_give_different_streams(one, other, seed):
    same = root(seed).child(*one).int64() == root(seed).child(*other).int64()
    assert same == (one == other and [type(x) for x in one] == [type(x) for x in other])


def test_names_cannot_be_confused_with_paths():
    assert root(0).child("a/b").int64() != root(0).child("a", "b").int64()
    assert root(0).child("1").int64() != root(0).child(1).int64()


def test_generators_of_each_library_repeat():
    tree = root(3).child("x")
    assert tree.python().random() == tree.python().random()
    assert tree.numpy().random() == tree.numpy().random()
    assert jax.random.normal(tree.jax()) == jax.random.normal(tree.jax())
    assert torch.rand(1, generator=tree.torch()) == torch.rand(1, generator=tree.torch())
    assert 0 <= tree.int32() < 2**31


def test_seed_everything_restores_what_was():
    tree, draws = SeedTree(1), []
    states = random.getstate(), np.random.get_state()[1].copy(), torch.random.get_rng_state()  # noqa: NPY002
    for _ in range(2):
        with seed_everything(tree) as seeded:
            draws.append((random.random(), np.random.rand(), torch.rand(1).item()))  # noqa: NPY002
    # The runtime type checker draws from `random` when it looks into containers, so compare this one first.
    assert random.getstate() == states[0]
    assert draws[0] == draws[1]
    assert seeded == ("random", "numpy", "torch")
    np.testing.assert_array_equal(np.random.get_state()[1], states[1])  # noqa: NPY002
    assert torch.equal(torch.random.get_rng_state(), states[2])


def test_deterministic_flags_are_reported_and_restored():
    with deterministic() as flags:
        assert torch.are_deterministic_algorithms_enabled()
    assert any("deterministic" in flag for flag in flags)
    assert not torch.are_deterministic_algorithms_enabled()


def test_a_tree_cannot_be_changed():
    with pytest.raises(AttributeError):
        root(0).seed = 1

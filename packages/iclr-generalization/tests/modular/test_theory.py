"""Closed forms: reference values, simulations, and the sample sizes that follow."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from iclr_generalization.modular import theory
from iclr_shared.errors import InputError


@pytest.mark.parametrize(
    ("P", "p", "n", "loss"),
    [
        (60, 10, 30, 1.2719298),
        (60, 20, 30, 2.1481481),
        (60, 45, 30, 1.0357143),
        (60, 60, 30, 0.5),
        (100, 20, 60, 1.2102564),
    ],
)
def test_reference_test_losses(P, p, n, loss):
    assert theory.test_loss(P, p, n) == pytest.approx(loss, abs=5e-8)


def test_reference_training_losses():
    assert theory.train_loss(60, 10, 30) == pytest.approx(0.5555556, abs=5e-8)
    assert theory.train_loss(100, 20, 60) == pytest.approx(0.5333333, abs=5e-8)
    assert theory.train_loss(60, 45, 30) == 0


@pytest.mark.parametrize("noise", [0.0, 0.5])
@pytest.mark.parametrize(("p", "n"), [(10, 30), (45, 30), (60, 25), (60, 90)])
def test_simulations_agree(p, n, noise):
    found = theory.simulate(60, p, n, np.random.default_rng(p + n), repeats=300, noise=noise)
    for kind, losses in (("test", found.test), ("train", found.train)):
        truth = getattr(theory, f"{kind}_loss")(60, p, n, noise)
        allowed = max(4 * losses.std() / 300**0.5, 1e-12)
        assert losses.mean() == pytest.approx(float(truth), abs=allowed)


def test_the_peak_is_infinite_unless_nothing_is_unseen():
    assert np.all(np.isinf(theory.test_loss(60, [29, 30, 31], 30)))
    assert theory.test_loss(60, 60, 60) == 0
    assert theory.test_loss(60, 60, 59) == pytest.approx(1 / 60)
    assert np.isinf(theory.test_loss(60, 60, 60, 0.1))
    assert theory.test_loss(60, 30, 0) == pytest.approx(1.0)


@given(P=st.integers(5, 500), share=st.floats(0.01, 1.0), n=st.integers(1, 1000), noise=st.floats(0, 2))
def test_training_loss_is_at_most_the_test_loss(P, share, n, noise):
    p = max(1, round(share * P))
    assert theory.train_loss(P, p, n, noise) <= theory.test_loss(P, p, n, noise) + 1e-12


def test_reference_sample_sizes():
    found = [theory.sample_complexity(m) for m in range(1, 6)]
    np.testing.assert_allclose(found, [2.7, 8.1, 24.3, 72.9, 218.7])
    assert theory.sample_complexity(modules=3, b=1) == pytest.approx(8.1)


@pytest.mark.parametrize("noise", [0.001, 0.02, 0.05])
def test_sample_sizes_invert_the_loss(noise):
    P = theory.features(6)
    n = theory.sample_complexity(6, eps=0.1, noise=noise)
    assert theory.test_loss(P, P, n, noise) == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"m": 3, "modules": 2, "b": 1}, "either the dimension"),
        ({}, "either the dimension"),
        ({"modules": 2}, "either the dimension"),
        ({"m": 0}, "at least 1"),
        ({"m": 2, "C": 1.0}, "C above 1"),
        ({"m": 2, "C": np.inf}, "C above 1"),
        ({"m": 700}, "more than a number can hold"),
        ({"m": 2, "eps": 1.0}, "eps must lie"),
        ({"m": 2, "eps": 0.1, "noise": 0.2}, "eps must lie"),
    ],
)
def test_bad_sample_sizes(arguments, words):
    with pytest.raises(InputError, match=words):
        theory.sample_complexity(**arguments)


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        ((10, 11, 5, 0), "p <= P"),
        ((10, 0, 5, 0), "p >= 1"),
        ((10, np.nan, 5, 0), "p >= 1"),
        ((10, 5, -1, 0), "n >= 0"),
        ((10, 5, [5, np.nan], 0), "n >= 0"),
        ((10, 5, 5, -0.1), "noise >= 0"),
    ],
)
def test_bad_losses_name_the_assumption_that_fails(bad, words):
    with pytest.raises(InputError, match=f"The theory assumes that .*{words}"):
        theory.test_loss(*bad)


def test_no_training_without_samples():
    with pytest.raises(InputError, match="n >= 1"):
        theory.train_loss(10, 5, 0)

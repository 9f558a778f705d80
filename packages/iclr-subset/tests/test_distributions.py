"""Laws, scores and their reference values, by enumeration."""

from itertools import combinations, permutations

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from iclr_shared.errors import InputError
from iclr_shared.testing import gradcheck
from iclr_subset import distributions as d
from iclr_subset.distributions import ExactK, ExpectedK

W = np.array([0.05, 0.1, 0.15, 0.2, 0.22, 0.28])
A = np.array([3, 1, 4, 1, 5, 9])
B = np.array([0.2, 0.4, 0.6, 0.3, 0.7, 0.8])
SETS = np.array(list(combinations(range(6), 3)))
ORDERS = np.array(list(permutations(range(6), 3)))
EVERY = np.array([[i >> j & 1 for j in range(6)] for i in range(64)], dtype=bool)
GRADIENT = (-2.84908351875, -7.75525413792, 1.06554565854, -5.79839001225, 2.56929152425, 4.83064860023)


def cost(subsets):
    return (A[subsets].sum(-1) - 8) ** 2 / 10


def test_set_probabilities():
    law = ExactK(W, 3)
    wanted = {
        (0, 1, 2): 0.00628654970760, (0, 1, 3): 0.00898877094698, (0, 1, 4): 0.0101894449755,
        (0, 1, 5): 0.0143106573395, (0, 2, 5): 0.0229552444177,
    }  # fmt: skip
    np.testing.assert_allclose(np.exp(law.log_prob(np.array(list(wanted)))), list(wanted.values()), rtol=1e-11)
    assert np.exp(law.log_prob(SETS)).sum() == pytest.approx(1, abs=1e-14)
    by_order = np.exp(law.sequence_log_prob(np.array(list(permutations((5, 0, 2)))))).sum()
    assert by_order == pytest.approx(0.0229552444177, rel=1e-11)


@pytest.mark.parametrize(("kind", "subsets", "second"), [("sequence", ORDERS, 3033.449278), ("set", SETS, 2913.078899)])
def test_exact_gradient_by_enumeration(kind, subsets, second):
    law = ExactK(W, 3)
    p = np.exp(law.sequence_log_prob(subsets) if kind == "sequence" else law.log_prob(subsets))
    scores = cost(subsets)[:, None] * law.score(subsets, kind)
    assert p @ cost(subsets) == pytest.approx(3.86144632911, rel=1e-11)
    np.testing.assert_allclose(p @ scores, GRADIENT, atol=1e-10)
    assert W @ (p @ scores) == pytest.approx(0, abs=1e-12)
    assert p @ (scores**2).sum(1) == pytest.approx(second, rel=1e-9)


def test_set_score():
    wanted = (17.3242701684, -3.76992208441, 4.31811841159, -3.76992208441, -3.76992208441, 1.59438647763)
    np.testing.assert_allclose(d.set_score(W, np.array([0, 2, 5])), wanted, rtol=1e-11)
    np.testing.assert_allclose(d.set_score(W, np.array([5, 0, 2])), wanted, rtol=1e-11)  # order does not matter


def test_sorted_draws_are_biased():
    p = np.exp(ExactK(W, 3).sequence_log_prob(ORDERS))
    wrong = p @ (cost(ORDERS)[:, None] * d.sequence_score(W, np.sort(ORDERS, axis=1)))
    assert np.abs(wrong - GRADIENT).max() == pytest.approx(5.7, abs=0.1)


def test_hand_cases():
    w = np.array([0.7, 0.9])
    law = ExactK(w, 1)
    np.testing.assert_allclose(np.exp(law.log_prob(np.array([[0], [1]]))), w / w.sum())
    np.testing.assert_allclose(law.score(np.array([0])), [1 / 0.7 - 1 / 1.6, -1 / 1.6])
    law = ExactK(np.array([0.5, 0.25, 0.25]), 2)
    np.testing.assert_allclose(np.exp(law.log_prob(np.array([[0, 1], [1, 2]]))), [5 / 12, 1 / 6])
    even = ExactK(np.full(7, 3.0), 4)
    assert np.exp(even.log_prob(np.array([1, 2, 4, 6]))) == pytest.approx(1 / 35)
    np.testing.assert_allclose(even.inclusion(), 4 / 7)
    # k = 1 on the simplex: df/dw_i = a_i - f up to a multiple of w's gauge, here exactly
    w, a = W / W.sum(), A.astype(float)
    gradient = w @ (a[:, None] * ExactK(w, 1).score(np.arange(6)[:, None]))
    np.testing.assert_allclose(gradient, a - w @ a, atol=1e-12)


def test_independent_choices():
    law = ExpectedK(B)
    p = np.exp(law.log_prob(EVERY))
    values = (EVERY @ A - 8) ** 2 / 10
    assert p.sum() == pytest.approx(1)
    assert p @ values == pytest.approx(6.49)
    np.testing.assert_allclose(p @ (values[:, None] * law.score(EVERY)), (4.38, 1.3, 4.8, 1.32, 5.4, 6.66), rtol=1e-10)
    sizes = EVERY.sum(1)
    assert p @ sizes == pytest.approx(3)
    assert p @ (sizes - 3) ** 2 == pytest.approx(1.22)
    np.testing.assert_allclose(p @ ((EVERY @ A)[:, None] * law.score(EVERY)), A, rtol=1e-12)  # linear cost


def test_two_evaluations_for_one_coordinate(rng):
    draws = [d.two_sided_gradient(B, 2, rng, lambda c: float(cost(c))) for _ in range(4000)]
    assert abs(np.mean(draws) - 4.8) < 4 * np.std(draws) / np.sqrt(4000)


@given(st.integers(2, 9), st.integers(0, 2**32 - 1), st.floats(0.2, 6))
@settings(max_examples=30, deadline=None)
def test_scores_are_gradients_and_homogeneous(n, seed, spread):
    rng = np.random.default_rng(seed)
    w = np.exp(spread * rng.standard_normal(n))
    k = int(rng.integers(1, n))
    order = rng.permutation(n)[:k]
    law = ExactK(w, k)
    for kind, log_p in (("sequence", law.sequence_log_prob), ("set", law.log_prob)):
        score = law.score(order, kind)
        assert np.abs(w * score).max() < 50
        assert w @ score == pytest.approx(0, abs=1e-9)
        of_logs = lambda u, log_p=log_p, kind=kind: (  # noqa: E731
            ExactK(np.exp(u), k).sequence_log_prob(order)
            if kind == "sequence"
            else ExactK(np.exp(u), k).log_prob(order)
        )
        gradcheck(of_logs, np.log(w), w * score, rtol=1e-6)
    # the set's is the sequence's mean over orders
    if k <= 4:
        orders = np.array(list(permutations(order)))
        p = np.exp(law.sequence_log_prob(orders))
        np.testing.assert_allclose(
            p @ d.sequence_score(w, orders) / p.sum(), law.score(order, "set"), atol=1e-7 / w.min()
        )


@pytest.mark.parametrize("spread", [0.3, 2.0, 5.0, 10.0])
def test_integral_equals_dynamic_program(spread):
    rng = np.random.default_rng(1)
    w = np.exp(spread * rng.standard_normal(12))
    for k in (1, 2, 6, 9):
        subset = rng.permuted(np.tile(np.arange(12), (3, 1)), axis=1)[:, :k]
        (log_p, inside, outside), other = d._by_orders(w, subset), d._by_clocks(w, subset)
        np.testing.assert_allclose(other[0], log_p, atol=1e-12)
        np.testing.assert_allclose(other[1] * w[subset], inside * w[subset], atol=1e-12)  # in logarithms of w
        np.testing.assert_allclose(other[2], outside, rtol=1e-9)


@given(st.integers(2, 9), st.integers(0, 2**32 - 1), st.floats(0.01, 1))
@settings(max_examples=30, deadline=None)
def test_scores_are_bounded_by_the_floor(n, seed, share):
    rng = np.random.default_rng(seed)
    k, c = int(rng.integers(1, n)), share / n
    w = (1 - share) * rng.dirichlet(np.full(n, 0.3)) + c
    order = rng.permutation(n)[:k]
    left = (1 / d.remaining(w, order)).sum()
    assert left <= k / ((n - k + 1) * c) * (1 + 1e-9)
    for kind in ("sequence", "set"):
        assert np.abs(ExactK(w, k).score(order, kind)).max() <= max(
            1 / c, left if kind == "sequence" else k / ((n - k + 1) * c)
        ) * (1 + 1e-9)


def test_large_sets():
    law = ExactK(np.full(60, 0.3), 30)
    from scipy.special import gammaln

    order = np.arange(30)
    assert law.log_prob(order) == pytest.approx(-(gammaln(61) - 2 * gammaln(31)), rel=1e-12)
    w = np.random.default_rng(0).random(60) + 0.1
    u = ExactK(w, 30)
    gradcheck(lambda v: ExactK(v, 30).log_prob(order), w, u.score(order, "set"), rtol=1e-6)


@pytest.mark.parametrize(("n", "k"), [(6, 3), (5, 4), (9, 1)])
def test_inclusion(n, k):
    w = np.exp(2 * np.random.default_rng(n).standard_normal(n))
    sets = np.array(list(combinations(range(n), k)))
    p = np.exp(ExactK(w, k).log_prob(sets))
    wanted = [p[(sets == i).any(1)].sum() for i in range(n)]
    np.testing.assert_allclose(ExactK(w, k).inclusion(), wanted, rtol=1e-10)


def test_extreme_weights_keep_their_digits():
    w = np.array([1.0, 1e-12, 2e-12, 1e-9])
    p = np.exp(ExactK(w, 2).log_prob(np.array(list(combinations(range(4), 2)))))
    assert p.sum() == pytest.approx(1, abs=1e-14)
    assert p[0] == pytest.approx(1e-12 / (1e-12 + 2e-12 + 1e-9), rel=1e-6)
    # the second draw is among 1e-9, not among 1 - 1
    assert d.remaining(w, np.array([0, 3]))[1] == pytest.approx(1.003e-9, rel=1e-12)


@pytest.mark.parametrize("k", [1, 3])
def test_sampler_law(k, rng):
    sets = np.array(list(combinations(range(6), k)))
    drawn = np.sort(ExactK(W, k).sample(rng, 40_000), axis=1)
    place = {tuple(s): i for i, s in enumerate(sets.tolist())}
    counts = np.bincount([place[tuple(s)] for s in drawn.tolist()], minlength=len(sets))
    assert np.abs(counts / 40_000 - np.exp(ExactK(W, k).log_prob(sets))).sum() / 2 < 0.02
    again = np.sort(d._redrawn(W, k, rng, 40_000), axis=1)  # repeats dropped, with few items clocks go on
    counts = np.bincount([place[tuple(s)] for s in again.tolist()], minlength=len(sets))
    assert np.abs(counts / 40_000 - np.exp(ExactK(W, k).log_prob(sets))).sum() / 2 < 0.02
    first = ExactK(W, 3).sample(rng, 40_000)[:, 0]
    np.testing.assert_allclose(np.bincount(first, minlength=6) / 40_000, W, atol=0.01)


def test_redrawing_many_items_keeps_the_order_of_draws(rng):
    w = np.array([0.9, 0.05, *np.full(98, 0.05 / 98)])
    law = ExactK(w, 3)
    drawn = law.sample(rng, 20_000)
    assert (np.diff(np.sort(drawn, axis=1), axis=1) > 0).all()
    for subset in ((0, 1), (1, 0)):
        share = (drawn[:, :2] == subset).all(1).mean()
        assert share == pytest.approx(np.exp(ExactK(w, 2).sequence_log_prob(np.array(subset))), abs=0.012)


def test_jax_gives_the_same():
    with jax.enable_x64(True):
        w = jax.numpy.asarray(W)
        for kind in ("sequence", "set"):
            ours = jax.jit(lambda v, kind=kind: ExactK(v, 3).score(jax.numpy.asarray(ORDERS[:20]), kind))(w)
            np.testing.assert_allclose(ours, ExactK(W, 3).score(ORDERS[:20], kind), rtol=1e-12)
        automatic = jax.grad(lambda v: d.set_log_prob(v, jax.numpy.asarray([0, 2, 5])))(w)
        np.testing.assert_allclose(automatic, d.set_score(W, np.array([0, 2, 5])), rtol=1e-12)
        drawn = ExactK(w, 3).sample(jax.random.key(0), 4000)
        counts = np.bincount(np.asarray(drawn[:, 0]), minlength=6) / 4000
        np.testing.assert_allclose(counts, W, atol=0.03)
        chosen = ExpectedK(jax.numpy.asarray(B)).sample(jax.random.key(0), 4000)
        np.testing.assert_allclose(chosen.mean(0), B, atol=0.04)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ExactK(W, 0), "at least 1 and below n = 6"),
        (lambda: ExactK(W, 6), "at least 1 and below n = 6"),
        (lambda: ExactK(W, 2.5), "whole number"),
        (lambda: ExactK(np.array([1.0]), 1), "at least two"),
        (lambda: ExactK(np.array([1.0, 0.0]), 1), "positive"),
        (lambda: ExpectedK(np.array([0.5, 1.0])), "between 0 and 1"),
        (lambda: ExpectedK(np.array([0.5, np.nan])), "positive and finite"),
        (lambda: ExactK(W, 3).score(np.array([0, 1, 2]), "neither"), "A score is one of"),
    ],
)
def test_bad_input(make, message):
    with pytest.raises(InputError, match=message):
        make()

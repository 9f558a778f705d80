import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq

import iclr_welfare as iw
from iclr_shared.errors import InputError

positive = st.floats(0.05, 50.0)


@st.composite
def limits(draw):
    N = draw(st.integers(2, 8))
    F, G = (np.array(draw(st.lists(positive, min_size=N, max_size=N))) for _ in range(2))
    return F, G, draw(st.integers(1, N - 1))


def test_two_people_by_hand():
    F, G = (10, 20), (2, 5)
    assert iw.equalized_rate(F, G, 1) == pytest.approx(5.1351351, abs=5e-8)
    np.testing.assert_allclose(iw.equalized_shares(F, G, 1), [0.5945946, 0.4054054], atol=5e-8)


@given(limits())
@settings(max_examples=200, deadline=None)
def test_shares_use_the_budget_and_everyone_who_can_grows_equally(case):
    F, G, M = case
    r, pi = iw.equalized_rate(F, G, M), iw.equalized_shares(F, G, M)
    assert pi.sum() == pytest.approx(M, rel=1e-9)
    rates = pi * F - (1 - pi) * G
    inside = (pi > 1e-9) & (pi < 1 - 1e-9)
    np.testing.assert_allclose(rates[inside], r, rtol=1e-7, atol=1e-7)
    assert np.all(rates[pi >= 1] <= r + 1e-7)  # cannot keep up even if always helped
    assert np.all(rates[pi <= 0] >= r - 1e-7)  # stays ahead without any help
    assert iw.equalized_mean(F, G, M) == pytest.approx(rates.mean(), rel=1e-9, abs=1e-9)


@given(limits())
@settings(max_examples=100, deadline=None)
def test_against_root_finding_and_the_formula(case):
    F, G, M = case
    root = brentq(lambda r: np.clip((r + G) / (F + G), 0, 1).sum() - M, -G.max() - 1, F.max() + 1, xtol=1e-13)
    assert iw.equalized_rate(F, G, M) == pytest.approx(root, rel=1e-8, abs=1e-8)
    formula = (M - np.sum(G / (F + G))) / np.sum(1 / (F + G))
    if np.all((formula + G) / (F + G) <= 1) and np.all(formula + G >= 0):
        assert iw.equalized_rate(F, G, M) == pytest.approx(formula, rel=1e-9, abs=1e-9)


@given(limits(), st.floats(0.01, 5.0), st.randoms(use_true_random=False))
@settings(max_examples=100, deadline=None)
def test_more_return_less_decay_more_budget_never_hurt_and_order_does_not_matter(case, more, random):
    F, G, M = case
    r = iw.equalized_rate(F, G, M)
    i = random.randrange(F.size)
    F2, G2 = F.copy(), G.copy()
    F2[i] += more
    G2[i] /= 1 + more
    assert iw.equalized_rate(F2, G, M) >= r - 1e-9
    assert iw.equalized_rate(F, G2, M) >= r - 1e-9
    if F.size > M + 1:
        assert iw.equalized_rate(F, G, M + 1) >= r - 1e-9
    order = np.array(random.sample(range(F.size), F.size))
    assert iw.equalized_rate(F[order], G[order], M) == pytest.approx(r, rel=1e-9, abs=1e-9)


def test_homogeneous_closed_forms(reference):
    assert iw.rate_rawls(reference, 1) == pytest.approx(265.25, rel=1e-13)
    assert iw.rate_random(reference, 1) == pytest.approx(265.25, rel=1e-13)
    for S in ([0], [7], [39]):
        assert iw.rate_locked(reference, S) == pytest.approx(216.5, rel=1e-13)
    assert iw.rate_rawls(reference, 3) == pytest.approx((3 * 11000 - 37 * 10) / 40, rel=1e-13)
    assert iw.rate_locked(reference, [1, 2, 3]) == pytest.approx((3 * 11000 - 37 * 60) / 40, rel=1e-13)


def test_table_of_the_income_experiment():
    people = iw.homogeneous(np.zeros(47))
    assert iw.rate_rawls(people, 1) == pytest.approx(265.21276596, abs=5e-9)
    assert iw.rate_locked(people, [0]) == pytest.approx(216.27659574, abs=5e-9)
    assert iw.rate_rawls(people, 10) == pytest.approx(2742.12765957, abs=5e-9)
    assert iw.rate_locked(people, range(10)) == pytest.approx(2702.76595745, abs=5e-9)


def test_ruin_row():
    people = iw.ruin_example(np.zeros(200))
    assert (people.f_minus[0], people.f_plus[0]) == (1000, 3960)
    assert iw.rate_rawls(people, 1) == pytest.approx(-64.65, rel=1e-12)
    assert iw.rate_locked(people, [5]) == pytest.approx(-49.85, rel=1e-12)


def test_best_and_worst_set_among_all(mixed):
    from itertools import combinations

    rates = {S: iw.rate_locked(mixed, S) for S in combinations(range(10), 3)}
    best, worst = iw.best_locked_set(mixed, 3), iw.worst_locked_set(mixed, 3)
    assert iw.rate_locked(mixed, best) == pytest.approx(max(rates.values()))
    assert iw.rate_locked(mixed, worst) == pytest.approx(min(rates.values()))


def test_one_step_gain_is_the_expected_change(mixed):
    U = mixed.U0
    gain = iw.one_step_gain(mixed, U, [2, 5])
    by_hand = sum(mixed.f(U)[i] if i in (2, 5) else -mixed.g(U)[i] for i in range(10)) / 10
    assert gain == pytest.approx(by_hand)
    with pytest.raises(InputError, match="holds 3 values for 10 people"):
        iw.one_step_gain(mixed, [1.0, 2.0, 3.0], [2])
    with pytest.raises(InputError, match="not finite for person 4"):
        iw.one_step_gain(mixed, np.where(np.arange(10) == 4, np.nan, U), [2])


def test_random_where_the_start_decides():
    people = iw.linear(np.zeros(4), 1.0, 9.0, 2.0, 1.0)
    with pytest.raises(InputError, match="person 0 depends on the start"):
        iw.rate_random(people, 1)
    ruined = iw.linear(np.zeros(4), 1.0, 2.0, 2.0, 1.0, sum_check=False)
    assert iw.rate_random(ruined, 1) == pytest.approx(0.25 * 1 - 0.75 * 2)


@pytest.mark.parametrize(
    ("F", "G", "M", "message"),
    [
        ([1.0, 2.0], [1.0, 2.0, 3.0], 1, "one length"),
        ([1.0, 2.0], [1.0, 2.0], 2, "M = 2 must be at least 1 and smaller"),
        ([1.0, 2.0], [1.0, 2.0], 0, "M = 0 must be at least 1"),
        ([1.0, -2.0], [1.0, 2.0], 1, "Returns F must be positive and finite, but are not for person 1"),
        ([1.0, 2.0], [np.inf, 2.0], 1, "Decays G must be positive and finite, but are not for person 0"),
    ],
)
def test_bad_limits(F, G, M, message):
    with pytest.raises(InputError, match=message):
        iw.equalized_rate(F, G, M)


@pytest.mark.parametrize(
    ("S", "message"),
    [
        ([], "list of people|between 1 and 9"),
        (list(range(10)), "between 1 and 9"),
        ([1, 1], "different people"),
        ([10], "person 10"),
        ([-1], "first is 0"),
    ],
)
def test_bad_sets(mixed, S, message):
    with pytest.raises(InputError, match=message):
        iw.rate_locked(mixed, S)

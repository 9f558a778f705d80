import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import iclr_welfare as iw
from iclr_shared.errors import InputError
from iclr_welfare.conditions import wins_whatever_happens


@st.composite
def limits(draw):
    """Limits of random people under the Matthew effect and with f + g rising, and a budget."""
    N = draw(st.integers(2, 7))

    def many(low, high):
        return np.array(draw(st.lists(st.floats(low, high), min_size=N, max_size=N)))

    g_minus = many(0.5, 5.0)
    g_plus = g_minus + many(0.0, 20.0)
    f_minus = many(0.5, 200.0)
    f_plus = f_minus + 10 * (g_plus - g_minus) + many(0.0, 50.0)
    return (f_minus, f_plus, g_plus, g_minus), draw(st.integers(1, N - 1))


def people(case):
    return iw.linear(np.zeros(case[0][0].size), *case[0]), case[1]


@given(limits())
@settings(max_examples=150, deadline=None)
def test_conditions_are_the_signs_of_the_equalised_rates(case):
    pop, M = people(case)
    assert (
        iw.survival(pop, M) == (iw.equalized_rate(pop.f_minus, pop.g_plus, M) > 1e-12)
        or abs(iw.survival_margin(pop, M)) < 1e-9
    )
    assert (
        iw.ruin(pop, M) == (iw.equalized_rate(pop.f_plus, pop.g_minus, M) < -1e-12)
        or abs(iw.ruin_margin(pop, M)) < 1e-9
    )
    assert not (iw.survival(pop, M) and iw.ruin(pop, M))
    assert {"survival": iw.survival(pop, M), "ruin": iw.ruin(pop, M)}.get(iw.regime(pop, M), True)


@given(limits())
@settings(max_examples=150, deadline=None)
def test_the_verdict_is_the_inequality(case):
    pop, M = people(case)
    S = list(range(M))
    if iw.regime(pop, M) == "indeterminate":
        with pytest.raises(InputError, match="survival condition or ruin condition"):
            iw.who_wins(pop, M, S)
        return
    verdict = iw.who_wins(pop, M, S)
    total = pop.f_plus[:M].sum() - pop.g_plus[M:].sum()
    assert pop.N * verdict.locked == pytest.approx(total, rel=1e-9, abs=1e-9)
    if verdict.regime == "survival":
        assert pop.N * verdict.rawls == pytest.approx(pop.N * iw.equalized_mean(pop.f_plus, pop.g_minus, M), rel=1e-9)
    assert verdict.gap == pytest.approx(verdict.rawls - verdict.locked)
    overall = wins_whatever_happens(pop, M)
    assert overall in (verdict.winner, "depends on S") or verdict.winner == "tie"


@given(st.integers(2, 9), st.data())
@settings(max_examples=100, deadline=None)
def test_homogeneous_people_exactly(N, data):
    M = data.draw(st.integers(1, N - 1))
    g_minus, extra, f_minus, rise = (
        data.draw(st.floats(low, high)) for low, high in ((1, 9), (0.5, 60), (1, 900), (1, 90))
    )
    g_plus, f_plus = g_minus + extra, f_minus + rise + 10 * extra
    pop = iw.linear(np.zeros(N), f_minus, f_plus, g_plus, g_minus)
    spare = M * f_minus - (N - M) * g_plus
    if abs(spare) > 1e-6:
        assert iw.survival(pop, M) == (spare > 0)
    if spare > 1e-6:
        verdict = iw.who_wins(pop, M, list(range(M)))
        assert verdict.winner == "rawlsian"
        assert verdict.gap == pytest.approx((N - M) * (g_plus - g_minus) / N, rel=1e-6)
        assert iw.rate_random(pop, M) == pytest.approx(verdict.rawls, rel=1e-9)
    if M * f_plus - (N - M) * g_minus < -1e-6:
        verdict = iw.who_wins(pop, M, list(range(M)))
        assert verdict.winner == "utilitarian"
        assert verdict.gap == pytest.approx(-M * (f_plus - f_minus) / N, rel=1e-6)


@pytest.mark.parametrize(("f_minus", "expected"), [(239.0, False), (240.0, False), (241.0, True)])
def test_survival_threshold_of_ten_people(f_minus, expected):
    # N = 10, M = 2: need f^- > 4 g^+; equality is not enough.
    assert iw.survival(iw.linear(np.zeros(10), f_minus, 600.0, 60.0, 10.0), 2) is expected


def test_strong_heterogeneity_reverses_the_order_under_survival(reference):
    f_plus = np.full(40, 11000.0)
    f_plus[24] = 15000.0
    pop = iw.linear(np.zeros(40), 9600.0, f_plus, 60.0, 10.0)
    assert iw.regime(pop, 1) == "survival"
    assert iw.who_wins(pop, 1, [24]).winner == "utilitarian"
    assert iw.who_wins(pop, 1, [3]).winner == "rawlsian"
    assert wins_whatever_happens(pop, 1) == "depends on S"
    assert wins_whatever_happens(reference, 1) == "rawlsian"


def test_absorbing_sets(reference, mixed):
    assert iw.is_absorbing(reference, [3])
    assert iw.is_absorbing(reference, [3], "max_welfare")
    best = np.argsort(-(mixed.f_plus + mixed.g_minus))[:2]
    others = np.setdiff1d(np.arange(10), best)
    by_hand = (mixed.f_plus + mixed.g_minus)[best].min() > (mixed.f_minus + mixed.g_plus)[others].max()
    assert iw.is_absorbing(mixed, best) == by_hand
    with pytest.raises(InputError, match="does not lock"):
        iw.is_absorbing(reference, [3], "rawlsian")


def test_indeterminate_says_which_assumption_fails():
    pop = iw.linear(np.zeros(4), 1.0, 9.0, 2.0, 1.0)
    assert iw.regime(pop, 1) == "indeterminate"
    with pytest.raises(
        InputError, match=r"survival condition or ruin condition \(survival: .* ≥ M = 1; ruin: .* ≤ M\)"
    ):
        iw.rate_rawls(pop, 1)
    assert iw.rate_rawls_up(pop, 1) == pytest.approx((9 - 3) / 4)
    assert iw.rate_rawls_down(pop, 1) == pytest.approx((1 - 6) / 4)


def test_without_the_matthew_effect_the_comparison_declines_and_says_why():
    pop = iw.monotonicity(np.zeros(40), "decreasing", "decreasing")
    with pytest.raises(
        InputError, match=r"Matthew effect: the return f does not fall with welfare \(fails for persons 0, 1"
    ):
        iw.who_wins(pop, 1, [0])
    assert iw.rate_rawls(pop, 1) == pytest.approx(230.25)
    rising = iw.monotonicity(np.zeros(40), "increasing", "increasing")
    with pytest.raises(InputError, match="decay g does not rise"):
        iw.who_wins(rising, 1, [0])


def test_assumptions_in_full(reference):
    rows = iw.assumptions(reference, 1)
    assert [a.holds for a in rows] == [True] * 4
    assert "Σ g⁺/(f⁻+g⁺) = 0.248447 < M = 1" in rows[-1].detail
    falling = iw.linear(np.zeros(40), 9600.0, 9601.0, 60.0, 10.0, sum_check=False)
    assert [(a.holds, a.needed) for a in iw.assumptions(falling, 1)][2] == (False, False)
    iw.who_wins(falling, 1, [0])


def test_a_set_of_another_size_than_the_budget(reference):
    with pytest.raises(InputError, match="holds 2 people but the budget is M = 1"):
        iw.who_wins(reference, 1, [0, 1])


def test_burn_in(reference):
    assert iw.burn_in(reference) == int(np.ceil((reference.U0.max() + 1900) / 10))
    assert iw.burn_in(iw.Population(np.zeros(3), 2.0, 1.0)) == 0

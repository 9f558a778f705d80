import itertools
import warnings

import numpy as np
import pytest

import iclr_welfare as iw
from iclr_shared.errors import InputError
from iclr_welfare.population import finite_welfare, per_person, whole


def test_limits_by_their_names_in_the_paper(reference):
    assert reference.N == 40
    for name, value in (("f_minus", 9600), ("f_plus", 11000), ("g_plus", 60), ("g_minus", 10)):
        np.testing.assert_array_equal(getattr(reference, name), np.full(40, value))
    np.testing.assert_array_equal(reference.worst, [reference.f_minus, reference.g_plus])
    np.testing.assert_array_equal(reference.best, [reference.f_plus, reference.g_minus])


def test_arrays_stand_for_constants():
    people = iw.Population(np.zeros(3), np.array([1.0, 2.0, 3.0]), 0.5)
    np.testing.assert_array_equal(people.f_plus, [1, 2, 3])
    np.testing.assert_array_equal(people.g_minus, [0.5, 0.5, 0.5])


@pytest.mark.parametrize("U0", [[1, 2, 3], (1.0, 2.0, 3.0), np.arange(1, 4)])
def test_welfare_of_any_numbers_is_taken_as_float64(U0):
    people = iw.Population(U0, 9.0, 1.0)
    assert people.U0.dtype == np.float64
    np.testing.assert_array_equal(people.U0, [1, 2, 3])
    assert iw.Population(np.float32(U0), 9.0, 1.0).U0.dtype == np.float32


def test_worst_and_best_see_inside_the_line():
    people = iw.concave(np.zeros(40))
    assert people.best[0][0] == 15200
    assert people.f_plus[0] == 14800


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: iw.Population(np.array([1.0, np.nan, 2.0, np.inf]), 1.0, 1.0), "not finite for persons 1, 3"),
        (lambda: iw.Population(np.array([1.0]), 1.0, 1.0), "at least two people"),
        # Population, equalized_rate and from_incomes go through these; the checker of the test run would refuse it.
        (lambda: finite_welfare(np.ones((2, 3))), r"shape \(N,\), one number per person, not \(2, 3\)"),
        (lambda: per_person(["much", "little"], "Incomes"), "Incomes must be numbers, one per person: could not"),
        (lambda: per_person([[1.0], [2.0, 3.0]], "Incomes"), "Incomes must be numbers, one per person"),
        (lambda: whole(1.5, "The budget M"), "The budget M must be a whole number, not 1.5"),
        (lambda: iw.Population(np.zeros(3), iw.Constant(np.ones(2)), 1.0), "holds 2 values for 3 people"),
        (lambda: iw.Population(np.zeros(3), -1.0, 1.0), "not positive"),
        (lambda: iw.Population(np.zeros(3), 1.0, np.array([1.0, 1.0, -2.0])), "not positive for person 2"),
        (
            lambda: iw.linear(np.zeros(3), np.array([5.0, 9.0, 5.0]), np.full(3, 8.0), 2.0, 1.0),
            "the return f falls with welfare for person 1",
        ),
        (
            lambda: iw.linear(np.zeros(3), 5.0, 50.0, np.array([2.0, 2.0, 1.0]), np.array([1.0, 1.0, 2.0])),
            "the decay g rises with welfare for person 2",
        ),
    ],
)
def test_bad_input_names_the_person(make, message):
    with pytest.raises(InputError, match=message):
        make()


def test_monotonicity_at_the_knots_is_monotonicity_everywhere():
    families = [
        iw.Constant(4.0),
        iw.LinearClipped(2.0, 5.0, -10.0, 20.0),
        iw.LinearClipped(2.0, 5.0, 15.0, -12.0),
        iw.Step(3.0, 5.0, 1.0),
        iw.Step(5.0, 3.0, 4.0),
        iw.Logistic(2.0, 6.0, 0.0, 3.0),
        iw.Concave(2.0, 6.0, 4.0, -10.0, 0.0, 20.0),
    ]
    u = np.linspace(-60, 60, 24_001)
    for f, g in itertools.product(families, repeat=2):
        people = iw.Population(np.zeros(2), f, g, matthew=False, sum_check=False)
        dense = {"f": f(u), "g": g(u), "sum": f(u) + g(u)}
        falls = {name: bool(np.any(np.diff(values) < -1e-7)) for name, values in dense.items()}
        assert (people.f_falls[0], people.sum_falls[0]) == (falls["f"], falls["sum"]), (f, g)
        assert people.g_rises[0] == np.any(np.diff(dense["g"]) > 1e-7), (f, g)
        np.testing.assert_allclose(people.worst, [[f(u).min()] * 2, [g(u).max()] * 2], atol=1e-6)
        np.testing.assert_allclose(people.best, [[f(u).max()] * 2, [g(u).min()] * 2], atol=1e-6)


def test_without_the_matthew_effect_only_if_asked():
    with pytest.raises(InputError, match="--no-matthew"):
        iw.linear(np.zeros(2), 9.0, 8.0, 2.0, 1.0)
    iw.linear(np.zeros(2), 9.0, 8.0, 2.0, 1.0, matthew=False, sum_check=False)


def test_a_falling_sum_warns():
    with pytest.warns(UserWarning, match=r"f \+ g falls with welfare for persons 0, 1"):
        iw.linear(np.zeros(2), 5.0, 5.1, 3.0, 1.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        iw.linear(np.zeros(2), 5.0, 5.1, 3.0, 1.0, sum_check=False)
        iw.linear(np.zeros(2), 5.0, 50.0, 3.0, 1.0)


@pytest.mark.parametrize("M", [-1, 0, 40, 41])
def test_budget_out_of_range(reference, M):
    with pytest.raises(InputError, match=f"M = {M} .*N = 40"):
        reference.check_budget(M)

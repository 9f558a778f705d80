import numpy as np
import pytest

import iclr_welfare as iw
from iclr_shared.errors import InputError
from iclr_welfare.scenarios import turning_points

U0 = np.linspace(0, 200, 40)


def test_homogeneous_parameters_and_turning_points():
    people = iw.homogeneous(U0, 10, rng=np.random.default_rng(0))
    assert (people.f_minus[0], people.f_plus[0], people.g_plus[0], people.g_minus[0]) == (9600, 11000, 60, 10)
    for x, low, high in (
        (people.f.x_lo, -2100, -2000),
        (people.f.x_hi, 400, 800),
        (people.g.x_hi, -1900, -1850),
        (people.g.x_lo, -1600, -1500),
    ):
        assert ((x >= low) & (x < high)).all()
        assert np.unique(x).size > 10
    assert not people.sum_falls.any()


def test_turning_points_are_drawn_until_the_sum_rises():
    x = turning_points(50, np.random.default_rng(0), np.full(50, 500.0), np.full(50, 50.0))
    assert (500 / (x[1] - x[0]) > 50 / (x[3] - x[2])).all()
    with pytest.raises(InputError, match="person 2"):
        turning_points(3, np.random.default_rng(0), np.array([500.0, 500.0, 1.0]), np.full(3, 50.0))


def test_heterogeneous_draws_have_the_stated_moments():
    people = iw.heterogeneous(np.zeros(4000), 10, rng=np.random.default_rng(2024), sigma2=10.0)
    k = 400.0
    for values, mean, sd in (
        (people.g_plus, 60, 10**0.5),
        (people.f_minus, 240 * k, 4 * k * 10**0.5),
        (people.f_plus, 275 * k, (4 + 7 / 12) * k * 10**0.5),
    ):
        assert values.mean() == pytest.approx(mean, abs=4 * sd / 60 + 0.02 * mean)
        assert values.std() == pytest.approx(sd, rel=0.15)
    assert people.g_minus.min() >= 1
    assert (people.f_plus >= people.f_minus).all()
    assert (people.g_plus >= people.g_minus).all()


def test_heat_map_cell():
    people = iw.heat_map_cell(np.zeros(3000), 0.5, 4.0, rng=np.random.default_rng(0))
    assert people.g_minus.mean() == pytest.approx(30, abs=0.1)
    assert people.g_minus.std() == pytest.approx(1, rel=0.1)
    assert people.f_minus.mean() == pytest.approx(240 * 3000, rel=0.01)


def test_ruin_needs_many_people():
    assert iw.ruin(iw.ruin_example(np.zeros(200), rng=np.random.default_rng(0)), 1)
    with pytest.raises(InputError, match="more than 150 people, not 150"):
        iw.ruin_example(np.zeros(150))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: iw.heterogeneous(U0, 0, rng=np.random.default_rng(0)), "M = 0 must be at least 1"),
        (lambda: iw.heterogeneous(U0, 1, rng=np.random.default_rng(0), sigma2=-1.0), "number >= 0, not -1"),
        (lambda: iw.heat_map_cell(U0, 0.5, np.nan, rng=np.random.default_rng(0)), "number >= 0, not nan"),
        (lambda: iw.heat_map_cell(U0, 1.5, 1.0, rng=np.random.default_rng(0)), r"must lie in \(0, 1\], not be 1.5"),
        (lambda: iw.concave(U0, 40), "M = 40 must be at least 1 and smaller"),
        (lambda: iw.homogeneous(np.zeros(0)), "at least two people"),
    ],
)
def test_bad_parameters(make, message):
    with pytest.raises(InputError, match=message):
        make()


def test_concave_right_limit():
    people = iw.concave(U0, 2, rng=np.random.default_rng(0))
    assert people.f_minus[0] == pytest.approx(6 * 60 * 20)
    assert people.best[0][0] == pytest.approx(7200 + 2 / 7 * 70 * 20)
    assert people.f_plus[0] == pytest.approx(7200 + 1 / 7 * 70 * 20)
    assert iw.rate_rawls(iw.concave(U0), 1) == pytest.approx(360.25)
    assert iw.rate_locked(iw.concave(U0), [0]) == pytest.approx(311.5)


@pytest.mark.parametrize("f", ["increasing", "decreasing", "constant"])
@pytest.mark.parametrize("g", ["increasing", "decreasing", "constant"])
def test_monotonicity(f, g):
    people = iw.monotonicity(U0, f, g)
    assert people.f_falls.any() == (f == "decreasing")
    assert people.g_rises.any() == (g == "increasing")
    assert people.f_plus[0] == {"increasing": 11000, "decreasing": 9600, "constant": 10300}[f]
    assert people.g_minus[0] == {"increasing": 60, "decreasing": 10, "constant": 35}[g]

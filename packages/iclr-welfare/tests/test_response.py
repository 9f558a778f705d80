import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from iclr_shared.errors import InputError
from iclr_welfare import Concave, Constant, LinearClipped, Logistic, Step

FAMILIES = {
    "constant": Constant(3.0),
    "rising": LinearClipped(2.0, 5.0, -10.0, 20.0),
    "falling": LinearClipped(2.0, 5.0, 20.0, -10.0),
    "step": Step(2.0, 5.0, 1.0),
    "logistic": Logistic(2.0, 5.0, 0.0, 3.0),
    "concave": Concave(2.0, 6.0, 4.0, -10.0, 0.0, 20.0),
}


@pytest.mark.parametrize("name", FAMILIES)
def test_limits_are_the_values_far_out(name):
    response = FAMILIES[name]
    left, right = response(np.array([-1e6, 1e6]))
    np.testing.assert_allclose([left, right], [np.float64(v) for v in response.limits], rtol=1e-12)


@pytest.mark.parametrize("name", FAMILIES)
def test_numpy_and_jax_agree_and_keep_the_dtype(name):
    u = np.linspace(-30, 30, 61)
    with jax.enable_x64(True):
        ours = jax.jit(lambda r, x: r(x))(FAMILIES[name], jnp.asarray(u))
        assert ours.dtype == jnp.float64
    np.testing.assert_allclose(np.asarray(ours), FAMILIES[name](u), rtol=1e-14)


@pytest.mark.parametrize("name", FAMILIES)
def test_values_lie_between_the_levels_and_knots_enclose_the_turning(name):
    response = FAMILIES[name]
    values = response(np.linspace(-1000, 1000, 4001))
    assert values.min() >= 2 - 1e-12
    assert values.max() <= 6 + 1e-12
    if response.knots:
        np.testing.assert_allclose(response(np.array([min(response.knots) - 1e3])), [float(response.limits[0])])


def test_linear_clipped_at_known_points():
    f = LinearClipped(9600.0, 11000.0, -2000.0, 600.0)
    np.testing.assert_allclose(f(np.array([-2001.0, -2000.0, -700.0, 600.0, 601.0])), [9600, 9600, 10300, 11000, 11000])
    g = LinearClipped(10.0, 60.0, -1500.0, -1900.0)
    np.testing.assert_allclose(g(np.array([-2000.0, -1700.0, -1000.0])), [60, 35, 10])


@given(st.floats(0.1, 9), st.floats(0.1, 9), st.floats(-9, -1), st.floats(1, 9))
@settings(max_examples=50, deadline=None)
def test_either_pair_of_a_line_may_come_first(a, b, x, y):
    u = np.linspace(-10, 10, 41)
    np.testing.assert_array_equal(LinearClipped(a, b, x, y)(u), LinearClipped(b, a, y, x)(u))


def test_swapped_limits_are_sorted_per_person():
    g = LinearClipped(
        np.array([60.0, 10.0]), np.array([10.0, 60.0]), np.array([-1900.0, -1500.0]), np.array([-1500.0, -1900.0])
    )
    np.testing.assert_array_equal(g.lo, [10, 10])
    np.testing.assert_array_equal(g(np.array([-3000.0, -3000.0])), [60, 60])


def test_concave_rises_then_falls():
    f = FAMILIES["concave"]
    np.testing.assert_allclose(f(np.array([-10.0, -5.0, 0.0, 10.0, 20.0])), [2, 4, 6, 5, 4])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Constant(-1.0), "Constant: value is not positive"),
        (lambda: Constant(np.array([1.0, 0.0])), "not positive for person 1"),
        (lambda: Constant(np.nan), "not finite"),
        (lambda: Constant(np.ones((2, 2))), "shape"),
        (lambda: LinearClipped(1.0, 2.0, 5.0, 5.0), "coincide"),
        (lambda: Step(np.ones(2), np.full(3, 2.0), 0.0), "shape"),
        (lambda: LinearClipped(-1.0, 2.0, 0.0, 5.0), "lo is not positive"),
        (lambda: LinearClipped(1.0, 2.0, 0.0, np.inf), "x_hi is not finite"),
        (lambda: Logistic(1.0, 2.0, 0.0, 0.0), "width is not positive"),
        (lambda: Concave(2.0, 1.0, 1.0, 0.0, 1.0, 2.0), "peak"),
        (lambda: Concave(1.0, 2.0, 1.0, 1.0, 1.0, 2.0), "x_left < x_peak < x_right"),
    ],
)
def test_bad_parameters_say_which(make, message):
    # A two-dimensional array is refused by the checker of the test run already.
    with pytest.raises(
        (InputError, TypeError) if message == "shape" else InputError, match=None if message == "shape" else message
    ):
        make()

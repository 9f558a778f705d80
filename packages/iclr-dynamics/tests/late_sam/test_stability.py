import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iclr_dynamics.late_sam.stability import (
    gd_stability_threshold,
    sam_amplitude,
    sam_stability_threshold,
    sgd_frobenius_bound,
    usam_factor,
    usam_frobenius_bound,
)
from iclr_shared.errors import InputError

positive = st.floats(1e-3, 10)


def test_reference_values():
    assert sam_stability_threshold(0.1, 0.05) == pytest.approx(12.3606798)
    assert sam_stability_threshold(0.1, 0.1) == pytest.approx(10)
    assert sam_stability_threshold(0.25, 0.1) == pytest.approx(5.246951, abs=1e-6)
    assert usam_factor(0.1, 0.01, 19) == pytest.approx(1.590121)
    assert sam_amplitude(0.1, 0.1, 5) == pytest.approx(0.0333333, rel=1e-5)
    assert usam_frobenius_bound(0.1, 0.1, 1) == pytest.approx(61.8034, rel=1e-5)
    assert sgd_frobenius_bound(0.1, 1) == pytest.approx(100)
    assert math.isinf(sam_amplitude(0.1, 0.1, 20))


@given(positive, positive)
def test_threshold_is_where_the_factor_is_one(eta, rho):
    h = sam_stability_threshold(eta, rho)
    assert eta * h * (1 + rho * h) == pytest.approx(2)
    assert usam_factor(eta, rho, h) == pytest.approx(1)
    assert h < gd_stability_threshold(eta)


@given(positive)
def test_without_radius_it_is_sgd(eta):
    assert sam_stability_threshold(eta, 0.0) == pytest.approx(gd_stability_threshold(eta))
    assert usam_frobenius_bound(eta, 0.0, 8) == pytest.approx(sgd_frobenius_bound(eta, 8))


@given(positive, positive, st.integers(1, 512), positive)
def test_frobenius_bound_solves_its_equation(eta, rho, batch, gamma):
    x = usam_frobenius_bound(eta, rho, batch, gamma)
    assert x * (1 + rho**2 * gamma / batch * x) == pytest.approx(sgd_frobenius_bound(eta, batch, gamma), rel=1e-9)
    assert x < sgd_frobenius_bound(eta, batch, gamma)
    assert usam_frobenius_bound(eta, 2 * rho, batch, gamma) < x


def test_bad_numbers():
    for call in (lambda: gd_stability_threshold(0.0), lambda: sam_stability_threshold(0.1, -1.0)):
        with pytest.raises(InputError, match="must be"):
            call()

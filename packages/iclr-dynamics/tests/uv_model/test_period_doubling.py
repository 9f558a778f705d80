import math

import numpy as np
import pytest

from iclr_dynamics.uv_model.bifurcations import period
from iclr_dynamics.uv_model.claims import ONSETS
from iclr_dynamics.uv_model.period_doubling import (
    FEIGENBAUM,
    accumulation,
    gap_ratios,
    onsets,
    two_cycle,
    two_cycle_multiplier,
)
from iclr_shared.errors import InputError


def test_onsets_are_those_of_the_table_and_their_ratios_tend_to_feigenbaum():
    found = onsets(9)
    np.testing.assert_allclose(found[:2], (1, math.sqrt(5) - 1), atol=1e-12)
    np.testing.assert_allclose(found[:6], ONSETS, atol=1e-9)
    ratios = gap_ratios(found)
    np.testing.assert_allclose(ratios[:4], (4.5429, 4.6412, 4.6632, 4.6679), atol=1e-4)
    assert ratios[-1] == pytest.approx(FEIGENBAUM, rel=1e-5)
    assert accumulation(found) == pytest.approx(1.30228, abs=1e-5)


def test_iteration_sees_the_period_double_there(x64):
    grid = np.array([(c - 1e-4, c + 1e-4) for c in ONSETS[1:4]])
    np.testing.assert_array_equal(period(grid, burn_in=100_000), [[2, 4], [4, 8], [8, 16]])


@pytest.mark.parametrize(("c", "low", "high"), [(1.1, 0.6634944, 1.2455966), (1.2, 0.5347854, 1.2985480)])
def test_two_cycle(c, low, high):
    np.testing.assert_allclose(two_cycle(c), (low, high), atol=1e-7)
    z = np.array(two_cycle(c))
    np.testing.assert_allclose(z * (1 - c * (z - 1)) ** 2, z[::-1])
    assert np.prod(c * (z - 1)) == pytest.approx(1 - c)
    # The multiplier in w = sqrt(z) is the product of 1 + c - 3 c z, and the one across is (3 - 2 c)^2.
    assert np.prod(1 + c - 3 * c * z) == pytest.approx(two_cycle_multiplier(c))
    assert np.prod((1 + c * (z - 1)) ** 2) == pytest.approx((3 - 2 * c) ** 2)


def test_multiplier_reference_values():
    assert two_cycle_multiplier(1.235) == pytest.approx(-0.99045)
    assert two_cycle_multiplier(3 / math.sqrt(2) - 1) == pytest.approx(0, abs=1e-12)


def test_bad_input_and_the_float32_warning():
    with pytest.raises(InputError, match="max_power=13"):
        onsets(13)
    with pytest.raises(InputError, match=r"c=0\.5"):
        two_cycle(0.5)
    with pytest.warns(UserWarning, match="onsets need float64"):
        assert onsets(2, dtype=np.float32).dtype == np.float32

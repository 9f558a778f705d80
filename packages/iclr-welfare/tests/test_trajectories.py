import jax
import numpy as np
import pytest

import iclr_welfare as iw
from iclr_shared.errors import InputError


@pytest.fixture(scope="module")
def pair(reference):
    return iw.compare(
        reference, ["rawlsian", "util_gain"], 1, 600, 3, key=jax.random.key(0), noise=iw.Noise.official(reference, 1)
    )


def test_growth_is_measured_from_the_start(pair):
    result = pair["rawlsian"]
    assert np.isnan(result.growth[:, 0]).all()
    np.testing.assert_allclose(result.growth_at(20), (result.mean[:, 20] - result.mean[:, 0]) / 20)
    np.testing.assert_allclose(result.late_slope(), (result.mean[:, 600] - result.mean[:, 300]) / 300, rtol=1e-9)
    np.testing.assert_allclose(result.rates.mean(-1), result.late_slope())
    with pytest.raises(InputError, match="was not recorded"):
        result.growth_at(0)


def test_no_long_run_statement_from_a_short_horizon(pair, reference):
    assert iw.burn_in(reference) <= 300
    pair["rawlsian"].late_slope(burn_in=iw.burn_in(reference))
    with pytest.raises(InputError, match=r"says nothing about the long run.*at least 2000 steps"):
        pair["rawlsian"].late_slope(burn_in=1000)


def test_crossing_time_by_hand(pair):
    first, second = pair["rawlsian"], pair["util_gain"]
    crossing = iw.crossing_time(first, second)
    for seed, t in enumerate(crossing):
        ahead = first.growth[seed] > second.growth[seed]
        assert ahead[t]
        assert not ahead[1:t].any()
    lasting = iw.crossing_time(first, second, lasting=True)
    for seed, t in enumerate(lasting):
        ahead = first.growth[seed] > second.growth[seed]
        assert ahead[t:].all()
        assert t == 1 or not ahead[t - 1]
    assert (crossing <= lasting).all()
    np.testing.assert_array_equal(iw.crossing_time(first, first), [-1, -1, -1])
    with pytest.raises(InputError, match="same recorded times"):
        iw.crossing_time(first, second[0])


def test_locked_set(pair, reference):
    quiet = iw.simulate(reference, "util_gain", 2, 600, key=jax.random.key(0), record=())
    assert quiet.is_locked
    assert quiet.late_counts[quiet.locked_set].sum() == 600
    assert not pair["rawlsian"].is_locked.any()
    with pytest.raises(InputError, match="one trajectory"):
        quiet[0]

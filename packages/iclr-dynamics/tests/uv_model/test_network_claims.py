import numpy as np
import pytest

from iclr_dynamics.uv_model import network_claims
from iclr_dynamics.uv_model.network_claims import LARGE, SMALL, Sizes
from iclr_dynamics.uv_model.paper import METHOD
from iclr_shared.testing import claim_run, holds

# C = 2 starts at the edge; from small weights gradient flow sharpens threefold, so it stays there.
TINY = Sizes(inits=1, steps=200, slow_steps=1000, width=16, rates=(0.25, 2.0))


@pytest.mark.parametrize(
    ("claim", "check", "removed"),
    [("C8d", network_claims.large_init_flattens_early, SMALL), ("C8e", network_claims.small_init_sharpens, LARGE)],
)
def test_scale_decides_reduction_or_sharpening(claim, check, removed, tmp_path):
    assert holds(METHOD, claim, check(claim_run(tmp_path), sizes=TINY))
    assert not holds(METHOD, claim, check(claim_run(tmp_path), sizes=TINY, scale=removed))


def test_ends_of_the_edge_are_gathered_with_their_control(tmp_path):
    run = claim_run(tmp_path, "C8a")
    low, high = (
        check(run, sizes=TINY)
        for check in (network_claims.ends_above_the_lower_edge, network_claims.ends_below_the_upper_edge)
    )
    assert low.measured <= high.measured
    assert low.n == high.n >= 1
    assert low.baseline[1] > 2
    assert len(run.figures) == 2
    slow = network_claims.slow_rates_stay_below_two(run, sizes=TINY)
    assert holds(METHOD, "C8c", slow)


def test_without_a_rate_that_calls_for_the_edge_nothing_is_measured_and_the_claim_fails(tmp_path, monkeypatch):
    networks = network_claims._networks(claim_run(tmp_path), (SMALL, 1.0), TINY)
    slow = [network._replace(tracks=network.tracks[:1]) for network in networks]
    monkeypatch.setattr(network_claims, "_networks", lambda *_: slow)
    measured = network_claims.ends_below_the_upper_edge(claim_run(tmp_path), sizes=TINY)
    assert np.isnan(measured.measured)
    assert not holds(METHOD, "C8b", measured)


def test_one_undefined_ratio_is_not_passed_over(tmp_path, monkeypatch):
    monkeypatch.setattr(network_claims, "_ratios", lambda *_: [0.5, np.nan, 0.6])
    assert not holds(METHOD, "C8d", network_claims.large_init_flattens_early(claim_run(tmp_path), sizes=TINY))

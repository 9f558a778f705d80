"""Each claim's check at reduced size, and once with its effect removed: then it must miss its threshold."""

import pytest

from iclr_shared.testing import assert_light_import
from iclr_welfare import claims
from iclr_welfare.paper import METHOD

HOMOGENEOUS = {"T": 2_000, "seeds": 3, "group": 400}
ONE = HOMOGENEOUS | {"budgets": (1,)}
# check, small sizes, what removes the effect
CASES = {
    "C1a": (claims.utilitarian_leads_early, ONE, {"effect": 0.0}),
    "C1b": (claims.rawlsian_wins_late, ONE, {"effect": 0.0}),
    "C1c": (claims.rawlsian_late_slope, ONE | {"T": 4_000, "seeds": 2, "group": 200}, {"simulated": "util_gain"}),
    "C1d": (claims.utilitarian_late_slope, ONE | {"T": 4_000, "seeds": 2, "group": 200}, {"simulated": "rawlsian"}),
    "C1e": (claims.noise_free_late_slopes, {"budgets": (1,), "T": 2_000, "group": 400}, {"noise": 1.0}),
    "C1f": (claims.crossing_comes_early, HOMOGENEOUS, {"effect": 0.0}),
    "C2a": (claims.equalised_rate_is_exact, {"budgets": (1,), "T": 8_000}, {"policy": "util_gain"}),
    "C2b": (claims.spread_vanishes, {"horizons": (1_000, 4_000)}, {"policy": "max_welfare"}),
    "C2c": (claims.locked_rate_is_exact, {"budgets": (1,), "T": 2_000}, {"observed": False}),
    "C3": (claims.condition_names_the_winner, {"populations": 20, "N": 15, "T": 3_000}, {"shuffle": True}),
    "C4a": (claims.ruin_rawlsian_slope, {"T": 4_000}, {"simulated": "util_gain"}),
    "C4b": (claims.ruin_utilitarian_slope, {"T": 4_000}, {"simulated": "rawlsian"}),
    "C4c": (claims.ruin_reverses, {"N": 160, "T": 1_000, "seeds": 2}, {"ruined": False}),
    "C7a": (claims.short_horizon_misjudges, HOMOGENEOUS | {"T": 10_000}, {"effect": 0.0}),
    "C7b": (claims.long_horizon_vindicates, HOMOGENEOUS | {"T": 10_000}, {"at": 10}),
}


def test_the_paper_is_light():
    assert_light_import("iclr_welfare.paper")


def test_every_claim_has_a_case():
    elsewhere = {"C5a", "C5b", "C5c", "C6a", "C6b", "C6c"}  # test_heat_map, test_beyond_matthew
    assert {claim.id for claim in METHOD.claims} == {*CASES, *elsewhere}


@pytest.mark.parametrize("claim", CASES)
def test_holds_at_reduced_size(claim, holds_only_with_its_effect):
    holds_only_with_its_effect(claim, *CASES[claim])

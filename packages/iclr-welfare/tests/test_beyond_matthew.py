"""The claims about other shapes of f and g, at reduced size."""

import pytest

from iclr_welfare import beyond_matthew

# check, small sizes, what removes the effect
CASES = {
    "C6a": (beyond_matthew.concave_right_limit, {"T": 2_000, "group": 400}, {"simulated": "max_welfare"}),
    "C6b": (beyond_matthew.constant_decay_no_gap, {"T": 6_000}, {"g_trend": "decreasing"}),
    "C6c": (beyond_matthew.monotonicity_table, {"T": 6_000}, {"policies": ("util_gain", "rawlsian")}),
}


@pytest.mark.parametrize("claim", CASES)
def test_holds_at_reduced_size(claim, holds_only_with_its_effect):
    holds_only_with_its_effect(claim, *CASES[claim])

import pytest

from iclr_prunenet import claims
from iclr_prunenet.paper import METHOD
from iclr_shared.testing import assert_light_import, claim_run, holds

LANGUAGE = {"ratios": (0.3,), "seeds": 2, "steps": 3, "episodes": 1, "evaluated": 2000}
SMALL = {
    "C1": (claims.spectra_interlace, {"pairs": 20}, {"other": True}),
    "C2": (claims.pruned_equals_masked, {}, {"shift": 1}),
    "C3": (claims.policy_learns, {}, {"shared": 0.0}),
    "C5": (claims.no_calibration_data, {"episodes": 1}, {"peek": True}),
    "C6": (claims.one_policy_any_ratio, {"seeds": 2}, {"untrained": True}),
    "C7": (claims.faster_than_official, {"hidden": 64, "intermediate": 1024, "layers": 2, "rounds": 3}, {"slow": True}),
    "C8": (claims.throughput, {"hidden": 128, "layers": 2, "rounds": 3}, {"ratio": 0.0}),
    "C9": (claims.promised_parameters, {}, {"forget": True}),
}


@pytest.mark.parametrize("claim", [name for name in SMALL if name not in ("C7", "C8")])
def test_holds_and_can_fail(claim, tmp_path):
    check, sizes, without = SMALL[claim]
    measurement = check(claim_run(tmp_path / "with", claim), **sizes)
    assert holds(METHOD, claim, measurement)
    assert measurement.baseline is not None
    assert not holds(METHOD, claim, check(claim_run(tmp_path / "without", claim), **sizes | without))


@pytest.mark.parametrize("claim", ["C7", "C8"])
def test_timings_are_measured(claim, tmp_path):
    """No threshold on a loaded machine; without its effect the ratio is near 1."""
    check, sizes, without = SMALL[claim]
    assert float(check(claim_run(tmp_path, claim), **sizes).measured) > 0
    assert not holds(METHOD, claim, check(claim_run(tmp_path, claim), **sizes | without)) or claim == "C8"


def test_language_model(tmp_path):
    run = claim_run(tmp_path, "C4a")
    measurement = claims.keeps_performance(run, **LANGUAGE)
    assert set(measurement.series) == {"ratio", "PruneNet", "sampled", "random rows", "largest norms"}
    assert measurement.n == 2
    assert run.figures
    against = claims.against_magnitude(claim_run(tmp_path, "C4b"), **LANGUAGE)
    assert float(against.measured) > 0
    # Without pruning nothing is better than anything: the ratio is 1 exactly, and the threshold is 1.
    none = claims.keeps_performance(run, **LANGUAGE | {"ratios": (0.0,)})
    assert float(none.measured) == 1


def test_listing_is_light():
    assert_light_import("iclr_prunenet.paper")

"""Each claim's check at reduced size, and once with its effect removed."""

import numpy as np
import pytest

from iclr_shared.testing import assert_light_import, claim_run, holds
from iclr_symspaces import claims, experiment_claims
from iclr_symspaces.paper import METHOD

SMALL = {"cases": 4}
# check, small sizes, what removes the effect
CASES = {
    "C1a": (claims.limit_in_every_rank, {"orders": (2, 3)}, {"wrong": True}),
    "C1b": (claims.limit_in_rank_one, {"points": 3}, {"wrong": True}),
    "C1c": (claims.wrong_factor_does_not_converge, {"orders": (4, 5)}, {"right": True}),
    "C2a": (claims.distance_is_exact, SMALL, {"log_euclidean": True}),
    "C2b": (claims.log_euclidean_differs, SMALL, {"exact": True}),
    "C3a": (claims.cocycle, SMALL, {"unmoved": True}),
    "C3b": (claims.layer_invariance, SMALL, {"wrong": True}),
    "C3c": (claims.wrong_boundary_differs, SMALL, {"right": True}),
    "C3d": (claims.log_euclidean_changes, SMALL, {"invariant": True}),
    "C4a": (claims.recovers_log_euclidean, SMALL, {"other": True}),
    "C4b": (claims.recovers_log_cholesky, SMALL, {"other": True}),
    "C4c": (claims.recovers_euclidean, SMALL, {"other": True}),
    "C4d": (claims.half_plane_is_spd2, SMALL, {"unscaled": True}),
    "C5a": (claims.layer_has_inverse, {"orders": (2, 3), "points": 4}, {"tangent": True}),
    "C5b": (claims.exponential_has_none, {"orders": (2, 3), "points": 4}, {"iwasawa": True}),
}


def test_the_paper_is_light():
    assert_light_import("iclr_symspaces.paper")


def test_every_exact_row_with_a_threshold_is_checked_here():
    exact = [claim.id for claim in METHOD.claims if claim.tier == "exact" and claim.direction != "report"]
    assert exact == list(CASES)


def test_the_second_order_of_the_limit(tmp_path):
    run = claim_run(tmp_path, "C1d")
    found = claims.limit_at_second_order(run, orders=(2, 3))
    assert found.measured < 0.05 < found.baseline[1]
    assert claims.limit_at_second_order(run, orders=(2, 3), wrong=True).measured > 0.05


@pytest.mark.parametrize("claim", CASES)
def test_holds_at_reduced_size(claim, tmp_path):
    check, sizes, removed = CASES[claim]
    measured = check(claim_run(tmp_path, claim), **sizes)
    assert holds(METHOD, claim, measured), measured
    assert measured.baseline is not None
    assert not holds(METHOD, claim, check(claim_run(tmp_path / "removed", claim), **sizes | removed))


def test_eeg(tmp_path):
    sizes = {"seeds": (0,), "train": 12, "test": 8, "epochs": 8}
    run = claim_run(tmp_path, "C6d")
    for check in (experiment_claims.eeg_no_shift, experiment_claims.eeg_small_shift):
        found = check(run, **sizes)
        assert 0.25 < found.measured <= 1
        assert set(found.series) >= {"Busemann", "Euclidean logistic", "log-Euclidean logistic", "MDM"}
    assert [path.name for path in run.figures] == ["C6d-accuracies.png"]
    # a larger shift makes it harder: what the rows are about is in the data
    hard = experiment_claims._eeg(3.0, 0.05, (0,), 12, 8, 8)
    assert np.mean([values[0] for values in hard.values()]) < np.mean(list(found.series.values()))


def test_trees(tmp_path):
    found = experiment_claims.tree_in_4d(claim_run(tmp_path, "C7b"), seeds=(0,), steps=60)
    assert set(found.series) == {"Busemann", "geodesic", "Euclidean logistic", "logistic on log_o"}
    untrained = experiment_claims.tree_in_4d(claim_run(tmp_path, "C7b"), seeds=(0,), steps=1)
    assert found.measured > untrained.measured + 0.2


def test_cost(tmp_path):
    sizes = {"orders": (16, 32, 64), "classes": 4, "batch": 8, "rounds": 1}
    found = experiment_claims.shared_flag_at_64(claim_run(tmp_path, "C8b"), **sizes)
    assert found.measured > 0
    slow = experiment_claims.shared_flag_at_64(claim_run(tmp_path, "C8b"), **sizes, head=experiment_claims.PER_PAIR)
    assert not holds(METHOD, "C8b", slow)
    per_class = experiment_claims.flags_per_class(claim_run(tmp_path, "C8c"), **sizes)
    assert per_class.measured == per_class.details["log-Euclidean over flag per class"]

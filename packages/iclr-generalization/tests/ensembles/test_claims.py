"""Each check small, and once with its effect removed."""

import pytest

from iclr_generalization.ensembles import claims
from iclr_generalization.ensembles.paper import METHOD
from iclr_shared.claims import Measurement
from iclr_shared.records import plain, verdict
from iclr_shared.testing import claim_run, holds


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """One folder for all checks, so that each width is trained once."""
    return tmp_path_factory.mktemp("run")


def control_holds(claim: str, found: Measurement) -> bool:
    stated = next(c for c in METHOD.claims if c.id == claim)
    return verdict(stated.direction, stated.threshold, plain(found.baseline[1], "control"))[0] == "pass"


def run(folder, claim):
    return claim_run(folder, claim)


def test_the_law(folder):
    found = claims.law_is_exact(run(folder, "C1"), members=4, points=30)
    assert holds(METHOD, "C1", found)
    assert not control_holds("C1", found)


@pytest.mark.parametrize(
    ("claim", "check"),
    [("C2a", claims.brier_forecast), ("C2b", claims.nll_forecast), ("C5b", claims.error_forecast_holds)],
)
def test_forecasts_beat_the_last_value(folder, claim, check):
    found = check(run(folder, claim), draws=3, members=8)
    assert 0 <= found.measured < 0.3
    assert found.baseline[1] > 0
    assert found.series["M"] == [8]


def test_coverage_falls_without_bars(folder):
    assert claims.forecast_covers(run(folder, "C2c"), draws=6, members=8).measured > 0.5
    removed = claims.forecast_covers(run(folder, "C2c"), draws=6, members=8, shrink=1e-3)
    assert not holds(METHOD, "C2c", removed)


def test_equivalence(folder):
    found = claims.members_are_equivalent(run(folder, "C3a"), members=4)
    assert 0 < found.measured < 0.45
    assert not control_holds("C3a", found)
    spread = claims.losses_are_alike(run(folder, "C3b"), members=8, widths=(10, 40))
    assert spread.measured < 0.15
    assert not control_holds("C3b", spread)
    kinds = claims.other_kinds_are_not_equivalent(run(folder, "C3c"), members=4, kinds=((claims.WIDTH, 100),))
    assert not holds(METHOD, "C3c", kinds)  # the same kind, in place of another


def test_better_than_any_member(folder):
    found = claims.better_than_any_member(run(folder, "C4a"), repeats=4, size=4, members=8)
    assert found.measured > 0
    assert not control_holds("C4a", found)
    weak = claims.gap_explains_nothing(run(folder, "C4b"), repeats=2, weak=7)
    assert holds(METHOD, "C4b", weak)
    assert weak.details["smallest Jensen gap"] > 0
    strong = claims.gap_explains_nothing(run(folder, "C4b"), repeats=2, weak=7, weak_epochs=100)
    assert not holds(METHOD, "C4b", strong)


def test_other_losses(folder):
    found = claims.other_losses_fall(run(folder, "C5a"), members=8)
    assert found.measured < 0.01
    assert not control_holds("C5a", found)
    assert holds(METHOD, "C5c", claims.negative_margins_rise(run(folder, "C5c"), points=1000))
    assert not holds(METHOD, "C5c", claims.negative_margins_rise(run(folder, "C5c"), points=1000, margin=0.2))


def test_widening_is_another_thing(folder):
    stays = claims.limit_stays(run(folder, "C6a"), members=8, groups=2)
    assert stays.measured < 6
    assert not control_holds("C6a", stays)
    moves = claims.width_changes_the_limit(run(folder, "C6b"), members=8, widths=(10, 40))
    assert moves.measured > 2
    assert not control_holds("C6b", moves)  # two halves of one width, in place of two widths
    gains = claims.gains_correlate(run(folder, "C6c"), members=8, widths=(10, 20, 40))
    assert -1 <= gains.measured <= 1

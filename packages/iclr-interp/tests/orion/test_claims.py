"""Each claim's check at reduced size, and once with its effect removed."""

import numpy as np
import pytest

from iclr_interp.orion import Recipe, claims
from iclr_interp.orion.paper import METHOD
from iclr_shared.testing import assert_light_import, claim_run, holds

SMALL = Recipe(blocks=3, width=32, heads=2, steps=170, rate=4e-3)
UNTRAINED = Recipe(blocks=3, width=32, heads=2, steps=1)
HIJACK = Recipe(blocks=3, width=32, heads=2, steps=260, rate=4e-3, attack="request")
SIZES = {"recipe": SMALL, "seeds": 1, "n": 150}
INJECTED = {"recipe": HIJACK, "seeds": 1, "n": 150}
# check, small sizes, what removes the effect
CASES = {
    "C1a": (claims.compiled_layers, {"n": 20}, {"beta": 1.0}),
    "C1b": (claims.tiny_order, SIZES, {"recipe": UNTRAINED}),
    "C1c": (claims.tiny_baseline, SIZES, {"recipe": UNTRAINED}),
    "C3": (claims.beats_controls, SIZES, {"arm": "mean"}),
    "C4a": (claims.attack_works, INJECTED, {"attacked": False}),
    "C4b": (claims.repair_works, INJECTED, {"layer": 3}),
    "C5a": (claims.well_formed, {"n": 4, "prompts": 10}, {"misplaced_space": True}),
    "C5b": (claims.read_again, {"n": 4, "prompts": 10}, {"shuffle": True}),
}


def test_the_paper_is_light():
    assert_light_import("iclr_interp.orion.paper")


@pytest.mark.parametrize("claim", CASES)
def test_holds_at_reduced_size(claim, run_folder):
    check, sizes, removed = CASES[claim]
    measured = check(claim_run(run_folder, claim), **sizes)
    assert measured.baseline is not None
    assert holds(METHOD, claim, measured), measured
    assert not holds(METHOD, claim, check(claim_run(run_folder, claim), **sizes | removed))


def test_first_and_last_layer(run_folder):
    for claim, check in (("C1d", claims.tiny_first_layer), ("C1e", claims.tiny_last_layer)):
        found = check(claim_run(run_folder, claim), **SIZES)
        assert found.measured == pytest.approx(1, abs=0.05)
        assert found.baseline[1] < 0.05


def test_height_and_table(run_folder):
    run = claim_run(run_folder, "C1f")
    found = claims.tiny_height(run, recipes=(SMALL,), seeds=1, n=150)
    assert 0 < found.measured < 1.1
    assert [path.name for path in run.figures] == ["C1f-heights.png"]
    run = claim_run(run_folder, "C2")
    table = claims.across_grammars(run, depths=(1,), seeds=1, n=60, steps=2)
    assert table.measured == 0  # untrained
    assert len(table.series["model"]) == 3
    assert table.series["L1, L2, L3"][0] == "(None, None, None)"


def test_rates_of_repair_and_detection(run_folder):
    clean = claims.repair_keeps_clean(claim_run(run_folder, "C4c"), **INJECTED)
    assert 0 < clean.measured <= clean.baseline[1] <= 1
    run = claim_run(run_folder, "C4d")
    found = claims.detection(run, **INJECTED)
    for where in ("attacked", "clean"):
        a, b, either = (found.series[f"{where}, {what}"][0] for what in ("A", "B", "A or B"))
        assert max(a, b) <= either <= a + b
    assert found.measured == pytest.approx(found.series["attacked, A or B"][0] - found.series["clean, A or B"][0])
    assert [path.name for path in run.figures] == ["C4d-detection.png"]


def test_injected_answers_are_measured(run_folder):
    from dataclasses import replace

    override = replace(HIJACK, attack="value", steps=40)
    found = claims.injected_answers(claim_run(run_folder, "C4e"), recipe=override, hijack=HIJACK, seeds=1, n=150)
    assert 0 <= found.measured <= 1
    assert found.baseline[1] > found.measured


def test_case_study(run_folder):
    run = claim_run(run_folder, "C6a")
    attend = claims.movers_attend(run, **SIZES, k=2)
    matter = claims.movers_matter(run, **SIZES, k=2)
    others = claims.others_matter_less(run, **SIZES, k=2)
    assert 0 < attend.measured <= 1
    assert matter.baseline is not None
    assert np.isfinite(others.measured)
    assert [path.name for path in run.figures] == ["C6a-movers.png"]

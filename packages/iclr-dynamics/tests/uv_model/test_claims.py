"""Each check at reduced size, as it is and with its effect removed."""

import pytest

from iclr_dynamics.uv_model import claims
from iclr_dynamics.uv_model.paper import METHOD
from iclr_shared.testing import claim_run, holds

EDGE = {"inits": 4, "steps": 3000, "rates": 26}

CASES = {
    "C1a": ({"n": 6, "d": 3, "steps": 60}, {"loss_factor": 1.0, "ps": (1.0,)}),
    "C1b": ({"n": 3, "d": 2, "steps": 20}, {"loss_factor": 1.0, "ps": (1.0,)}),
    "C2a": ({"starts": 60, "steps": 3000}, {"shuffled": True}),
    "C2b": ({"starts": 60, "steps": 3000}, {"eta_ntk": 1.9}),
    "C2c": ({"n": 2000, "steps": 1000}, {"p": 1.0}),
    "C3": ({"inits": 8, "steps": 200}, {"sigma_w": 0.5}),
    "C4a": (EDGE, {"edge": 1.3}),
    "C4b": (EDGE, {"edge": 0.7}),
    "C4c": (EDGE, {"edge": 0.7}),
    "C4d": (EDGE, {"edge": 0.7}),
    "C5a": ({"rates": 41}, {"loss_factor": 1.0}),
    "C5b": ({}, {"doublings": 4}),
    "C5c": ({"starts": 4, "steps": 20_000}, {"c": 1.95}),
    "C5d": ({"rates": 60}, {"below": 1.5}),
    "C6a": ({"starts": 50, "steps": 2000}, {"c": 2.05}),
    "C6b": ({"starts": 50, "steps": 2000}, {"c": 1.9}),
    "C7a": ({"inits": 8}, {"n": 1}),
    "C7b": ({"inits": 8, "steps": 2000}, {"n": 1}),
}

FIGURES = {"C2a": 1, "C3": 1, "C4a": 2, "C5a": 1, "C7b": 1}


@pytest.mark.parametrize("claim", CASES)
def test_holds_and_fails_with_its_effect_removed(claim, tmp_path):
    check = getattr(claims, next(c.check for c in METHOD.claims if c.id == claim).split(":")[1])
    sizes, removed = CASES[claim]
    run = claim_run(tmp_path, claim)
    measured = check(run, **sizes)
    assert holds(METHOD, claim, measured), measured
    assert measured.baseline is not None
    assert [path.stat().st_size > 5000 for path in run.figures] == [True] * FIGURES.get(claim, 0)
    assert not holds(METHOD, claim, check(claim_run(tmp_path, claim), **{**sizes, **removed}))


def test_the_basin_shrinks_with_the_scale_and_not_on_the_manifold(tmp_path):
    measured = claims.basin_shrinks_with_scale(claim_run(tmp_path), inits=128, steps=3000)
    off = measured.series["bounded (%)"]
    assert off[:2] == [100, 100]
    assert off[3] > off[4] > off[5] > off[6]
    assert measured.baseline[1] == 100
    removed = claims.basin_shrinks_with_scale(claim_run(tmp_path), inits=8, steps=100, on_manifold=True)
    assert not holds(METHOD, "C6c", removed)

"""The claims that read the heat map, at reduced size."""

import pytest

from iclr_shared.testing import claim_run
from iclr_welfare import heat_map

MAP = {"size": 2, "repeats": 5, "T": 500, "short": 10, "group": 400}
# check, small sizes, what removes the effect
CASES = {
    "C5a": (heat_map.heat_map_corner, MAP, {"rival": "random"}),
    "C5b": (heat_map.heat_map_falls, MAP | {"size": 4}, {"shuffle": True}),
}


@pytest.mark.parametrize("claim", CASES)
def test_holds_at_reduced_size(claim, holds_only_with_its_effect):
    holds_only_with_its_effect(claim, *CASES[claim])


def test_short_run_share_is_what_it_is(tmp_path):
    # This claim misses its threshold at full size; here only that the number is a share and reacts to the horizon.
    run = claim_run(tmp_path, "C5c")
    short = heat_map.heat_map_short_run(run, **MAP)
    late = heat_map.heat_map_short_run(claim_run(tmp_path / "late", "C5c"), **MAP | {"short": MAP["T"]})
    assert 0 <= short.measured < late.measured <= 1
    assert (tmp_path / "figures" / "C5c-map.png").exists()


def test_heat_map_resumes_from_finished_cells(tmp_path, monkeypatch):
    run = claim_run(tmp_path, "C5a")
    whole = heat_map.heat_map(run, **MAP)
    monkeypatch.setattr(heat_map, "simulate_many", None)  # nothing is simulated again
    again = heat_map.heat_map(run, **MAP)
    assert (again.long == whole.long).all()
    assert (again.short == whole.short).all()

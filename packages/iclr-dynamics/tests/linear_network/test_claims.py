"""Each check at reduced size, where it holds, and with its effect removed, where it must not."""

import pytest

from iclr_dynamics.linear_network import claims, deep_claims, solve_lazy
from iclr_dynamics.linear_network.paper import METHOD
from iclr_shared.registry import resolve
from iclr_shared.testing import assert_light_import, claim_run, holds

SMALL_GRID = {"points": 4, "widths": (100, 400)}
SMALL_RATES = {"sigmas": ((0.3, 1.0),), "seeds": 1}
SMALL_START = {"seeds": 1, "width": 100}
SMALL_NETWORKS = {"scales": (0.1, 10.0), "seeds": 1, "samples": 200, "epochs": 300, "width": 64}
ONLY_LAZY, ONLY_SMALL = {**SMALL_NETWORKS, "scales": (10.0,)}, {**SMALL_NETWORKS, "scales": (0.1,)}

# Claim, sizes at which it holds, and what removes its effect.
CHECKS = [
    ("C1a", {"problems": 2, "inputs": 2, "widths": (3,)}, {"solution": solve_lazy}),
    ("C1b", {"problems": 2, "width": 3, "steps": (200, 400)}, {"solution": solve_lazy}),
    ("C2a", {"widths": (100, 20_000), "seeds": 4}, {"parameterisation": "mean-field"}),
    ("C2b", {"width": 20_000, "seeds": 4}, {"parameterisation": "ntk"}),
    ("C2c", {"widths": (100,), "seeds": 1, "step": 0.05}, {"horizon": 0.0}),
    ("C3a", SMALL_START, {"learn": False}),
    ("C3b", SMALL_START, {"area": False}),
    ("C3c", SMALL_START, {"flow": False}),
    ("C3d", {"seeds": 1}, {"parameterisation": "mean-field"}),
    ("C4a", SMALL_GRID, {"shuffle": True}),
    ("C4b", SMALL_GRID, {"shuffle": True}),
    ("C5a", SMALL_RATES, {"use_variances": False}),
    ("C5b", SMALL_RATES, {"use_variances": False}),
    ("C6a", SMALL_NETWORKS, ONLY_LAZY),
    ("C6b", SMALL_NETWORKS, ONLY_SMALL),
]

FIGURES = {"C1a", "C1b", "C2a", "C3a", "C4a", "C4b", "C5a", "C5b", "C6a"}
RENDERED = {"C4a", "C5a", "C6a"}  # a map, formulas in labels, several panels; the others are of these kinds


@pytest.mark.parametrize(("claim", "sizes", "removed"), CHECKS, ids=[row[0] for row in CHECKS])
def test_check_holds_and_fails_without_its_effect(claim, sizes, removed, tmp_path):
    check = resolve(next(c.check for c in METHOD.claims if c.id == claim))
    run = claim_run(tmp_path, claim)
    drawn = []
    if claim not in RENDERED:
        run.figure = lambda name, figure: drawn.append(figure)
    measured = check(run, **sizes)
    assert holds(METHOD, claim, measured)
    assert measured.baseline is not None
    assert bool(drawn or run.figures) == (claim in FIGURES)
    assert all(axis.get_ylabel() and axis.has_data() for figure in drawn for axis in figure.axes)
    assert all(path.stat().st_size > 5_000 for path in run.figures)
    run.figure = lambda name, figure: None
    assert not holds(METHOD, claim, check(run, **{**sizes, **removed}))


def test_accuracy_is_a_difference_in_points_and_nothing_without_two_starts(tmp_path):
    measured = deep_claims.small_deep_networks_generalise(claim_run(tmp_path, "C6c"), **SMALL_NETWORKS, longer=2)
    accuracies = dict(zip(measured.series["init scale"], measured.series["test_accuracy"], strict=True))
    assert abs(measured.measured - 100 * (accuracies[0.1] - accuracies[10.0])) < 1e-9
    assert "after 600 epochs, init scale 0.1, test accuracy in %" in measured.details
    alone = deep_claims.small_deep_networks_generalise(claim_run(tmp_path / "b", "C6c"), **ONLY_LAZY, longer=0)
    assert alone.measured == 0
    assert not holds(METHOD, "C6c", alone)


def test_the_deep_networks_of_a_killed_run_are_not_trained_again(tmp_path, monkeypatch):
    run = claim_run(tmp_path, "C6a")
    first = deep_claims.small_deep_networks_align(run, **SMALL_NETWORKS)
    monkeypatch.setattr(deep_claims, "train", None)  # would raise
    deep_claims.digit_network.cache_clear()
    assert deep_claims.small_deep_networks_align(run, **SMALL_NETWORKS) == first


def test_interval_of_a_mean():
    low, high = claims.mean_interval([1.0, 2.0, 3.0])
    assert abs(high - 2 - 4.302652729911275 / 3**0.5) < 1e-9  # t(0.975, 2)
    assert abs(low + high - 4) < 1e-12
    assert claims.mean_interval([1.0]) == (1.0, 1.0)


def test_the_paper_is_light():
    assert_light_import("iclr_dynamics.linear_network.paper")


@pytest.mark.slow
@pytest.mark.parametrize("claim", [c.id for c in METHOD.claims if c.id != "C6c"])  # which does not hold, see the README
def test_claims_at_full_size(claim, tmp_path):
    check = resolve(next(c.check for c in METHOD.claims if c.id == claim))
    assert holds(METHOD, claim, check(claim_run(tmp_path, claim)))

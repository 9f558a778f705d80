"""Each claim's check at reduced size, and once with its effect removed."""

import numpy as np
import pytest

from iclr_shared.testing import assert_light_import, claim_run, holds
from iclr_subset import claims
from iclr_subset.experiments import stationarity
from iclr_subset.paper import METHOD

PLANTED = {"seeds": 3, "budget": 500, "n": 10, "k": 3}
NET = {"depth": 4, "width": 8, "k": 2, "budget": 4, "networks": 1, "outer": 2, "pretrain": 20, "steps": 5}
# check, small sizes, what removes the effect
CASES = {
    "C1a": (claims.sequence_is_unbiased, {}, {"in_order": False}),
    "C1b": (claims.set_is_unbiased, {}, {"weights": np.full(6, 1 / 6)}),
    "C1c": (claims.independent_is_unbiased, {}, {"sign": 0.0}),
    "C1d": (claims.samples_agree, {"draws": 50_000}, {"in_order": False}),
    "C1e": (claims.sorted_is_biased, {}, {"in_order": True}),
    "C2a": (claims.sizes_are_exact, {"draws": 2000}, {"exact": False}),
    "C2b": (claims.mean_size, {"draws": 50_000}, {"inside": False}),
    "C2c": (claims.variance_of_size, {"draws": 100_000}, {"independent": False}),
    "C3": (claims.sampler_law, {"draws": 100_000}, {"conditional": True}),
    "C4a": (claims.kl_is_exact, {"points": 20}, {"plain": True}),
    "C4b": (claims.kl_against_solver, {"points": 5}, {"plain": True}),
    "C4c": (claims.renormalising_differs, {"points": 30}, {"same": True}),
    "C4d": (claims.box_is_exact, {"points": 10}, {"inside": False}),
    "C7a": (claims.exact_recovers, PLANTED | {"budget": 600}, {"flat": True, "budget": 20}),
    "C7c": (claims.random_does_not, {"seeds": 3, "budget": 60, "n": 14, "k": 4}, {"n": 5, "k": 2}),
    "C8c": (claims.layers_cost, NET | {"budget": 2}, {"enumerate_all": True}),
}


def test_the_paper_is_light():
    assert_light_import("iclr_subset.paper")


@pytest.mark.parametrize("claim", CASES)
def test_holds_at_reduced_size(claim, tmp_path):
    check, sizes, removed = CASES[claim]
    measured = check(claim_run(tmp_path, claim), **sizes)
    assert holds(METHOD, claim, measured), measured
    assert measured.baseline is not None
    assert not holds(METHOD, claim, check(claim_run(tmp_path / "removed", claim), **sizes | removed))


def test_rate(tmp_path):
    run = claim_run(tmp_path, "C5")
    sizes: dict = {"steps": (100, 400), "seeds": 3, "beside": ()}
    found = claims.convergence_rate(run, **sizes)
    assert found.measured < -0.25 < found.baseline[1]
    assert found.series["measure"][0] == pytest.approx(0.0209, rel=0.15)  # reference table, independent seeds
    assert found.series["f(w_T)"] == pytest.approx([0.2033, 0.1597], rel=0.05)
    assert stationarity(0, 100, 3, "euclidean")["euclidean"][1] == pytest.approx(0.1456, rel=0.05)
    best = np.sort(np.random.default_rng(3).random(8))[:3].mean()
    assert best == pytest.approx(0.113172, abs=1e-6)
    assert best < min(found.series["f(w_T)"])
    assert [path.name for path in run.figures] == ["C5-rate.png"]
    assert not holds(METHOD, "C5", claims.convergence_rate(run, **sizes, noise=True))


def test_dependence_on_n(tmp_path):
    found = claims.dependence_on_n(claim_run(tmp_path, "C6"), sizes=(8, 16), k=2, seeds=2, steps=100, grid=(10.0,))
    assert np.isfinite(found.measured)
    assert found.baseline[0] == "Euclidean"


def test_noise(tmp_path):
    sizes = {"seeds": 2, "budget": 500, "n": 10, "k": 3}
    for claim, check in (("C9a", claims.noise_exact), ("C9b", claims.noise_expected)):
        assert check(claim_run(tmp_path, claim), **sizes).measured >= 0.5
        few = check(claim_run(tmp_path, claim), **sizes | {"budget": 12, "flat": True})
        assert not holds(METHOD, claim, few)
    assert holds(METHOD, "C9c", claims.noise_random(claim_run(tmp_path, "C9c"), **sizes | {"budget": 12}))


def test_needle(tmp_path):
    found = claims.needle(claim_run(tmp_path, "C7d"), seeds=2, budget=30, n=10, k=3)
    assert 0 <= found.measured <= 1
    assert 0 <= found.details["formulation B"] <= 1


def test_layers(tmp_path):
    run = claim_run(tmp_path, "C8a")
    found = claims.layers_rank(run, **NET)
    assert 0 < found.measured <= 1
    assert [path.name for path in run.figures] == ["C8a-sets.png"]
    assert claims.layers_rank(run, worst=True, **NET).measured == found.details["rank of the last k"]
    assert not holds(METHOD, "C8b", claims.layers_beat_last(claim_run(tmp_path, "C8b"), worst=True, **NET))
    gain = claims.layers_against_random(claim_run(tmp_path, "C8d"), seeds=2, **NET)
    assert np.isfinite(gain.measured)

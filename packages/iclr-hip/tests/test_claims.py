"""Each claim's check at reduced size, and once with its effect removed."""

import math

import pytest
import torch

from iclr_hip import cache_claims, claims, cost, cost_claims, language_claims
from iclr_hip.paper import METHOD
from iclr_shared.errors import Unavailable
from iclr_shared.testing import assert_light_import, claim_run, holds

TIMES = {"lengths": (256, 512, 1024), "config": cost.torch_backend(mask_k=64, sliding_window_size=32), "reps": 1}
DECODING = {"lengths": (300, 600), "steps": 12}
# check, small sizes, what removes the effect
CASES = {
    "C1a": (claims.finds_the_top, {"draws": 2000}, {"shuffled": True}),
    "C1b": (claims.beats_random_pruning, {"draws": 1000}, {"random": True}),
    "C1c": (claims.locality_helps, {"draws": 2000}, {"shuffled": True}),
    "C3a": (claims.counts_evaluations, {"longest": 2048}, {"oracle": True}),
    "C4a": (cost_claims.memory_slope, {"lengths": (1024, 2048)}, {"naive": True}),
    "C4b": (cost_claims.no_square_tensor, {"length": 12288, "config": cost.torch_backend(mask_k=128)}, {"naive": True}),
    "C6a": (claims.dense_limit, {"length": 100}, {"keys": 12}),
    "C6b": (claims.full_mask, {"length": 100}, {"keys": 12}),
    "C7a": (claims.finds_the_needle, {"trials": 8, "length": 4096}, {"width": 1.0}),
    "C7b": (claims.window_misses_the_needle, {"trials": 8, "length": 4096}, {"searched": True}),
    "C8a": (cache_claims.offloading_is_exact, DECODING, {"broken": True}),
    "C8b": (cache_claims.resident_tokens, {"lengths": (9000,), "steps": 4}, {"unlimited": True}),
    "C8c": (cache_claims.capacity_growth, {}, {"linear": True}),
    "C8d": (cache_claims.hit_rate, DECODING, {"limit": 0}),
}


def test_the_paper_is_light():
    assert_light_import("iclr_hip.paper")


@pytest.mark.parametrize("claim", CASES)
def test_holds_at_reduced_size(claim, tmp_path):
    check, sizes, removed = CASES[claim]
    measured = check(claim_run(tmp_path, claim), **sizes)
    assert holds(METHOD, claim, measured), measured
    assert measured.baseline is not None
    assert not holds(METHOD, claim, check(claim_run(tmp_path / "removed", claim), **sizes | removed))


def test_times(tmp_path):
    """Measured once for all rows; what is wanted of them holds at full size only."""
    run = claim_run(tmp_path, "C3b")
    slopes = [cost_claims.prefill_slope(run, **TIMES, dense=dense) for dense in (False, True)]
    assert slopes[1].measured == slopes[0].baseline[1]
    assert cost_claims.dense_slope(run, **TIMES).baseline[1] == cost_claims.dense_slope(run, **TIMES, hip=True).measured
    ratios = cost_claims.prefill_speedup(run, **TIMES)
    assert ratios.measured == ratios.series["ratio"][-1] > 0
    assert cost_claims.crossing(run, **TIMES).measured in (256, 512, 1024, math.inf)
    found = cost_claims.decoding_speedup(run, length=2048, config=TIMES["config"])
    assert found.measured > found.baseline[1] > 0
    assert [path.name for path in run.figures] == ["C3b-prefill.png"]


def test_a_language_model(tmp_path):
    sizes = {"steps": 3, "context": 64}
    config = language_claims.CONFIG.from_dict(
        language_claims.CONFIG.to_dict() | {"mask_k": 16, "sliding_window_size": 8}
    )
    run = claim_run(tmp_path, "C5a")
    found = language_claims.locality_in_a_trained_model(run, **sizes, sequences=1)
    assert len(found.series["head"]) == 8
    assert 0 <= found.measured <= 1
    removed = language_claims.locality_in_a_trained_model(run, **sizes, sequences=1, shuffled=True)
    assert removed.measured == found.baseline[1] < 0.5
    lost = language_claims.little_is_lost(run, **sizes, sequences=3, config=config)
    assert lost.measured == lost.details["increase, HiP"]
    assert holds(METHOD, "C5a", lost)
    for check, other in (
        (language_claims.less_than_random, "random blocks"), (language_claims.less_than_window, "sinks and window")
    ):  # fmt: skip
        gap = check(run, **sizes, sequences=3, config=config)
        assert gap.measured == lost.details[f"increase, {other}"] - lost.measured
    assert len(run.figures) == 2


def test_without_a_gpu(tmp_path):
    if not torch.cuda.is_available():
        with pytest.raises(Unavailable, match="needs CUDA"):
            cost_claims.gpu_speedup(claim_run(tmp_path, "C9"))

"""Each claim's check at reduced size, and once with its effect removed."""

import numpy as np
import pytest

from iclr_afedpg import claims
from iclr_afedpg.claims import ALONE, THEORY
from iclr_afedpg.paper import METHOD
from iclr_shared.testing import assert_light_import, claim_run, holds

RATE = {"at": (300, 1000, 3000), "seeds": 2}
EQUAL = {"updates": 3000, "every": 100, "seeds": 2}
PENDULUM = claims.PENDULUM | {"batch_steps": 200, "horizon": 100}
BALANCE = {"seeds": 1, "time": 25, "options": PENDULUM}
# check, small sizes, what removes the effect
CASES = {
    "C1a": (claims.asynchronous_rate, {"updates": 3000}, {"barrier": True}),
    "C1b": (claims.speedup_is_harmonic, {"updates": 3000}, {"mean": True}),
    "C3": (claims.delay_identity, {"updates": 500}, {"barrier": True}),
    "C4a": (claims.lookahead_cancels, {"updates": 100}, {"lookahead": False}),
    "C4b": (claims.no_lookahead_does_not, {"updates": 100}, {"lookahead": True}),
    "C5a": (claims.rate_of_one_agent, RATE, {"rule": ALONE, "at": (3000, 10_000)}),
    "C5b": (claims.rate_of_four_agents, RATE, {"rule": ALONE, "at": (3000, 10_000)}),
    "C5c": (claims.rate_without_momentum, RATE | {"at": (3000, 10_000)}, {"rule": THEORY}),
    "C5d": (claims.gap_without_momentum, RATE, {"rule": THEORY}),
    "C6b": (claims.time_falls_with_agents, EQUAL | {"target": 0.1}, {"barrier": True}),
}


def test_the_paper_is_light():
    assert_light_import("iclr_afedpg.paper")


@pytest.mark.parametrize("claim", CASES)
def test_holds_at_reduced_size(claim, tmp_path):
    check, sizes, removed = CASES[claim]
    measured = check(claim_run(tmp_path, claim), **sizes)
    assert holds(METHOD, claim, measured), measured
    assert measured.baseline is not None
    assert not holds(METHOD, claim, check(claim_run(tmp_path / "removed", claim), **sizes | removed))


def test_staleness_is_free(tmp_path):
    run = claim_run(tmp_path, "C6a")
    assert holds(METHOD, "C6a", claims.staleness_is_free(run, **EQUAL))
    early = claims.staleness_is_free(run, updates=400, every=100, seeds=2)
    assert early.baseline[1] > 0.1  # fewer updates would show


def test_real_processes(tmp_path):
    sizes = {"seconds": 2.0, "times": (0.05, 0.05, 0.5)}
    found = claims.real_rate(claim_run(tmp_path, "C2a"), **sizes)
    assert found.measured > 2 * found.baseline[1]  # 0.8 and more on an idle machine, against 0.14
    assert not holds(METHOD, "C2a", claims.real_rate(claim_run(tmp_path, "C2a"), **sizes, barrier=True))
    assert claims.real_speedup(claim_run(tmp_path, "C2b"), **sizes).measured > 2  # theory 7


def test_balancing(tmp_path):
    run = claim_run(tmp_path, "C7a")
    found = claims.learns_to_balance(run, **BALANCE)
    assert found.measured > 2 * found.baseline[1]
    removed = claims.learns_to_balance(claim_run(tmp_path, "C7a"), **BALANCE, arm="FedPG")
    assert not holds(METHOD, "C7a", removed)
    assert not holds(METHOD, "C7b", claims.barrier_does_not(claim_run(tmp_path, "C7a"), **BALANCE, arm="FedPG"))
    assert claims.barrier_does_not(claim_run(tmp_path, "C7a"), **BALANCE).measured == found.measured / found.baseline[1]
    assert [path.name for path in run.figures] == ["C7a-learning.png"]


def test_swimming(tmp_path):
    sizes = {"seeds": 1, "options": claims.SWIMMER | {"batch_steps": 100, "horizon": 50}}
    found = claims.learns_to_swim(claim_run(tmp_path, "C8a"), env_steps=1600, **sizes)
    per_sample = claims.swims_per_sample(claim_run(tmp_path, "C8a"), env_steps=1600, **sizes)
    in_time = claims.swims_further_in_time(claim_run(tmp_path, "C8b"), time=10, **sizes)
    assert all(np.isfinite(m.measured) and m.baseline is not None for m in (found, per_sample, in_time))
    still = sizes | {"options": sizes["options"] | {"eta": 1e-9}}
    assert not holds(METHOD, "C8a", claims.learns_to_swim(claim_run(tmp_path / "still"), env_steps=1600, **still))
    assert in_time.details["updates, AFedPG"] == 31
    fed = claims.swims_further_in_time(claim_run(tmp_path, "C8b"), time=10, arm="FedPG", **sizes)
    assert fed.measured == 0

"""Each check small, and once with its effect removed."""

import math

import pytest

from iclr_generalization.modular import claims
from iclr_generalization.modular.experiments import Sizes
from iclr_generalization.modular.networks import Training
from iclr_generalization.modular.paper import METHOD
from iclr_generalization.modular.search import Search
from iclr_shared.claims import Measurement
from iclr_shared.records import plain, verdict
from iclr_shared.testing import claim_run, holds

SMALL = Sizes(
    hidden=16, restarts=6, search=Search(steps=60, learning_rate=0.1, null=16, group=6), training=Training(steps=1000)
)
SINES = {"dimensions": (2, 8), "seeds": 1, "n": 200, "sizes": SMALL}
PICTURES = {
    "seeds": 1,
    "n": 300,
    "sizes": Sizes(
        b=8, hidden=16, restarts=4, search=Search(steps=5, length=3.0, null=8, group=4),
        training=Training(steps=60, loss="cross_entropy"),
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """One folder for all checks, so that networks are trained once."""
    return tmp_path_factory.mktemp("run")


def control_holds(claim: str, found: Measurement) -> bool:
    stated = next(c for c in METHOD.claims if c.id == claim)
    return verdict(stated.direction, stated.threshold, plain(found.baseline[1], "control"))[0] == "pass"


def test_closed_forms(folder):
    found = claims.closed_forms(claim_run(folder, "C1"), repeats=100, pairs=claims.PAIRS[:1])
    assert holds(METHOD, "C1", found)
    assert not control_holds("C1", found)
    assert found.details["median test loss, p = 30"] > 5 * found.details["median test loss, p = 15"]


def test_exponents(folder):
    sizes = {"repeats": 15, "seeds": 2}
    run = claim_run(folder, "C2a")
    alone = claims.monolithic_exponent(run, dimensions=(1, 2, 3, 4), **sizes)
    assert holds(METHOD, "C2a", alone)
    assert not control_holds("C2a", alone)
    assert not holds(METHOD, "C2a", claims.monolithic_exponent(run, dimensions=(1, 2, 3, 4), C=2, **sizes))
    run = claim_run(folder, "C2b")
    modular = claims.modular_exponent(run, dimensions=(3, 5), repeats=40, seeds=2)
    assert holds(METHOD, "C2b", modular)
    assert not control_holds("C2b", modular)
    assert modular.details["test loss of 7 random products at n = 1000, largest m"] > 0.3
    assert not holds(METHOD, "C2b", claims.modular_exponent(run, dimensions=(3, 4), modular=False, **sizes))


def test_networks_on_sines(folder):
    rises = claims.monolithic_loss_rises(claim_run(folder, "C3a"), **SINES)
    assert holds(METHOD, "C3a", rises)
    stays = claims.rule_loss_stays(claim_run(folder, "C3b"), **SINES)
    assert stays.measured >= 1
    assert not holds(METHOD, "C3b", claims.rule_loss_stays(claim_run(folder, "C3b"), **SINES, learner="monolithic"))
    beats = claims.rule_beats_random_modules(claim_run(folder, "C3c"), **SINES)
    assert holds(METHOD, "C3c", beats)
    same = claims.rule_beats_random_modules(claim_run(folder, "C3c"), **SINES, learner="monolithic")
    assert same.measured > beats.measured
    # A learner whose loss is flat does not rise.
    flat = {**SINES, "dimensions": (8, 8)}
    assert not holds(METHOD, "C3a", claims.monolithic_loss_rises(claim_run(folder, "C3a"), **flat))


def test_networks_far_out(folder):
    for check, claim in ((claims.rule_extrapolates, "C5a"), (claims.random_modules_extrapolate, "C5b")):
        found = check(claim_run(folder, claim), **SINES)
        assert math.isfinite(found.measured)
        assert set(found.series) >= {"m", "ood/rule", "ood/random", "ood/monolithic"}
    assert claims.rule_extrapolates(claim_run(folder, "C5a"), **SINES, learner="random").measured == 1
    worse = claims.rule_extrapolates(claim_run(folder, "C5a"), **SINES, learner="monolithic")
    assert worse.measured > 0


def test_recovery(folder):
    sizes = {"m": 8, "n": 200, "seeds": 1, "restarts": 6, "search": SMALL.search}
    found = claims.rule_recovers_modules(claim_run(folder, "C4"), **sizes)
    assert found.measured > found.baseline[1]
    assert not control_holds("C4", found)
    assert not holds(METHOD, "C4", claims.rule_recovers_modules(claim_run(folder, "C4"), **sizes, noise=True))


def test_pictures(folder):
    for check, claim in ((claims.rule_composes, "C5c"), (claims.random_modules_compose, "C5d")):
        found = check(claim_run(folder, claim), **PICTURES)
        assert 0 < found.measured < 5
        assert found.series["learner"] == ["monolithic", "random", "rule", "oracle"]
    assert claims.rule_composes(claim_run(folder, "C5c"), **PICTURES, learner="random").measured == 1
    accuracy = claims.rule_keeps_accuracy(claim_run(folder, "C6"), ks=(1, 2), **PICTURES)
    assert abs(accuracy.measured) < 50
    removed = claims.rule_keeps_accuracy(claim_run(folder, "C6"), ks=(1, 2), **PICTURES, learner="monolithic")
    assert removed.measured == 0
    assert not holds(METHOD, "C6", removed)


def test_counts_of_modules(folder):
    sizes = {"counts": (1, 2), "repeats": 150, "ratios": (0.25, 1.5)}
    found = claims.modules_leave_the_loss(claim_run(folder, "C7a"), **sizes)
    assert holds(METHOD, "C7a", found)
    assert not control_holds("C7a", found)
    removed = claims.modules_leave_the_loss(claim_run(folder, "C7a"), **sizes, scale_samples=False)
    assert not holds(METHOD, "C7a", removed)


def test_descent(folder):
    sizes = {"P": 80, "n": 40, "repeats": 150}
    found = claims.double_descent(claim_run(folder, "C7b"), **sizes)
    assert found.measured < 0.25
    assert not control_holds("C7b", found)
    assert not holds(METHOD, "C7b", claims.double_descent(claim_run(folder, "C7b"), **sizes, descent=False))


@pytest.mark.slow
@pytest.mark.parametrize("claim", ["C2a", "C2b", "C3a", "C3c", "C7b"])
def test_full_size(folder, claim):
    stated = next(c for c in METHOD.claims if c.id == claim)
    check = getattr(claims, stated.check.split(":")[1])
    assert holds(METHOD, claim, check(claim_run(folder, claim)))

"""Each claim's check at a small size; and with its effect removed, where it has to miss its threshold."""

import dataclasses
import functools
import importlib

import jax
import numpy as np
import pytest

from iclr_dynamics.late_sam import claims, recipes, switch_claims, valley_claims
from iclr_dynamics.late_sam.objective import flax_model
from iclr_dynamics.late_sam.paper import METHOD
from iclr_dynamics.networks import MLP
from iclr_shared.claims import ClaimRun
from iclr_shared.seeds import root
from iclr_shared.testing import claim_run, holds

# USAM is at its edge, GD above it; the late arm has 40 steps.
SMALL = dataclasses.replace(claims.FULL, epochs=400)
MINI = dataclasses.replace(recipes.MINIBATCH, epochs=20)
BRIEF = dataclasses.replace(recipes.ADVERSARIAL, epochs=5)


@pytest.fixture(autouse=True)
def small_network(request, monkeypatch):
    """64-32-32-10 on 150 digits, except in full claims, which are worth optimising."""
    if "slow" in request.keywords:
        jax.config.update("jax_disable_most_optimizations", False)
    else:
        monkeypatch.setattr(recipes, "noisy_digits", small_digits)
        monkeypatch.setattr(recipes, "network", small)


small_digits = functools.partial(recipes.noisy_digits, train=150)


def small(activation="tanh"):
    return flax_model(MLP((32, 32, 10), activation=activation, sigma_w=3**-0.5))


@pytest.fixture(scope="module")
def drawn():
    return set()


@pytest.fixture(autouse=True)
def each_figure_once(drawn, monkeypatch):
    """Drawing is slow; a check that is called again, without its effect, need not repeat it."""
    draw = ClaimRun.figure

    def figure(run, name, figure):
        if (run.claim, name) not in drawn:
            drawn.add((run.claim, name))
            draw(run, name, figure)

    monkeypatch.setattr(ClaimRun, "figure", figure)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """One run folder, so that the checks share their runs as they do in a real run."""
    return tmp_path_factory.mktemp("claims")


def check(folder, id, seed=0, **sizes):
    claim = next(claim for claim in METHOD.claims if claim.id == id)
    module, name = claim.check.split(":")
    run = ClaimRun(id, root(seed).child("late_sam", id), folder, quiet=True)
    return getattr(importlib.import_module(module), name)(run, **sizes)


@pytest.mark.parametrize("id", ["C1a", "C1b", "C1c", "C1d"])
def test_valley_claims(tmp_path, id):
    measurement = check(tmp_path, id)
    assert holds(METHOD, id, measurement)
    # Stopped in the middle of the escape, it neither has landed nor returned.
    if id != "C1a":
        assert not holds(METHOD, id, check(tmp_path, id, rhos=(0.02,), steps=18))


def test_valley_rate_without_its_effect(tmp_path, monkeypatch):
    """The rate of gradient descent, predicted for USAM."""
    actual = valley_claims.valley.descend
    monkeypatch.setattr(valley_claims.valley, "descend", lambda start, eta, rho, steps: actual(start, eta, 0.0, steps))
    assert not holds(METHOD, "C1a", check(tmp_path, "C1a"))


FULL_BATCH = ["C2a", "C2c", "C2d", "C2e", "C2f", "C3a", "C3b", "C4a", "C4b", "C4c", "C5a", "C5b"]


@pytest.mark.parametrize("id", FULL_BATCH)
def test_full_batch_claims(folder, id):
    measurement = check(folder, id, seeds=1, training=SMALL)
    assert np.isfinite(measurement.measured)
    assert np.isfinite(measurement.baseline[1])
    if id in ("C2a", "C5a"):
        assert measurement.measured > 0.7
        assert list((folder / "figures").glob(f"{id}-*.png"))


@pytest.mark.parametrize("id", ["C2a", "C2c", "C2f", "C5a", "C5b"])
def test_without_the_switch_late_sam_is_not_flat(folder, id):
    assert not holds(METHOD, id, check(folder, id, seeds=1, training=SMALL, late="sgd"))


def test_without_sam_there_is_no_edge_and_no_gain(tmp_path):
    none = dataclasses.replace(SMALL, epochs=60, rho=0.0)
    for id in ("C2d", "C2e", "C3a", "C4a", "C4b", "C4c"):
        assert not holds(METHOD, id, check(tmp_path, id, seeds=1, training=none))


def test_arms_are_kept_and_equal_whole_runs(folder):
    tree = root(0)
    options = {"family": "usam", "late": "usam", "switches": claims.SWITCHES, "early": claims.EARLY}
    kept = recipes.arms(folder, tree, 0, SMALL, **options)
    assert kept["late 0"]["sharpness"] == pytest.approx(kept["sam"]["sharpness"], rel=1e-6)
    assert len(list((folder / "checkpoints" / "shared").iterdir())) >= 2


def test_network_leaves_at_the_predicted_rate(folder):
    assert np.isfinite(check(folder, "C7a", seeds=1, training=SMALL, steps=10).measured)
    assert not holds(METHOD, "C7b", check(folder, "C7b", seeds=1, training=SMALL, rho=0.0))
    assert holds(METHOD, "C7b", check(folder, "C7b", seeds=1, training=SMALL))


def test_late_sam_stays_in_the_valley(folder):
    assert holds(METHOD, "C6", check(folder, "C6", seeds=1, training=SMALL))
    assert not holds(METHOD, "C6", check(folder, "C6", seeds=1, training=SMALL, partner="stranger"))


def test_minibatch_claims(folder):
    assert 0.3 < check(folder, "C2b", seeds=1, training=MINI).measured < 1.5
    assert not holds(METHOD, "C2b", check(folder, "C2b", seeds=1, training=MINI, late="sgd"))
    assert np.isfinite(check(folder, "C4d", seeds=1, training=MINI).measured)


def test_where_it_fails(folder):
    drop = dataclasses.replace(recipes.DECAYED.rate, base=MINI.rate.base, milestones=(10,))
    decayed = check(folder, "C10a", seeds=1, training=dataclasses.replace(MINI, learning_rate=drop))
    assert decayed.measured < check(folder, "C2b", seeds=1, training=MINI).measured
    assert decayed.details["late 0.8: late steps times rate"] == pytest.approx(4 * 60 * 0.02)
    # Of four epochs, the last tenth is none.
    none = check(folder, "C10b", seeds=1, training=dataclasses.replace(MINI, epochs=4))
    assert none.measured == 1
    assert none.baseline[1] != 1


def test_late_adversarial_training(folder):
    robust = check(folder, "C8a", seeds=1, training=BRIEF)
    assert robust.measured > robust.baseline[1] or robust.measured > 0.3
    assert not holds(METHOD, "C8a", check(folder, "C8a", seeds=1, training=BRIEF, late="sgd"))
    assert np.isfinite(check(folder, "C8b", seeds=1, training=BRIEF).measured)


def test_cost(tmp_path):
    run = claim_run(tmp_path, "C9a")
    measurement = switch_claims.late_sam_costs_a_tenth_more(run, epochs=20)
    assert holds(METHOD, "C9a", measurement)
    assert measurement.details == {"sgd": 20, "late": 22, "full": 40}
    assert not holds(METHOD, "C9a", switch_claims.late_sam_costs_a_tenth_more(run, epochs=20, switch=0.0))
    timed = switch_claims.late_sam_takes_little_longer(claim_run(tmp_path, "C9b"), epochs=20, rounds=2)
    assert timed.measured > 0


@pytest.mark.slow
@pytest.mark.parametrize("claim", METHOD.claims, ids=lambda claim: claim.id)
def test_whole_claims(tmp_path_factory, claim):
    measurement = check(tmp_path_factory.getbasetemp() / "whole-claims", claim.id)
    assert np.isfinite(measurement.measured)

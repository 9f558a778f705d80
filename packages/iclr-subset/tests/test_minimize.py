"""Searching with a budget: cache, workers, failures, kills, files."""

import json
import sys
import warnings

import numpy as np
import pytest
from joblib import Memory

from iclr_shared.errors import InputError, MissingExtra
from iclr_shared.testing import Killed, fault_inject
from iclr_subset.baselines import STRATEGIES, expected_random_rank, search
from iclr_subset.minimize import minimize
from iclr_subset.planted import Overlap, SubsetSum, plant

BEST = (1, 4, 6)
QUICK: dict = {"n": 8, "k": 3, "budget": 40, "batch": 4, "steps": 60}


def same(a, b):
    assert (a.subset, a.cost, a.evaluations, a.hits) == (b.subset, b.cost, b.evaluations, b.hits)
    np.testing.assert_array_equal(a.weights, b.weights)
    assert a.history.equals(b.history)


@pytest.mark.parametrize("method", ["exact", "expected"])
def test_finds_what_was_planted(method):
    best = plant(12, 4, 1)
    found = minimize(Overlap(best, True), 12, 4, method, steps=700, empty=1.0, seed=1)
    assert found.subset == found.top == found.best_seen[0] == best
    assert found.cost == 0
    assert found.signal
    assert found.hits > 0.4 * (found.hits + found.evaluations)  # the weights concentrate
    assert found.inclusion.sum() == pytest.approx(4)
    assert len(found.history) == 700
    assert found.history.best_cost.is_monotonic_decreasing
    assert len({e.subset for e in found.calls}) == len(found.calls) == found.evaluations


def test_budget_counts_evaluations():
    calls = []

    def cost(chosen):
        calls.append(tuple(chosen))
        return float(chosen.sum())

    found = minimize(cost, **QUICK)
    assert found.evaluations == len(calls) == len(set(calls)) <= 40
    assert found.subset == (0, 1, 2)
    few = minimize(cost, n=30, k=3, budget=11, batch=4, steps=60)
    assert few.evaluations <= 11
    assert len(few.history) == 2  # 8 paid; the third batch does not fit


def test_names():
    seen = []

    def cost(chosen):
        seen.append(chosen)
        return float(len("".join(chosen)))

    found = minimize(cost, items=["ab", "abcd", "a", "abc"], k=2, steps=50)
    assert found.names == ["ab", "a"]
    assert seen[0] == sorted(seen[0], key=["ab", "abcd", "a", "abc"].index)


def noisy_cost(chosen, rng):
    return float(chosen.sum() + rng.standard_normal())


@pytest.mark.parametrize("cache", [True, False, "mean"])
def test_workers_change_nothing(cache):
    cost = Overlap(BEST) if cache is True else noisy_cost
    options = QUICK | {"cache": cache, "seed": 4, "noisy": cache is not True, "budget": 24}
    same(minimize(cost, **options), minimize(cost, n_jobs=2, backend="threading", **options))


def test_processes():
    options = QUICK | {"budget": 12}
    cost = Overlap(BEST, noise=0.3)  # drawn in the workers
    options |= {"cache": False}
    same(minimize(cost, **options), minimize(cost, n_jobs=2, **options))


def test_memory_of_joblib_is_a_cost(tmp_path):
    paid = []

    def cost(chosen):
        paid.append(1)
        return float(chosen.sum())

    remembered = Memory(tmp_path, verbose=0).cache(cost, ignore=[])
    first = minimize(remembered, **QUICK)
    assert len(paid) == first.evaluations
    same(first, minimize(remembered, **QUICK))
    assert len(paid) == first.evaluations


def test_cached_mean():
    found = minimize(noisy_cost, n=3, k=1, noisy=True, steps=200, normalise=True)
    search_calls = [e for e in found.calls if e.step >= 0]
    counts = {s: sum(e.subset == s for e in search_calls) for s in {e.subset for e in search_calls}}
    assert max(counts.values()) == 5
    assert sum(e.step < 0 for e in found.calls) in (20, 40)
    fresh = [e.cost for e in found.calls if e.step < 0 and e.subset == found.subset]
    assert found.cost == pytest.approx(np.mean(fresh))


def test_everything_is_chosen_with_a_warning():
    with pytest.warns(RuntimeWarning, match="all items are chosen"):
        found = minimize(lambda c: float(c.sum()), 4, 4)
    assert (found.subset, found.cost, found.evaluations) == ((0, 1, 2, 3), 6.0, 1)


def test_flat_costs_give_no_signal(caplog):
    found = minimize(lambda c: 0.5, **QUICK)
    assert not found.signal
    assert "no signal" in caplog.text


def test_huge_costs_warn_once():
    with pytest.warns(RuntimeWarning, match="normalise=True") as caught:
        minimize(lambda c: 1e7 * c.sum(), **QUICK)
    assert len(caught) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert minimize(lambda c: 1e7 * c.sum(), normalise=True, **QUICK).subset == (0, 1, 2)


# --- failing costs ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (float("nan"), r"The cost of \[\d, \d, \d\] is nan"),
        (float("inf"), "is inf; costs must be finite"),
        (np.ones(2), r"array of shape \(2,\)"),
        ("x", "ValueError"),
    ],
)
def test_bad_costs(value, message):
    with pytest.raises(InputError, match=message):
        minimize(lambda c: value, **QUICK)


def fails_on_zero(chosen):
    if 0 in chosen:
        raise OSError("out of memory")
    return float(chosen.sum()) / 20


def test_failures():
    with pytest.raises(InputError, match=r"The cost of \[0, .*failed: OSError: out of memory"):
        minimize(fails_on_zero, **QUICK)
    found = minimize(fails_on_zero, on_error="penalise", penalty=2.0, **QUICK)
    assert found.subset == (1, 2, 3)
    assert found.failures == sum(bool(e.error) for e in found.calls) > 0
    assert all(e.cost == 2.0 for e in found.calls if e.error)
    late = minimize(fails_on_zero, on_error="penalise", **QUICK | {"batch": 1, "seed": 4})
    assert all(e.cost <= 18 / 20 for e in late.calls if e.error)  # the worst before
    with pytest.raises(InputError, match="give a penalty"):
        minimize(lambda c: float("nan"), on_error="penalise", **QUICK)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"k": 0}, "at least 1"),
        ({"k": 9}, "below n = 8"),
        ({"n": None}, "Say how many items"),
        ({"method": "expected"}, "empty="),
        ({"noisy": True, "cache": True}, "would freeze"),
        ({"cache": "sum"}, "cache must be"),
        ({"items": list("abcdefgg")}, "given twice: g"),
        ({"items": list("ab"), "n": 8}, "2 item names for n = 8"),
        ({"budget": 1}, "leaves none to search"),
        ({"noisy": True, "budget": 1}, "leaves none to search"),
        ({"on_error": "ignore"}, "'raise' or 'penalise'"),
        ({"penalty": float("inf")}, "penalty must be finite"),
        ({"cardinality": "all"}, "cardinality must be"),
        ({"n_jobs": 0}, "n_jobs"),
        ({"repeats": 0}, "repeats"),
        ({"seed": -1}, "not be negative"),
        ({"batch": 0}, "batch must be at least 1"),
        ({"batch": 1.5}, "batch must be at least 1 and whole"),
        ({"k": float("nan")}, "whole number"),
        ({"rate": 0.0}, "rate of the baseline"),
        ({"method": "expected", "empty": float("nan")}, "empty set must be finite"),
        ({"known": "absent.csv"}, "no file absent.csv"),
    ],
)
def test_bad_input(options, message):
    with pytest.raises(InputError, match=message):
        minimize(Overlap(BEST), **QUICK | options)


def test_sizes_under_b():
    def larger_is_better(chosen):
        return -float(len(chosen))

    options = {"n": 8, "k": 3, "method": "expected", "empty": 0.0, "steps": 100}
    assert len(minimize(larger_is_better, **options).subset) > 3
    assert len(minimize(larger_is_better, cardinality="exact_report", **options).subset) == 3


# --- files and kills -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cache", [True, False])
@pytest.mark.parametrize("at", [0, 3, 17])
def test_killed_and_resumed(tmp_path, cache, at, monkeypatch):
    from iclr_subset import minimize as module

    monkeypatch.setattr(sys.modules[module.__module__], "SAVE_EVERY", 0.0)
    paid = []

    def cost(chosen, rng):
        paid.append(tuple(chosen.tolist()))
        return float(chosen.sum() + (0 if cache else rng.random()))

    options = QUICK | {"cache": cache, "seed": 5, "budget": 30}
    whole = minimize(cost, **options)
    expected, paid[:] = list(paid), []
    with pytest.raises(Killed):
        minimize(fault_inject(cost, at), checkpoint=tmp_path / "run.json", **options)
    resumed = minimize(cost, checkpoint=tmp_path / "run.json", **options)
    same(whole, resumed)
    assert sorted(paid) == sorted(expected)  # nothing twice, nothing left out
    again = minimize(cost, checkpoint=tmp_path / "run.json", **options)
    same(whole, again)
    assert len(paid) == len(expected)


def test_more_budget_goes_on(tmp_path):
    place = tmp_path / "run.json"
    first = minimize(Overlap(BEST), checkpoint=place, **QUICK | {"budget": 10})
    more = minimize(Overlap(BEST), checkpoint=place, **QUICK)
    assert more.evaluations > first.evaluations
    assert len({e.subset for e in more.calls}) == len(more.calls)


def test_places(tmp_path):
    place = tmp_path / "run.json"
    minimize(Overlap(BEST), checkpoint=place, **QUICK)
    with pytest.raises(InputError, match="already holds a search"):
        minimize(Overlap(BEST), checkpoint=place, resume=False, **QUICK)
    with pytest.raises(InputError, match="seed = 0, not 1"):
        minimize(Overlap(BEST), checkpoint=place, seed=1, **QUICK)
    place.unlink()
    with pytest.raises(InputError, match="belongs to another search"):
        minimize(Overlap(BEST), checkpoint=place, seed=1, **QUICK)
    place.write_text("{}")
    with pytest.raises(InputError, match="no state of a search"):
        minimize(Overlap(BEST), checkpoint=place, **QUICK)
    place.unlink()
    ledger = tmp_path / "run.jsonl"
    lines = ledger.read_text().splitlines()
    ledger.write_text("\n".join([lines[0], "rubbish", *lines[1:]]) + "\n")
    with pytest.raises(InputError, match=r"Line 2 of .*run.jsonl is no evaluation"):
        minimize(Overlap(BEST), checkpoint=place, **QUICK)


def test_known_costs(tmp_path):
    found = minimize(Overlap(BEST), checkpoint=tmp_path / "run.json", **QUICK)
    found.to_csv(tmp_path / "known.csv", items=list("abcdefgh"))
    for file in ("known.csv", "run.jsonl"):
        again = minimize(Overlap(BEST), known=tmp_path / file, **QUICK | {"steps": 3})
        assert again.evaluations <= 1  # the largest weights, if new
        assert again.hits >= 12
    (tmp_path / "bad.csv").write_text("subset,cost\n0 1 99,2\n")
    with pytest.raises(InputError, match="no subset of"):
        minimize(Overlap(BEST), known=tmp_path / "bad.csv", **QUICK)
    (tmp_path / "bad.csv").write_text("set,cost\n0 1,2\n")
    with pytest.raises(InputError, match="columns subset and cost"):
        minimize(Overlap(BEST), known=tmp_path / "bad.csv", **QUICK)
    (tmp_path / "bad.csv").write_text("subset,cost\n0 x,2\n")
    with pytest.raises(InputError, match="no subset with its cost"):
        minimize(Overlap(BEST), known=tmp_path / "bad.csv", **QUICK)


# --- baselines -------------------------------------------------------------------------------------------------------


def test_baselines(tmp_path):
    best = plant(8, 3, 1)
    cost = Overlap(best)
    every = search("enumerate", cost, 8, 3)
    assert (every.subset, every.evaluations) == (best, 56)
    greedy = search("greedy", cost, 8, 3)
    assert (greedy.subset, greedy.evaluations) == (best, 8 + 7 + 6)
    assert search("random", cost, 8, 3, budget=100).evaluations == 56  # never one twice
    some = search("random", cost, 8, 3, budget=20, seed=3)
    assert some.evaluations == len({e.subset for e in some.calls}) == 20
    assert search("first", cost, 8, 3).subset == (0, 1, 2)
    assert search("last", cost, 8, 3).subset == (5, 6, 7)
    picks = {search("random-k", cost, 8, 3, seed=s).subset for s in range(5)}
    assert len(picks) > 1
    short = search("greedy", cost, 8, 3, budget=12)
    assert (len(short.subset), short.evaluations) == (3, 12)
    assert np.isnan(short.cost)
    cut = tmp_path / "cut.json"
    with pytest.raises(Killed):
        search("greedy", fault_inject(cost, 11), 8, 3, checkpoint=cut)
    paid = []
    resumed = search("greedy", lambda c: paid.append(1) or cost(c, None), 8, 3, checkpoint=cut)
    assert (resumed.subset, len(paid)) == (best, 21 - 11)
    with pytest.raises(InputError, match="already holds"):
        search("greedy", cost, 8, 3, checkpoint=cut, resume=False)


def test_cma(monkeypatch):
    best = plant(8, 3, 1)
    found = search("cma", Overlap(best), 8, 3, budget=50, seed=2)
    assert found.subset == best
    assert found.evaluations == len({e.subset for e in found.calls}) <= 50
    assert search("cma", Overlap(best), 8, 3, budget=50, seed=2).calls[-1].subset == found.calls[-1].subset
    monkeypatch.setitem(sys.modules, "cma", None)
    with pytest.raises(MissingExtra, match=r"iclr-subset\[controls\]"):
        search("cma", Overlap(best), 8, 3, budget=50)


def test_random_rank(rng):
    ranks = [1 + rng.permutation(56)[:22].min() for _ in range(4000)]
    assert expected_random_rank(56, 22) == pytest.approx(57 / 23)
    assert np.mean(ranks) == pytest.approx(57 / 23, abs=0.15)


@pytest.mark.parametrize(
    ("strategy", "options", "message"),
    [
        ("best", {}, "A strategy is one of"),
        ("random", {}, "needs a budget"),
        ("cma", {}, "needs a budget"),
        ("random", {"budget": 0}, "at least 1"),
        ("enumerate", {"n": 60, "k": 20}, "needs a budget"),
        ("first", {"k": 8}, "below n"),
        ("first", {"seed": -1}, "not be negative"),
        ("first", {"n": None}, "Say how many"),
    ],
)
def test_bad_searches(strategy, options, message):
    with pytest.raises(InputError, match=message):
        search(strategy, Overlap(BEST), **{"n": 8, "k": 3} | options)


def test_needle():
    a = np.array([3.0, 9, 27, 81])
    cost = SubsetSum(a, 36.0)
    assert cost(np.array([1, 2])) == 0
    assert cost(np.array([0, 3])) == 1
    assert search("enumerate", cost, 4, 2).subset == (1, 2)
    assert set(STRATEGIES) == {"random", "greedy", "enumerate", "first", "last", "random-k", "cma"}


def test_ledger_is_json_lines(tmp_path):
    minimize(Overlap(BEST), checkpoint=tmp_path / "run.json", **QUICK)
    lines = [json.loads(line) for line in (tmp_path / "run.jsonl").read_text().splitlines()]
    assert set(lines[0]) == {"step", "sample", "subset", "cost", "seconds", "error"}

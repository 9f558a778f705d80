"""What else one could do with the same evaluations: chance, greed, enumeration, rules of thumb, and CMA-ES.

All pay through the same `Evaluator` as the mirror descent: parallel, cached, resumable from the ledger.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import combinations, islice
from pathlib import Path
from typing import Any

import numpy as np

from iclr_shared.errors import InputError, require
from iclr_shared.progress import raise_if_stopped
from iclr_subset.evaluate import Cost, Evaluator
from iclr_subset.ledger import Evaluation
from iclr_subset.optimizer import check_sizes

LARGEST_ENUMERATION = 500_000
BATCH = 32  # subsets handed to the workers at once


@dataclass(frozen=True)
class Found:
    """Best subset of a search without weights, its cost, and what was paid.

    Args:
        subset: ascending indices.
        cost: the lowest seen; of a noisy cost biased downward, as the winner of many draws is.
        names: items.
        evaluations: paid for.
        calls: all of them.
    """

    subset: tuple[int, ...]
    cost: float
    names: list[Any]
    evaluations: int
    calls: list[Evaluation] = field(repr=False)


def search(
    strategy: str,
    cost: Cost,
    n: int | None = None,
    k: int = 1,
    *,
    budget: int | None = None,
    seed: int = 0,
    items: Sequence[Any] | None = None,
    checkpoint: Path | str | None = None,
    resume: bool = True,
    progress: Callable[[int, int | None, float], None] | None = None,
    **options: Any,
) -> Found:
    """The best subset of k that one of `STRATEGIES` finds.

    Args:
        strategy: ``"random"``: different subsets, uniformly; ``"greedy"``: forward, the best addition each time;
            ``"enumerate"``: all; ``"first"``, ``"last"``: the first or last k items; ``"random-k"``: one at random;
            ``"cma"``: the k largest of n numbers that CMA-ES moves (the extra ``iclr-subset[controls]``).
        cost, n, k, items, seed: as for `minimize`.
        budget: evaluations; greedy needs ``n + (n - 1) + ...``, and fills up with the first unused items where the
            budget ends. ``"random"`` and ``"cma"`` need one.
        checkpoint: the ledger lies beside it (``.jsonl``).
        resume: whether an existing ledger may be gone on with.
        progress: called with evaluations, budget and best cost.
        **options: of `Evaluator`.

    Raises:
        InputError: if something cannot be used, or a cost fails.
        MissingExtra: if ``"cma"`` is not installed.
    """
    if n is None and items is None:
        raise InputError("Say how many items there are: n, or items.")
    n = len(items) if n is None else n
    check_sizes(n, k, "exact")
    if strategy not in STRATEGIES:
        raise InputError(f"A strategy is one of {', '.join(STRATEGIES)}, got {strategy!r}.")
    if budget is not None and budget < 1:
        raise InputError(f"The budget must be at least 1 evaluation, got {budget}.")
    ledger = None if checkpoint is None else Path(checkpoint).with_suffix(".jsonl")
    if ledger is not None and ledger.exists() and not resume:
        raise InputError(f"{ledger} already holds a search: resume it, or choose another place.")
    evaluator = Evaluator(cost, n, seed=seed, items=items, ledger=ledger, **options)
    best: list[Any] = [(), math.inf]
    proposals = STRATEGIES[strategy](n, k, budget, seed)
    limit = math.inf if budget is None else budget
    try:
        told = None
        for step in range(10**9):
            try:
                subsets = proposals.send(told)
            except StopIteration:
                break
            told = evaluator(step, subsets, limit)
            for subset, value in told:
                if len(subset) == k and value < best[1]:
                    best = [subset, value]
            if progress is not None:
                progress(evaluator.paid, budget, best[1])
            raise_if_stopped()
            if len(told) < len(subsets):
                if strategy == "greedy" and not best[0]:
                    best = _fill_up(evaluator, n, k)
                break
        found = best[0]
        return Found(found, best[1], evaluator.names(found), evaluator.paid, evaluator.ledger.evaluations)
    finally:
        evaluator.close()


type _Proposals = Iterator[list[tuple[int, ...]]]


def _random(n: int, k: int, budget: int | None, seed: int) -> _Proposals:
    if budget is None:
        raise InputError("Random search needs a budget.")
    wanted = min(budget, math.comb(n, k))
    yield from _batches(_different(n, k, wanted, np.random.default_rng([seed, 2])))


def _different(n: int, k: int, wanted: int, rng: np.random.Generator) -> Iterable[tuple[int, ...]]:
    """`wanted` different subsets in uniformly random order."""
    total = math.comb(n, k)
    if total <= LARGEST_ENUMERATION and 2 * wanted > total:
        every = list(combinations(range(n), k))
        yield from (every[i] for i in rng.permutation(total)[:wanted])
        return
    seen: set[tuple[int, ...]] = set()
    while len(seen) < wanted:
        subset = tuple(sorted(rng.choice(n, k, replace=False).tolist()))
        if subset not in seen:
            seen.add(subset)
            yield subset


def _greedy(n: int, k: int, budget: int | None, seed: int) -> _Proposals:
    chosen: tuple[int, ...] = ()
    for _ in range(k):
        told = yield [tuple(sorted((*chosen, i))) for i in range(n) if i not in chosen]
        chosen = min(told, key=lambda pair: pair[1])[0]


def _fill_up(evaluator: Evaluator, n: int, k: int) -> list[Any]:
    """The budget ended inside greedy: its best start, with the first unused items; its cost is not known."""
    calls = evaluator.ledger.evaluations
    size = max(len(e.subset) for e in calls)
    start = min((e for e in calls if len(e.subset) == size), key=lambda e: e.cost).subset
    return [tuple(sorted((*start, *[i for i in range(n) if i not in start][: k - size]))), math.nan]


def _enumerate(n: int, k: int, budget: int | None, seed: int) -> _Proposals:
    if budget is None and math.comb(n, k) > LARGEST_ENUMERATION:
        raise InputError(
            f"There are {math.comb(n, k)} subsets; enumerating more than {LARGEST_ENUMERATION} needs a budget."
        )
    yield from _batches(combinations(range(n), k))


def _first(n: int, k: int, budget: int | None, seed: int) -> _Proposals:
    yield [tuple(range(k))]


def _last(n: int, k: int, budget: int | None, seed: int) -> _Proposals:
    yield [tuple(range(n - k, n))]


def _random_k(n: int, k: int, budget: int | None, seed: int) -> _Proposals:
    yield list(_different(n, k, 1, np.random.default_rng([seed, 3])))


def _cma(n: int, k: int, budget: int | None, seed: int) -> _Proposals:
    """A black box for black boxes: each point's k largest coordinates are its subset. Anew where it has converged."""
    if budget is None:
        raise InputError("CMA-ES needs a budget.")
    cma = require("cma", "iclr-subset[controls]")
    descent = None
    for anew in range(10 * budget):  # the cache answers repeats for nothing, and points may all repeat
        if descent is None or descent.stop():
            options = {"seed": (seed + 7919 * anew) % 2**31 + 1, "verbose": -9}
            descent = cma.CMAEvolutionStrategy(np.zeros(n), 1.0, options)
        points = descent.ask()
        told = yield [tuple(sorted(np.argsort(-x, kind="stable")[:k].tolist())) for x in points]
        if len(told) == len(points):
            descent.tell(points, [value for _, value in told])


def _batches(subsets: Iterable[tuple[int, ...]]) -> _Proposals:
    subsets = iter(subsets)
    while batch := list(islice(subsets, BATCH)):
        yield batch


STRATEGIES = {
    "random": _random, "greedy": _greedy, "enumerate": _enumerate, "first": _first, "last": _last,
    "random-k": _random_k, "cma": _cma,
}  # fmt: skip


def expected_random_rank(subsets: int, evaluations: float) -> float:
    """Mean rank of the best of m different subsets among M, drawn uniformly: ``(M + 1) / (m + 1)``."""
    return (subsets + 1) / (evaluations + 1)

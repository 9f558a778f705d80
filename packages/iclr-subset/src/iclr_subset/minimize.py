"""Minimise a black-box cost over subsets, within a budget of evaluations."""

import json
import logging
import math
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from iclr_shared.errors import InputError
from iclr_shared.files import atomic_write
from iclr_shared.progress import raise_if_stopped
from iclr_subset.evaluate import Cost, Evaluator
from iclr_subset.ledger import Evaluation, read_known, write_csv
from iclr_subset.optimizer import Settings, SubsetOptimizer, check_batch
from iclr_subset.schedules import Power

log = logging.getLogger(__name__)
FINAL_STEP = -1  # of the last evaluations, in the ledger
SAVE_EVERY = 0.5  # seconds between states; steps since the last are taken again from the ledger, for nothing
REPEATS = 20  # fresh evaluations of each final candidate of a noisy cost


@dataclass(frozen=True)
class Result:
    """What a search found.

    Args:
        subset: ascending indices.
        cost: its cost; of a noisy one the mean of fresh evaluations.
        names: the items chosen, where they have names.
        weights: the last ones, shape (n,).
        average: mean weights over the run, shape (n,).
        inclusion: probability of each item to be drawn in the end, shape (n,).
        history: a row for each step: step, evaluations paid so far, mean cost of the batch, best cost seen, entropy of
            the weights relative to even ones.
        evaluations: paid for, those before a kill among them.
        hits: draws that the cache answered.
        failures: penalised.
        clipped: steps that were cut.
        best_seen: subset and cost with the lowest cost seen.
        top: the k largest weights' subset.
        signal: False where all costs were equal.
        calls: the evaluations.
    """

    subset: tuple[int, ...]
    cost: float
    names: list[Any]
    weights: np.ndarray
    average: np.ndarray
    inclusion: np.ndarray
    history: pd.DataFrame
    evaluations: int
    hits: int
    failures: int
    clipped: int
    best_seen: tuple[tuple[int, ...], float]
    top: tuple[int, ...]
    signal: bool
    calls: list[Evaluation] = field(repr=False)

    def to_csv(self, path: Path | str, items: Sequence[Any] | None = None) -> None:
        """Write every evaluation; `minimize(known=path)` takes it back."""
        write_csv(self.calls, Path(path), items)


def minimize(
    cost: Cost,
    n: int | None = None,
    k: float = 1,
    method: str = "exact",
    *,
    items: Sequence[Any] | None = None,
    steps: int = 2000,
    batch: Any = 1,
    budget: int | None = None,
    seed: int = 0,
    n_jobs: int = 1,
    backend: str = "loky",
    cache: bool | str | None = None,
    noisy: bool = False,
    empty: float | None = None,
    on_error: str = "raise",
    penalty: float | None = None,
    repeats: int | None = None,
    cardinality: str = "any",
    checkpoint: Path | str | None = None,
    resume: bool = True,
    known: Path | str | None = None,
    progress: Callable[[int, int | None, float], None] | None = None,
    **settings: Any,
) -> Result:
    """Choose k of n items at the least cost (Greenstein et al., ICLR 2025).

    Args:
        cost: ``cost(indices, rng) -> float`` or ``cost(indices)``; indices ascend. With `items` it gets those chosen.
        n: items; left out where `items` are given.
        k: how many to choose; in formulation B their mean number.
        method: ``"exact"`` (A) or ``"expected"`` (B).
        items: names or any objects.
        steps: at most so many.
        batch: subsets a step; a number, or a `Power` that grows.
        budget: evaluations of the cost to be paid for, the final ones among them; None is no limit.
        seed: of draws and of the costs' generators.
        n_jobs, backend: of joblib. The result does not depend on them.
        cache: None is True, or ``"mean"`` for noisy costs. See `Evaluator`.
        noisy: whether equal subsets may cost differently.
        empty: cost of the empty set; formulation B needs it.
        on_error, penalty: ``"penalise"`` charges failing or non-finite costs `penalty`, or the worst earlier cost.
        repeats: fresh evaluations of each final candidate of a noisy cost; None is 20, and at most a tenth of the
            budget.
        cardinality: ``"exact_report"`` reports a subset of size k under B too.
        checkpoint: JSON file for the state; the ledger, a line at each evaluation, lies beside it (``.jsonl``).
        resume: go on with an existing checkpoint; False refuses one.
        known: CSV or ledger of costs known already.
        progress: called after each step with evaluations, budget and best cost.
        **settings: of `Settings`: eta, c, geometry, score, baseline, rate, normalise, start, start_weight.

    Returns:
        The better of the best subset seen and the k largest weights.

    Raises:
        InputError: if something cannot be used, or a cost fails.
    """
    n = _size(n, items)
    if n >= 1 and k == n and method == "exact":
        return _everything(cost, n, items, seed, noisy)
    if not isinstance(batch, Power):
        check_batch(batch)
        batch = Power(batch)
    plan = steps if budget is None else max(1, min(steps, int(budget / batch(0))))
    state, ledger = _places(checkpoint, resume)
    fields = {"n": n, "k": k, "method": method, "batch": batch, "steps": plan, "seed": seed, **settings}
    optimizer = SubsetOptimizer(Settings(**fields))
    if method == "expected" and empty is None:
        raise InputError("Formulation B can draw the empty set: say what it costs with empty=.")
    if cardinality not in ("any", "exact_report"):
        raise InputError(f"cardinality must be 'any' or 'exact_report', got {cardinality!r}.")
    cache = ("mean" if noisy else True) if cache is None else cache
    repeats, limit = _reserve(budget, noisy, repeats, 1 if cache is True else 2)
    history: list[tuple] = []
    saved = _load(state)
    if saved is not None:
        optimizer = _resumed(saved["optimizer"], optimizer.settings, "eta" in settings, state)
    s = optimizer.settings
    evaluator = Evaluator(
        cost, n, items=items, cache=cache, noisy=noisy, n_jobs=n_jobs,
        backend=backend, seed=seed, empty=empty, on_error=on_error, penalty=penalty, ledger=ledger,
        known=None if known is None else read_known(Path(known), n), normalise=s.normalise,
    )  # fmt: skip
    best: list[Any] = [(), math.inf]
    if saved is not None:
        history, best = [tuple(row) for row in saved["history"]], [tuple(saved["best"][0]), saved["best"][1]]
        evaluator.restore(saved["evaluator"], optimizer.t)
    sized = cardinality == "exact_report"
    last_save, counters = time.monotonic(), evaluator.counters()
    try:
        while optimizer.t < steps:
            asked = optimizer.ask()
            told = evaluator(optimizer.t, asked, limit)
            for subset, value in told:
                if value < best[1] and not (sized and len(subset) != len(optimizer.top)):
                    best = [subset, value]
            if len(told) < len(asked):
                break
            optimizer.tell(*zip(*told, strict=True))
            mean = float(np.mean([value for _, value in told]))
            history.append((optimizer.t, evaluator.paid, mean, best[1], _entropy(optimizer.w)))
            counters = evaluator.counters()  # of whole steps: a step cut by the budget is taken anew with a larger one
            if state is not None and time.monotonic() - last_save >= SAVE_EVERY:
                _save(state, optimizer, counters, history, best)
                last_save = time.monotonic()
            if progress is not None:
                progress(evaluator.paid, budget, best[1])
            raise_if_stopped()
        if state is not None:
            _save(state, optimizer, counters, history, best)
        return _finish(optimizer, evaluator, history, best, repeats if noisy else 0)
    finally:
        evaluator.close()


def _size(n: int | None, items: Sequence[Any] | None) -> int:
    if n is None and items is None:
        raise InputError("Say how many items there are: n, or items.")
    return len(items) if n is None else n


def _places(checkpoint: Path | str | None, resume: bool) -> tuple[Path | None, Path | None]:
    """Files of state and ledger."""
    if checkpoint is None:
        return None, None
    state = Path(checkpoint)
    ledger = state.with_suffix(".jsonl")
    if not resume and (state.exists() or ledger.exists()):
        raise InputError(f"{state} already holds a search: resume it, or choose another place.")
    return state, ledger


def _reserve(budget: int | None, noisy: bool, repeats: int | None, last: int) -> tuple[int, float]:
    """Final repeats of each candidate, and what the search itself may pay for."""
    if repeats is not None and repeats < 1:
        raise InputError(f"repeats must be at least 1, got {repeats}.")
    if budget is None:
        return repeats or REPEATS, math.inf
    repeats = repeats or max(1, min(REPEATS, budget // 10))
    kept = 2 * repeats if noisy else last
    if budget <= kept:
        raise InputError(f"A budget of {budget} evaluations leaves none to search with: {kept} are for the last check.")
    return repeats, budget - kept


def _load(state: Path | None) -> dict[str, Any] | None:
    if state is None or not state.exists():
        return None
    try:
        saved = json.loads(state.read_text(encoding="utf-8"))
        saved["optimizer"]["settings"]
    except (ValueError, KeyError, TypeError):
        raise InputError(f"{state} is no state of a search.") from None
    return saved


def _save(state: Path, optimizer: SubsetOptimizer, counters: dict[str, Any], history, best) -> None:
    saved = {"optimizer": optimizer.state(), "history": history, "best": best, "evaluator": counters}
    atomic_write(state, json.dumps(saved))


def _resumed(saved: dict[str, Any], wanted: Settings, own_eta: bool, state: Path | None) -> SubsetOptimizer:
    """The saved optimizer. A new budget may change the planned steps, and the default step length with them: the saved
    ones go on then."""
    free = {"steps"} if own_eta else {"steps", "eta"}
    optimizer = SubsetOptimizer.from_state(saved)
    for name, value in optimizer.settings.as_dict().items():
        if name not in free and value != (new := wanted.as_dict()[name]):
            raise InputError(
                f"{state} belongs to a search with {name} = {value}, not {new}. Choose another place, or the same "
                "settings."
            )
    return optimizer


def _entropy(w: np.ndarray) -> float:
    """Entropy of the weights over that of even ones: 1 at the start."""
    p = w / w.sum()
    return float(-(p * np.log(p)).sum() / np.log(len(w)))


def _finish(optimizer, evaluator, history, best, repeats) -> Result:
    """The better of the best seen and the k largest weights, paid for anew if costs are noisy."""
    top = optimizer.top
    candidates = [*dict.fromkeys([tuple(best[0]), top] if math.isfinite(best[1]) else [top])]
    if repeats:
        costs = {c: float(np.mean(evaluator.repeat(FINAL_STEP - i, c, repeats))) for i, c in enumerate(candidates)}
    else:
        costs = dict(evaluator(FINAL_STEP, candidates))
    chosen = min(costs, key=costs.__getitem__)
    columns = ["step", "evaluations", "mean_cost", "best_cost", "relative_entropy"]
    if evaluator.flat:
        log.warning("all costs are equal: there is no signal")
    return Result(
        subset=chosen, cost=costs[chosen], names=evaluator.names(chosen), weights=optimizer.w,
        average=optimizer.average,
        inclusion=np.asarray(optimizer.law.inclusion()), history=pd.DataFrame(history, columns=columns),
        evaluations=evaluator.paid, hits=evaluator.hits, failures=evaluator.failures, clipped=optimizer.clipped,
        best_seen=(tuple(best[0]), best[1]), top=top, signal=not evaluator.flat, calls=evaluator.ledger.evaluations,
    )  # fmt: skip


def _everything(cost, n, items, seed, noisy) -> Result:
    """k = n: nothing to choose."""
    warnings.warn(f"k = n = {n}: all items are chosen, for one evaluation.", RuntimeWarning, stacklevel=3)
    evaluator = Evaluator(cost, n, items=items, seed=seed, noisy=noisy, cache=not noisy)
    chosen = tuple(range(n))
    [(_, value)] = evaluator(0, [chosen])
    even = np.full(n, 1 / n)
    return Result(
        subset=chosen, cost=value, names=evaluator.names(chosen), weights=even, average=even, inclusion=np.ones(n),
        history=pd.DataFrame([], columns=["step", "evaluations", "mean_cost", "best_cost", "relative_entropy"]),
        evaluations=1, hits=0, failures=0, clipped=0, best_seen=(chosen, value), top=chosen, signal=False,
        calls=evaluator.ledger.evaluations,
    )  # fmt: skip

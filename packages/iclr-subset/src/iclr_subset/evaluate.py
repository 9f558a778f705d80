"""Paying for costs: what is known is not paid again, what is new runs in parallel, and each payment is recorded.

Results do not depend on the number of workers: the generator handed to a cost comes from (seed, step, sample).
"""

import inspect
import math
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from joblib import Parallel, delayed

from iclr_shared.errors import InputError
from iclr_subset.ledger import Evaluation, Ledger

type Cost = Callable[..., Any]
HUGE = 1e6  # costs beyond it, not normalised, are worth a warning
MEAN_OF = 5  # evaluations of a subset that cache="mean" pays for


class CostError(InputError):
    """The cost of a subset could not be had."""


def check_seed(seed: int) -> None:
    """Raise InputError for a seed that NumPy's generators refuse."""
    if seed < 0:
        raise InputError(f"The seed must not be negative, got {seed}.")


class Evaluator:
    """The cost with its memory.

    Args:
        cost: ``cost(indices, rng) -> float``, or without rng; indices are a sorted integer array, or with `items` the
            chosen ones in a list.
        n: items.
        items: names, or any objects; all different.
        cache: True never pays twice for a subset; False always pays; ``"mean"`` pays for the first five draws of a
            subset and gives their running mean.
        noisy: whether equal subsets may cost differently; then cache=True is refused, as it would freeze one draw.
        n_jobs: workers, in joblib's terms; -1 for all cores.
        backend: of joblib: loky (processes), threading, or a registered one such as dask or ray.
        seed: of the costs' generators.
        empty: cost of the empty set; needed where it can be drawn.
        on_error: ``"raise"``, or ``"penalise"``: a failing or non-finite cost counts as `penalty`.
        penalty: None is the largest cost of earlier steps.
        ledger: file of the ledger, or None.
        known: costs known from elsewhere.
        normalise: whether huge costs are fine.

    Raises:
        InputError: if these do not go together.
    """

    def __init__(
        self,
        cost: Cost,
        n: int,
        *,
        items: Sequence[Any] | None = None,
        cache: bool | str = True,
        noisy: bool = False,
        n_jobs: int = 1,
        backend: str = "loky",
        seed: int = 0,
        empty: float | None = None,
        on_error: str = "raise",
        penalty: float | None = None,
        ledger: Path | None = None,
        known: dict[tuple[int, ...], float] | None = None,
        normalise: bool = False,
    ):
        if items is not None:
            if len(items) != n:
                raise InputError(f"There are {len(items)} item names for n = {n} items.")
            double = {str(item) for item in items if list(items).count(item) > 1}
            if double:
                raise InputError(f"Item names must differ; given twice: {', '.join(sorted(double))}.")
        if noisy and cache is True:
            raise InputError("A cache would freeze one noisy cost for each subset. Take cache='mean' or cache=False.")
        if cache not in (True, False, "mean"):
            raise InputError(f"cache must be True, False or 'mean', got {cache!r}.")
        if on_error not in ("raise", "penalise"):
            raise InputError(f"on_error must be 'raise' or 'penalise', got {on_error!r}.")
        if n_jobs == 0:
            raise InputError("n_jobs must not be 0: a number of workers, or -1 for one on each core.")
        if penalty is not None and not math.isfinite(penalty):
            raise InputError(f"The penalty must be finite, got {penalty}.")
        if empty is not None and not math.isfinite(empty):
            raise InputError(f"The cost of the empty set must be finite, got {empty}.")
        check_seed(seed)
        self.cost, self.n, self.items, self.cache, self.seed, self.empty = cost, n, items, cache, seed, empty
        self.on_error, self.penalty, self.normalise = on_error, penalty, normalise
        self.n_jobs, self.backend, self.takes_rng = n_jobs, backend, _takes_rng(cost)
        self.ledger = Ledger(ledger)
        self.paid, self.hits, self.failures = 0, 0, 0
        self._known: dict[tuple[int, ...], list[float]] = {s: [v] for s, v in (known or {}).items()}
        old = self.ledger.evaluations
        self._replay = {(e.step, e.sample, e.subset): e for e in old}
        self._drawn = {(e.step, e.sample): e.subset for e in old if e.step >= 0}
        self._ever = {e.subset: e for e in old if not e.error} if cache is True else {}
        for e in old:
            if any(not 0 <= i < n for i in e.subset):
                raise InputError(f"{ledger} holds the subset {list(e.subset)}, which is none of 0..{n - 1}.")
        self._warned = False
        self._worst = -math.inf
        self._least, self._most = math.inf, -math.inf

    @property
    def flat(self) -> bool:
        """Whether all costs seen were equal: there is no signal."""
        return self._least >= self._most

    def __call__(
        self, step: int, subsets: Sequence[tuple[int, ...]], limit: float = math.inf
    ) -> list[tuple[tuple[int, ...], float]]:
        """Costs of a step's subsets.

        Args:
            step: number of the step, which names the evaluations.
            subsets: ascending indices; repeats are fine.
            limit: evaluations that may still be paid for.

        Returns:
            Subsets with their costs, in order; only those before the limit struck.

        Raises:
            CostError: naming the subset, if its cost fails and failures are not to be penalised.
            InputError: if the empty set is drawn without `empty`.
        """
        tasks, plan, planned = [], [], {}
        for sample, subset in enumerate(subsets):
            if not subset and self.empty is None:
                raise InputError("The empty set was drawn: say what it costs with empty=, or take method='exact'.")
            held = len(self._known.get(subset, ())) + planned.get(subset, 0)
            free = not subset or (self.cache and held >= (1 if self.cache is True else MEAN_OF))
            if not free:
                if self.paid + len(tasks) >= limit:
                    break
                planned[subset] = planned.get(subset, 0) + 1
                tasks.append((sample, subset))
            plan.append((sample, subset, free))
        done = {e.sample: e for e in self._run(step, tasks)}
        costs: dict[int, float] = {}
        for sample, subset, free in plan:
            if not subset:
                costs[sample] = float(self.empty)
            elif free:
                self.hits += 1
            else:
                self._known.setdefault(subset, []).append(done[sample].cost)
                costs[sample] = done[sample].cost
            if self.cache and subset:
                costs[sample] = float(np.mean(self._known[subset][: 1 if self.cache is True else MEAN_OF]))
        values = costs.values()
        if values:
            self._least, self._most = min(self._least, *values), max(self._most, *values)
        finite = [e.cost for e in done.values() if not e.error]
        self._worst = max([self._worst, *finite])
        if not self._warned and not self.normalise and any(abs(value) > HUGE for value in values):
            self._warned = True
            warnings.warn(
                f"Costs beyond {HUGE:g}: step lengths are meant for costs near 1. Scale them, or take normalise=True.",
                RuntimeWarning, stacklevel=2,
            )  # fmt: skip
        return [(subset, costs[sample]) for sample, subset, _ in plan]

    def repeat(self, step: int, subset: tuple[int, ...], times: int) -> list[float]:
        """Fresh costs of one subset, past the cache."""
        cache, self.cache = self.cache, False
        try:
            return [cost for _, cost in self(step, [subset] * times)]
        finally:
            self.cache = cache

    def close(self) -> None:
        """Close the ledger."""
        self.ledger.close()

    def _run(self, step: int, tasks: list[tuple[int, tuple[int, ...]]]) -> list[Evaluation]:
        """Pay for tasks, except those that the ledger has from before a kill."""
        done = []
        for sample, subset in tasks:
            other = self._drawn.get((step, sample), subset)
            if other != subset:
                raise InputError(
                    f"The ledger {self.ledger.path} belongs to another search: its step {step} has {list(other)}, this "
                    f"one's {list(subset)}. Choose another place, or the same settings."
                )
            old = self._replay.get((step, sample, subset)) or self._ever.get(subset)
            if old is not None:
                done.append(replace(old, step=step, sample=sample))
        self.paid += len(tasks)
        held = {e.sample for e in done}
        new = [(sample, subset) for sample, subset in tasks if sample not in held]
        if new:
            self.ledger.open()
            calls = (
                delayed(_call)(self.cost, self._chosen(subset), self._seed(step, sample), sample, self.takes_rng)
                for sample, subset in new
            )
            by_sample = dict(new)
            alone = self.n_jobs == 1 or len(new) == 1
            results = (
                (f(*args, **options) for f, args, options in calls)
                if alone
                else Parallel(self.n_jobs, backend=self.backend, return_as="generator_unordered")(calls)
            )
            for sample, value, error, seconds in results:
                if error and self.on_error == "raise":
                    raise CostError(f"The cost of {self.names(by_sample[sample])} {error}")
                if error:
                    value = self._penalty(by_sample[sample], error)
                done.append(Evaluation(step, sample, by_sample[sample], value, seconds, error))
                self.ledger.add(done[-1])
        self.failures += sum(bool(e.error) for e in done)
        return done

    def _penalty(self, subset, error: str) -> float:
        if self.penalty is not None:
            return self.penalty
        if not math.isfinite(self._worst):
            raise CostError(
                f"The cost of {self.names(subset)} {error} No earlier cost says what to charge for it: give a penalty."
            )
        return self._worst

    def names(self, subset: Sequence[int]) -> list[Any]:
        """The chosen items, or indices where they have no names."""
        return [i if self.items is None else self.items[i] for i in subset]

    def _chosen(self, subset):
        return np.array(subset, dtype=np.int64) if self.items is None else self.names(subset)

    def _seed(self, step: int, sample: int) -> list[int]:
        return [self.seed, 1, step + 1000, sample]  # final evaluations have negative steps

    def counters(self) -> dict[str, Any]:
        """What a checkpoint holds beside the ledger, JSON-able."""
        return {
            "paid": self.paid, "hits": self.hits, "failures": self.failures, "worst": self._worst,
            "least": self._least, "most": self._most,
        }  # fmt: skip

    def restore(self, counters: dict[str, Any], step: int) -> None:
        """Go on before `step`: its counters, and what the ledger says of earlier steps."""
        self.paid, self.hits, self.failures = counters["paid"], counters["hits"], counters["failures"]
        self._worst, self._least, self._most = counters["worst"], counters["least"], counters["most"]
        for e in sorted(self.ledger.evaluations, key=lambda e: (e.step, e.sample)):
            if 0 <= e.step < step:
                self._known.setdefault(e.subset, []).append(e.cost)


def _call(cost: Cost, chosen: Any, seed: list[int], sample: int, takes_rng: bool) -> tuple[int, float, str, float]:
    """In a worker: the sample, its cost, what went wrong, seconds."""
    start = time.perf_counter()
    value, error = math.nan, ""
    try:
        answer = cost(chosen, np.random.default_rng(seed)) if takes_rng else cost(chosen)
        if np.ndim(answer) != 0:
            error = f"is an array of shape {np.shape(answer)}; a cost must be one number."
        else:
            value = float(answer)
            if not math.isfinite(value):
                error = f"is {value}; costs must be finite."
    except Exception as problem:
        error = f"failed: {type(problem).__name__}: {problem}"
    return sample, value, error, time.perf_counter() - start


def _takes_rng(cost: Cost) -> bool:
    """Whether a second positional argument can be given."""
    try:
        inspect.signature(cost).bind(None, None)
    except TypeError:
        return False
    except ValueError:  # no signature to be had
        return True
    return True

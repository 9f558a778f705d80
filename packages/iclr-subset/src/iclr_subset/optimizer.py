"""The ask/tell loop of stochastic mirror descent, without any input or output; its state is a plain dict.

Draws of step t come from a generator of (seed, t) alone, so that a resumed run asks for what the killed one asked for.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from iclr_shared.errors import InputError
from iclr_subset.distributions import SCORES, ExactK, ExpectedK, as_membership
from iclr_subset.mirror import GEOMETRIES, check_floor, mirror_step
from iclr_subset.schedules import Power, default_eta

METHODS = ("exact", "expected")
STEEPEST = 30.0  # bound on a step's exponent; how often it cuts is counted


@dataclass(frozen=True)
class Settings:
    """What defines a run. The defaults are ours; the paper's are unknown.

    Args:
        n: items.
        k: wanted size; a whole number in formulation A, any in (0, n) in B.
        method: ``"exact"`` draws k without replacement (A), ``"expected"`` chooses each item by itself (B).
        batch: subsets drawn in a step; a `Power` lets it grow.
        eta: step length; a number is constant; None is `default_eta` for `steps`.
        steps: planned, for the default of eta.
        c: floor of the weights; None is 0.04 / n (A), or 0.02 (B, at most half of what k and n allow).
        geometry: of the mirror step; None is ``"kl"`` (A) or ``"fermi_dirac"`` (B). See `mirror_step`.
        score: of A, ``"set"``, ``"sequence"``, or ``"auto"``: the set's up to k = 8.
        baseline: subtracted from costs: ``"ema"`` of earlier steps, ``"leave-one-out"`` of the batch, ``"none"``; None
            is leave-one-out in B with a batch above 1, else ema.
        rate: of the exponential mean.
        normalise: divide costs by the standard deviation of EARLIER ones; no step is taken before there is one.
        start: items of a subset to start from; they get `start_weight` of the mass beyond what is even.
        start_weight: in (0, 1).
        seed: of all draws.

    Raises:
        InputError: naming what cannot be used and what can.
    """

    n: int
    k: float
    method: str = "exact"
    batch: int | Power = 1
    eta: float | Power | None = None
    steps: int = 2000
    c: float | None = None
    geometry: str | None = None
    score: str = "auto"
    baseline: str | None = None
    rate: float = 0.1
    normalise: bool = False
    start: Sequence[int] | None = None
    start_weight: float = 0.5
    seed: int = 0

    def __post_init__(self):
        def fill(name, value):
            if getattr(self, name) is None:
                object.__setattr__(self, name, value)

        if self.method not in METHODS:
            raise InputError(f"method must be 'exact' or 'expected', got {self.method!r}.")
        check_sizes(self.n, self.k, self.method)
        if self.seed < 0:
            raise InputError(f"The seed must not be negative, got {self.seed}.")
        if not 0 < self.rate <= 1:
            raise InputError(f"The rate of the baseline must be above 0 and at most 1, got {self.rate}.")
        exact, share = self.method == "exact", self.k / self.n
        fill("c", 0.04 / self.n if exact else min(0.02, share / 2, (1 - share) / 2))
        check_floor(self.c, self.n, None if exact else self.k)
        if self.c == 0:
            raise InputError("The floor c must be positive: scores are up to 1 / c.")
        fill("geometry", "kl" if exact else "fermi_dirac")
        fitting = ("kl", "euclidean") if exact else ("fermi_dirac", "entropy", "euclidean")
        if self.geometry not in fitting:
            known = "" if self.geometry in GEOMETRIES else ", no known geometry"
            raise InputError(
                f"The geometry of method {self.method!r} is {' or '.join(fitting)}, got {self.geometry!r}{known}."
            )
        if self.score not in SCORES:
            raise InputError(f"A score is one of {', '.join(SCORES)}, got {self.score!r}.")
        if not isinstance(self.batch, Power):
            check_batch(self.batch)
            object.__setattr__(self, "batch", Power(self.batch))
        many = self.batch(0) >= 2
        fill("baseline", "leave-one-out" if not exact and many else "ema")
        if self.baseline not in ("ema", "leave-one-out", "none"):
            raise InputError(f"A baseline is ema, leave-one-out or none, got {self.baseline!r}.")
        if self.baseline == "leave-one-out" and not (many and self.batch.exponent >= 0):
            raise InputError("The leave-one-out baseline needs a batch of at least 2.")
        if self.steps < 1:
            raise InputError(f"steps must be at least 1, got {self.steps}.")
        if not isinstance(self.eta, Power):
            eta = default_eta(self.method, self.n, self.steps, self.normalise) if self.eta is None else Power(self.eta)
            object.__setattr__(self, "eta", eta)
        if self.start is not None:
            object.__setattr__(self, "start", tuple(int(i) for i in self.start))
            if len(set(self.start)) != len(self.start) or not all(0 <= i < self.n for i in self.start):
                raise InputError(f"start must name different items from 0 to {self.n - 1}, got {self.start}.")
            if not 0 < len(self.start) < self.n or not 0 < self.start_weight < 1:
                raise InputError("start needs 1 to n - 1 items, and start_weight a number between 0 and 1.")

    def as_dict(self) -> dict[str, Any]:
        """JSON-able; `from_dict` takes it back."""
        return asdict(self) | {"start": None if self.start is None else list(self.start)}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "Settings":
        """The settings that `as_dict` wrote."""
        start = values["start"]
        return cls(
            **values
            | {"batch": Power(**values["batch"]), "eta": Power(**values["eta"])}
            | {"start": None if start is None else tuple(start)}
        )


def check_sizes(n: int, k: float, method: str) -> None:
    """Raise InputError unless 1 <= k < n with k whole (A), or 0 < k < n (B)."""
    if n < 2:
        raise InputError(f"There must be at least n = 2 items to choose from, got {n}.")
    if method == "exact" and (isinstance(k, bool) or not float(k).is_integer()):
        raise InputError(f"Formulation A draws a whole number of items, got k = {k}. Take method='expected'.")
    if not (1 <= k < n if method == "exact" else 0 < k < n):
        raise InputError(f"k must be at least 1 and below n = {n}, got {k}.")


def check_batch(batch: float) -> None:
    """Raise InputError unless a step draws at least one subset, and a whole number of them."""
    if not (batch >= 1 and float(batch).is_integer()):
        raise InputError(f"batch must be at least 1 and whole, got {batch}.")


class SubsetOptimizer:
    """Ask for subsets, tell their costs; one mirror step for each batch.

    ``w <- argmin <G, w> + D_h(w, w_t) / eta``, ``G = mean over the batch of (cost - b) * score``, b from earlier steps
    or from the other draws of the batch, so that G is unbiased for the gradient of the expected cost.

    Args:
        settings: or give its fields as keywords.

    Attributes:
        w: weights, shape (n,): on the simplex (A), or with sum k (B).
        t: steps taken.
        clipped: steps whose exponent was cut at 30.
    """

    def __init__(self, settings: Settings | None = None, **fields: Any):
        self.settings = Settings(**fields) if settings is None else settings
        s = self.settings
        total = 1.0 if s.method == "exact" else float(s.k)
        self.w = np.full(s.n, total / s.n)
        if s.start is not None:
            self.w = _warm(s, total)
        self.t = self.clipped = 0
        self.b = 0.0
        self._seen, self._mean, self._square = 0, 0.0, 0.0  # of all costs told, Welford's
        self._sum_w = np.zeros(s.n)
        self._asked: np.ndarray | None = None

    @property
    def law(self) -> ExactK | ExpectedK:
        """The distribution that the next batch is drawn from."""
        s = self.settings
        return ExactK(self.w, int(s.k)) if s.method == "exact" else ExpectedK(self.w)

    @property
    def average(self) -> Float[np.ndarray, " n"]:
        """Mean of the weights over all steps, the current ones among them."""
        return (self._sum_w + self.w) / (self.t + 1)

    @property
    def top(self) -> tuple[int, ...]:
        """Indices of the k largest weights, ascending; k is rounded."""
        size = max(1, round(self.settings.k))
        return tuple(sorted(np.argsort(-self.w, kind="stable")[:size].tolist()))

    def ask(self, size: int | None = None) -> list[tuple[int, ...]]:
        """Subsets of the next batch, each as ascending indices (under B of any size). The same until `tell`.

        Args:
            size: how many; None is the settings' batch.

        Raises:
            InputError: if `size` is too small, or another number still waits for its costs.
        """
        s = self.settings
        if size is not None and size < (2 if s.baseline == "leave-one-out" else 1):
            raise InputError(f"A batch of {size} is too small for the baseline {s.baseline}.")
        if self._asked is None:
            rng = np.random.default_rng([s.seed, 0, self.t])
            self._asked = self.law.sample(rng, size or max(1, math.floor(s.batch(self.t) + 1e-9)))
        elif size is not None and size != len(self._asked):
            raise InputError(f"{len(self._asked)} subsets still wait for their costs: tell them first.")
        if self.settings.method == "exact":
            return [tuple(row) for row in np.sort(self._asked, axis=1).tolist()]
        return [tuple(np.flatnonzero(row).tolist()) for row in self._asked]

    def tell(self, subsets: Sequence[Sequence[int]], costs: Sequence[float]) -> None:
        """Costs of what `ask` gave, in any order; takes the mirror step.

        Raises:
            InputError: if these are not the subsets asked for, or a cost is not finite.
        """
        costs = np.asarray(self._in_order(subsets, costs), dtype=np.float64)
        if self._asked is None:
            raise InputError("There is nothing to tell before a batch was asked for.")
        drawn, s, law = self._asked, self.settings, self.law
        scale = self._scale()
        gradient = np.zeros(s.n)
        if scale:
            gradient = (self._weighted(costs) / scale) @ law.score(drawn, s.score) / len(costs)
        eta = s.eta(self.t)
        steep = np.abs(eta * gradient).max()
        if s.geometry != "euclidean" and steep > STEEPEST:
            gradient, self.clipped = np.clip(gradient, -STEEPEST / eta, STEEPEST / eta), self.clipped + 1
        self._sum_w += self.w
        self.w = mirror_step(self.w, gradient, eta, s.geometry, s.c, None if s.method == "exact" else s.k).w
        self._learn(costs)
        self.t += 1
        self._asked = None

    def _in_order(self, subsets, costs) -> list[float]:
        """Costs in the order of the draws, which may hold a subset several times."""
        if len(subsets) != len(costs):
            raise InputError(f"{len(subsets)} subsets came with {len(costs)} costs.")
        asked = self.ask() if self._asked is not None else []
        given: dict[tuple[int, ...], list[float]] = {}
        for subset, cost in zip(subsets, costs, strict=True):
            if not math.isfinite(cost):
                raise InputError(f"The cost of {list(subset)} is {cost}; costs must be finite.")
            given.setdefault(tuple(sorted(int(i) for i in subset)), []).append(float(cost))
        found = []
        for subset in asked:
            if not given.get(subset):
                raise InputError(f"The cost of the asked subset {list(subset)} is missing.")
            found.append(given[subset].pop(0))
        extra = [subset for subset, rest in given.items() if rest]
        if extra:
            raise InputError(f"The subset {list(extra[0])} was not asked for.")
        return found

    def _scale(self) -> float:
        """What costs are divided by: 1, or the deviation of earlier costs, 0 while there is none."""
        if not self.settings.normalise:
            return 1.0
        spread = (self._square / (self._seen - 1)) ** 0.5 if self._seen > 1 else 0.0
        return spread if spread > 1e-12 * max(1.0, abs(self._mean)) else 0.0

    def _weighted(self, costs: np.ndarray) -> np.ndarray:
        """Costs minus their baselines."""
        baseline = self.settings.baseline
        if baseline == "leave-one-out":
            return costs - (costs.sum() - costs) / (len(costs) - 1)
        return costs - (self.b if baseline == "ema" else 0.0)

    def _learn(self, costs: np.ndarray) -> None:
        """Baseline and moments, after the gradient."""
        first = self.settings.normalise and self._seen == 0  # no step depends on it yet
        self.b += (1.0 if first else self.settings.rate) * (costs.mean() - self.b)
        for cost in costs.tolist():
            self._seen += 1
            off = cost - self._mean
            self._mean += off / self._seen
            self._square += off * (cost - self._mean)

    def state(self) -> dict[str, Any]:
        """Everything as JSON-able numbers and lists, exactly; `from_state` goes on from it."""
        return {
            "settings": self.settings.as_dict(),
            "w": self.w.tolist(),
            "sum_w": self._sum_w.tolist(),
            "t": self.t,
            "clipped": self.clipped,
            "b": float(self.b),
            "moments": [self._seen, self._mean, self._square],
            "asked": None if self._asked is None else self._asked.astype(int).tolist(),
        }

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> "SubsetOptimizer":
        """The optimizer that wrote `state`.

        Raises:
            InputError: if it is not one's state.
        """
        try:
            new = cls(Settings.from_dict(state["settings"]))
            new.w, new._sum_w = np.array(state["w"], dtype=float), np.array(state["sum_w"], dtype=float)
            new.t, new.clipped, new.b = state["t"], state["clipped"], state["b"]
            new._seen, new._mean, new._square = state["moments"]
            asked = state["asked"]
            kind = np.int64 if new.settings.method == "exact" else bool
            new._asked = None if asked is None else np.array(asked, dtype=kind)
        except (KeyError, TypeError) as error:
            raise InputError(f"This is no state of a subset search: {error}.") from None
        return new


def _warm(s: Settings, total: float) -> np.ndarray:
    """Weights leaning to `start`: a mixture of even weights and of even weights on it, projected on the feasible
    set."""
    inside = as_membership([s.start], s.n)[0]
    lean = np.where(inside, total / len(s.start), 0.0)
    w = (1 - s.start_weight) * total / s.n + s.start_weight * np.minimum(lean, 1.0)
    geometry, k = ("kl", None) if s.method == "exact" else ("entropy", s.k)
    return mirror_step(w, np.zeros(s.n), 1.0, geometry, s.c, k).w

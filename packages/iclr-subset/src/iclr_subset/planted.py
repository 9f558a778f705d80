"""Costs whose best subset is known, to try searches on."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Overlap:
    """``1 - |C and C*| / k``: each hit shows.

    Args:
        best: C*, of size k.
        charge_size: add ``max(0, |C| - k) / k``; without it every superset is as good (formulation B).
        noise: standard deviation of an independent normal addition, drawn from the cost's generator.
    """

    best: tuple[int, ...]
    charge_size: bool = False
    noise: float = 0.0

    def __call__(self, chosen: np.ndarray | Sequence[int], rng: np.random.Generator | None = None) -> float:
        """Cost of these indices."""
        k = len(self.best)
        value = 1 - len(set(self.best).intersection(np.asarray(chosen).tolist())) / k
        if self.charge_size:
            value += max(0, len(chosen) - k) / k
        return value + self.noise * float(rng.standard_normal()) if self.noise else value


@dataclass(frozen=True)
class SubsetSum:
    """``min(1, |sum_C a - S| / S)``: a needle without slope.

    Args:
        a: numbers, shape (n,).
        target: S, the sum of the planted subset.
    """

    a: Any
    target: float

    def __call__(self, chosen: np.ndarray) -> float:
        """Cost of these indices."""
        return float(min(1.0, abs(self.a[chosen].sum() - self.target) / self.target))


def plant(n: int, k: int, seed: int) -> tuple[int, ...]:
    """A subset drawn uniformly."""
    return tuple(sorted(np.random.default_rng([seed, 7]).choice(n, k, replace=False).tolist()))

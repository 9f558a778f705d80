"""Rates of the server's updates, as functions of its counter and of the share of the budget that is used (spec 2.4).

A schedule is called with ``(k, progress)``: the server's counter and the used share of the budget, 0 to 1.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

from iclr_shared.errors import InputError

type Schedule = Callable[[int, float], float]


def _positive(**values: float) -> None:
    for name, value in values.items():
        if not (math.isfinite(value) and value > 0):
            raise InputError(f"The schedule's {name} must be a positive number, got {value}.")


@dataclass(frozen=True)
class Constant:
    """Always `value`."""

    value: float

    def __post_init__(self):
        _positive(value=self.value)

    def __call__(self, k: int, progress: float) -> float:
        return self.value


@dataclass(frozen=True)
class LinearDecay:
    """``start * max(1 - progress, floor)``: the practical step length."""

    start: float
    floor: float = 0.05

    def __post_init__(self):
        _positive(start=self.start, floor=self.floor)

    def __call__(self, k: int, progress: float) -> float:
        return self.start * max(1.0 - progress, self.floor)


@dataclass(frozen=True)
class PowerDecay:
    """``scale * (offset / (k + offset)) ** power``.

    The theory's momentum rate is ``PowerDecay(1, 20, 4/5)`` and its step length ``PowerDecay(0.2, 100, 1)``, which is
    20 / (k + 100). The exponents are those of the rate of N-PG-IGT; the paper's constants are unknown.
    """

    scale: float
    offset: float
    power: float

    def __post_init__(self):
        _positive(scale=self.scale, offset=self.offset, power=self.power)

    def __call__(self, k: int, progress: float) -> float:
        return self.scale * (self.offset / (k + self.offset)) ** self.power


THEORY_ALPHA = PowerDecay(1.0, 20.0, 0.8)
THEORY_ETA = PowerDecay(0.2, 100.0, 1.0)


def as_schedule(value: float | Schedule) -> Schedule:
    """A number as the constant schedule; a schedule as it is."""
    return value if callable(value) else Constant(float(value))

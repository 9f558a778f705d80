"""Step lengths and batch sizes over time, as data that a checkpoint can hold."""

from dataclasses import dataclass
from typing import Any

from iclr_shared.errors import InputError

HORIZON = 2000  # steps at which the step lengths of DEFAULT_ETA were chosen
DEFAULT_ETA = {"exact": 0.05, "expected": 0.05}  # for costs in [0, 1]; the exact one is divided by n
NORMALISED = 0.2  # shortens the step where costs are divided by their standard deviation, about 0.2 for costs in [0, 1]
LONGEST = 4.0  # times the default: beyond, one rare draw moves everything, since its score is up to 1 / c


@dataclass(frozen=True)
class Power:
    """``scale * (t + 1) ** exponent`` at step t = 0, 1, ...: constant for exponent 0, ``eta / sqrt(t)`` for -1/2.

    Args:
        scale: value at the first step, positive.
        exponent: of its growth.
    """

    scale: float
    exponent: float = 0.0

    def __post_init__(self):
        if not 0 < self.scale < float("inf"):
            raise InputError(f"The scale of a schedule must be positive and finite, got {self.scale}.")

    def __call__(self, t: Any) -> Any:
        """Value at step t, a number or a traced one."""
        return self.scale * (t + 1) ** self.exponent


def horizon(scale: float, steps: int, exponent: float = -0.5) -> Power:
    """A constant that knows how long the run will be: ``scale * steps ** exponent``, the eta of the rate's theorem."""
    return Power(scale * steps**exponent)


def default_eta(method: str, n: int, steps: int, normalised: bool = False) -> Power:
    """Our default step length (the paper's is unknown): 0.05 / n (A) or 0.05 (B) for 2000 steps, and as
    ``1 / sqrt(steps)`` for other lengths, at most four times as much.

    Args:
        method: ``"exact"`` or ``"expected"``.
        n: items.
        steps: planned.
        normalised: whether costs are divided by their running standard deviation rather than lying in [0, 1].
    """
    scale = DEFAULT_ETA[method] / (n if method == "exact" else 1) * (NORMALISED if normalised else 1)
    return Power(scale * min(LONGEST, (HORIZON / max(steps, 1)) ** 0.5))

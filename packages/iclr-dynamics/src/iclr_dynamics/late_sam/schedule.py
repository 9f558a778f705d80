"""When the optimiser switches, and which learning rate each epoch uses (Zhou et al., section 3; official recipe).

Epochs count from 0. A window ``[start, end]`` includes both ends, as in the official code: of 160 epochs, the window
150 to 160 holds epochs 150 ... 159, so the last ten.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

from iclr_shared.errors import InputError

MODES = ("sgd", "sam", "asam", "usam", "at")


@dataclass(frozen=True, slots=True)
class SwitchSchedule:
    """Which optimiser each step uses: `late` inside the window ``start <= t <= end``, `first` elsewhere.

    Args:
        start: first epoch, step or fraction of training in the window, from 0.
        end: last one in the window, included; None stands for the end of training.
        first: mode outside the window.
        late: mode inside the window, one of ``sgd sam asam usam at``.
        unit: of `start` and `end`: ``"epochs"``, ``"steps"`` (of the optimiser, may lie inside an epoch), or
            ``"fraction"`` of all epochs (rounded to whole epochs).

    The official code's hybrids: the methods `late_from`, `early_until`, `always` and `never`.

    Raises:
        InputError: for an unknown mode or unit, or a window that is reversed or negative.
    """

    start: float
    end: float | None = None
    first: str = "sgd"
    late: str = "sam"
    unit: str = "epochs"

    def __post_init__(self):
        for mode in (self.first, self.late):
            if mode not in MODES:
                raise InputError(f"The training mode {mode!r} is unknown; take one of {', '.join(MODES)}.")
        if self.unit not in ("epochs", "steps", "fraction"):
            raise InputError(f"The switch unit {self.unit!r} is unknown; take 'epochs', 'steps' or 'fraction'.")
        if not (self.start >= 0 and (self.end is None or self.start <= self.end)):
            raise InputError(f"The switch window [{self.start}, {self.end}] must have 0 <= start <= end.")
        if self.unit == "fraction" and max(self.start, self.end or 0) > 1:
            raise InputError(f"The switch window [{self.start}, {self.end}] is in fractions of training: 0 to 1.")
        if self.unit != "fraction" and not all(float(t).is_integer() for t in (self.start, self.end or 0)):
            raise InputError(f"The switch window [{self.start}, {self.end}] is in whole {self.unit}.")

    @classmethod
    def late_from(cls, start: float, late: str = "sam", **options) -> "SwitchSchedule":
        """SGD first, then `late` from `start` to the end: the paper's SGD→SAM."""
        return cls(start, None, late=late, **options)

    @classmethod
    def early_until(cls, stop: float, late: str = "sam", **options) -> "SwitchSchedule":
        """`late` before epoch (or step) `stop`, then SGD: the paper's SAM→SGD."""
        if not stop >= 1:
            raise InputError(
                f"early_until({stop}) counts whole epochs or steps, from 1; for SGD throughout, take "
                "SwitchSchedule.never()."
            )
        return cls(0, stop - 1, late=late, **options)

    @classmethod
    def always(cls, late: str = "sam") -> "SwitchSchedule":
        """`late` throughout."""
        return cls(0, None, late=late)

    @classmethod
    def never(cls) -> "SwitchSchedule":
        """SGD throughout."""
        return cls(1.0, None, unit="fraction")

    def window(self, epochs: int, steps_per_epoch: int) -> tuple[int, int]:
        """The window in optimiser steps, as ``(first step inside, first step after)``; empty if both are equal.

        Raises:
            InputError: if the window reaches beyond the training.
        """
        total = epochs * steps_per_epoch
        length = {"epochs": epochs, "steps": total, "fraction": 1}[self.unit]
        if max(self.start, self.end or 0) > length:
            raise InputError(
                f"The switch window [{self.start}, {self.end}] reaches beyond the training of {length} {self.unit}."
            )
        if self.unit == "fraction":
            start = round(self.start * epochs) * steps_per_epoch
            stop = total if self.end is None else min(total, (round(self.end * epochs) + 1) * steps_per_epoch)
        else:
            scale = steps_per_epoch if self.unit == "epochs" else 1
            start = int(self.start) * scale
            stop = total if self.end is None else min(total, (int(self.end) + 1) * scale)
        return min(start, stop), stop

    def mode(self, step: int, epochs: int, steps_per_epoch: int) -> str:
        """The mode of an optimiser step (from 0)."""
        start, stop = self.window(epochs, steps_per_epoch)
        return self.late if start <= step < stop else self.first

    def late_epochs(self, epochs: int, steps_per_epoch: int = 1) -> float:
        """Exactly how many epochs run in the late mode (a part of one, if the unit is steps)."""
        start, stop = self.window(epochs, steps_per_epoch)
        return (stop - start) / steps_per_epoch

    def gradient_evaluations(self, epochs: int, steps_per_epoch: int = 1, attack_steps: int = 10) -> int:
        """Gradients of a whole run: one for a step of SGD, two for the SAM family, ``1 + attack_steps`` for AT."""
        price = {"sgd": 1, "sam": 2, "asam": 2, "usam": 2, "at": 1 + attack_steps}
        start, stop = self.window(epochs, steps_per_epoch)
        inside = stop - start
        return inside * price[self.late] + (epochs * steps_per_epoch - inside) * price[self.first]

    def room(self, rate: "LearningRate", epochs: int, steps_per_epoch: int = 1) -> float:
        """Learning rate summed over the steps of the late mode: how far it can move. Late SAM needs enough of it."""
        start, stop = self.window(epochs, steps_per_epoch)
        parts = range(start // steps_per_epoch, -(-stop // steps_per_epoch))
        return sum(
            rate.at(epoch, epochs) * (min(stop, (epoch + 1) * steps_per_epoch) - max(start, epoch * steps_per_epoch))
            for epoch in parts
        )


@dataclass(frozen=True, slots=True)
class LearningRate:
    """Learning rate of each epoch.

    The official code calls the schedule after each epoch with that epoch's index, for the next one; `at` gives the rate
    that an epoch really uses.

    Args:
        base: the rate at the start.
        shape: ``"constant"``; ``"multistep"``: times `factor` from each epoch in `milestones` on; or ``"wrn"``: 1, 0.2
            and 0.04 times `base` on index < 0.3 T, < 0.6 T and beyond (wide residual networks).
        milestones: epochs, for ``"multistep"`` (official VGG16 recipe: 80 and 160).
        factor: for ``"multistep"`` (official: 0.1).

    Raises:
        InputError: for an unknown shape, a rate or factor that is not positive, or milestones that do not fit.
    """

    base: float
    shape: str = "constant"
    milestones: tuple[int, ...] = ()
    factor: float = 0.1

    def __post_init__(self):
        if not (0 < self.base < math.inf and 0 < self.factor < math.inf):
            raise InputError(f"The learning rate is {self.base}, its factor {self.factor}; both must be positive.")
        if self.shape not in _SHAPES:
            raise InputError(f"The learning-rate shape {self.shape!r} is unknown; take one of {', '.join(_SHAPES)}.")
        if min(self.milestones, default=1) < 1 or (self.milestones and self.shape != "multistep"):
            raise InputError(f"The milestones {self.milestones} must be epochs from 1 on, of the shape 'multistep'.")

    def at(self, epoch: int, epochs: int) -> float:
        """The rate that `epoch` (from 0) of `epochs` uses."""
        return self.base * (_SHAPES[self.shape](self, epoch - 1, epochs) if epoch else 1.0)


def _constant(rate: LearningRate, index: int, epochs: int) -> float:
    return 1.0


def _multistep(rate: LearningRate, index: int, epochs: int) -> float:
    return rate.factor ** sum(index >= milestone - 1 for milestone in rate.milestones)


def _wrn(rate: LearningRate, index: int, epochs: int) -> float:
    return 1.0 if index < 0.3 * epochs else 0.2 if index < 0.6 * epochs else 0.04


# Each gives the factor that the official schedule sets when it is called with an epoch's index.
_SHAPES: dict[str, Callable[[LearningRate, int, int], float]] = {
    "constant": _constant,
    "multistep": _multistep,
    "wrn": _wrn,
}

"""Names for what a sharpness curve did: reduction, sharpening, edge of stability, divergence.

These definitions are ours (the paper describes the regimes by example); they need only a recorded curve, so that the
UV model and a real network are judged alike.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from iclr_shared.errors import InputError

EDGE_BAND = (1.8, 2.6)


@dataclass(frozen=True)
class Regimes:
    """Which regimes a run went through; several can hold.

    Args:
        reduction: sharpness fell below 0.95 of its start within the first tenth of the run.
        sharpening: sharpness later exceeded 1.05 times an earlier minimum.
        edge: over the last quarter the mean of eta * sharpness lies in [1.8, 2.6], and it crosses 2 or the loss has not
            fallen below 1e-10.
        divergent: the loss passed 1e6 or became non-finite.
        reduction_ratio: least sharpness of the first tenth over the start.
        sharpening_ratio: largest sharpness over an earlier minimum.
        edge_mean: mean of eta * sharpness over the last quarter.
    """

    reduction: bool
    sharpening: bool
    edge: bool
    divergent: bool
    reduction_ratio: float
    sharpening_ratio: float
    edge_mean: float

    @property
    def label(self) -> str:
        """Such as ``"reduction, sharpening, EoS"``."""
        if self.divergent:
            return "divergent"
        named = ("reduction", self.reduction), ("sharpening", self.sharpening), ("EoS", self.edge)
        return ", ".join(name for name, holds in named if holds) or "steady"


def regimes(sharpness: Float[np.ndarray, " times"], loss: Float[np.ndarray, " as_many"], eta: float) -> Regimes:
    """Judge one run from its records.

    Args:
        sharpness: largest Hessian eigenvalue at equally spaced times, the first one at the start.
        loss: at the same times.
        eta: learning rate.

    Raises:
        InputError: for fewer than 4 records or unequal lengths.
    """
    sharpness, loss = np.asarray(sharpness, float), np.asarray(loss, float)
    if len(sharpness) != len(loss) or len(sharpness) < 1:
        raise InputError(f"{len(sharpness)} records of sharpness and {len(loss)} of loss: give as many of both.")
    divergent = not (np.isfinite(loss).all() and np.isfinite(sharpness).all() and loss.max() <= 1e6)
    if divergent:
        return Regimes(False, False, False, True, np.nan, np.nan, np.nan)
    if len(sharpness) < 4:
        raise InputError(f"{len(sharpness)} records are too few to name regimes: record more often.")
    early = sharpness[: max(2, -(-len(sharpness) // 10))]
    reduction = float(early.min() / sharpness[0]) if sharpness[0] > 0 else np.nan
    lowest = np.minimum.accumulate(sharpness)
    rise = float((sharpness / np.where(lowest > 0, lowest, np.nan)).max())
    late = eta * sharpness[-max(1, len(sharpness) // 4) :]
    inside = EDGE_BAND[0] <= late.mean() <= EDGE_BAND[1]
    crosses = bool((late > 2).any() and (late < 2).any())
    edge = bool(inside and (crosses or loss.min() >= 1e-10))
    return Regimes(reduction < 0.95, rise > 1.05, edge, False, reduction, rise, float(late.mean()))

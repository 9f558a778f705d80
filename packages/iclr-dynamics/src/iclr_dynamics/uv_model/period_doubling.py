"""Period doubling on the edge-of-stability manifold: where each doubling sits, and Feigenbaum's ratio of their gaps.

With ``w = sqrt(f / y)`` the manifold's map is an odd cubic, ``w' = (1 + c) w - c w^3``, and a cycle of length m loses
its stability to one of length 2 m where its multiplier, the product of ``1 + c - 3 c w^2`` along it, passes -1.
"""

import math
import warnings
from typing import Any

import numpy as np
from jaxtyping import Float
from scipy.optimize import brentq

from iclr_shared.errors import InputError

FEIGENBAUM = 4.669201609102990
"""Limit of the ratios of successive gaps between doublings (Feigenbaum 1978)."""

TWO_CYCLE_ONSET = 1.0
FOUR_CYCLE_ONSET = math.sqrt(5) - 1


def two_cycle(c: float) -> tuple[float, float]:
    """The 2-cycle in z = f / y: roots of ``z^2 - ((1 + c) / c) z + 1 / c^2 = 0``, stable for 1 < c < sqrt(5) - 1.

    On it ``mean(eta lambda) = 1 + c``, the geometric mean of ``eta lambda`` is exactly 2, and the product of
    ``eta k Df`` is ``1 - c``.
    """
    if not c >= 1:
        raise InputError(f"c={c:g}: the 2-cycle exists from c = 1 on.")
    root = math.sqrt((1 + c) ** 2 - 4)
    return (1 + c - root) / (2 * c), (1 + c + root) / (2 * c)


def two_cycle_multiplier(c: float) -> float:
    """``9 - 2 (1 + c)^2``, zero (superstable) at ``c = 3 / sqrt(2) - 1``."""
    return 9 - 2 * (1 + c) ** 2


def onsets(max_power: int = 6, *, dtype: Any = np.float64) -> Float[np.ndarray, " doublings"]:
    """The values of c at which periods 2, 4, 8, ..., 2^max_power are born.

    Each cycle is found by iteration inside its window of stability, continued upward in c by Newton's method, and its
    multiplier + 1 is bracketed and solved with Brent's method.

    Args:
        max_power: how many doublings, 1 to 12; beyond, float64 cannot tell them apart.
        dtype: of the result. The computation is in float64 always; asking for less warns.

    Returns:
        (max_power,), starting with 1 and sqrt(5) - 1.
    """
    if not 1 <= max_power <= 12:
        raise InputError(f"max_power={max_power}: take 1 to 12 doublings.")
    if np.dtype(dtype) != np.float64:
        message = f"onsets need float64: computed in it, then rounded to {np.dtype(dtype)}, which merges the late ones."
        warnings.warn(message, stacklevel=2)
    found: list[float] = []
    for power in range(max_power):
        length = 2**power
        c = _inside_window(found)
        w = _settle(c, length)
        step = 1e-3 / length
        if len(found) >= 2:
            step = min(step, (found[-1] - found[-2]) / FEIGENBAUM / 20)
        while True:
            ahead = _cycle(c + step, w, length)
            if ahead[1] <= -1:
                break
            c, w = c + step, ahead[0]
        lower = w
        excess = lambda at, lower=lower, length=length: _cycle(at, lower, length)[1] + 1  # noqa: E731
        found.append(float(brentq(excess, c, c + step, xtol=1e-13)))
    return np.asarray(found, dtype)


def gap_ratios(onset: Float[np.ndarray, " doublings"]) -> Float[np.ndarray, " ratios"]:
    """``(c_j - c_{j-1}) / (c_{j+1} - c_j)``, which tend to `FEIGENBAUM`."""
    gaps = np.diff(np.asarray(onset, np.float64))
    return gaps[:-1] / gaps[1:]


def accumulation(onset: Float[np.ndarray, " doublings"]) -> float:
    """Where the doublings accumulate and chaos begins, extrapolated from the last gap: about 1.30228."""
    return float(onset[-1] + (onset[-1] - onset[-2]) / (FEIGENBAUM - 1))


def _inside_window(found: list[float]) -> float:
    # The windows of the first two cycles are known exactly; the later ones shrink by Feigenbaum's ratio.
    if len(found) < 2:
        return (0.95, 1.15)[len(found)]
    return found[-1] + 0.4 * (found[-1] - found[-2]) / FEIGENBAUM


def _settle(c: float, length: int) -> float:
    w = 0.6
    for _ in range(2000 * length if length < 8 else 20_000):
        w = (1 + c) * w - c * w**3
    return w


def _orbit(c: float, w: float, length: int) -> tuple[float, float]:
    multiplier = 1.0
    for _ in range(length):
        multiplier *= 1 + c - 3 * c * w * w
        w = (1 + c) * w - c * w**3
    return w, multiplier


def _cycle(c: float, w: float, length: int) -> tuple[float, float]:
    """A point of the cycle near w, by Newton's method, and the cycle's multiplier."""
    for _ in range(200):
        end, multiplier = _orbit(c, w, length)
        step = (end - w) / (multiplier - 1)
        w -= step
        if abs(step) < 1e-14:
            break
    return w, _orbit(c, w, length)[1]

"""Means over seeds and their intervals."""

from collections.abc import Callable

import numpy as np
from scipy import stats


def bootstrap(statistic: Callable[..., float], *samples: np.ndarray) -> tuple[float, float] | None:
    """95 % percentile interval over seeds, which are drawn for all samples together."""
    if len(samples[0]) < 3:
        return None
    draws = np.random.default_rng(0).integers(0, len(samples[0]), (2000, len(samples[0])))
    values = [statistic(*(sample[draw] for sample in samples)) for draw in draws]
    return tuple(float(edge) for edge in np.nanpercentile(values, [2.5, 97.5]))


def mean(values: np.ndarray) -> tuple[float, tuple[float, float] | None]:
    """Mean over seeds with its 95 % t-interval."""
    if len(values) < 2 or np.ptp(values) == 0:
        return float(np.mean(values)), None
    half = stats.t.ppf(0.975, len(values) - 1) * stats.sem(values)
    return float(np.mean(values)), (float(np.mean(values) - half), float(np.mean(values) + half))


def geometric_mean(values: np.ndarray) -> float:
    """Of positive numbers: sharpness varies by factors, not by differences."""
    return float(np.exp(np.mean(np.log(values))))

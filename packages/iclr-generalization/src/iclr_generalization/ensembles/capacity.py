"""Ensembling is not widening: what more members and what more width change, limit B or variance V."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Shaped

from iclr_generalization.ensembles.decomposition import Law, decompose
from iclr_generalization.ensembles.predictions import Kind
from iclr_shared.errors import InputError


@dataclass(frozen=True)
class Capacity:
    """Members of several widths on the same points.

    Args:
        widths: k, ascending.
        limit, variance: B_k and V_k for each width.
        limit_std, variance_std: their standard errors (jackknife over members and points in quadrature).
        members: K_k.
    """

    widths: Float[np.ndarray, " W"]
    limit: Float[np.ndarray, " W"]
    variance: Float[np.ndarray, " W"]
    limit_std: Float[np.ndarray, " W"]
    variance_std: Float[np.ndarray, " W"]
    members: Float[np.ndarray, " W"]

    def law(self, index: int) -> Law:
        """L(M) of one width."""
        return Law(float(self.limit[index]), float(self.variance[index]))

    @property
    def single(self) -> Float[np.ndarray, " W"]:
        """Loss of a single model of each width, B + V."""
        return self.limit + self.variance

    def equivalent_width(self, index: int, members: float) -> float:
        """Width whose single model has the loss of `members` models of width number `index`, interpolated in log k.

        Returns:
            The width; NaN where no width measured here reaches that loss (from `numpy.inf` members on it is B).
        """
        target = self.law(index).loss(members)
        log_width, single = np.log(self.widths), self.single
        for j in range(len(single) - 1):
            low, high = single[j], single[j + 1]
            if min(low, high) <= target <= max(low, high) and low != high:
                return float(np.exp(np.interp(target, *_ascending(low, high, log_width[j], log_width[j + 1]))))
        return float("nan")

    def gains(self) -> dict[str, Float[np.ndarray, " W"]]:
        """The mechanism table: gain by all K members at each width (all of it V), and by the next width at M = 1.

        Returns:
            Columns ``ensembling``, ``widening``, ``widening through B``, ``widening through V``; the last has NaN for
            the latter three.
        """
        last = np.array([np.nan])
        through = {
            "widening through B": np.append(self.limit[:-1] - self.limit[1:], last),
            "widening through V": np.append(self.variance[:-1] - self.variance[1:], last),
        }
        return {
            "ensembling": (1 - 1 / self.members) * self.variance,
            "widening": through["widening through B"] + through["widening through V"],
            **through,
        }


def capacity_study(
    preds: Mapping[int, Shaped[np.ndarray, "K n C"]], y: Shaped[np.ndarray, "..."], kind: Kind = "probabilities"
) -> Capacity:
    """Decompose the squared loss for each width.

    Args:
        preds: width to predictions (K, n, C) on the same points; K may differ, at least 3.
        y: labels, see `predictions.targets`.
        kind: ``"values"`` for regression.

    Raises:
        InputError: for fewer than two widths, or a width with fewer than three members.
    """
    if len(preds) < 2:
        raise InputError(f"A study of capacity needs at least 2 widths, got {len(preds)}.")
    rows = []
    for width in sorted(preds):
        K = len(preds[width])
        if K < 3:
            raise InputError(f"Width {width} has {K} members; error bars over members need at least 3.")
        parts = decompose(preds[width], y, kind)
        left_out = np.array([parts.without(j) for j in range(K)])
        over_members = np.sqrt((K - 1) / K * np.square(left_out - left_out.mean(0)).sum(0))
        points = np.stack([parts.cross, parts.single - parts.cross])
        std = np.hypot(over_members, points.std(1) / np.sqrt(points.shape[1]))
        rows.append((width, *parts.law, *std, K))
    return Capacity(*np.array(rows, dtype=np.float64).T)


def _ascending(low: float, high: float, left: float, right: float) -> tuple[list[float], list[float]]:
    return ([low, high], [left, right]) if low < high else ([high, low], [right, left])

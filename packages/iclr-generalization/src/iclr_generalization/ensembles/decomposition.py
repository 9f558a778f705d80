"""The exact size of what ensembling gains for squared losses: L(M) = B + V/M, without any convexity argument."""

import math
import warnings
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Shaped

from iclr_generalization.ensembles.predictions import Kind, chunks
from iclr_shared.errors import InputError


class Law(NamedTuple):
    """``L(M) = limit + variance / M``.

    Args:
        limit: B, the loss of infinitely many members.
        variance: V, what the members' disagreement costs a single one. An unbiased estimate of either may be negative.
    """

    limit: float
    variance: float

    def loss(self, members: Shaped[np.ndarray, "..."] | float) -> Float[np.ndarray, "..."] | float:
        """L(M) for any number of members, scalar or array."""
        return self.limit + self.variance / members

    def gain_share(self, members: float) -> float:
        """Share of the whole gain, from one member to infinitely many, that `members` reach: 1 - 1/M."""
        return 1 - 1 / members

    def required_members(self, target: float) -> int | None:
        """The smallest M with L(M) <= target, or None where even infinitely many do not reach it.

        Raises:
            InputError: if the target is not finite.
        """
        if not math.isfinite(target):
            raise InputError(f"The target loss must be finite, got {target}.")
        if self.loss(1.0) <= target:
            return 1
        if target <= self.limit:
            return None
        # Rounding of the three numbers must not ask for one member more than they do exactly.
        rounding = 4 * math.ulp(max(abs(target), abs(self.limit), self.variance))
        return math.ceil(self.variance / (target - self.limit + rounding))


def outliers(losses: Float[np.ndarray, " K"]) -> list[int]:
    """Members of another kind: their loss lies over five median absolute deviations from the median (K > 4)."""
    deviation = np.abs(losses - np.median(losses))
    return np.flatnonzero(deviation > 5 * np.median(deviation)).tolist() if len(losses) > 4 else []


def warn_of_outliers(losses: Float[np.ndarray, " K"], stacklevel: int = 3) -> None:
    """Warn of a member whose loss says that the ensemble is not homogeneous, which forecasts assume."""
    if odd := outliers(losses):
        warnings.warn(
            f"The loss of member {odd[0]} is far from the others': forecasts assume homogeneous members, of one kind.",
            stacklevel=stacklevel,
        )


def law_from_two(loss1: float, loss2: float, sizes: tuple[int, int] = (1, 2)) -> Law:
    """The law through the losses of any two sizes: L(inf) = (M2 L(M2) - M1 L(M1)) / (M2 - M1).

    Raises:
        InputError: if the sizes are equal or below one.
    """
    one, two = sizes
    if one == two or min(sizes) < 1:
        raise InputError(f"Two different ensemble sizes of at least 1 are needed, got {one} and {two}.")
    limit = (two * loss2 - one * loss1) / (two - one)
    return Law(limit, one * (loss1 - limit))


@dataclass(frozen=True)
class Decomposition:
    """Sufficient statistics of K members under a squared loss (Brier score, squared error summed over outputs).

    Args:
        gram: ``H_ab = (1/n) sum_i <e_a(x_i), e_b(x_i)>`` of the errors e = f - y, shape (K, K).
        single: mean over members of each point's loss, ``l_i``, shape (n,).
        cross: mean over pairs of each point's ``<e_a, e_b>``, ``x_i``, shape (n,).
    """

    gram: Float[np.ndarray, "K K"]
    single: Float[np.ndarray, " n"]
    cross: Float[np.ndarray, " n"]

    @property
    def members(self) -> int:
        """K."""
        return len(self.gram)

    @property
    def member_losses(self) -> Float[np.ndarray, " K"]:
        """Each member's own loss."""
        return np.diag(self.gram)

    @property
    def law(self) -> Law:
        """L(M), exactly the average over all subsets of size M <= K, and the unbiased forecast beyond."""
        return self.without()

    def without(self, member: int | None = None) -> Law:
        """The law of all members, or of all but one (for the jackknife; needs at least three)."""
        keep = np.delete(np.arange(self.members), [] if member is None else member)
        gram = self.gram[np.ix_(keep, keep)]
        K, trace = len(keep), np.trace(gram)
        cross = (gram.sum() - trace) / (K * (K - 1))
        return Law(float(cross), float(trace / K - cross))

    def jensen_gap(self, members: int) -> float:
        """J(M) = (mean member's loss) - L(M) = (1 - 1/M) V: about the average member, silent about the best one."""
        return (1 - 1 / members) * self.law.variance


def decompose(
    preds: Shaped[np.ndarray, "K n C"], y: Shaped[np.ndarray, "..."], kind: Kind = "probabilities"
) -> Decomposition:
    """Decompose the squared loss of an ensemble in one pass over the points: all M at once, from a Gram matrix.

    The loss of a point is ``sum_c (f_c - y_c)^2``: the Brier score for probabilities, the squared error for values.

    Args:
        preds: shape (K, n, C), any float type, may be memory-mapped; accumulated in float64.
        y: class indices (n,), one-hot or regression targets (n, C).
        kind: ``"values"`` for regression.

    Raises:
        InputError: as `predictions.targets`.
    """
    K, n, _ = preds.shape
    if K < 2:
        raise InputError(f"An ensemble needs at least 2 members, got {K}.")
    gram, single, cross = np.zeros((K, K)), np.empty(n), np.empty(n)
    for part, truth, place in chunks(preds, y, kind):
        errors = part - truth
        flat = errors.reshape(K, -1)
        gram += flat @ flat.T
        squares = np.square(errors).sum((0, 2))
        single[place] = squares / K
        cross[place] = (np.square(errors.sum(0)).sum(1) - squares) / (K * (K - 1))
    return Decomposition(gram / n, single, cross)

"""Distributional equivalence: members differ point by point, yet their outputs have one law over the data.

Effect sizes, not p-values: with thousands of points any test rejects, however small the difference.
"""

import itertools
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Shaped
from scipy.spatial.distance import cdist
from scipy.stats import ks_2samp

from iclr_generalization.ensembles.decomposition import outliers, warn_of_outliers
from iclr_generalization.ensembles.predictions import Kind, targets
from iclr_shared.errors import InputError

#: Points on which the energy distance, whose cost is quadratic, is estimated.
ENERGY_POINTS = 1000


@dataclass(frozen=True)
class Equivalence:
    """How alike the laws of the members' outputs are. Pairs run over a < b in lexicographic order.

    Args:
        pairs: indices, shape (P, 2).
        ratio: equivalence ratio of each pair, ``W_1 / E|f_a - f_b|``, means over outputs: 0 is one law though other
            points, 1 a pure shift.
        wasserstein: 1-Wasserstein distance of each pair and output, shape (P, C).
        kolmogorov: Kolmogorov-Smirnov distance of each pair and output, shape (P, C).
        energy: energy distance of the C-vectors of each pair.
        disagreement: share of points with another largest output, of each pair.
        squared_difference: mean squared pointwise difference, of each pair.
        true_class_ratio: the ratio for the output of the true class; NaN for regression.
        loss_ratio: the ratio for the squared loss of each point.
        floor: median over members and outputs of W_1 between random halves of one member: what sampling alone gives.
        member_losses: squared loss of each member.
    """

    pairs: Shaped[np.ndarray, "P 2"]
    ratio: Float[np.ndarray, " P"]
    wasserstein: Float[np.ndarray, "P C"]
    kolmogorov: Float[np.ndarray, "P C"]
    energy: Float[np.ndarray, " P"]
    disagreement: Float[np.ndarray, " P"]
    squared_difference: Float[np.ndarray, " P"]
    true_class_ratio: Float[np.ndarray, " P"]
    loss_ratio: Float[np.ndarray, " P"]
    floor: float
    member_losses: Float[np.ndarray, " K"]

    @property
    def median_ratio(self) -> float:
        """Median over pairs of the equivalence ratio."""
        return float(np.median(self.ratio))

    @property
    def loss_spread(self) -> float:
        """Standard deviation of the members' losses over their mean."""
        return float(self.member_losses.std(ddof=1) / self.member_losses.mean())

    @property
    def outliers(self) -> list[int]:
        """Members of another kind, see `decomposition.outliers`."""
        return outliers(self.member_losses)


def equivalence_test(
    preds: Shaped[np.ndarray, "K n C"],
    y: Shaped[np.ndarray, "..."],
    kind: Kind = "probabilities",
    rng: np.random.Generator | None = None,
) -> Equivalence:
    """Compare the laws of all pairs of members.

    Args:
        preds: shape (K, n, C).
        y: labels, see `predictions.targets`.
        kind: ``"values"`` for regression.
        rng: for the random halves and the points of the energy distance; None is seeded with 0.

    Raises:
        InputError: fewer than two members or four points; bad labels.
    """
    K, n, C = preds.shape
    if K < 2 or n < 4:
        raise InputError(f"Equivalence needs at least 2 members and 4 points, got {K} and {n}.")
    rng = np.random.default_rng(0) if rng is None else rng
    preds = np.asarray(preds, dtype=np.float64)
    truth = targets(y, n, C, kind)
    losses = np.square(preds - truth).sum(2)
    true_class = (preds * truth).sum(2) if kind != "values" else np.full((K, n), np.nan)
    shuffled = rng.permutation(n)
    half = n // 2
    some = rng.permutation(n)[:ENERGY_POINTS]
    within = [cdist(member, member).mean() for member in preds[:, some]]
    ordered, loss_order, class_order = np.sort(preds, 1), np.sort(losses, 1), np.sort(true_class, 1)
    # W_1 of two samples of one size is the mean distance of their order statistics.
    first, second = np.sort(preds[:, shuffled[:half]], 1), np.sort(preds[:, shuffled[half : 2 * half]], 1)
    rows = []
    for a, b in itertools.combinations(range(K), 2):
        w1, apart = np.abs(ordered[a] - ordered[b]).mean(0), np.abs(preds[a] - preds[b])
        rows.append(
            {
                "ratio": _ratio(w1.mean(), apart.mean()),
                "wasserstein": w1,
                "kolmogorov": [ks_2samp(preds[a, :, c], preds[b, :, c], method="asymp").statistic for c in range(C)],
                "energy": 2 * cdist(preds[a, some], preds[b, some]).mean() - within[a] - within[b],
                "disagreement": (preds[a].argmax(1) != preds[b].argmax(1)).mean(),
                "squared_difference": np.square(apart).sum(1).mean(),
                "true_class_ratio": _order_ratio(class_order, true_class, a, b),
                "loss_ratio": _order_ratio(loss_order, losses, a, b),
            }
        )
    table = {name: np.array([row[name] for row in rows], dtype=np.float64) for name in rows[0]}
    found = Equivalence(
        pairs=np.array(list(itertools.combinations(range(K), 2))),
        floor=float(np.median(np.abs(first - second).mean(1))),
        member_losses=losses.mean(1),
        **table,
    )
    warn_of_outliers(found.member_losses)
    return found


def _ratio(w1: float, apart: float) -> float:
    return 0.0 if apart == 0 else float(w1 / apart)  # NaN stays NaN


def _order_ratio(ordered: np.ndarray, values: np.ndarray, a: int, b: int) -> float:
    return _ratio(np.abs(ordered[a] - ordered[b]).mean(), np.abs(values[a] - values[b]).mean())

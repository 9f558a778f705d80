"""How much of a matrix's spectrum is left when rows go: the reward of the policy (section 2.4)."""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

RESOLUTION = 1e-6
"""Singular values closer than this share of the largest count as equal: float32 weights carry no more."""


def singular_values(matrix: Float[Tensor, "n h"]) -> Float[Tensor, " r"]:
    """All min(n, h) singular values, descending, in float32 or the wider dtype of `matrix`."""
    wide = matrix if matrix.dtype == torch.float64 else matrix.float()
    return torch.linalg.svdvals(wide)


def gram_singular_values(gram: Float[Tensor, "k k"], count: int) -> Float[Tensor, " r"]:
    """The `count` largest singular values of W, descending, from WᵀW or W Wᵀ in float64 (section 5)."""
    return torch.linalg.eigvalsh(gram).clamp_min(0).sqrt().flip(0)[:count]


def ks_statistic(before: Float[Tensor, " r"], after: Float[Tensor, " s"]) -> float:
    """D = sup_x |F1(x) - F2(x)|, the two-sample Kolmogorov-Smirnov statistic of two spectra (section 2.4).

    Values are compared at a resolution of `RESOLUTION` times the largest, so that rounding does not break ties.
    """
    largest = max(float(before[0]), float(after[0]))
    if largest == 0:
        return 0.0
    grid = largest * RESOLUTION
    first, second = (np.sort(np.round(values.double().cpu().numpy() / grid)) for values in (before, after))
    at = np.concatenate([first, second])
    # scipy.stats.ks_2samp gives the same number, but also computes a p-value at a hundred times the cost.
    shares = (np.searchsorted(values, at, side="right") / len(values) for values in (first, second))
    return float(np.abs(np.subtract(*shares)).max())


def spectral_ks(matrix: Float[Tensor, "n h"], rows: Int[Tensor, " m"]) -> float:
    """D between the singular values of W and of W[rows]; 0 says that the spectrum is the same in distribution.

    Example:
        >>> spectral_ks(torch.diag(torch.tensor([4.0, 3.0, 2.0, 1.0])), torch.tensor([0, 2]))
        0.25
    """
    return ks_statistic(singular_values(matrix), singular_values(matrix[rows]))


def interlacing_gap(matrix: Float[Tensor, "n h"], rows: Int[Tensor, " m"]) -> float:
    """How far sigma_i(W) >= sigma_i(W[rows]) >= sigma_(i+n-m)(W) is violated, relative to sigma_1(W); at most 0.

    Values beyond the last count as 0. Source: Poincaré separation, section 2.4.
    """
    return interlacing_of(singular_values(matrix), singular_values(matrix[rows]), len(matrix) - len(rows))


def interlacing_of(whole: Float[Tensor, " r"], part: Float[Tensor, " s"], removed: int) -> float:
    """The same from the two spectra and the number of removed rows."""
    lower = torch.zeros_like(part)
    tail = whole[removed : removed + len(part)]
    lower[: len(tail)] = tail
    above = (part - whole[: len(part)]).max()
    below = (lower - part).max()
    return float(torch.maximum(above, below) / whole[0].clamp_min(torch.finfo(whole.dtype).tiny))


@dataclass
class Spectrum:
    """The spectrum of one (n, h) matrix and, where it pays, its Gram matrix, for the spectra of many row subsets.

    With n > h, Gram(W[S]) = Gram(W) - Gram(W[not S]) costs O((n-m) h^2) and its eigenvalues O(h^3); with n <= h the
    (n, n) Gram matrix holds that of every subset as a block. Section 5.

    Args:
        values: singular values of W, descending, from the same route as those of its subsets.
        gram: float64, (h, h) or (n, n), or None if it is made anew from the kept rows each time.
    """

    values: Float[Tensor, " r"]
    gram: Float[Tensor, "k k"] | None

    @classmethod
    def of(cls, matrix: Float[Tensor, "n h"], keep_gram: bool = True) -> "Spectrum":
        """The spectrum of `matrix`; `keep_gram=False` saves min(n, h)^2 numbers of memory."""
        wide = matrix.double()
        gram = wide.T @ wide if _tall(matrix) else wide @ wide.T
        return cls(gram_singular_values(gram, min(matrix.shape)), gram if keep_gram else None)

    def ks(self, matrix: Float[Tensor, "n h"], rows: Int[Tensor, " m"]) -> float:
        """D between the spectra of `matrix` and of `matrix[rows]`."""
        n, h = matrix.shape
        rows = rows.to(matrix.device)
        if not _tall(matrix) and self.gram is not None:
            gram = self.gram[rows][:, rows]
        elif self.gram is not None and 2 * len(rows) > n:
            removed = torch.ones(n, dtype=torch.bool, device=matrix.device)
            removed[rows] = False
            gone = matrix[removed].double()
            gram = self.gram - gone.T @ gone
        else:
            kept = matrix[rows].double()
            gram = kept.T @ kept if len(rows) > h else kept @ kept.T
        return ks_statistic(self.values, gram_singular_values(gram, min(len(rows), h)))


def _tall(matrix: Tensor) -> bool:
    return matrix.shape[0] > matrix.shape[1]

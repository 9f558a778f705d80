"""Weighted means of points: what attention aggregates with."""

from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from iclr_shared.errors import InputError
from iclr_symspaces.flat import Euclidean, SPDLogCholesky, SPDLogEuclidean
from iclr_symspaces.hyperbolic import Lorentz, PoincareBall, UpperHalf
from iclr_symspaces.product import Product
from iclr_symspaces.space import SymmetricSpace, alike
from iclr_symspaces.spd import SPD
from iclr_symspaces.symmetric import expm, large_norm, logm, rsqrtm, sqrtm, sym

Mean = Literal["logeuclid", "karcher"]
KARCHER_TOLERANCE = 1e-7
KARCHER_STEPS = 20


def weighted_mean(
    space: SymmetricSpace, points: Tensor, weights: Float[Tensor, "*batch t"], mean: Mean = "logeuclid"
) -> Tensor:
    """Weighted means of the same points, one for each row of weights.

    Hyperbolic: the Lorentz centroid Σ w v/√(−c⟨·, ·⟩) = Einstein midpoint Σ w γ k/Σ w γ in Klein coordinates k. SPD:
    exp(Σ w log v), or the Karcher mean by fixed-point steps from there (≤ 20, until ‖Σ w log‖_F < 1e-7). Flat
    spaces: the mean in the chart. Products: factor by factor.

    Args:
        space: of the points.
        points: (..., T, *point_shape); leading dimensions match those of `weights` but for its last two.
        weights: (..., R, T), rows of non-negative numbers with sum 1.
        mean: for SPD.

    Returns:
        (..., R, *point_shape).
    """
    if isinstance(space, Product):
        parts = zip(space.factors, space.split(points), strict=True)
        return space.join([weighted_mean(f, part, weights, mean) for f, part in parts])
    if isinstance(space, PoincareBall | UpperHalf):
        model = Lorentz(space.d, space.c)
        return space.from_lorentz(weighted_mean(model, space.to_lorentz(points), weights))
    if isinstance(space, Lorentz):
        return _centroid(space, points, weights)
    if isinstance(space, Euclidean | SPDLogEuclidean | SPDLogCholesky):
        return space.exp0(_combine(weights, space.log0(points)))
    if isinstance(space, SPD):
        start = expm(_combine(weights, logm(points)))
        return start if mean == "logeuclid" else _karcher(start, points, weights)
    raise InputError(f"{space} has no weighted mean.")


def _centroid(space: Lorentz, points: Tensor, weights: Tensor) -> Tensor:
    """t/√(−c⟨t, t⟩) with t = Σ w v, whose −⟨t, t⟩ = (t₀ − |t_s|)(t₀ + |t_s|) would cancel far out.

    With û = t_s/|t_s| it is t₀ − |t_s| = Σ w (v₀ − û·v_s), each term by the identity that `busemann` uses. Of all unit
    vectors û makes this sum least, so it needs no gradient.
    """
    total = weights @ points
    length = large_norm(total[..., 1:])
    towards = (total[..., 1:] / torch.where(length > 0, length, torch.ones_like(length))).detach().unsqueeze(-2)
    time, space_part = points[..., :1].mT, points[..., 1:].unsqueeze(-3)
    along = (space_part * towards).sum(-1)
    aside = (space_part - along.unsqueeze(-1) * towards).square().sum(-1)
    light = torch.where(along > 0, (1 / space.c + aside) / (time + along.clamp_min(0)), time - along.clamp_max(0))
    square = (weights * light).sum(-1, keepdim=True) * (total[..., :1] + length)
    return space.lift(total[..., 1:] / (space.root * square.sqrt()))


def _combine(weights: Tensor, values: Tensor) -> Tensor:
    n = values.ndim - weights.ndim + 1
    return (weights @ values.flatten(-n)).unflatten(-1, values.shape[values.ndim - n :])


def _karcher(s: Tensor, points: Tensor, weights: Tensor) -> Tensor:
    """S ← S^{1/2} exp(Σ w log(S^{-1/2} V S^{-1/2})) S^{1/2}."""
    for _ in range(KARCHER_STEPS):
        half, inverse = sqrtm(s), rsqrtm(s).unsqueeze(-3)
        logs = logm(sym(inverse @ points.unsqueeze(-4) @ inverse))
        step = (weights[..., None, None] * logs).sum(-3)
        s = sym(half @ expm(step) @ half)
        if float(step.detach().flatten(-2).norm(dim=-1).amax()) < KARCHER_TOLERANCE:
            break
    return s


class FrechetMean(nn.Module):
    """Mean of T points as a module; the weights are uniform unless given.

    Args:
        space: of the points.
        mean: for SPD: "logeuclid" (closed form) or "karcher".
    """

    def __init__(self, space: SymmetricSpace, mean: Mean = "logeuclid"):
        super().__init__()
        if mean not in ("logeuclid", "karcher"):
            raise InputError(f"mean must be 'logeuclid' or 'karcher', got {mean!r}.")
        self.space, self.mean = space, mean

    def forward(self, x: Tensor, weights: Float[Tensor, "*batch t"] | None = None) -> Tensor:
        """(..., T, *point_shape), weights (..., T) to (..., *point_shape)."""
        x = self.space.check(x)
        lead = x.shape[: x.ndim - len(self.space.point_shape)]
        if weights is None:
            weights = x.new_full(lead, 1 / lead[-1])
        alike(weights, x, "weights", "the points are")
        return weighted_mean(self.space, x, weights.unsqueeze(-2), self.mean).squeeze(len(lead) - 1)

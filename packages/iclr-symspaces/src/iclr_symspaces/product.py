"""Products of symmetric spaces, such as the polydisc."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from iclr_shared.errors import InputError
from iclr_symspaces.space import Norm, SymmetricSpace, unit
from iclr_symspaces.symmetric import safe_norm


class ProductBoundary(NamedTuple):
    """K boundary points of a product: one of each factor, and the geodesic's speed in each (rows of unit length)."""

    parts: tuple[Any, ...]
    weights: Float[Tensor, "k m"]


class Product(SymmetricSpace):
    """X₁ × … × X_m with d² = Σ d_i². A point is the factors' points, flattened and concatenated.

    Args:
        factors: the spaces.
    """

    def __init__(self, factors: Sequence[SymmetricSpace]):
        if not factors:
            raise InputError("A product needs at least one factor.")
        self.factors = tuple(factors)
        self._points = [torch.Size(f.point_shape).numel() for f in self.factors]
        self._tangents = [torch.Size(f.tangent_shape).numel() for f in self.factors]
        self.point_shape, self.tangent_shape = (sum(self._points),), (sum(self._tangents),)
        self.dim = sum(f.dim for f in self.factors)
        self.rank = sum(f.rank for f in self.factors)

    def __repr__(self) -> str:
        return f"Product({list(self.factors)})"

    def split(self, x: Float[Tensor, "*batch d"]) -> list[Tensor]:
        """The factors' points."""
        return _split(x, self._points, [f.point_shape for f in self.factors])

    def join(self, parts: Sequence[Tensor]) -> Float[Tensor, "*batch d"]:
        """Inverse of `split`."""
        return torch.cat([p.flatten(-len(f.point_shape)) for f, p in zip(self.factors, parts, strict=True)], -1)

    def split_tangent(self, v: Float[Tensor, "*batch d"]) -> list[Tensor]:
        """The factors' tangent vectors."""
        return _split(v, self._tangents, [f.tangent_shape for f in self.factors])

    def exp0(self, v: Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch e"]:
        """Factor by factor."""
        return self.join([f.exp0(part) for f, part in zip(self.factors, self.split_tangent(v), strict=True)])

    def log0(self, x: Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch e"]:
        """Factor by factor."""
        parts = [f.log0(part) for f, part in zip(self.factors, self.split(x), strict=True)]
        return torch.cat([p.flatten(-len(f.tangent_shape)) for f, p in zip(self.factors, parts, strict=True)], -1)

    def dist(self, x: Float[Tensor, "*b1 d"], y: Float[Tensor, "*b2 d"]) -> Float[Tensor, "*b3"]:
        """√Σ d_i²."""
        pairs = zip(self.factors, self.split(x), self.split(y), strict=True)
        return safe_norm(torch.stack([f.dist(a, b) for f, a, b in pairs]).square().sum(0))

    def transvect(self, p: Float[Tensor, "*b1 d"], x: Float[Tensor, "*b2 d"]) -> Float[Tensor, "*b3 d"]:
        """Factor by factor."""
        pairs = zip(self.factors, self.split(p), self.split(x), strict=True)
        return self.join([f.transvect(a, b) for f, a, b in pairs])

    def boundary(self, direction: tuple[Sequence[Any], Float[Tensor, "..."]]) -> ProductBoundary:
        """From the factors' directions and K rows of weights, which are normalised."""
        directions, weights = direction
        return self.combine([f.boundary(d) for f, d in zip(self.factors, directions, strict=True)], weights)

    def combine(self, parts: Sequence[Any], weights: Float[Tensor, "..."]) -> ProductBoundary:
        """From the factors' boundary points and K rows of weights, which are normalised."""
        if weights.ndim != 2 or weights.shape[1] != len(self.factors) or not len(weights):
            raise InputError(
                f"{self} needs weights (K, {len(self.factors)}), K at least 1; got {tuple(weights.shape)}."
            )
        return ProductBoundary(tuple(parts), unit(weights, "row of weights"))

    def random_boundary(
        self, size: int, generator: torch.Generator, dtype: torch.dtype = torch.float64
    ) -> ProductBoundary:
        """Random ones of the factors, weights from a Gaussian's absolute values."""
        parts = [f.random_boundary(size, generator, dtype) for f in self.factors]
        weights = torch.randn(size, len(self.factors), generator=generator, dtype=dtype, device=generator.device)
        return self.combine(parts, weights.abs())

    def busemann(self, x: Float[Tensor, "*batch d"], xi: ProductBoundary) -> Float[Tensor, "*batch k"]:
        """Σ w_i B_{ξ_i}(x_i)."""
        pairs = zip(self.factors, self.split(x), xi.parts, strict=True)
        return (torch.stack([f.busemann(part, own) for f, part, own in pairs], -1) * xi.weights).sum(-1)

    def signed_distance(
        self, x: Float[Tensor, "*batch d"], xi: ProductBoundary, p: Float[Tensor, "k d"], norm: Norm = "riemannian"
    ) -> Float[Tensor, "*batch k"]:
        """Σ w_i s_i."""
        parts = zip(self.factors, self.split(x), xi.parts, self.split(p), strict=True)
        return (torch.stack([f.signed_distance(a, own, q, norm) for f, a, own, q in parts], -1) * xi.weights).sum(-1)

    def iwasawa(self, v: Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch e"]:
        """Factor by factor."""
        return self.join([f.iwasawa(part) for f, part in zip(self.factors, self._coordinates(v), strict=True)])

    def tangent_point(self, v: Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch e"]:
        """Factor by factor."""
        return self.join([f.tangent_point(part) for f, part in zip(self.factors, self._coordinates(v), strict=True)])

    def project(self, x: Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch d"]:
        """Factor by factor."""
        return self.join([f.project(part) for f, part in zip(self.factors, self.split(x), strict=True)])

    def check(self, x: Float[Tensor, "..."], what: str = "point") -> Float[Tensor, "..."]:
        """`x`, if each factor accepts its part. Raises `InputError` as the factor does."""
        self._check_array(x, self.point_shape, what)
        parts = zip(self.factors, self.split(x), strict=True)
        return self.join([f.check(part, f"factor {i} of {what}") for i, (f, part) in enumerate(parts)])

    def _tangent(self, v: Tensor) -> Tensor:
        pairs = zip(self.factors, self.split_tangent(v), strict=True)
        return torch.cat([f._tangent(part).flatten(-len(f.tangent_shape)) for f, part in pairs], -1)

    def _coordinates(self, v: Tensor) -> list[Tensor]:
        return list(v.split([f.dim for f in self.factors], -1))


def _split(x: Tensor, sizes: list[int], shapes: list[tuple[int, ...]]) -> list[Tensor]:
    return [part.reshape(*x.shape[:-1], *shape) for part, shape in zip(x.split(sizes, -1), shapes, strict=True)]

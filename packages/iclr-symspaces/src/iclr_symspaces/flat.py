"""Spaces that are flat in a chart φ: Euclidean space and SPD matrices under log-Euclidean and log-Cholesky metrics.

There B_ξ = −⟨φ(x), W⟩ with ‖W‖ = 1, so hyperplanes are ordinary ones in the chart.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from iclr_shared.errors import InputError
from iclr_symspaces.space import Norm, SymmetricSpace, only_riemannian, unit, vanish_at_points
from iclr_symspaces.spd import _Matrices
from iclr_symspaces.symmetric import expm, logm, safe_norm, sym


class _Flat(SymmetricSpace):
    """Everything from the chart: `log0` is φ and `exp0` its inverse."""

    @property
    def rank(self) -> int:
        """The dimension: the whole space is a flat."""
        return self.dim

    def dist(self, x: Tensor, y: Tensor) -> Tensor:
        """‖φ(x) − φ(y)‖."""
        difference = self.log0(x) - self.log0(y)
        return safe_norm(difference.flatten(-len(self.tangent_shape)).square().sum(-1))

    def transvect(self, p: Tensor, x: Tensor) -> Tensor:
        """φ⁻¹(φ(x) − φ(p))."""
        return self.exp0(self.log0(x) - self.log0(p))

    def boundary(self, direction: Tensor) -> Tensor:
        """Directions W in the chart, of unit Frobenius norm. Raises `InputError` for a zero one."""
        return unit(self._tangent(self._directions(direction)))

    def busemann(self, x: Tensor, xi: Tensor) -> Tensor:
        """−⟨φ(x), W⟩."""
        return -self._flatten(self.log0(x)) @ xi.flatten(1).T

    def signed_distance(self, x: Tensor, xi: Tensor, p: Tensor, norm: Norm = "riemannian") -> Tensor:
        """⟨φ(x) − φ(p), W⟩."""
        only_riemannian(self, norm)
        w = xi.flatten(1)
        s = self._flatten(self.log0(x)) @ w.T - (self._flatten(self.log0(p)) * w).sum(-1)
        n = len(self.point_shape)
        flat = vanish_at_points(s.reshape(-1, len(xi)), x.reshape(-1, *x.shape[x.ndim - n :]), p)
        return flat.reshape(s.shape)

    def iwasawa(self, v: Tensor) -> Tensor:
        """φ⁻¹ of the vector in an orthonormal basis: here N is trivial."""
        return self.exp0(self._unflatten(v))

    def tangent_point(self, v: Tensor) -> Tensor:
        """The same as `iwasawa`."""
        return self.iwasawa(v)

    def _flatten(self, v: Tensor) -> Tensor:
        return v.flatten(-len(self.tangent_shape))

    def _unflatten(self, v: Tensor) -> Tensor:
        return v


@dataclass(frozen=True, eq=False)
class Euclidean(_Flat):
    """ℝ^d."""

    d: int

    def __post_init__(self):
        if self.d < 1:
            raise InputError(f"Euclidean needs a dimension of at least 1, got {self.d}.")

    @property
    def dim(self) -> int:
        """d."""
        return self.d

    @property
    def point_shape(self) -> tuple[int, ...]:
        """Shape of a point."""
        return (self.d,)

    tangent_shape = point_shape

    def exp0(self, v: Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch d"]:
        """v."""
        return v

    def log0(self, x: Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch d"]:
        """x."""
        return x

    def project(self, x: Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch d"]:
        """x."""
        return x


@dataclass(frozen=True, eq=False)
class SPDLogEuclidean(_Flat, _Matrices):
    """SPD(n) with ‖Log x − Log y‖_F; s = ⟨Log x − Log p, W⟩_F/‖W‖_F."""

    n: int

    def exp0(self, v: Float[Tensor, "*batch n n"]) -> Float[Tensor, "*batch n n"]:
        """expm of the symmetric part."""
        return expm(sym(v))

    def log0(self, x: Float[Tensor, "*batch n n"]) -> Float[Tensor, "*batch n n"]:
        """logm."""
        return logm(x)

    def _unflatten(self, v: Float[Tensor, "*batch m"]) -> Float[Tensor, "*batch n n"]:
        upper = self._upper(v[..., self.n :] / 2**0.5)
        return torch.diag_embed(v[..., : self.n]) + upper + upper.mT


@dataclass(frozen=True, eq=False)
class SPDLogCholesky(_Flat, _Matrices):
    """SPD(n) with φ(x) = strict lower part of L + log diag L, x = LLᵀ; directions W are lower triangular."""

    n: int

    def exp0(self, v: Float[Tensor, "*batch n n"]) -> Float[Tensor, "*batch n n"]:
        """LLᵀ with L the strict lower part of v plus exp of its diagonal."""
        lower = v.tril(-1) + torch.diag_embed(v.diagonal(dim1=-2, dim2=-1).exp())
        return lower @ lower.mT

    def log0(self, x: Float[Tensor, "*batch n n"]) -> Float[Tensor, "*batch n n"]:
        """φ."""
        lower = torch.linalg.cholesky(x)
        return lower.tril(-1) + torch.diag_embed(lower.diagonal(dim1=-2, dim2=-1).log())

    def _tangent(self, v: Tensor) -> Tensor:
        return v.tril()

    def _unflatten(self, v: Float[Tensor, "*batch m"]) -> Float[Tensor, "*batch n n"]:
        return torch.diag_embed(v[..., : self.n]) + self._upper(v[..., self.n :]).mT

"""What all the spaces share: the interface, the checks of points, and the layout of batches."""

from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from iclr_shared.errors import InputError

Norm = Literal["riemannian", "gyro"]
CHUNK_BYTES = 256 * 2**20
"""Largest intermediate of a batched call over samples and hyperplanes; classes are worked off in chunks of it."""


class SymmetricSpace:
    """A symmetric space X = G/K of noncompact type (or a flat space) with its base point o.

    Points are tensors of shape (..., *point_shape), tangent vectors at o of shape (..., *tangent_shape). A boundary
    point ξ, made by `boundary`, stands for K of them; what it is differs by space. All methods are batched,
    differentiable and keep dtype and device.
    """

    point_shape: tuple[int, ...]
    tangent_shape: tuple[int, ...]
    dim: int
    rank: int

    def origin(self, like: Tensor) -> Tensor:
        """The base point o, with dtype and device of `like`."""
        return self.exp0(like.new_zeros(self.tangent_shape))

    def exp0(self, v: Tensor) -> Tensor:
        """Exponential map at o: (..., *tangent_shape) to (..., *point_shape)."""
        raise NotImplementedError

    def log0(self, x: Tensor) -> Tensor:
        """Inverse of `exp0`."""
        raise NotImplementedError

    def dist(self, x: Tensor, y: Tensor) -> Tensor:
        """Riemannian distance of pairs; leading dimensions broadcast. Its gradient at x = y is 0."""
        raise NotImplementedError

    def transvect(self, p: Tensor, x: Tensor) -> Tensor:
        """⊖p⊕x = g_p⁻¹·x of pairs, where g_p is the chosen isometry with g_p·o = p; leading dimensions broadcast."""
        raise NotImplementedError

    def boundary(self, direction: Any) -> Any:
        """K boundary points from K directions at o, which are normalised."""
        raise NotImplementedError

    def busemann(self, x: Tensor, xi: Any) -> Tensor:
        """B_ξ(x) = lim d(x, γ_ξ(t)) − t for all pairs: (..., *point_shape) and K boundary points to (..., K)."""
        raise NotImplementedError

    def signed_distance(self, x: Tensor, xi: Any, p: Tensor, norm: Norm = "riemannian") -> Tensor:
        """s(x; ξ, p) = −B_ξ(⊖p⊕x) for all pairs: (..., *point_shape) and K hyperplanes to (..., K)."""
        raise NotImplementedError

    def iwasawa(self, v: Tensor) -> Tensor:
        """The point n·a·o whose first `rank` coordinates are A and the rest N: (..., dim) to (..., *point_shape)."""
        raise NotImplementedError

    def tangent_point(self, v: Tensor) -> Tensor:
        """The point of earlier layers' constructions, which have no inverse property: (..., dim) to a point."""
        raise NotImplementedError

    def project(self, x: Tensor) -> Tensor:
        """The nearest valid point, up to what the dtype resolves."""
        raise NotImplementedError

    def check(self, x: Tensor, what: str = "point") -> Tensor:
        """`x`, if it holds points of this space.

        Raises:
            InputError: naming the first bad one.
        """
        self._check_array(x, self.point_shape, what)
        return x

    def random(
        self, size: int, generator: torch.Generator, scale: float = 0.5, dtype: torch.dtype = torch.float64
    ) -> Tensor:
        """`size` points exp_o(scale · N(0, I)) (tangent coordinates; not uniform)."""
        v = torch.randn(size, *self.tangent_shape, generator=generator, dtype=dtype, device=generator.device)
        return self.exp0(self._tangent(scale * v))

    def random_boundary(self, size: int, generator: torch.Generator, dtype: torch.dtype = torch.float64) -> Any:
        """`size` random boundary points."""
        v = torch.randn(size, *self.tangent_shape, generator=generator, dtype=dtype, device=generator.device)
        return self.boundary(self._tangent(v))

    def _tangent(self, v: Tensor) -> Tensor:
        """A free array made a tangent vector at o."""
        return v

    def _directions(self, direction: Tensor) -> Tensor:
        """`direction`, if it holds K ≥ 1 arrays like tangent vectors."""
        n = len(self.tangent_shape)
        if direction.ndim != n + 1 or tuple(direction.shape[1:]) != self.tangent_shape or not len(direction):
            shape = ", ".join(map(str, self.tangent_shape))
            raise InputError(f"{self} needs directions (K, {shape}), K at least 1; got {tuple(direction.shape)}.")
        return direction

    def _check_array(self, x: Tensor, shape: tuple[int, ...], what: str) -> None:
        if x.dtype not in (torch.float32, torch.float64):
            raise InputError(f"{self} needs float32 or float64, but {what} is {_dtype(x)}; convert it.")
        n = len(shape)
        if x.ndim < n or tuple(x.shape[x.ndim - n :]) != shape:
            raise InputError(
                f"{self} holds points of shape {shape}, but {what} has shape {tuple(x.shape)}: "
                f"expected (..., {', '.join(map(str, shape))})."
            )
        if not bool(torch.isfinite(x).all()):
            flat = x.reshape(-1, x[0].numel() if x.ndim == n else max(1, _size(shape)))
            bad = int((~torch.isfinite(flat)).any(-1).nonzero()[0, 0])
            raise InputError(f"{what} {bad} holds NaN or infinite values; clean the features before this layer.")


def _size(shape: tuple[int, ...]) -> int:
    return int(torch.Size(shape).numel())


def _dtype(x: Tensor) -> str:
    return str(x.dtype).removeprefix("torch.")


def alike(x: Tensor, other: Tensor, what: str, whose: str) -> None:
    """Refuse tensors of another dtype or device than `whose`."""
    for mine, theirs in ((_dtype(x), _dtype(other)), (x.device, other.device)):
        if mine != theirs:
            raise InputError(f"{what} is {mine}, but {whose} {theirs}; convert one of them with .to(…).")


def only_riemannian(space: SymmetricSpace, norm: str) -> None:
    """Refuse the hyperbolic head's own norm elsewhere."""
    if norm != "riemannian":
        raise InputError(f"norm={norm!r} is defined for hyperbolic spaces only; {space} has 'riemannian'.")


def unit(direction: Float[Tensor, "k *shape"], what: str = "direction") -> Float[Tensor, "k *shape"]:
    """Directions divided by their Euclidean norms.

    Raises:
        InputError: if one is zero or not finite.
    """
    norms = direction.flatten(1).norm(dim=1)
    if not bool((norms > 0).all() & torch.isfinite(norms).all()):
        bad = int((~((norms > 0) & torch.isfinite(norms))).nonzero()[0, 0])
        state = "zero" if float(norms[bad]) == 0 else "not finite"
        raise InputError(f"{what} {bad} is {state}: a direction must be non-zero and finite.")
    return direction / norms.reshape(-1, *[1] * (direction.ndim - 1))


def vanish_at_points(
    s: Float[Tensor, "b k"], x: Float[Tensor, "b *shape"], p: Float[Tensor, "m *shape"]
) -> Float[Tensor, "b k"]:
    """`s` made exactly 0 where x equals p, its gradient untouched."""
    small = s.detach().abs() < torch.finfo(s.dtype).eps ** 0.5
    if not bool(small.any()):
        return s
    i, j = small.nonzero(as_tuple=True)
    equal = (x.detach()[i] == p.detach()[j % len(p)]).flatten(1).all(1)
    rounding = torch.zeros_like(s).index_put((i, j), s.detach()[i, j] * equal)
    return s - rounding

"""Hyperbolic space of curvature −c in three models: ball, hyperboloid, upper half space.

In all of them a boundary point is a unit vector u of the ball's sphere. With ℓ = (1, u) and Minkowski's product,
B_u(x) = log(−√c⟨x, ℓ⟩)/√c, and since ⟨g_p⁻¹x, ℓ⟩ = ⟨x, g_p ℓ⟩ with g_p ℓ = λ(1, u'), a hyperplane through p
costs what one through o does: **B_u(⊖p⊕x) = B_{u'}(x) + log(λ)/√c**. No array of samples × classes × dimensions is
needed.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from iclr_shared.errors import InputError
from iclr_symspaces.space import CHUNK_BYTES, Norm, SymmetricSpace, unit, vanish_at_points
from iclr_symspaces.symmetric import large_norm, safe_norm

Curvature = float | Tensor


def number(c: Curvature) -> float:
    """A curvature as a number, learned or not."""
    return float(c.detach()) if isinstance(c, Tensor) else float(c)


@dataclass(frozen=True, eq=False, repr=False)
class _Hyperbolic(SymmetricSpace):
    """What the models share.

    Args:
        d: dimension.
        c: minus the curvature, positive; a float, or a scalar tensor if it is learned.
    """

    d: int
    c: Curvature = 1.0

    rank = 1

    def __post_init__(self):
        if self.d < 1:
            raise InputError(f"{type(self).__name__} needs a dimension of at least 1, got {self.d}.")
        if not 0 < number(self.c) < float("inf"):
            raise InputError(f"{type(self).__name__} needs c > 0 (curvature −c), got {number(self.c)}.")

    def __repr__(self) -> str:
        return f"{type(self).__name__}(d={self.d}, c={number(self.c):g})"

    @property
    def dim(self) -> int:
        """Dimension of the manifold."""
        return self.d

    @property
    def tangent_shape(self) -> tuple[int, ...]:
        """Shape of a tangent vector at o."""
        return (self.d,)

    @property
    def root(self) -> Curvature:
        """√c."""
        return self.c**0.5

    def boundary(self, direction: Float[Tensor, "..."]) -> Float[Tensor, "k d"]:
        """Unit vectors, (K, d): the ends of the geodesics from o. Raises `InputError` for a zero direction."""
        return unit(self._directions(direction))

    def iwasawa(self, v: Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch e"]:
        """Height e^{√c v_1} and horizontal coordinates v_2 … of the upper half space, so that −B_∞ = v_1 exactly."""
        half = UpperHalf(self.d, self.c)
        return self.from_lorentz(half.to_lorentz(torch.cat([v[..., 1:], (self.root * v[..., :1]).exp()], -1)))

    def tangent_point(self, v: Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch e"]:
        """HNN++: w = sinh(√c v)/√c is the space part of the hyperboloid point (in the ball w/(1 + √(1 + c|w|²)))."""
        w = torch.sinh(self.root * v) / self.root
        return self.from_lorentz(Lorentz(self.d, self.c).lift(w))

    def to_lorentz(self, x: Tensor) -> Tensor:
        """The same points on the hyperboloid."""
        raise NotImplementedError

    def from_lorentz(self, x: Tensor) -> Tensor:
        """Points of the hyperboloid in this model."""
        raise NotImplementedError

    def convert(self, x: Tensor, target: "_Hyperbolic") -> Tensor:
        """The same points in another model.

        Raises:
            InputError: if dimensions or curvatures differ.
        """
        if self.d != target.d or number(self.c) != number(target.c):
            raise InputError(f"{self} and {target} are not models of the same space.")
        return target.from_lorentz(self.to_lorentz(x))


def gyro_factor(square: Float[Tensor, "*batch"], length: Float[Tensor, "*batch"]) -> Float[Tensor, "*batch"]:
    """2 artanh(r)/r from r² and 2 artanh(r): the ratio by which the official head stretches; series where r < 1e-4."""
    small = square < 1e-8
    r = torch.where(small, torch.ones_like(square), square).sqrt()
    return torch.where(small, 2 * (1 + square / 3 + square**2 / 5), length / r)


def _squared_distances(x: Float[Tensor, "b d"], y: Float[Tensor, "k d"]) -> Float[Tensor, "b k"]:
    """|x − y|² of all pairs by one matrix product; pairs that would lose digits are taken directly."""
    scale = x.square().sum(-1)[:, None] + y.square().sum(-1)[None]
    squares = scale - 2 * x @ y.T
    i, j = (squares.detach() < 1e-2 * scale.detach()).nonzero(as_tuple=True)
    if len(i):
        squares = squares.index_put((i, j), (x[i] - y[j]).square().sum(-1))
    return squares


class PoincareBall(_Hyperbolic):
    """The ball of radius 1/√c, metric 4|dx|²/(1 − c|x|²)²; exp_o(v) = tanh(√c|v|)·v/(√c|v|): d(o, exp_o v) = 2|v|."""

    @property
    def point_shape(self) -> tuple[int, ...]:
        """Shape of a point."""
        return (self.d,)

    def exp0(self, v: Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch d"]:
        """Exponential map at the centre."""
        norm = safe_norm((self.root * v).square().sum(-1, keepdim=True))
        ratio = torch.where(norm > 0, torch.tanh(norm) / torch.where(norm > 0, norm, torch.ones_like(norm)), 1.0)
        return self.project(ratio * v)

    def log0(self, x: Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch d"]:
        """Inverse of `exp0`."""
        z = self.root * x
        norm = safe_norm(z.square().sum(-1, keepdim=True))
        length = torch.asinh(norm * (-torch.log1p(-_inside(z)[..., None]) / 2).exp())  # artanh without 1 − |z|
        return torch.where(norm > 0, length / torch.where(norm > 0, norm, torch.ones_like(norm)), 1.0) * x

    def dist(self, x: Float[Tensor, "*b1 d"], y: Float[Tensor, "*b2 d"]) -> Float[Tensor, "*b3"]:
        """(2/√c) artanh|⊖x⊕y| as (2/√c) asinh(|x − y|/√((1 − |x|²)(1 − |y|²))), which serves near the boundary too."""
        x, y = self.root * x, self.root * y
        log_room = torch.log1p(-_inside(x)) + torch.log1p(-_inside(y))
        return 2 / self.root * torch.asinh(safe_norm((x - y).square().sum(-1)) * (-log_room / 2).exp())

    def transvect(self, p: Float[Tensor, "*b1 d"], x: Float[Tensor, "*b2 d"]) -> Float[Tensor, "*b3 d"]:
        """(−p)⊕x = ((1 − |p|²)δ − |δ|²p)/(|δ|² + (1 − |x|²)(1 − |p|²)), δ = x − p: exactly 0 at x = p."""
        return _mobius_minus(self.root * p, self.root * x) / self.root

    def mobius(self, p: Float[Tensor, "*b1 d"], x: Float[Tensor, "*b2 d"]) -> Float[Tensor, "*b3 d"]:
        """p⊕x."""
        return self.transvect(-p, x)

    def busemann(self, x: Float[Tensor, "*batch d"], xi: Float[Tensor, "k d"]) -> Float[Tensor, "*batch k"]:
        """B_u(x) = log(|u − z|²/(1 − |z|²))/√c with z = √c x."""
        z = (self.root * x).reshape(-1, self.d)
        return (_log_ratio(z, xi) / self.root).reshape(*x.shape[:-1], len(xi))

    def signed_distance(
        self, x: Float[Tensor, "*batch d"], xi: Float[Tensor, "k d"], p: Float[Tensor, "k d"], norm: Norm = "riemannian"
    ) -> Float[Tensor, "*batch k"]:
        """s = −B_u(⊖p⊕x); "gyro": times 2 artanh(r)/r, r = |⊖p⊕x| (official head; for c ≠ 1 an extension)."""
        z, q = (self.root * x).reshape(-1, self.d), self.root * p
        room = torch.log1p(-_inside(q))
        along = (q * xi).sum(-1, keepdim=True)
        turned = unit(2 * (1 + along) * q + room.exp()[:, None] * xi, "transported direction")
        b = _log_ratio(z, turned) + ((xi + q).square().sum(-1).log() - room)
        small = b.detach().abs() < torch.finfo(b.dtype).eps ** 0.5
        if bool(small.any()):
            i, j = small.nonzero(as_tuple=True)
            y = _mobius_minus(q[j], z[i])
            square = y.square().sum(-1)
            near = torch.log1p(square - 2 * (y * xi[j]).sum(-1)) - torch.log1p(-square)
            b = b.index_put((i, j), torch.where(square.detach() < 1e-2, near, b[i, j]))
        if norm == "gyro":
            apart, inner = _squared_distances(z, q), torch.log1p(-_inside(z))[:, None] + room[None]
            length = 2 * torch.asinh(safe_norm(apart) * (-inner / 2).exp())
            b = b * gyro_factor(apart / (apart + inner.exp()), length)
        return (-b / self.root).reshape(*x.shape[:-1], len(xi))

    def to_lorentz(self, x: Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch e"]:
        """(1 + |z|², 2z)/(√c(1 − |z|²))."""
        z = self.root * x
        square = z.square().sum(-1, keepdim=True)
        return torch.cat([1 + square, 2 * z], -1) / (self.root * torch.log1p(-_inside(z)[..., None]).exp())

    def from_lorentz(self, x: Float[Tensor, "*batch e"]) -> Float[Tensor, "*batch d"]:
        """z = x_s/(1 + x₀) in units of 1/√c."""
        return self.project(x[..., 1:] / (1 + self.root * x[..., :1]))

    def project(self, x: Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch d"]:
        """Points outside are drawn back to |z| = 1 − 4 eps of the dtype."""
        largest = 1 - 4 * torch.finfo(x.dtype).eps
        norm = safe_norm((self.root * x).square().sum(-1, keepdim=True))
        return torch.where(norm > largest, x * (largest / norm.clamp_min(largest)), x)

    def check(self, x: Float[Tensor, "..."], what: str = "point") -> Float[Tensor, "..."]:
        """`x`, if all points lie in the ball. Raises `InputError` naming the first that does not, and its norm."""
        self._check_array(x, self.point_shape, what)
        norms = (self.root * x.detach()).reshape(-1, self.d).norm(dim=-1)
        if bool((norms >= 1).any()):
            bad = int((norms >= 1).nonzero()[0, 0])
            raise InputError(
                f"{what} {bad} lies outside the ball: √c·norm is {float(norms[bad]):.8g}, it must be below 1. "
                "Use .project(x), or .exp0(v) for Euclidean features."
            )
        return x


class Lorentz(_Hyperbolic):
    """The hyperboloid −x₀² + |x_s|² = −1/c, x₀ > 0; points are (x₀, x_s)."""

    @property
    def point_shape(self) -> tuple[int, ...]:
        """Shape of a point."""
        return (self.d + 1,)

    def lift(self, space: Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch e"]:
        """The point with space part x_s."""
        one = torch.ones_like(space[..., :1]) / self.root
        return torch.cat([large_norm(torch.cat([one, space], -1)), space], -1)

    def exp0(self, v: Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch e"]:
        """(cosh √c|v|, sinh(√c|v|) v/|v|)/√c; d(o, exp_o v) = |v|."""
        norm = safe_norm((self.root * v).square().sum(-1, keepdim=True))
        ratio = torch.where(norm > 0, torch.sinh(norm) / torch.where(norm > 0, norm, torch.ones_like(norm)), 1.0)
        return torch.cat([torch.cosh(norm) / self.root, ratio * v], -1)

    def log0(self, x: Float[Tensor, "*batch e"]) -> Float[Tensor, "*batch d"]:
        """Inverse of `exp0`."""
        space = x[..., 1:]
        norm = safe_norm((self.root * space).square().sum(-1, keepdim=True))
        return (
            torch.where(norm > 0, torch.asinh(norm) / torch.where(norm > 0, norm, torch.ones_like(norm)), 1.0) * space
        )

    def dist(self, x: Float[Tensor, "*b1 e"], y: Float[Tensor, "*b2 e"]) -> Float[Tensor, "*b3"]:
        """(2/√c) asinh(√c q^{1/2}/2), q = −2⟨x, y⟩ − 2/c.

        With δ = x_s − y_s and δ⊥ its part across the shorter of the two, s, nothing cancels in
        q = 2(|δ|²/c + |s|²|δ⊥|²)/(1/c + x₀y₀ + x_s·y_s); where x_s·y_s < −1/c, q = 2(x₀y₀ − 1/c) − 2 x_s·y_s serves.
        """
        (a, u), (b, v) = ((z[..., :1], z[..., 1:]) for z in torch.broadcast_tensors(x, y))
        short = torch.where(a <= b, u, v)
        size = safe_norm(short.square().sum(-1, keepdim=True))
        along = short / torch.where(size > 0, size, torch.ones_like(size))
        apart = u - v
        across = size * (apart - (apart * along).sum(-1, keepdim=True) * along)
        inner, times = (u * v).sum(-1), (a * b)[..., 0]
        behind = inner < -1 / self.c
        below = torch.where(behind, torch.ones_like(inner), 1 / self.c + times + inner)
        square = torch.where(
            behind,
            2 * (times - 1 / self.c) - 2 * inner,
            2 * (apart.square().sum(-1) / self.c + across.square().sum(-1)) / below,
        )
        return 2 / self.root * torch.asinh(self.root * safe_norm(square) / 2)

    def transvect(self, p: Float[Tensor, "*b1 e"], x: Float[Tensor, "*b2 e"]) -> Float[Tensor, "*b3 e"]:
        """The boost that takes p to o, applied to x."""
        p, x = torch.broadcast_tensors(self.root * p, self.root * x)
        size = safe_norm(p[..., 1:].square().sum(-1, keepdim=True))
        axis = p[..., 1:] / torch.where(size > 0, size, torch.ones_like(size))
        apart = x[..., 1:] - p[..., 1:]
        ahead, reach = (apart * axis).sum(-1, keepdim=True), (x[..., 1:] * axis).sum(-1, keepdim=True)
        across = apart - ahead * axis
        # along the axis p₀ r − |p_s| x₀, r = x_s·p_s/|p_s|: where both are positive, from the difference of squares
        same = reach > 0
        total = torch.where(same, p[..., :1] * reach + size * x[..., :1], torch.ones_like(size))
        squares = ahead * (reach + size) - (size * across).square().sum(-1, keepdim=True)
        along = torch.where(same, squares / total, p[..., :1] * reach - size * x[..., :1])
        return self.lift((across + along * axis) / self.root)

    def busemann(self, x: Float[Tensor, "*batch e"], xi: Float[Tensor, "k d"]) -> Float[Tensor, "*batch k"]:
        """B_u(x) = log(√c(x₀ − u·x_s))/√c, without cancellation far out in the direction of u."""
        flat = (self.root * x).reshape(-1, self.d + 1)
        return (_light(flat, xi).log() / self.root).reshape(*x.shape[:-1], len(xi))

    def signed_distance(
        self, x: Float[Tensor, "*batch e"], xi: Float[Tensor, "k d"], p: Float[Tensor, "k e"], norm: Norm = "riemannian"
    ) -> Float[Tensor, "*batch k"]:
        """s = −B_u(⊖p⊕x), equal to the ball's value."""
        flat = x.reshape(-1, self.d + 1)
        turned, log_scale = _transport(self.root * p, xi)
        s = -(self.busemann(flat, turned) + log_scale / self.root)
        s = vanish_at_points(s, flat, p)
        return _stretched(self, s, flat, p, norm).reshape(*x.shape[:-1], len(xi))

    def to_lorentz(self, x: Float[Tensor, "*batch e"]) -> Float[Tensor, "*batch e"]:
        """`x` itself."""
        return x

    def from_lorentz(self, x: Float[Tensor, "*batch e"]) -> Float[Tensor, "*batch e"]:
        """`x` itself."""
        return x

    def project(self, x: Float[Tensor, "*batch e"]) -> Float[Tensor, "*batch e"]:
        """The space part kept, the time part recomputed."""
        return self.lift(x[..., 1:])

    def check(self, x: Float[Tensor, "..."], what: str = "point") -> Float[Tensor, "..."]:
        """`x`, if all points lie on the hyperboloid. Raises `InputError` naming the first that does not."""
        self._check_array(x, self.point_shape, what)
        flat = (self.root * x.detach()).reshape(-1, self.d + 1)
        product = flat[:, 1:].square().sum(-1) - flat[:, 0].square()
        size = 1 + flat.square().sum(-1)
        _not_too_far(size, self, what)
        off = (product + 1).abs() > max(1e-6, 1e3 * torch.finfo(x.dtype).eps) * size
        off |= flat[:, 0] <= 0
        if bool(off.any()):
            bad = int(off.nonzero()[0, 0])
            raise InputError(
                f"{what} {bad} is not on the hyperboloid: c(−x₀² + |x_s|²) is {float(product[bad]):.8g}, "
                "it must be −1 with x₀ > 0. Use .project(x)."
            )
        return x


class UpperHalf(_Hyperbolic):
    """Points (v, t), t > 0, with the metric (|dv|² + dt²)/(c t²); o = (0, 1); the ideal point ∞ is u = (0, …, 0, 1)."""

    @property
    def point_shape(self) -> tuple[int, ...]:
        """Shape of a point."""
        return (self.d,)

    def exp0(self, v: Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch d"]:
        """Exponential map at o, in the directions of the ball's coordinates; d(o, exp_o v) = |v|."""
        return self.from_lorentz(Lorentz(self.d, self.c).exp0(v))

    def log0(self, x: Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch d"]:
        """Inverse of `exp0`."""
        return Lorentz(self.d, self.c).log0(self.to_lorentz(x))

    def dist(self, x: Float[Tensor, "*b1 d"], y: Float[Tensor, "*b2 d"]) -> Float[Tensor, "*b3"]:
        """(2/√c) asinh(|x − y|/(2√(t_x t_y)))."""
        apart = safe_norm((x - y).square().sum(-1))
        return 2 / self.root * torch.asinh(apart / (2 * x[..., -1].sqrt() * y[..., -1].sqrt()))

    def transvect(self, p: Float[Tensor, "*b1 d"], x: Float[Tensor, "*b2 d"]) -> Float[Tensor, "*b3 d"]:
        """The same isometry as in the other models."""
        return self.from_lorentz(Lorentz(self.d, self.c).transvect(self.to_lorentz(p), self.to_lorentz(x)))

    def busemann(self, x: Float[Tensor, "*batch d"], xi: Float[Tensor, "k d"]) -> Float[Tensor, "*batch k"]:
        """B_u(x) = log((|b v − u'|²/b + b t²)/(2t))/√c, u = (u', 1 − b); at u = ∞, b = 0: −log(t)/√c."""
        flat = x.reshape(-1, self.d)
        v, t, side = flat[:, :-1], flat[:, -1:], xi[:, :-1]
        north = xi[:, -1] > 0
        square = side.square().sum(-1)
        b = torch.where(north, square / torch.where(north, 1 + xi[:, -1], torch.ones_like(square)), 1 - xi[:, -1])
        top = b < torch.finfo(x.dtype).eps ** 2
        safe = torch.where(top, torch.ones_like(b), b)
        scaled = v[:, None, :] * safe[:, None] - side
        ground = torch.where(top, 2 - b - 2 * v @ side.T, scaled.square().sum(-1) / safe)
        value = ((ground + b * t.square()) / (2 * t)).log() / self.root
        return value.reshape(*x.shape[:-1], len(xi))

    def signed_distance(
        self, x: Float[Tensor, "*batch d"], xi: Float[Tensor, "k d"], p: Float[Tensor, "k d"], norm: Norm = "riemannian"
    ) -> Float[Tensor, "*batch k"]:
        """s = −B_u(⊖p⊕x), equal to the ball's value."""
        flat = x.reshape(-1, self.d)
        turned, log_scale = _transport(self.root * self.to_lorentz(p), xi)
        s = vanish_at_points(-(self.busemann(flat, turned) + log_scale / self.root), flat, p)
        return _stretched(self, s, flat, p, norm).reshape(*x.shape[:-1], len(xi))

    def to_lorentz(self, x: Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch e"]:
        """Cayley map: x₀ = (1 + |v|² + t²)/(2t), x_last = (|v|² + t² − 1)/(2t), the others v/t, all over √c."""
        t, square = x[..., -1:], x.square().sum(-1, keepdim=True)
        return torch.cat([(1 + square) / 2, x[..., :-1], (square - 1) / 2], -1) / (t * self.root)

    def from_lorentz(self, x: Float[Tensor, "*batch e"]) -> Float[Tensor, "*batch d"]:
        """t = 1/(x₀ − x_last) and v = t·x_others, in units of 1/√c."""
        x = self.root * x
        side, last = x[..., 1:-1], x[..., -1:]
        up = last > 0
        total = torch.where(up, x[..., :1] + last, torch.ones_like(last))
        t = torch.where(up, total / (1 + side.square().sum(-1, keepdim=True)), 1 / (x[..., :1] - last.clamp_max(0)))
        return torch.cat([side * t, t], -1)

    def project(self, x: Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch d"]:
        """Heights raised to where the point's hyperboloid coordinates can still be squared in the dtype."""
        least = 4 * torch.finfo(x.dtype).tiny ** 0.5 * (1 + x[..., :-1].square().sum(-1, keepdim=True))
        return torch.cat([x[..., :-1], torch.maximum(x[..., -1:], least)], -1)

    def check(self, x: Float[Tensor, "..."], what: str = "point") -> Float[Tensor, "..."]:
        """`x`, if all heights are positive. Raises `InputError` naming the first that is not."""
        self._check_array(x, self.point_shape, what)
        heights = x.detach().reshape(-1, self.d)[:, -1]
        if bool((heights <= 0).any()):
            bad = int((heights <= 0).nonzero()[0, 0])
            raise InputError(f"{what} {bad} has height t = {float(heights[bad]):.8g}; it must be positive.")
        flat = x.detach().reshape(-1, self.d)
        _not_too_far((flat.square().sum(-1) / flat[:, -1]).square() + 1 / heights.square(), self, what)
        return x


def _not_too_far(sizes: Float[Tensor, "*batch"], space: _Hyperbolic, what: str) -> None:
    """Refuse points whose coordinates on the hyperboloid cannot be squared in the dtype."""
    if not bool(torch.isfinite(sizes).all()):
        bad = int((~torch.isfinite(sizes)).nonzero()[0, 0])
        raise InputError(
            f"{what} {bad} of {space} is too far from o for {str(sizes.dtype).removeprefix('torch.')}; "
            "use float64, or scale the features down."
        )


def _inside(z: Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch"]:
    """|z|², kept below 1 by what the dtype resolves."""
    return z.square().sum(-1).clamp_max(1 - torch.finfo(z.dtype).eps)


def _log_ratio(z: Float[Tensor, "b d"], u: Float[Tensor, "k d"]) -> Float[Tensor, "b k"]:
    """log(|u − z|²/(1 − |z|²)) of all pairs."""
    squares = _squared_distances(z, u).clamp_min(torch.finfo(z.dtype).eps ** 2 / 16)
    return squares.log() - torch.log1p(-_inside(z))[:, None]


def _mobius_minus(p: Float[Tensor, "*b1 d"], x: Float[Tensor, "*b2 d"]) -> Float[Tensor, "*b3 d"]:
    """(−p)⊕x for c = 1, from the difference."""
    apart = x - p
    square = apart.square().sum(-1, keepdim=True)
    room = 1 - p.square().sum(-1, keepdim=True)
    return (room * apart - square * p) / (square + (1 - x.square().sum(-1, keepdim=True)) * room)


def _light(x: Float[Tensor, "b e"], u: Float[Tensor, "k d"]) -> Float[Tensor, "b k"]:
    """x₀ − u·x_s, c = 1; where u·x_s > 0 as (1 + |x_s − (u·x_s)u|²)/(x₀ + u·x_s). In chunks of classes."""
    size = max(1, CHUNK_BYTES // (x.element_size() * max(1, x[:, 1:].numel())))
    return torch.cat([_light_chunk(x, part) for part in u.split(size)], -1)


def _light_chunk(x: Float[Tensor, "b e"], u: Float[Tensor, "k d"]) -> Float[Tensor, "b k"]:
    time, space = x[:, :1], x[:, 1:]
    along = space @ u.T
    aside = (space[:, None] - along[..., None] * u).square().sum(-1)
    toward = along > 0
    return torch.where(toward, (1 + aside) / (time + along.clamp_min(0)), time - along.clamp_max(0))


def _transport(p: Float[Tensor, "k e"], u: Float[Tensor, "k d"]) -> tuple[Float[Tensor, "k d"], Float[Tensor, "k"]]:
    """u' and log λ with g_p(1, u) = λ(1, u'), g_p the boost that takes o to p, on the unit hyperboloid."""
    time, space = p[:, :1], p[:, 1:]
    along = (space * u).sum(-1, keepdim=True)
    backward = along < 0
    aside = (space - along * u).square().sum(-1, keepdim=True)
    scale = torch.where(backward, (1 + aside) / (time - along.clamp_max(0)), time + along.clamp_min(0))
    return unit(u + space * (1 + along / (1 + time)), "transported direction"), scale[:, 0].log()


def _stretched(
    space: _Hyperbolic, s: Float[Tensor, "b k"], x: Float[Tensor, "b e"], p: Float[Tensor, "k e"], norm: Norm
) -> Float[Tensor, "b k"]:
    if norm == "riemannian":
        return s
    length = space.root * space.dist(x[:, None], p[None])
    return s * gyro_factor(torch.tanh(length / 2).square(), length)

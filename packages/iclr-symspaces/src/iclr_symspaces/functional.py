"""The unified point-to-hyperplane distance as a function, with its arguments checked."""

from typing import Any

from torch import Tensor

from iclr_shared.errors import InputError
from iclr_symspaces.product import Product, ProductBoundary
from iclr_symspaces.space import Norm, SymmetricSpace, alike
from iclr_symspaces.spd import SPD, Flag


def signed_distance(manifold: SymmetricSpace, x: Tensor, xi: Any, p: Tensor, norm: Norm = "riemannian") -> Tensor:
    """s(x; ξ, p) = −B_ξ(⊖p⊕x): signed distance to the hyperplane through p with normal ξ (Nguyen et al., ICLR 2025).

    Its absolute value is the distance to H = {y : B_ξ(⊖p⊕y) = 0}, since |∇B| = 1 and the level sets are equidistant.

    Args:
        manifold: the space.
        x: points, (..., *point_shape).
        xi: K boundary points, from `manifold.boundary`.
        p: K points, (K, *point_shape); a single one may serve all.
        norm: "riemannian" is the distance; "gyro" (hyperbolic spaces) multiplies it by 2 artanh(r)/r, as the
            official head.

    Returns:
        (..., K), in the metric's units; exactly 0 where x = p.

    Raises:
        InputError: if x or p are no points of the space, naming the first bad one, or sizes or dtypes differ.
    """
    if norm not in ("riemannian", "gyro"):
        raise InputError(f"norm must be 'riemannian' or 'gyro', got {norm!r}.")
    count = _count(manifold, xi, x)
    if p.ndim != 1 + len(manifold.point_shape) or len(p) not in (1, count):
        shape = ", ".join(map(str, manifold.point_shape))
        raise InputError(f"p must have shape ({count}, {shape}), a point for each direction; got {tuple(p.shape)}.")
    alike(p, x, "p", "x is")
    x, p = manifold.check(x), manifold.check(p, "hyperplane point")
    return manifold.signed_distance(x, xi, p.expand(count, *p.shape[1:]) if _spread(xi, p) else p, norm)


def busemann(manifold: SymmetricSpace, x: Tensor, xi: Any) -> Tensor:
    """B_ξ(x), the checked form of `manifold.busemann`: (..., *point_shape) and K boundary points to (..., K)."""
    _count(manifold, xi, x)
    return manifold.busemann(manifold.check(x), xi)


def _spread(xi: Any, p: Tensor) -> bool:
    """Whether a single point is to be repeated: only a flag shared by all keeps it single."""
    return len(p) == 1 and not (isinstance(xi, Flag) and len(xi.k) == 1)


def _count(manifold: SymmetricSpace, xi: Any, x: Tensor) -> int:
    """K, of boundary points that are this space's."""
    kind = Flag if isinstance(manifold, SPD) else ProductBoundary if isinstance(manifold, Product) else Tensor
    if not isinstance(xi, kind):
        raise InputError(f"xi is no boundary point of {manifold}; make it with .boundary(…).")
    values = xi.a if isinstance(xi, Flag) else xi.weights if isinstance(xi, ProductBoundary) else xi
    if kind is Tensor and (xi.ndim != 1 + len(manifold.tangent_shape) or xi.shape[1:] != manifold.tangent_shape):
        shape = ", ".join(map(str, manifold.tangent_shape))
        raise InputError(f"xi of {manifold} must have shape (K, {shape}), got {tuple(xi.shape)}.")
    alike(values, x, "xi", "x is")
    return len(values)

"""Classifiers whose logits are signed distances to hyperplanes: the paper's, and the geodesic one of earlier work."""

from typing import Any

import torch
from torch import Tensor, nn

from iclr_shared.errors import InputError
from iclr_symspaces.flat import Euclidean, SPDLogCholesky, SPDLogEuclidean
from iclr_symspaces.hyperbolic import Lorentz, PoincareBall, UpperHalf
from iclr_symspaces.hyperplanes import Hyperplanes
from iclr_symspaces.product import Product
from iclr_symspaces.space import SymmetricSpace, alike, unit, vanish_at_points
from iclr_symspaces.spd import SPD
from iclr_symspaces.symmetric import large_norm, logm


class _Head(nn.Module):
    """Hyperplanes, a positive scale for each class if wanted, and Euclidean features lifted first if wanted."""

    def __init__(
        self,
        space: SymmetricSpace,
        classes: int,
        generator: torch.Generator,
        *,
        scale: bool = False,
        clip: float | None = None,
        **options: Any,
    ):
        super().__init__()
        if classes < 2:
            raise InputError(f"A classifier needs at least 2 classes, got {classes}.")
        if clip is not None and len(space.tangent_shape) != 1:
            raise InputError(f"clip takes features as vectors; leave it None for {space}.")
        if clip is not None and not 0 < clip < float("inf"):
            raise InputError(f"clip must be a positive finite norm, or None for points; got {clip}.")
        self.hyperplanes = Hyperplanes(space, classes, generator, **options)
        first = next(self.hyperplanes.parameters())
        self.log_scale = nn.Parameter(torch.zeros(classes, dtype=first.dtype, device=first.device)) if scale else None
        self.clip = clip

    @property
    def space(self) -> SymmetricSpace:
        """Where the points lie."""
        return self.hyperplanes.space

    def lift(self, features: Tensor) -> Tensor:
        """exp_o of features (..., d) whose norms are cut at `clip` (with 1.0 the points keep within tanh 1 = 0.7616).

        Raises:
            InputError: if features hold NaN, naming the first row, or have another size or dtype than the layer.
        """
        size, first = self.space.tangent_shape[0], next(self.parameters())
        if not features.ndim or features.shape[-1] != size:
            raise InputError(f"{self.space} takes features of shape (..., {size}), got {tuple(features.shape)}.")
        alike(features, first, "the tensor of features", "the layer's parameters are")
        bad = ~torch.isfinite(features.detach()).reshape(-1, size).all(-1)
        if bool(bad.any()):
            raise InputError(
                f"features {int(bad.nonzero()[0, 0])} hold NaN or infinite values; clean them before this layer."
            )
        norm = large_norm(features)
        return self.space.exp0(features * (self.clip / norm.clamp_min(self.clip)))

    def forward(self, x: Tensor) -> Tensor:
        """Logits: points (..., *point_shape), or features (..., d) if `clip` is set, to (..., classes)."""
        s = self._distances(x if self.clip is None else self.lift(x))
        return s if self.log_scale is None else s * self.log_scale.exp()

    def extra_repr(self) -> str:
        """For `print`."""
        return f"scale={self.log_scale is not None}, clip={self.clip}"

    def _distances(self, x: Tensor) -> Tensor:
        raise NotImplementedError


class BusemannMLR(_Head):
    """Multinomial logistic regression with logits s(x; ξ_c, p_c) = −B_{ξ_c}(⊖p_c⊕x).

    Args:
        space: of the points.
        classes: K.
        generator: source of the initial values.
        scale: multiply each class by a learned exp(g_c).
        clip: accept Euclidean features: cut their norms at this and map them by exp_o. The official head has 1.0.
        **options: of `Hyperplanes`: norm, parametrization, directions, shared_flag, learn_curvature, validate,
            dtype, device.

    Raises:
        InputError: for options that do not fit.
    """

    def _distances(self, x: Tensor) -> Tensor:
        return self.hyperplanes(x)


class GeodesicMLR(_Head):
    """The baseline: logits are signed distances to totally geodesic hyperplanes (hyperbolic spaces), asinh(…)/√c.

    For SPD the gyrovector hyperplanes of earlier work: ⟨Log(P^{-1/2}XP^{-1/2}), W⟩_F with ‖W‖_F = 1. For flat spaces
    both heads agree. Arguments as of `BusemannMLR`; SPD needs directions="symmetric".
    """

    def __init__(self, space: SymmetricSpace, classes: int, generator: torch.Generator, **options: Any):
        if isinstance(space, SPD):
            options = {"directions": "symmetric"} | options
            if options["directions"] != "symmetric" or space.beta:
                raise InputError("GeodesicMLR on SPD needs directions='symmetric' and beta = 0.")
        if isinstance(space, Product):
            raise InputError(f"GeodesicMLR knows hyperbolic, SPD and flat spaces, not {space}.")
        if options.get("norm", "riemannian") != "riemannian":
            raise InputError("norm='gyro' belongs to the Busemann head.")
        super().__init__(space, classes, generator, **options)

    def _distances(self, x: Tensor) -> Tensor:
        planes = self.hyperplanes
        space, p = planes.space, planes.points()
        if planes.validate:
            x = space.check(x)
            alike(x, planes.frame, "the input", "the layer's parameters are")
        return geodesic_distance(space, x, planes.frame, p)


def geodesic_distance(space: SymmetricSpace, x: Tensor, direction: Tensor, p: Tensor) -> Tensor:
    """Signed distance to the geodesic hyperplane through p with the normal that the transvection carries from o.

    Ball: asinh(2√c⟨y, u⟩/(1 − c|y|²))/√c, y = ⊖p⊕x; Lorentz: asinh(√c⟨y_s, u⟩)/√c.

    Args:
        space: hyperbolic, SPD or flat.
        x: (..., *point_shape).
        direction: (K, *tangent_shape).
        p: (K, *point_shape).

    Returns:
        (..., K).
    """
    n = len(space.point_shape)
    flat = x.reshape(-1, *space.point_shape)
    w = unit(space._tangent(direction))
    if isinstance(space, PoincareBall | UpperHalf):
        model = Lorentz(space.d, space.c)
        return geodesic_distance(model, space.to_lorentz(x), w, space.to_lorentz(p))
    if isinstance(space, Lorentz):
        # ⟨g_p⁻¹x, (0, u)⟩ = ⟨x, g_p(0, u)⟩: two matrix products instead of K transvections
        q = space.root * p
        along = (q[:, 1:] * w).sum(-1, keepdim=True)
        normal = torch.cat([-along, w + q[:, 1:] * along / (1 + q[:, :1])], -1)
        s = torch.asinh(space.root * flat @ normal.T) / space.root
        s = vanish_at_points(s, flat, p)
    elif isinstance(space, SPD):
        logs = logm(space.transvect(p, flat[:, None]))
        s = (logs * w).sum((-1, -2)) * space.alpha**0.5
    elif isinstance(space, Euclidean | SPDLogEuclidean | SPDLogCholesky):
        s = space.signed_distance(flat, w, p)
    else:
        raise InputError(f"GeodesicMLR knows hyperbolic, SPD and flat spaces, not {space}.")
    return s.reshape(*x.shape[: x.ndim - n], len(w))

"""K hyperplanes (ξ_c, p_c) of a symmetric space as trainable parameters."""

from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from iclr_shared.errors import InputError
from iclr_symspaces.hyperbolic import _Hyperbolic, number
from iclr_symspaces.product import Product
from iclr_symspaces.space import Norm, SymmetricSpace, alike
from iclr_symspaces.spd import SPD, orthogonal
from iclr_symspaces.symmetric import expm, sym

Parametrization = Literal["tangent", "riemannian"]
Directions = Literal["flag", "symmetric"]
START = 1e-3
"""Standard deviation of tangent vectors at the start (official code: lib/poincare/layers/PMLR.py)."""


class Hyperplanes(nn.Module):
    """K points p_c and K boundary points ξ_c; `forward` gives the signed distances of points to them.

    Points start at exp_o(1e-3 · N(0, I)), directions of vector spaces at 1e-3 · N(0, I) (only their direction
    counts), flags of SPD at k Haar, a = sort(N(0, I)) normalised.

    Args:
        space: where the hyperplanes lie.
        count: K.
        generator: source of the initial values.
        norm: "riemannian" (the distance) or "gyro" (hyperbolic; the official head).
        parametrization: "tangent" stores p as a vector at o and free directions, for any optimiser; "riemannian" stores
            geoopt manifold parameters (ball, Lorentz, SPD, Euclidean), for `iclr_symspaces.riemannian.optimizer`.
        directions: SPD: "flag" learns k (by QR) and a; "symmetric" learns W = k diag(a) kᵀ, whose gradient needs
            distinct eigenvalues.
        shared_flag: SPD: one k and one p for all K; log D is then computed once per sample.
        learn_curvature: hyperbolic: learn log c.
        validate: check the points of every batch (costs a Cholesky factorisation of each SPD matrix).
        dtype: of the parameters.
        device: of the parameters.

    Raises:
        InputError: for options that do not fit the space.
    """

    def __init__(
        self,
        space: SymmetricSpace,
        count: int,
        generator: torch.Generator,
        *,
        norm: Norm = "riemannian",
        parametrization: Parametrization = "tangent",
        directions: Directions = "flag",
        shared_flag: bool = False,
        learn_curvature: bool = False,
        validate: bool = True,
        dtype: torch.dtype = torch.float64,
        device: torch.device | str = "cpu",
    ):
        super().__init__()
        if count < 1:
            raise InputError(f"A layer needs at least one hyperplane, got {count}.")
        _check_options(space, norm, parametrization, directions, shared_flag, learn_curvature)
        self._space, self.count, self.norm, self.validate = space, count, norm, validate
        self.parametrization, self.directions = parametrization, directions
        self.log_c = None
        if learn_curvature:
            self.log_c = nn.Parameter(torch.tensor(number(space.c), dtype=dtype, device=device).log())

        def normal(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator, dtype=dtype, device=generator.device).to(device)

        points = 1 if shared_flag else count
        if isinstance(space, Product):
            options = {"norm": norm, "parametrization": parametrization, "directions": directions, "validate": False}
            self.factors = nn.ModuleList(
                Hyperplanes(f, count, generator, **options, dtype=dtype, device=device) for f in space.factors
            )
            self.weights = nn.Parameter(1 + 0.1 * normal(count, len(space.factors)))
            return
        start = space._tangent(START * normal(points, *space.tangent_shape))
        if isinstance(space, SPD) and directions == "flag":
            frame, spectrum = normal(points, space.n, space.n), normal(count, space.n).sort(-1, descending=True).values
            self.spectrum = nn.Parameter(spectrum)
        else:
            frame = START * normal(count, *space.tangent_shape)
        if parametrization == "tangent":
            self.point, self.frame = nn.Parameter(start), nn.Parameter(frame)
            return
        from iclr_symspaces import riemannian

        self.point = riemannian.point_parameter(space, space.exp0(start))
        if isinstance(space, SPD):
            self.frame = riemannian.orthogonal_parameter(orthogonal(frame))
        else:
            self.frame = riemannian.sphere_parameter(space.boundary(frame))

    @property
    def space(self) -> SymmetricSpace:
        """The space, with the curvature as it is now."""
        return self._space if self.log_c is None else replace(self._space, c=self.log_c.exp())

    def points(self) -> Tensor:
        """p: (K, *point_shape), or one where the flag is shared."""
        if isinstance(self._space, Product):
            return self._space.join([factor.points() for factor in self.factors])
        if self.parametrization == "tangent":
            return self.space.exp0(self.point)
        # Steps of geoopt drift off the hyperboloid; SPD matrices stay positive but lose symmetry in the last digits.
        return sym(self.point) if isinstance(self._space, SPD) else self._space.project(self.point)

    def boundary(self) -> Any:
        """ξ, normalised."""
        if isinstance(self._space, Product):
            return self._space.combine([f.boundary() for f in self.factors], self.weights)
        if isinstance(self._space, SPD) and self.directions == "flag":
            return self._flag()
        return self.space.boundary(self.frame)

    def _flag(self) -> Any:
        k, a = orthogonal(self.frame) if self.parametrization == "tangent" else self.frame, self.spectrum
        if len(k) < len(a):
            a = a.sort(-1, descending=True).values  # one k for all: each class orders its own a
        return self._space.sorted_flag(k, a)

    def forward(self, x: Tensor) -> Tensor:
        """Signed distances: (..., *point_shape) to (..., K)."""
        space = self.space
        if self.validate:
            x = space.check(x)
            alike(x, next(self.parameters()), "the input", "the layer's parameters are")
        if not isinstance(space, SPD) or space.transvection != "symmetric" or self.parametrization != "tangent":
            return space.signed_distance(x, self.boundary(), self.points(), self.norm)
        with torch.no_grad():
            p = self.points()
        return space.signed_distance(x, self.boundary(), p, self.norm, to_origin=expm(-sym(self.point) / 2))

    def extra_repr(self) -> str:
        """For `print`."""
        return f"{self._space}, count={self.count}, norm={self.norm}, parametrization={self.parametrization}"


def _check_options(
    space: SymmetricSpace, norm: str, parametrization: str, directions: str, shared_flag: bool, learn_curvature: bool
) -> None:
    choices = {"norm": (norm, ("riemannian", "gyro")), "parametrization": (parametrization, ("tangent", "riemannian"))}
    choices["directions"] = directions, ("flag", "symmetric")
    for name, (value, allowed) in choices.items():
        if value not in allowed:
            raise InputError(f"{name} must be one of {', '.join(allowed)}, got {value!r}.")
    if norm == "gyro" and not isinstance(space, _Hyperbolic):
        raise InputError(f"norm='gyro' is defined for hyperbolic spaces only, not for {space}.")
    if shared_flag and not (isinstance(space, SPD) and directions == "flag"):
        raise InputError("shared_flag needs SPD and directions='flag'.")
    if learn_curvature and not isinstance(space, _Hyperbolic):
        raise InputError(f"learn_curvature is for hyperbolic spaces; {space} has no curvature to learn.")
    if learn_curvature and parametrization == "riemannian":
        raise InputError(
            "learn_curvature needs parametrization='tangent': geoopt's points would leave a ball that shrinks."
        )
    if parametrization == "riemannian" and directions == "symmetric":
        raise InputError("parametrization='riemannian' learns flags: use directions='flag'.")

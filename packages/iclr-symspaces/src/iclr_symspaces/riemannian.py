"""Parameters on manifolds and the optimisers that keep them there, from geoopt."""

import warnings
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from iclr_shared.errors import InputError
from iclr_symspaces.flat import Euclidean
from iclr_symspaces.hyperbolic import Lorentz, PoincareBall, number
from iclr_symspaces.space import SymmetricSpace
from iclr_symspaces.spd import SPD

with warnings.catch_warnings():
    warnings.simplefilter("ignore", FutureWarning)  # its torch.jit.script, from torch 2.10 on
    import geoopt
    import geoopt.linalg

    # geoopt compiles its matrix functions at their first call, each with the same warning: have it done here.
    _ONE = torch.eye(1)
    for _function in ("sym_expm", "sym_logm", "sym_sqrtm", "sym_inv_sqrtm1", "sym_inv_sqrtm2"):
        getattr(geoopt.linalg, _function)(_ONE)

RiemannianAdam = geoopt.optim.RiemannianAdam
RiemannianSGD = geoopt.optim.RiemannianSGD


def point_parameter(space: SymmetricSpace, points: Tensor) -> geoopt.ManifoldParameter:
    """Points of `space` as a parameter that geoopt's optimisers move along the manifold.

    Raises:
        InputError: if geoopt has no such manifold.
    """
    if isinstance(space, PoincareBall):
        manifold = geoopt.PoincareBall(c=number(space.c))
    elif isinstance(space, Lorentz):
        manifold = geoopt.Lorentz(k=1 / number(space.c))
    elif isinstance(space, SPD):
        manifold = geoopt.SymmetricPositiveDefinite()
    elif isinstance(space, Euclidean):
        manifold = geoopt.Euclidean(ndim=1)
    else:
        raise InputError(f"geoopt has no manifold for {space}; use parametrization='tangent'.")
    return geoopt.ManifoldParameter(points.contiguous(), manifold=manifold)


def sphere_parameter(directions: Tensor) -> geoopt.ManifoldParameter:
    """Unit vectors as a parameter."""
    return geoopt.ManifoldParameter(directions.contiguous(), manifold=geoopt.Sphere())


def orthogonal_parameter(frames: Tensor) -> geoopt.ManifoldParameter:
    """Orthogonal matrices as a parameter."""
    return geoopt.ManifoldParameter(frames.contiguous(), manifold=geoopt.EuclideanStiefel())


def optimizer(
    parameters: Iterable[Tensor | dict[str, Any]],
    lr: float,
    name: str = "adam",
    momentum: float = 0.9,
    weight_decay: float = 0.0,
) -> torch.optim.Optimizer:
    """Riemannian Adam or SGD (with Nesterov momentum); on ordinary parameters they are the usual ones.

    Raises:
        InputError: for another name or a learning rate that is not positive.
    """
    if not lr > 0:
        raise InputError(f"The learning rate must be positive, got {lr}.")
    if name == "adam":
        return RiemannianAdam(parameters, lr=lr, weight_decay=weight_decay)
    if name == "sgd":
        nesterov = momentum > 0
        return RiemannianSGD(parameters, lr=lr, momentum=momentum, weight_decay=weight_decay, nesterov=nesterov)
    raise InputError(f"optimizer must be 'adam' or 'sgd', got {name!r}.")

"""Spaces of every kind, and a seeded generator."""

import pytest
import torch

from iclr_symspaces.manifolds import (
    SPD,
    Euclidean,
    Lorentz,
    PoincareBall,
    Product,
    SPDLogCholesky,
    SPDLogEuclidean,
    UpperHalf,
)

SPACES = {
    "ball": lambda: PoincareBall(3, 0.7),
    "lorentz": lambda: Lorentz(3, 0.7),
    "upper half": lambda: UpperHalf(3, 0.7),
    "spd": lambda: SPD(3, 0.5, 0.2),
    "spd, triangular": lambda: SPD(3, transvection="triangular"),
    "log-Euclidean": lambda: SPDLogEuclidean(3),
    "log-Cholesky": lambda: SPDLogCholesky(3),
    "Euclidean": lambda: Euclidean(4),
    "product": lambda: Product([PoincareBall(2), SPD(2)]),
}


@pytest.fixture
def generator():
    return torch.Generator().manual_seed(0)


@pytest.fixture(params=SPACES)
def space(request):
    return SPACES[request.param]()


@pytest.fixture
def spaces():
    return {name: make() for name, make in SPACES.items()}

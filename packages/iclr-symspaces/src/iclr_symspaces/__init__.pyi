from .classifiers import BusemannMLR, GeodesicMLR, geodesic_distance
from .covariances import covariances
from .estimator import BusemannClassifier
from .functional import busemann, signed_distance
from .hyperplanes import Hyperplanes
from .images import HyperbolicResNet, read_cifar
from .layers import ReEig, SymAttention, SymFC, TangentReLU
from .manifolds import (
    SPD,
    Euclidean,
    Flag,
    Lorentz,
    PoincareBall,
    Product,
    ProductBoundary,
    SPDLogCholesky,
    SPDLogEuclidean,
    SymmetricSpace,
    UpperHalf,
)
from .means import FrechetMean, weighted_mean
from .simulation import noisy_tree, simulate_eeg
from .spd import act, act_on_boundary, moved_flags
from .symmetric import reverse_cholesky_logdiag
from .training import OFFICIAL, Settings, fit

__all__ = [
    "OFFICIAL",
    "SPD",
    "BusemannClassifier",
    "BusemannMLR",
    "Euclidean",
    "Flag",
    "FrechetMean",
    "GeodesicMLR",
    "HyperbolicResNet",
    "Hyperplanes",
    "Lorentz",
    "PoincareBall",
    "Product",
    "ProductBoundary",
    "ReEig",
    "SPDLogCholesky",
    "SPDLogEuclidean",
    "Settings",
    "SymAttention",
    "SymFC",
    "SymmetricSpace",
    "TangentReLU",
    "UpperHalf",
    "act",
    "act_on_boundary",
    "busemann",
    "covariances",
    "fit",
    "geodesic_distance",
    "moved_flags",
    "noisy_tree",
    "read_cifar",
    "reverse_cholesky_logdiag",
    "signed_distance",
    "simulate_eeg",
    "weighted_mean",
]

"""The symmetric spaces, all with one interface (`iclr_symspaces.space.SymmetricSpace`)."""

from iclr_symspaces.flat import Euclidean, SPDLogCholesky, SPDLogEuclidean
from iclr_symspaces.hyperbolic import Lorentz, PoincareBall, UpperHalf
from iclr_symspaces.product import Product, ProductBoundary
from iclr_symspaces.space import SymmetricSpace
from iclr_symspaces.spd import SPD, Flag

__all__ = [
    "SPD",
    "Euclidean",
    "Flag",
    "Lorentz",
    "PoincareBall",
    "Product",
    "ProductBoundary",
    "SPDLogCholesky",
    "SPDLogEuclidean",
    "SymmetricSpace",
    "UpperHalf",
]

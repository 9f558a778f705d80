"""How well projections are recovered: subspaces are compared, because signs and rotations mean nothing."""

import numpy as np
from jaxtyping import Float
from scipy.linalg import subspace_angles
from scipy.optimize import linear_sum_assignment

from iclr_shared.errors import InputError


def principal_cosines(A: Float[np.ndarray, "a m"], B: Float[np.ndarray, "b m"]) -> Float[np.ndarray, " c"]:
    """Cosines of the principal angles between the row spaces of A and B, largest first, c = min(a, b).

    Args:
        A, B: bases as rows, shapes (a, m) and (b, m).
    """
    return np.cos(subspace_angles(np.asarray(A, dtype=np.float64).T, np.asarray(B, dtype=np.float64).T))[::-1]


def module_recovery(found: Float[np.ndarray, "F b m"], true: Float[np.ndarray, "K bt mt"]) -> float:
    """Mean over the true modules of the cosine to the found one that is matched to it (Hungarian matching).

    The cosine of a pair is the mean of its principal cosines: 1 if the subspaces are equal. A true module that is left
    without a partner, because fewer were found, counts 0.

    Args:
        found: projections, shape (F, b, m).
        true: projections, shape (K, b, m).

    Raises:
        InputError: if input dimensions differ.
    """
    if found.shape[2] != true.shape[2]:
        raise InputError(f"Projections of {found.shape[2]} and {true.shape[2]} inputs cannot be compared.")
    cosines = np.array([[principal_cosines(f, t).mean() for t in true] for f in found]).reshape(len(found), len(true))
    rows, columns = linear_sum_assignment(-cosines)
    return float(cosines[rows, columns].sum() / len(true))

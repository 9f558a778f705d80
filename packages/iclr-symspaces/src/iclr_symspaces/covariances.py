"""From the user's recordings to SPD matrices, and the classifiers of the field to compare with."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from jaxtyping import Float

from iclr_shared.errors import InputError
from iclr_symspaces.hyperbolic import PoincareBall


def real_numbers(values: Any, what: str, shape: str) -> np.ndarray:
    """`values` as an array of finite real numbers with at least one sample.

    Raises:
        InputError: naming `what`, and the `shape` it should have, or the first sample that holds NaN.
    """
    array = np.asarray(values)
    if not (np.issubdtype(array.dtype, np.integer) or np.issubdtype(array.dtype, np.floating)) or not array.ndim:
        kind = "strings" if array.dtype.kind in "US" else array.dtype.name
        raise InputError(f"{what} must be real numbers of shape {shape}, got {kind} of shape {array.shape}.")
    if not array.size:
        raise InputError(f"{what}: there are no samples. The shape is {array.shape}, it should be {shape}.")
    finite = np.isfinite(array).reshape(len(array), -1).all(1)
    if not finite.all():
        bad = int(np.flatnonzero(~finite)[0])
        raise InputError(f"{what}: entry {bad} holds NaN or infinite values; drop or repair it first.")
    return array


def covariances(epochs: Any, estimator: str = "oas") -> Float[np.ndarray, "trials channels channels"]:
    """Covariance of each trial, from pyriemann's estimators.

    Args:
        epochs: array (trials, channels, time), or an object with `get_data()` such as MNE's Epochs; square symmetric
            matrices are returned as they are.
        estimator: such as "oas" (shrinkage), "lwf" or "scm".

    Raises:
        InputError: for another shape, complex numbers, NaN, or an estimator that pyriemann does not know or that fails.
    """
    shape = "(trials, channels, time)"
    data = real_numbers(epochs.get_data() if hasattr(epochs, "get_data") else epochs, "Recordings", shape)
    if data.ndim != 3:
        raise InputError(f"Recordings must have shape {shape}, got {data.shape}.")
    if data.shape[1] == data.shape[2]:
        return data.astype(np.float64)
    if data.shape[2] < data.shape[1]:
        raise InputError(f"Trials of shape {data.shape[1:]} have fewer times than channels; expected (channels, time).")
    from pyriemann.estimation import Covariances

    try:
        return Covariances(estimator=estimator).transform(data - data.mean(-1, keepdims=True))
    except ValueError as error:
        raise InputError(f"The covariance estimator {estimator!r} of pyriemann failed: {error}") from error


def vech(x: Float[np.ndarray, "trials n n"]) -> Float[np.ndarray, "trials m"]:
    """Upper triangles as vectors, off-diagonal entries times √2."""
    i, j = np.triu_indices(x.shape[-1])
    return x[:, i, j] * np.where(i == j, 1.0, 2**0.5)


def log_vech(x: Float[np.ndarray, "trials n n"]) -> Float[np.ndarray, "trials m"]:
    """`vech` of the logarithms."""
    w, v = np.linalg.eigh(x)
    return vech(np.einsum("tij,tj,tkj->tik", v, np.log(w), v))


def log_origin(x: Float[np.ndarray, "points d"]) -> Float[np.ndarray, "points d"]:
    """log_o of points of the ball (c = 1)."""
    return PoincareBall(x.shape[1]).log0(torch.as_tensor(x, dtype=torch.float64)).numpy()


def _logistic(features: Callable | None = None) -> Any:
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import FunctionTransformer, StandardScaler

    first = [] if features is None else [FunctionTransformer(features)]
    return make_pipeline(*first, StandardScaler(), LogisticRegression(max_iter=2000))


def _mdm() -> Any:
    from pyriemann.classification import MDM

    return MDM()


def _tangent_space() -> Any:
    from pyriemann.tangentspace import TangentSpace
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    return make_pipeline(TangentSpace(), StandardScaler(), LogisticRegression(max_iter=2000))


SPD_BASELINES: dict[str, Callable[[], Any]] = {
    "Euclidean logistic": lambda: _logistic(vech),
    "log-Euclidean logistic": lambda: _logistic(log_vech),
    "MDM": _mdm,
    "tangent-space logistic": _tangent_space,
}
"""Unfitted scikit-learn estimators on covariances, by name; MDM and tangent space are pyriemann's."""

BALL_BASELINES: dict[str, Callable[[], Any]] = {
    "Euclidean logistic": _logistic,
    "logistic on log_o": lambda: _logistic(log_origin),
}
"""The same on points of a ball."""

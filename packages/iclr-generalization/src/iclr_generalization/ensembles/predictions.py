"""Predictions of the members of an ensemble: reading, checking and combining them.

The interface between training and analysis is an array of shape (K, n, C): K members, n points, C outputs. A file may
be larger than memory: ``.npy`` is memory-mapped, and the analysis goes through it in chunks of points.
"""

import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from jaxtyping import Float, Int, Shaped

from iclr_shared.errors import InputError

Kind = Literal["probabilities", "logits", "values"]

#: Bytes of float64 that a chunk of points may take.
CHUNK_BYTES = 64 * 2**20


def check(preds: Shaped[np.ndarray, "K n C"], y: Shaped[np.ndarray, "..."], kind: Kind = "probabilities") -> None:
    """Refuse predictions that cannot be those of a homogeneous ensemble on these points.

    Args:
        preds: shape (K, n, C).
        y: class indices (n,), one-hot (n, C), or regression targets (n, C).
        kind: what the outputs are.

    Raises:
        InputError: fewer than two members, sizes that differ, values that are not finite, rows that are no
            probabilities (naming the member), labels out of range, or the same member twice.
    """
    K, n, C = preds.shape
    if K < 2:
        raise InputError(f"An ensemble needs at least 2 members, got {K}.")
    if not n or not C or not np.issubdtype(preds.dtype, np.number) or np.iscomplexobj(preds):
        raise InputError(
            f"Predictions must be real numbers for at least one point, got {preds.shape} of {preds.dtype}."
        )
    if n < 100:
        warnings.warn(f"Only {n} points: the error bars over points will be wide.", stacklevel=2)
    twin = np.ones((K, K), dtype=bool)
    for part, _, _ in chunks(preds, y, kind):  # labels are checked there
        if not np.isfinite(part).all():
            member = int(np.argmin(np.isfinite(part).all((1, 2))))
            raise InputError(f"Member {member} has predictions that are not finite (NaN or infinity).")
        if kind == "probabilities":
            off = np.abs(part.sum(2) - 1).max(1)
            wrong = (off > 1e-3) | (part.min((1, 2)) < -1e-6)
            if wrong.any():
                member = int(np.argmax(wrong))
                raise InputError(
                    f"Member {member} is no probability: a row sums to 1 only within {off[member]:.3g}, or has a "
                    "negative entry. If these are logits, say kind='logits'."
                )
        for a in range(K):
            for b in range(a):
                twin[a, b] &= np.array_equal(part[a], part[b])
    for a in range(K):
        for b in range(a):
            if twin[a, b]:
                raise InputError(f"Members {b} and {a} are identical. The same seed twice?")


def targets(y: Shaped[np.ndarray, "..."], n: int, C: int, kind: Kind = "probabilities") -> Float[np.ndarray, "n C"]:
    """Labels as the targets of a squared loss: one-hot rows, or regression targets as they are.

    Args:
        y: class indices (n,), one-hot (n, C), or regression targets (n, C) or (n,) where C is 1.
        n: points.
        C: outputs.
        kind: what the predictions are; ``"values"`` is regression.

    Returns:
        Shape (n, C), float64.

    Raises:
        InputError: if the number of labels differs, a label is out of range, or a value is not finite.
    """
    y = np.asarray(y)
    if len(y) != n:
        raise InputError(f"There are {len(y)} labels for {n} points.")
    if kind == "values" or (y.ndim == 2 and y.shape[1] == C):
        y = y.reshape(n, -1).astype(np.float64)
        if y.shape[1] != C:
            raise InputError(f"Targets have {y.shape[1]} columns, predictions have {C}.")
        if not np.isfinite(y).all():
            raise InputError("A target is not finite (NaN or infinity).")
        return y
    if y.ndim != 1 or not np.issubdtype(y.dtype, np.number) or not np.array_equal(y, y.astype(np.int64)):
        raise InputError(f"Labels must be class indices (n,) or one-hot (n, {C}), got shape {y.shape} of {y.dtype}.")
    if y.min() < 0 or y.max() >= C:
        raise InputError(f"Labels run from {y.min():g} to {y.max():g}; with {C} outputs they must be in 0..{C - 1}.")
    return np.eye(C)[y.astype(np.int64)]


def combine(preds: Shaped[np.ndarray, "K n C"], how: Literal["prob", "logit"] = "prob") -> Float[np.ndarray, "n C"]:
    """The ensemble's prediction: the mean of the members' probabilities (or values), or of their logits.

    Args:
        preds: shape (K, n, C). With ``"logit"`` these are probabilities, whose logarithms are averaged and normalised.
        how: what is averaged. The two differ; a forecast for one says nothing of the other.
    """
    if how == "prob":
        return np.mean(preds, 0, dtype=np.float64)
    mean = np.log(np.clip(preds, 1e-12, None, dtype=np.float64)).mean(0)
    mean = np.exp(mean - mean.max(1, keepdims=True))
    return mean / mean.sum(1, keepdims=True)


def chunks(
    preds: Shaped[np.ndarray, "K n C"], y: Shaped[np.ndarray, "..."], kind: Kind = "probabilities"
) -> Iterator[tuple[Float[np.ndarray, "K m C"], Float[np.ndarray, "m C"], slice]]:
    """Go through the points in float64 chunks of at most `CHUNK_BYTES`: predictions, `targets`, and their place.

    Raises:
        InputError: as `targets`.
    """
    K, n, C = preds.shape
    y = np.asarray(y)
    if len(y) != n:
        raise InputError(f"There are {len(y)} labels for {n} points.")
    size = max(1, CHUNK_BYTES // (8 * K * C))
    for start in range(0, n, size):
        place = slice(start, min(n, start + size))
        truth = targets(y[place], place.stop - start, C, kind)
        yield np.asarray(preds[:, place], dtype=np.float64), truth, place


def from_sklearn(models: Sequence[Any], X: Any) -> Float[np.ndarray, "K n C"]:
    """Predictions of fitted scikit-learn (or XGBoost, LightGBM) estimators: probabilities, or values of regressors."""
    columns = [m.predict_proba(X) if hasattr(m, "predict_proba") else np.asarray(m.predict(X)) for m in models]
    return np.stack([np.asarray(c, dtype=np.float64).reshape(len(c), -1) for c in columns])


def read(files: Sequence[Path]) -> Shaped[np.ndarray, "K n C"]:
    """Predictions from one file with all members, or from one file for each.

    Args:
        files: ``.npy`` (memory-mapped) or ``.npz`` with an array (K, n, C) or, one for each member, (n, C); or CSV
            tables with one column for each output (a header is recognised), one for each member.

    Raises:
        InputError: naming the file that is missing, unreadable or of another size than the first; a single member.
    """
    parts = [_read_one(Path(file)) for file in files]
    for file, part in zip(files, parts, strict=True):
        if part.ndim not in (2, 3):
            raise InputError(
                f"{file} has {part.ndim} dimension(s); predictions have points and outputs, those of several members "
                "in one file members before them."
            )
        if part.shape != parts[0].shape:
            raise InputError(f"{file} has shape {part.shape}, the first file has {parts[0].shape}.")
    if len(parts) == 1 and parts[0].ndim == 3:
        return parts[0]
    if len(parts) == 1:
        raise InputError(
            f"One file of one member is no ensemble: {files[0]} has shape {parts[0].shape}. Give them all."
        )
    stacked = np.stack(parts)
    return stacked.reshape(-1, *stacked.shape[-2:])


def read_table(file: Path) -> tuple[Float[np.ndarray, "K n C"], Float[np.ndarray, " n"]] | None:
    """Predictions and labels from one CSV with columns ``member``, ``label`` and one for each output.

    A row is one member's prediction of one point; each member's rows list the same points in the same order.

    Returns:
        Predictions and labels, or None if the file has no such columns.

    Raises:
        InputError: if members differ in their number of points or in their labels.
    """
    with open(file, encoding="utf-8") as lines:
        names = [name.strip().strip('"').lower() for name in lines.readline().split(",")]
    if not {"member", "label"} <= set(names):
        return None
    rows = _read_one(file)
    member, label = rows[:, names.index("member")], rows[:, names.index("label")]
    outputs = np.delete(rows, [names.index("member"), names.index("label")], axis=1)
    parts = [(outputs[member == m], label[member == m]) for m in np.unique(member)]
    for m, (part, labels) in zip(np.unique(member), parts, strict=True):
        if len(part) != len(parts[0][0]) or not np.array_equal(labels, parts[0][1]):
            raise InputError(
                f"{file}: member {m:g} does not list the same points, in the same order, as the first member."
            )
    return np.stack([part for part, _ in parts]), parts[0][1]


def read_labels(file: Path) -> Int[np.ndarray, " n"] | Float[np.ndarray, "..."]:
    """Labels or targets from ``.npy``, ``.npz`` or a CSV of one column (classes) or several (one-hot, targets)."""
    y = _read_one(Path(file))
    y = y[:, 0] if y.ndim == 2 and y.shape[1] == 1 else y
    return y.astype(np.int64) if np.array_equal(y, np.round(y)) and y.ndim == 1 else y.astype(np.float64)


def _read_one(file: Path) -> np.ndarray:
    if not file.exists():
        raise InputError(f"There is no file {file}.")
    try:
        if file.suffix == ".npy":
            return np.load(file, mmap_mode="r", allow_pickle=False)
        if file.suffix == ".npz":
            with np.load(file, allow_pickle=False) as archive:
                if len(archive.files) != 1:
                    raise InputError(f"{file} holds {len(archive.files)} arrays; keep the predictions alone in it.")
                return archive[archive.files[0]]
        with open(file, encoding="utf-8") as lines:
            first = lines.readline()
        if not first:
            raise InputError(f"{file} is empty.")
        header = any(character.isalpha() and character not in "eE" for character in first.replace("nan", ""))
        return np.loadtxt(file, delimiter=",", skiprows=int(header), ndmin=2)
    except (OSError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"Cannot read {file}: {error}") from None

"""Data on a line, ``x = xi nhat``: the only three statistics through which it enters the learning dynamics."""

import csv
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Float

from iclr_shared.errors import InputError


@dataclass(frozen=True, eq=False)
class LineData:
    """One-dimensional data and a scalar target.

    Args:
        nhat: unit vector of the line, shape (D,).
        A: ``E xi²``, in units of x², > 0.
        B: ``E xi y``, in units of x times y.
        Ey2: ``E y²``, in units of y², at least ``B² / A``.

    Raises:
        InputError: if no data can have these statistics.
    """

    nhat: Float[np.ndarray, " D"]
    A: float
    B: float
    Ey2: float

    def __post_init__(self):
        if self.nhat.ndim != 1 or not abs(np.linalg.norm(self.nhat) - 1) < 1e-5:
            raise InputError(f"nhat must be a unit vector of shape (D,), got {self.nhat}.")
        if not 0 < self.A < math.inf:
            raise InputError(f"A = E xi² must be a positive number, got {self.A}. Check or rescale the inputs.")
        if not (math.isfinite(self.B) and math.isfinite(self.Ey2)):
            raise InputError(
                f"B = E xi y = {self.B} and E y² = {self.Ey2} must be finite. Check or rescale the targets."
            )
        if self.Ey2 < (1 - 1e-6) * self.B * self.target:
            raise InputError(f"E y² = {self.Ey2} is below B² / A = {self.B * self.target}, which no data can have.")

    @property
    def target(self) -> float:
        """The slope ``F* = B / A`` of the best linear fit, in units of y per x."""
        return self.B / self.A

    @property
    def floor(self) -> float:
        """``E (y - F* xi)² = E y² - B² / A``: what no network of this kind can fit."""
        return max(self.Ey2 - self.B * self.target, 0.0)


def unit_data(D: int = 1, target: float = 1.0) -> LineData:
    """The demonstration data of the claims: ``A = 1``, ``B = target``, fitted without a remainder."""
    return LineData(np.eye(D)[0], 1.0, float(target), float(target) ** 2)


def fit_stats(X: ArrayLike | Sequence, y: ArrayLike | Sequence, rtol: float | None = None) -> LineData:
    """The line that samples lie on, and their statistics.

    Args:
        X: samples, shape (n, D), which must lie on one line through the origin.
        y: targets, shape (n,).
        rtol: largest second singular value of X, relative to the first, that still counts as one-dimensional. None
            takes 1e-8, or 100 rounding errors of X's dtype where that is more.

    Returns:
        The statistics in double precision; `nhat` points so that its largest component is positive.

    Raises:
        InputError: if the shapes do not fit, values are not finite, X is zero, or X is not one-dimensional.
    """
    X, y = np.asarray(X), np.asarray(y)
    if X.ndim != 2 or X.shape[1] == 0 or y.ndim != 1:
        raise InputError(f"X must have shape (n, D) with D >= 1 and y (n,); got {X.shape} and {y.shape}.")
    if len(X) == 0 or len(X) != len(y):
        raise InputError(f"X has {len(X)} samples and y has {len(y)}: give one target for each sample, at least one.")
    for name, values in (("X", X), ("y", y)):
        bad = ~np.isfinite(values).reshape(len(values), -1).all(axis=1)
        if bad.any():
            raise InputError(
                f"{name} is not finite in sample {int(bad.argmax())} (counting from 0). Remove or fill it."
            )
    if rtol is None:
        rtol = max(1e-8, 100 * float(np.finfo(X.dtype).eps)) if X.dtype.kind == "f" else 1e-8
    X, y = np.asarray(X, np.float64), np.asarray(y, np.float64)
    _, singular, directions = np.linalg.svd(X, full_matrices=False)
    if singular[0] == 0:
        raise InputError("All inputs are zero (A = E xi² = 0): nothing can be learned from them.")
    ratio = singular[1] / singular[0] if len(singular) > 1 else 0.0
    if not ratio <= rtol:
        raise InputError(
            f"X has rank above 1: its second singular value is {ratio:.3g} of the first (allowed: {rtol:.3g}). The "
            "exact solution needs one-dimensional data; centre it if its line misses the origin, or project it."
        )
    nhat = directions[0] * np.sign(directions[0][np.abs(directions[0]).argmax()])
    xi = X @ nhat
    with np.errstate(over="ignore"):  # what overflows is refused by LineData
        return LineData(nhat, float(np.mean(xi**2)), float(np.mean(xi * y)), float(np.mean(y**2)))


def read_csv(
    path: Path, target: str | None = None, features: Sequence[str] = ()
) -> tuple[Float[np.ndarray, "n D"], Float[np.ndarray, " n"], tuple[str, ...], str]:
    """Features and target from a CSV file with a header line.

    Args:
        path: of the file: comma-separated numbers below one line of column names.
        target: name of the target column; None takes the last one.
        features: names of the feature columns; empty takes all but the target.

    Returns:
        X, y, the names of the features, and the name of the target.

    Raises:
        InputError: if the file cannot be read, a column is missing, or a cell is no number (with its line and column).
    """
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            lines = [line for line in csv.reader(file) if line]
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"Cannot read {path}: {error}. Give a CSV file with a header line.") from error
    if len(lines) < 2:
        raise InputError(f"{path} has no data: it needs a header line and at least one line of numbers.")
    header = [name.strip() for name in lines[0]]
    if all(_is_number(name) for name in header):
        raise InputError(f"{path} starts with numbers; its first line must name the columns.")
    target = header[-1] if target is None else target
    names = tuple(features) or tuple(name for name in header if name != target)
    for name in (*names, target):
        if name not in header:
            raise InputError(f"{path} has no column {name!r}. Its columns are: {', '.join(header)}.")
    if not names:
        raise InputError(f"{path} has one column only; it needs features and a target.")
    if target in names:
        raise InputError(f"The target {target!r} is also among the features. Name other features, or another target.")
    columns = [header.index(name) for name in (*names, target)]
    table = np.empty((len(lines) - 1, len(columns)))
    for number, line in enumerate(lines[1:]):
        for j, column in enumerate(columns):
            cell = line[column] if column < len(line) else ""
            if not _is_number(cell):
                where = f"row {number + 1} below the header, column {header[column]!r}"
                raise InputError(f"{path}: {cell!r} in {where} is not a number.")
            table[number, j] = float(cell)
    return table[:, :-1], table[:, -1], names, target


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True

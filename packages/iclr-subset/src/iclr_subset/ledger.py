"""The ledger: a line of JSON for every cost that was paid for, written at once and never rewritten."""

import contextlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from iclr_shared.errors import InputError
from iclr_shared.files import atomic_path


@dataclass(frozen=True)
class Evaluation:
    """One call of the cost.

    Args:
        step: of the search that asked for it.
        sample: which draw of that step.
        subset: ascending indices.
        cost: what the cost returned, or what a failure was charged.
        seconds: it took.
        error: what went wrong, or empty.
    """

    step: int
    sample: int
    subset: tuple[int, ...]
    cost: float
    seconds: float = 0.0
    error: str = ""


class Ledger:
    """Evaluations in order of completion, in memory and, with a path, in a file of JSON lines.

    A last line that a kill has torn is dropped, and its evaluation counts as never made.

    Args:
        path: of the file; it goes on if it exists.

    Raises:
        InputError: if a line other than the last cannot be read.
    """

    def __init__(self, path: Path | None = None):
        self.path = path
        self.evaluations: list[Evaluation] = []
        self._file = None
        self._made: list[Path] = []  # folders that were not there before
        if path is not None and path.exists():
            text = path.read_bytes()
            whole = text.rfind(b"\n") + 1
            if whole < len(text):
                with path.open("r+b") as file:
                    file.truncate(whole)
            self.evaluations = list(_parsed(text[:whole].decode(errors="replace").splitlines(), path))

    def open(self) -> None:
        """Make sure that what is going to be paid for can be written down.

        Raises:
            InputError: if the file cannot be written.
        """
        if self.path is not None and self._file is None:
            try:
                self._made = [folder for folder in self.path.absolute().parents if not folder.exists()]
                self.path.parent.mkdir(parents=True, exist_ok=True)
                self._file = self.path.open("a", encoding="utf-8")
            except OSError as error:
                raise InputError(f"Cannot write {self.path}: {error.strerror}. Choose another output place.") from None

    def add(self, evaluation: Evaluation) -> None:
        """Append, and hand the line to the system at once, so that the death of this process loses nothing."""
        self.evaluations.append(evaluation)
        self.open()
        if self._file is not None:
            self._file.write(json.dumps(asdict(evaluation)) + "\n")
            self._file.flush()

    def close(self) -> None:
        """Close the file; one in which nothing was written is no search to go on with."""
        if self._file is not None:
            self._file.close()
            self._file = None
            if not self.evaluations:
                self.path.unlink(missing_ok=True)
                with contextlib.suppress(OSError):  # others may have put something there
                    for folder in self._made:
                        folder.rmdir()


def _parsed(lines: Iterable[str], path: Path) -> Iterable[Evaluation]:
    for number, line in enumerate(lines, 1):
        try:
            record = json.loads(line)
            yield Evaluation(**record | {"subset": tuple(record["subset"])})
        except (ValueError, TypeError, KeyError):
            raise InputError(f"Line {number} of {path} is no evaluation. Remove the file, or restore it.") from None


def write_csv(evaluations: Sequence[Evaluation], path: Path, items: Sequence[Any] | None = None) -> None:
    """Columns step, sample, subset (space between indices), names where there are any, cost, seconds, error."""
    rows = []
    for e in evaluations:
        row = asdict(e) | {"subset": " ".join(map(str, e.subset))}
        if items is not None:
            row["names"] = " ".join(str(items[i]) for i in e.subset)
        rows.append(row)
    with atomic_path(path) as temporary:
        pd.DataFrame(rows).to_csv(temporary, index=False)


def read_known(path: Path, n: int) -> dict[tuple[int, ...], float]:
    """Costs that are known already, from a ledger (``.jsonl``) or a CSV with columns subset and cost.

    Returns:
        Mean cost of each subset; failures are left out.

    Raises:
        InputError: if the file or a row cannot be used.
    """
    if not path.is_file():
        raise InputError(f"There is no file {path} of known costs.")
    if path.suffix == ".jsonl":
        pairs = [
            (e.subset, e.cost) for e in _parsed(path.read_text(encoding="utf-8").splitlines(), path) if not e.error
        ]
    else:
        table = pd.read_csv(path, dtype={"subset": str}, keep_default_na=False)
        if not {"subset", "cost"} <= set(table.columns):
            raise InputError(f"{path} needs the columns subset and cost, it has {', '.join(table.columns)}.")
        good = table[table.error == ""] if "error" in table.columns else table
        try:
            pairs = [
                (tuple(sorted(int(i) for i in text.split())), float(cost))
                for text, cost in zip(good.subset, good.cost, strict=True)
            ]
        except ValueError as error:
            raise InputError(f"{path} holds a row that is no subset with its cost: {error}.") from None
    costs: dict[tuple[int, ...], list[float]] = {}
    for subset, cost in pairs:
        if not np.isfinite(cost) or len(set(subset)) != len(subset) or not all(0 <= i < n for i in subset):
            raise InputError(f"{path}: {list(subset)} at cost {cost} is no subset of 0..{n - 1} with a finite cost.")
        costs.setdefault(subset, []).append(cost)
    return {subset: float(np.mean(values)) for subset, values in costs.items()}

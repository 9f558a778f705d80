"""Tables on the terminal: rich where there is one, aligned plain text in a pipe."""

import sys
from collections.abc import Iterable, Sequence
from typing import Any


def print_table(columns: Sequence[str], rows: Iterable[Sequence[Any]], title: str | None = None) -> None:
    """Print `rows` under `columns`; numbers are aligned right and written with six significant digits."""
    rows = [list(row) for row in rows]
    cells = [[format_value(value) for value in row] for row in rows]
    right = [bool(rows) and all(isinstance(row[i], int | float | None) for row in rows) for i in range(len(columns))]
    if sys.stdout.isatty():
        _print_rich(columns, cells, right, title)
        return
    widths = [max(map(len, column)) for column in zip(columns, *cells, strict=True)]
    lines = [title] if title else []
    for row in (columns, *cells):
        aligned = (c.rjust(w) if r else c.ljust(w) for c, w, r in zip(row, widths, right, strict=True))
        lines.append("  ".join(aligned).rstrip())
    print("\n".join(lines))


def format_value(value: Any) -> str:
    """A number with six significant digits, None as ``-``, anything else as text."""
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.6g}"
    return str(value)


def _print_rich(columns: Sequence[str], cells: list[list[str]], right: list[bool], title: str | None) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    styles = {"pass": "green", "fail": "bold red", "error": "bold red", "skip": "yellow", "reported": "cyan"}
    table = Table(title=title, title_justify="left", title_style="bold")
    for column, is_right in zip(columns, right, strict=True):
        table.add_column(column, justify="right" if is_right else "left", overflow="fold")
    for row in cells:
        table.add_row(*(Text(cell, style=styles.get(cell, "")) for cell in row))
    Console().print(table)

"""Pictures of the claims."""

from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator, StrMethodFormatter

from iclr_shared.plots import COLOURS, new_figure


def curves(
    x: Sequence[float],
    lines: Mapping[str, Any],
    *,
    xlabel: str,
    ylabel: str,
    title: str,
    xscale: str = "linear",
    yscale: str = "linear",
) -> Figure:
    """Named lines over one axis; those whose name begins with "control" are dashed."""
    crowded = len(lines) > 4
    figure, axes = new_figure(width=9.0 if crowded else 7.0)
    for (name, values), colour in zip(lines.items(), cycle((*COLOURS, "grey"))):
        style = "--" if name.startswith("control") else "-"
        axes.plot(x, np.asarray(values, float), "o" + style, color=colour, label=name, markersize=4)
    axes.set(xlabel=xlabel, ylabel=ylabel, title=title, xscale=xscale, yscale=yscale)
    if xscale == "log":
        axes.set_xticks(x, [f"{value:g}" for value in x])
        axes.xaxis.set_minor_locator(NullLocator())
    if yscale == "log":
        axes.yaxis.set(
            major_locator=LogLocator(subs=(1, 2, 5)), major_formatter=StrMethodFormatter("{x:g}"),
            minor_locator=NullLocator(),
        )  # fmt: skip
    axes.legend(frameon=False, **({"loc": "center left", "bbox_to_anchor": (1, 0.5)} if crowded else {}))
    return figure


def bars(names: Sequence[str], values: Sequence[float], errors: Sequence[float], ylabel: str, title: str) -> Figure:
    """One bar for each name, with its standard error."""
    figure, axes = new_figure(height=3.8)
    axes.bar(names, values, yerr=errors, color=COLOURS[: len(names)], capsize=4)
    axes.axhline(0, color="black", linewidth=0.8)
    axes.set(ylabel=ylabel, title=title)
    return figure

"""Pictures of searches."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from iclr_shared.plots import new_figure


def search_figure(history: Any, inclusion: np.ndarray, names: Sequence[Any], chosen: Sequence[int]) -> Figure:
    """Costs along the evaluations, and how probable the likeliest items are in the end."""
    figure, (left, right) = new_figure(1, 2, width=10, height=4)
    left.plot(history.evaluations, history.mean_cost, ".", markersize=3, alpha=0.5, label="mean of a batch")
    left.step(history.evaluations, history.best_cost, where="post", label="best seen")
    left.set(xlabel="evaluations", ylabel="cost", title="Search")
    left.legend(frameon=False)
    order = np.argsort(-inclusion, kind="stable")[:25]
    colours = ["C1" if i in set(chosen) else "C0" for i in order]
    right.bar(range(len(order)), inclusion[order], color=colours)
    right.set_xticks(range(len(order)), [str(names[i])[:18] for i in order], rotation=90, fontsize=7)
    right.set(ylabel="probability to be drawn", title="Items in the end (orange: chosen)", ylim=(0, 1.02))
    return figure


def calls_figure(costs: Sequence[float]) -> Figure:
    """Costs of a search without weights."""
    figure, axes = new_figure()
    axes.plot(np.arange(1, len(costs) + 1), costs, ".", markersize=3, alpha=0.5, label="each")
    axes.plot(np.arange(1, len(costs) + 1), np.minimum.accumulate(costs), label="best seen")
    axes.set(xlabel="evaluations", ylabel="cost")
    axes.legend(frameon=False)
    return figure


def lines_figure(
    curves: Mapping[str, tuple[Any, Any]], xlabel: str, ylabel: str, title: str, log: bool = True
) -> Figure:
    """One line with markers for each name; logarithmic axes by default."""
    figure, axes = new_figure()
    for name, (x, y) in curves.items():
        axes.plot(x, y, "o-", markersize=4, label=name)
    if log:
        axes.set(xscale="log", yscale="log")
    axes.set(xlabel=xlabel, ylabel=ylabel, title=title)
    axes.legend(frameon=False)
    return figure


def layers_figure(truth: Any, marks: Mapping[str, tuple[int, ...]]) -> Figure:
    """Test error of all sets of blocks in order, and where each strategy's choice stands."""
    figure, axes = new_figure()
    order = np.argsort(truth.test, kind="stable")
    axes.plot(np.arange(1, len(order) + 1), truth.test[order], "-", color="0.6", linewidth=1.5)
    for colour, (name, subset) in enumerate(marks.items()):
        i = truth.subsets.index(subset)
        place = 1 + int(np.flatnonzero(order == i)[0])
        axes.plot(
            place,
            truth.test[i],
            "o",
            markersize=11 - 2 * colour,
            color=f"C{colour}",
            label=f"{name}: {' '.join(map(str, subset))}",
        )
    axes.set(xlabel="rank among all sets", ylabel="test error", title="Sets of fine-tuned blocks")
    axes.legend(frameon=False, fontsize=8)
    return figure

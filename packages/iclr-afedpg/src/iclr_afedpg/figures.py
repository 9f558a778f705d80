"""Pictures of runs and predictions."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from iclr_afedpg.clocks import Timeline
from iclr_shared.plots import COLOURS, new_figure


def delays_figure(timeline: Timeline, agents: int) -> Figure:
    """How often each delay occurs, by agent, and who waits for whom at the beginning."""
    figure, (left, right) = new_figure(1, 2, width=9.5, height=3.8)
    edges = np.arange(timeline.delay.max() + 2) - 0.5
    parts = [timeline.delay[timeline.agent == agent] for agent in range(agents)]
    left.hist(parts, edges, stacked=True, label=[f"agent {agent}" for agent in range(agents)])
    left.axvline(agents - 1, color="black", linestyle="--", linewidth=1, label="N - 1")
    left.set(yscale="log", xlabel="delay (updates)", ylabel="updates", title="Staleness")
    if agents <= 8:
        left.legend(frameon=False, fontsize=8)
    first = timeline.time <= timeline.time[min(len(timeline.time), 20 * agents) - 1]
    right.plot(timeline.time[first], timeline.agent[first], "|", markersize=12)
    right.set(
        xlabel="time (s)", ylabel="agent", title="Updates as they arrive", yticks=range(agents)[:: agents // 9 + 1]
    )
    return figure


def gaps_figure(K: Sequence[int], gaps: Mapping[str, np.ndarray]) -> Figure:
    """Gap to the optimum against updates; seed means, and single seeds faintly."""
    figure, axes = new_figure()
    for (name, values), colour in zip(gaps.items(), COLOURS, strict=False):
        axes.loglog(K, values.mean(1), "o-", color=colour, label=name)
        axes.loglog(K, values, color=colour, linewidth=0.5, alpha=0.3)
    anchor = next(iter(gaps.values())).mean(1)[0]
    axes.loglog(K, anchor * (np.asarray(K) / K[0]) ** -0.4, "k--", linewidth=1, label=r"$K^{-2/5}$")
    axes.set(xlabel="updates K", ylabel=r"$J^* - J(\theta_K)$", title="Gap to the optimal policy")
    axes.legend(frameon=False)
    return figure


def learning_figure(curves: Mapping[str, Sequence[Mapping[str, Any]]], axis: str, label: str) -> Figure:
    """Returns along training, one thin line for each seed and the label once.

    Args:
        curves: by method, for each seed ``{axis: [...], "return": [...]}``.
        axis: key of the horizontal axis.
        label: its label.
    """
    figure, axes = new_figure()
    for (method, seeds), colour in zip(curves.items(), COLOURS, strict=False):
        for i, curve in enumerate(seeds):
            at, index = np.unique(np.asarray(curve[axis], float), return_inverse=True)  # several arrive at once
            means = np.bincount(index, np.asarray(curve["return"], float)) / np.bincount(index)
            style = {"marker": "o" if len(at) < 12 else "", "markersize": 3.5, "linewidth": 1.2}
            axes.plot(at, means, color=colour, alpha=0.75, label=None if i else method, **style)
    axes.set(xlabel=label, ylabel="mean return of a gradient's episodes")
    axes.legend(frameon=False)
    return figure

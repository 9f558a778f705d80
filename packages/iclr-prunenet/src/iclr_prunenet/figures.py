"""Pictures of the claims and of a user's compression."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from iclr_shared.plots import COLOURS, new_figure


def learning(curves: Sequence[Sequence[float]], outcomes: Mapping[str, Sequence[float]]) -> Figure:
    """Left: KS distance of the sampled rows in each episode, a line for each seed. Right: KS distances of each rule."""
    figure, (left, right) = new_figure(1, 2, width=9.5)
    for curve in curves:
        left.plot(range(1, len(curve) + 1), curve, color=COLOURS[0], alpha=0.6)
    left.set(xlabel="episode", ylabel="mean KS distance of sampled rows", title="while training")
    left.set_ylim(bottom=0)
    for index, values in enumerate(outcomes.values()):
        spread = np.linspace(-0.15, 0.15, len(values)) if len(values) > 1 else [0.0]
        right.plot(np.asarray(values), index + np.asarray(spread), "o", color=COLOURS[index % len(COLOURS)])
    right.set_yticks(range(len(outcomes)), list(outcomes))
    right.invert_yaxis()
    right.set(xlabel="mean KS distance, one dot for each seed", title="rows kept in the end", xlim=(0, None))
    return figure


def lines(x: Sequence[float], values: Mapping[str, Any], xlabel: str, ylabel: str) -> Figure:
    """Named lines over one axis; (seeds, x) values are drawn as their mean with the range of the seeds."""
    figure, axes = new_figure()
    for name, found in values.items():
        found = np.atleast_2d(np.asarray(found, float))
        (line,) = axes.plot(x, found.mean(0), "o-", label=name, markersize=4)
        if len(found) > 1:
            axes.fill_between(x, found.min(0), found.max(0), color=line.get_color(), alpha=0.15, linewidth=0)
    axes.set(xlabel=xlabel, ylabel=ylabel)
    axes.legend(frameon=False)
    return figure


def distances(ks: Mapping[str, Sequence[float]]) -> Figure:
    """KS distance of each layer's spectrum for one or more rules."""
    figure, axes = new_figure()
    for name, values in ks.items():
        axes.plot(range(len(values)), values, "o-", label=name, markersize=4)
    axes.set(xlabel="layer", ylabel="KS distance of the spectrum", ylim=(0, None))
    axes.legend(frameon=False)
    return figure

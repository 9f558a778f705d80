"""Pictures of the claims and of the commands' results."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure

from iclr_shared.plots import COLOURS, new_figure


def limit_figure(times: Sequence[float], errors: np.ndarray, controls: np.ndarray) -> Figure:
    """|d(x, γ(t)) − t − B| against t, each case a line, and the wrong factorisation's."""
    figure, axes = new_figure()
    for values, colour, label in ((controls, COLOURS[1], "lower triangular"), (errors, COLOURS[0], "upper triangular")):
        axes.loglog(times, np.abs(values).T, "o-", color=colour, alpha=0.6, markersize=3, linewidth=1)
        axes.plot([], [], color=colour, label=label)
    top = np.abs(errors[:, 0]).max()
    axes.loglog(times, 1.5 * top * times[0] / np.asarray(times), "k--", linewidth=1, label="1/t")
    axes.set(xlabel="t", ylabel="|d(x, γ(t)) − t − B(x)|", title="Closed form against the limit, SPD(n)", xticks=times)
    axes.set_xticklabels([f"{t:g}" for t in times])
    axes.minorticks_off()
    axes.legend(frameon=False)
    return figure


def distance_figure(found: Mapping[str, np.ndarray]) -> Figure:
    """Formulas against the minimum over the horosphere."""
    figure, axes = new_figure(width=5, height=4.2)
    axes.plot([0, found["minimum"].max()], [0, found["minimum"].max()], "k--", linewidth=1)
    axes.plot(found["minimum"], found["log-Euclidean"], "s", color=COLOURS[1], markersize=5, label="log-Euclidean")
    axes.plot(found["minimum"], found["formula"], "o", color=COLOURS[0], markersize=5, label="|B(x) − B(p)|")
    axes.set(xlabel="minimum over the horosphere", ylabel="formula", title="Distance from x to the horosphere of p")
    axes.legend(frameon=False)
    return figure


def invariance_figure(found: Mapping[str, np.ndarray]) -> Figure:
    """Deviation under g, one dot for each random g."""
    figure, axes = new_figure(height=3.4)
    for i, values in enumerate(found.values()):
        shift = np.linspace(-0.25, 0.25, len(values))
        axes.plot(np.maximum(values, 1e-17), i + shift, "o", color=COLOURS[i], markersize=4)
    axes.set(xscale="log", xlabel="deviation under g", yticks=range(len(found)), title="Invariance")
    axes.set_yticklabels(list(found))
    return figure


def accuracies_figure(scores: Mapping[str, Mapping[str, Sequence[float]]], label: str) -> Figure:
    """Accuracies of several classifiers in several settings: a dot each, a bar at the mean.

    Args:
        scores: by setting, by classifier, the accuracies.
        label: of what the dots are, such as "folds".
    """
    figure, axes = new_figure(1, len(scores), width=max(6.0, 3.4 * len(scores)), height=3.6, sharey=True)
    for panel, (setting, heads) in zip(np.atleast_1d(axes), scores.items(), strict=True):
        for i, (_, values) in enumerate(heads.items()):
            shift = np.linspace(-0.2, 0.2, len(values)) if len(values) > 1 else np.zeros(1)
            panel.plot(i + shift, values, "o", color=COLOURS[i % 8], markersize=4, alpha=0.7)
            panel.plot([i - 0.35, i + 0.35], [np.mean(values)] * 2, color=COLOURS[i % 8], linewidth=2)
        panel.set(xticks=range(len(heads)), title=setting)
        panel.set_xticklabels([name.replace(" ", "\n", 1) for name in heads], fontsize=7)
    np.atleast_1d(axes)[0].set(ylabel=f"accuracy ({label})")
    np.atleast_1d(axes)[0].set_ylim(top=1.02)
    return figure


def cost_figure(orders: Sequence[int], milliseconds: Mapping[str, Sequence[float]]) -> Figure:
    """Time of a forward and backward pass against n."""
    figure, axes = new_figure()
    for name, values in milliseconds.items():
        axes.loglog(orders, values, "o-", label=name)
    axes.set(xlabel="n", ylabel="processor time (ms)", title="Forward and backward pass")
    axes.set_xticks(orders, [str(n) for n in orders])
    axes.minorticks_off()
    axes.legend(frameon=False)
    return figure

"""Figures in one plain style, without pyplot: no global state, no display, safe in threads."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Colour-blind safe (Okabe and Ito).
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#F0E442", "#000000")


def new_figure(
    nrows: int = 1, ncols: int = 1, width: float = 7.0, height: float = 4.2, **subplots: Any
) -> "tuple[Figure, Any]":
    """A matplotlib `Figure` with light grids and its axes, as `Figure.subplots` returns them.

    Args:
        nrows, ncols: panels.
        width, height: inches.
        **subplots: passed to `Figure.subplots`, such as ``sharex=True``.
    """
    from matplotlib import cycler
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(nrows, ncols, squeeze=False, **subplots)
    for panel in axes.flat:
        panel.set_prop_cycle(cycler(color=COLOURS))
        panel.grid(alpha=0.25, linewidth=0.6)
        panel.spines[["top", "right"]].set_visible(False)
        panel.set_axisbelow(True)
    if nrows == ncols == 1:
        return figure, axes[0, 0]
    return figure, axes[0] if nrows == 1 else axes[:, 0] if ncols == 1 else axes

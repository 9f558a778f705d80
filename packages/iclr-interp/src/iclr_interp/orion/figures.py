"""Pictures of sweeps, injections and components."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.figure import Figure

from iclr_shared.plots import COLOURS, new_figure

if TYPE_CHECKING:
    from iclr_interp.orion.patching import PatchTable

NAMES = ("$R_2(C_2)$: nothing carried", "$R_1(C_2)$: the request", "$R_1(C_1)$: the answer")


def sweep_figure(tables: "Mapping[str, PatchTable]") -> Figure:
    """Heat maps over layers, one row for each sweep, one panel for each hypothesis."""
    names = list(tables)
    deepest = max(max(table.swept) for table in tables.values())
    grids = np.full((3, len(names), deepest + 1), np.nan)
    for row, table in enumerate(tables.values()):
        grids[:, row, list(table.swept)] = table.normalised().T
    width = max(7.0, min(14.0, 3.5 + 0.35 * 3 * (deepest + 1)))
    figure, panels = new_figure(1, 3, width=width, height=1.9 + 0.3 * len(names), sharey=True)
    for panel, grid, title in zip(panels, grids, NAMES, strict=True):
        image = panel.imshow(grid, vmin=0, vmax=1, aspect="auto", cmap="cividis")
        panel.set(title=title, xlabel="patched after block $l$", yticks=range(len(names)), yticklabels=names)
        panel.title.set_fontsize(9)
        panel.grid(visible=False)
    figure.colorbar(image, ax=list(panels), label="normalised probability", shrink=0.9)
    return figure


def profile_figure(tables: "Mapping[str, PatchTable]") -> Figure:
    """Normalised probability of each hypothesis against the layer, a panel for each sweep."""
    columns = min(3, len(tables))
    rows = -(-len(tables) // columns)
    figure, grid = new_figure(rows, columns, width=max(7.0, 3.2 * columns + 0.6), height=2.5 * rows + 0.9, sharey=True)
    panels = np.atleast_1d(grid).ravel()
    for panel, (name, table) in zip(panels, tables.items(), strict=False):
        for values, label, colour in zip(table.normalised().T, NAMES, COLOURS, strict=False):
            panel.plot(table.swept, values, "o-", color=colour, label=label, markersize=4)
        panel.set(title=name, xlabel="patched after block $l$", xticks=table.swept, ylim=(-0.05, 1.05))
        panel.title.set_fontsize(9)
    for panel in panels[::columns]:
        panel.set_ylabel("normalised probability")
    for panel in panels[len(tables) :]:
        panel.set_visible(False)
    figure.legend(
        *panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False, fontsize=8
    )
    return figure


def bars_figure(groups: Mapping[str, Mapping[str, Sequence[float]]], ylabel: str) -> Figure:
    """Bars by group, one colour for each name, a dot for each seed."""
    names = list(dict.fromkeys(name for bars in groups.values() for name in bars))
    figure, axes = new_figure(width=max(6.0, 1.8 + 1.6 * len(groups)), height=3.6)
    for j, (name, colour) in enumerate(zip(names, COLOURS, strict=False)):
        for i, bars in enumerate(groups.values()):
            if name not in bars:
                continue
            at = i + (j - (len(names) - 1) / 2) * 0.8 / len(names)
            values = np.asarray(bars[name], float)
            axes.bar(
                at,
                values.mean(),
                0.75 / len(names),
                color=colour,
                alpha=0.75,
                label=name.replace("_", " ") if i == 0 else None,
            )
            axes.plot(np.full(len(values), at), values, ".", color="black", markersize=4)
    axes.set(ylabel=ylabel, xticks=range(len(groups)), xticklabels=list(groups), ylim=(0, 1.05))
    figure.legend(loc="outside upper center", ncols=min(4, len(names)), frameon=False, fontsize=8)
    return figure


def movers_figure(effects: Sequence[float], attention: Sequence[float], blocks: Sequence[int], top: Any) -> Figure:
    """Direct effect of each head against its attention on the answer, coloured by block; the top heads of the retrieval
    blocks are circled."""
    figure, axes = new_figure(width=6.2, height=3.8)
    effects, attention, blocks = (np.asarray(values) for values in (effects, attention, blocks))
    for block, colour in zip(sorted(set(blocks.tolist())), COLOURS * 8, strict=False):
        axes.plot(attention[blocks == block], effects[blocks == block], "o", color=colour, label=f"block {block}")
    axes.plot(
        attention[top], effects[top], "o", markersize=12, markerfacecolor="none", color="black", label="top, L2 to L3"
    )
    axes.set(xlabel="attention from END on the answer", ylabel="direct effect (logits)")
    axes.legend(frameon=False, fontsize=8)
    return figure

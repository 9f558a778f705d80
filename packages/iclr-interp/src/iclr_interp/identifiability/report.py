"""The four counts of one network and a gate: circuits, interpretations, algorithms, places (spec 2.3 to 2.6)."""

import json
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from matplotlib.figure import Figure

from iclr_interp.identifiability.alignments import Mapping, find_alignments
from iclr_interp.identifiability.circuits import Circuit
from iclr_interp.identifiability.formulas import Formula, candidate_formulas
from iclr_interp.identifiability.gates import corners, truth_table
from iclr_interp.identifiability.interpretations import count_interpretations
from iclr_interp.identifiability.networks import MLP
from iclr_interp.identifiability.search import CircuitTable, find_circuits
from iclr_interp.identifiability.training import require_gate
from iclr_shared.files import atomic_path, atomic_write
from iclr_shared.plots import new_figure


@dataclass(frozen=True)
class Report:
    """How many explanations a network has.

    Args:
        circuits: the accepted ones.
        interpretations: number for each circuit.
        formulas: candidate algorithms.
        mappings: minimal alignments of each.
    """

    circuits: CircuitTable
    interpretations: tuple[int, ...]
    formulas: tuple[Formula, ...]
    mappings: tuple[tuple[Mapping, ...], ...]

    @property
    def identifiable(self) -> dict[str, bool | None]:
        """The four verdicts: whether there is exactly one; None where a sample cannot tell."""
        found: dict[str, bool | None] = {name: count == 1 for name, count in self.counts.items()}
        if self.circuits.sampled:
            found |= {name: None if self.counts[name] < 2 else False for name in ("circuits", "interpretations")}
        return found

    @property
    def counts(self) -> dict[str, int]:
        """The four counts; those of circuits and interpretations are of the sample if only one was evaluated."""
        return {
            "circuits": len(self.circuits),
            "interpretations": sum(self.interpretations),
            "algorithms": sum(bool(mappings) for mappings in self.mappings),
            "alignments": sum(map(len, self.mappings)),
        }

    def to_json(self) -> str:
        """Counts, verdicts, what was searched, and the aligned formulas with their places."""
        aligned = {
            str(formula): [
                {str(node): list(map(list, neurons)) for node, neurons in zip(m.nodes, m.neurons, strict=True)}
                for m in mappings
            ]
            for formula, mappings in zip(self.formulas, self.mappings, strict=True)
            if mappings
        }
        table = self.circuits
        summary: dict[str, Any] = {"sizes": list(table.sizes), "counts": self.counts}
        summary |= {"identifiable": self.identifiable, "candidates": len(self.formulas)}
        summary |= {"circuits searched": table.searched, "circuits in the space": table.space}
        if table.sampled:
            summary |= dict(zip(("estimated circuits", "standard error"), table.estimate(), strict=True))
        if len(table) > 1:
            summary |= {"mean Jaccard": table.jaccard(), "share of comparable pairs": table.comparable()}
        summary |= {"minimal circuits": int(table.minimal().sum()) if len(table) else 0}
        return json.dumps(summary | {"interpretations": list(self.interpretations), "aligned": aligned}, indent=2)

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write ``report.json``, ``circuits.npz`` and ``circuits.png``."""
        folder = Path(folder)
        atomic_write(folder / "report.json", self.to_json())
        self.circuits.save(folder / "circuits.npz")
        with atomic_path(folder / "circuits.png") as temporary:
            self.plot().savefig(temporary, format="png", dpi=130)

    def plot(self, shown: int = 6) -> Figure:
        """Some of the smallest circuits, and how often each edge and neuron is used."""
        table = self.circuits
        figure, axes = new_figure(2, 4, width=11, height=5.6)
        panels = [panel for row in axes for panel in row]
        for panel in panels:
            panel.axis("off")
        order = np.argsort(-table.sparsity(), kind="stable")[: min(shown, len(table))]
        for panel, index in zip(panels[1:], order, strict=False):
            masks = table[int(index)].masks()
            _draw(panel, table.sizes, [mask.astype(float) for mask in masks])
            panel.set_title(f"{self.interpretations[index]:,} interpretations", fontsize=8)
        if len(table):
            usage = table.edge_bits().mean(0)
            parts = np.split(usage, np.cumsum([a * b for a, b in zip(table.sizes, table.sizes[1:], strict=False)])[:-1])
            shapes = zip(table.sizes[1:], table.sizes[:-1], strict=True)
            _draw(panels[0], table.sizes, [p.reshape(shape) for p, shape in zip(parts, shapes, strict=True)])
        panels[0].set_title(f"share of {len(table):,} circuits", fontsize=8)
        return figure


def _draw(panel, sizes: Sequence[int], strengths: Sequence[np.ndarray]) -> None:
    """Neurons in columns, inputs on the left; edges as dark as they are strong."""
    place = [[(layer, (n - 1) / 2 - i) for i in range(n)] for layer, n in enumerate(sizes)]
    for layer, strength in enumerate(strengths, 1):
        for i, j in np.argwhere(strength > 0):
            (x0, y0), (x1, y1) = place[layer - 1][j], place[layer][i]
            panel.plot([x0, x1], [y0, y1], color="#0072B2", alpha=float(0.15 + 0.85 * strength[i, j]), linewidth=1.5)
        if layer == 1:
            panel.plot(*zip(*place[0], strict=True), "o", color="black", markersize=5)
        used = np.ones(sizes[layer]) if layer == len(strengths) else strength.max(1)
        for i, (x, y) in enumerate(place[layer]):
            panel.plot(x, y, "o", color="black" if used[i] else "lightgrey", markersize=5)
    panel.margins(0.15)


def identifiability_report(
    model: MLP,
    gate: str | Sequence[int],
    *,
    include_all_nodes: bool = False,
    min_sparsity: float = 0.0,
    max_depth: int | None = None,
    formulas: Literal["official", "all"] = "official",
    pairs: Literal["ordered", "unordered"] = "ordered",
    distributed: bool = False,
    progress: Callable[[Iterable[Any]], Iterable[Any]] = lambda items: items,
    **search: Any,
) -> Report:
    """Count every explanation of a network that computes a gate.

    Args:
        model: with one output.
        gate: name or truth table.
        include_all_nodes, min_sparsity: see `find_circuits`.
        max_depth: of candidate formulas; the number of hidden layers plus one if None.
        formulas: see `candidate_formulas`.
        pairs, distributed: see `find_alignments`.
        progress: wraps loops.
        search: further arguments of `find_circuits`.

    Raises:
        NotConvergedError: if the network does not compute the gate.
        SearchTooLargeError: if there are too many circuits.
    """
    require_gate(model, gate)
    table = truth_table(gate)
    x = corners(model.sizes[0])
    circuits = find_circuits(
        model, x, table[:, None], include_all_nodes=include_all_nodes, min_sparsity=min_sparsity, progress=progress,
        **search,
    )  # fmt: skip
    numbers = tuple(count_interpretations(model, circuit, x) for circuit in progress(list(circuits)))
    depth = len(model.sizes) - 1 if max_depth is None else max_depth
    candidates = candidate_formulas(gate, depth, formulas)
    mappings = find_alignments(model, candidates, pairs, distributed)
    return Report(circuits, numbers, tuple(candidates), tuple(map(tuple, mappings)))


def whole_network(model: MLP) -> Circuit:
    """The circuit that keeps everything."""
    masks = [np.ones((a, b), bool) for a, b in zip(model.sizes[1:], model.sizes, strict=False)]
    return Circuit.from_masks(model.sizes, masks)

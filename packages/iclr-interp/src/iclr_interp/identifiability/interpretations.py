"""Interpretations of a circuit: a threshold and a logic gate for every neuron, consistent on all corners (spec 2.4).

Truth tables over the 2^n corners are integers; bit x is the value on corner x.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise, product

import numpy as np
import torch
from jaxtyping import Float, Real

from iclr_interp.identifiability.circuits import Circuit
from iclr_interp.identifiability.gates import NAMES
from iclr_interp.identifiability.networks import MLP
from iclr_interp.identifiability.search import circuit_activations

type Node = tuple[int, int]
"""Layer and neuron."""


@dataclass(frozen=True)
class Interpretation:
    """One reading of a circuit.

    Args:
        tables: by neuron its value on each corner, as an integer.
        thresholds: by neuron the activation above which it is true.
        gates: by neuron of the second layer on: its parents, and its gate as bits over the parents' values in
            lexicographic order.
    """

    tables: dict[Node, int]
    thresholds: dict[Node, float]
    gates: dict[Node, tuple[tuple[Node, ...], tuple[int, ...]]]

    def name(self, node: Node) -> str:
        """The gate of a neuron, by name if it has two parents, else as its bits."""
        bits = self.gates[node][1]
        return NAMES[int("".join(map(str, bits)), 2)] if len(bits) == 4 else "".join(map(str, bits))


def separations(values: Float[np.ndarray, " X"]) -> list[tuple[float, int]]:
    """Thresholds between adjacent distinct values and the truth tables they give; none for a constant."""
    levels = np.unique(values)
    return [(float((a + b) / 2), sum(1 << int(x) for x in np.flatnonzero(values >= b))) for a, b in pairwise(levels)]


def completions(table: int, parents: Sequence[int], corners: int) -> int:
    """Number of gates of the parents that give `table`; 0 if none does.

    Values of the parents that no corner shows are free. With exactly two parents XOR and XNOR do not count: they would
    make an explanation trivial.
    """
    seen = _seen(table, parents, corners)
    if seen is None:
        return 0
    count = 2 ** (2 ** len(parents) - len(seen))
    if len(parents) == 2:
        count -= sum(all(seen[bits] == (bits[0] ^ bits[1] ^ flip) for bits in seen) for flip in (0, 1))
    return count


def _seen(table: int, parents: Sequence[int], corners: int) -> dict[tuple[int, ...], int] | None:
    """The gate's value for each tuple of parent values that occurs; None if one would need two values."""
    seen: dict[tuple[int, ...], int] = {}
    for x in range(corners):
        bits = tuple(parent >> x & 1 for parent in parents)
        if seen.setdefault(bits, table >> x & 1) != table >> x & 1:
            return None
    return seen


class _Options:
    """The choices that a circuit leaves: tables of every neuron that is not constant, and its parents among these."""

    def __init__(self, model: MLP, circuit: Circuit, x: Real[np.ndarray, "X n0"]):
        values = [h.numpy() for h in circuit_activations(model, circuit, torch.as_tensor(np.asarray(x, float)))]
        values[-1] = np.round(values[-1])
        self.corners, active = len(x), circuit.active()
        found = {
            (layer, i): separations(values[layer][:, i])
            for layer in range(1, len(values))
            for i in np.flatnonzero(active[layer]).tolist()
        }
        self.cuts = {node: cuts for node, cuts in found.items() if cuts}
        self.layers = [[node for node in self.cuts if node[0] == layer] for layer in range(1, len(values))]
        masks = circuit.masks()
        self.parents = {
            node: tuple(parent for parent in self.layers[node[0] - 2] if masks[node[0] - 1][node[1], parent[1]])
            for layer in self.layers[1:]
            for node in layer
        }


def count_interpretations(model: MLP, circuit: Circuit, x: Real[np.ndarray, "X n0"]) -> int:
    """How many interpretations a circuit has, without listing them.

    Layer by layer: a state is the choice of tables of one layer, its weight the number of ways to get there. The cost
    is bounded by the number of states, whatever the number of interpretations.

    Args:
        x: the corners.
    """
    options = _Options(model, circuit, x)
    tables = {node: [table for _, table in cuts] for node, cuts in options.cuts.items()}
    states = dict.fromkeys(product(*(tables[node] for node in options.layers[0])), 1)
    for before, layer in zip(options.layers, options.layers[1:], strict=False):
        where = [[before.index(parent) for parent in options.parents[node]] for node in layer]
        cache: dict[tuple, int] = {}
        after: dict[tuple[int, ...], int] = {}
        for state, weight in states.items():
            choices = []
            for node, places in zip(layer, where, strict=True):
                parents, ways = tuple(state[place] for place in places), []
                for table in tables[node]:
                    key = (table, parents)
                    if key not in cache:
                        cache[key] = completions(table, parents, options.corners)
                    if cache[key]:
                        ways.append((table, cache[key]))
                choices.append(ways)
            for combination in product(*choices):
                number = weight
                for _, ways in combination:
                    number *= ways
                key = tuple(table for table, _ in combination)
                after[key] = after.get(key, 0) + number
        states = after
    return sum(states.values())


def iter_interpretations(model: MLP, circuit: Circuit, x: Real[np.ndarray, "X n0"]) -> Iterator[Interpretation]:
    """All interpretations, lazily; there may be millions."""
    options = _Options(model, circuit, x)

    def gates(node: Node, tables: dict[Node, int]) -> Iterator[tuple[tuple[Node, ...], tuple[int, ...]]]:
        parents = options.parents[node]
        seen = _seen(tables[node], [tables[parent] for parent in parents], options.corners)
        if seen is None:
            return
        every = list(product((0, 1), repeat=len(parents)))
        for free in product((0, 1), repeat=len(every) - len(seen)):
            rest = iter(free)
            bits = tuple(seen[key] if key in seen else next(rest) for key in every)
            if len(parents) != 2 or bits not in ((0, 1, 1, 0), (1, 0, 0, 1)):
                yield parents, bits

    def descend(layer: int, tables: dict, cuts: dict, chosen: dict) -> Iterator[Interpretation]:
        if layer == len(options.layers):
            yield Interpretation(dict(tables), dict(cuts), dict(chosen))
            return
        nodes = options.layers[layer]
        for combination in product(*(options.cuts[node] for node in nodes)):
            here = tables | {node: table for node, (_, table) in zip(nodes, combination, strict=True)}
            at = cuts | {node: cut for node, (cut, _) in zip(nodes, combination, strict=True)}
            if layer == 0:
                yield from descend(1, here, at, chosen)
                continue
            for picked in product(*(list(gates(node, here)) for node in nodes)):
                yield from descend(layer + 1, here, at, chosen | dict(zip(nodes, picked, strict=True)))

    yield from descend(0, {}, {}, {})

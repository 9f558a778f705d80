"""Where a formula sits in a network: neurons that carry its nodes under interchange interventions (spec 2.6)."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, product
from math import prod
from typing import Literal

import numpy as np
import torch
from jaxtyping import Bool, Int, Real

from iclr_interp.identifiability.formulas import Formula
from iclr_interp.identifiability.gates import corners
from iclr_interp.identifiability.networks import MLP
from iclr_interp.identifiability.search import SearchTooLargeError
from iclr_shared.errors import InputError

#: Sets of neurons tried at most, and run at once.
MOST, BLOCK = 300_000, 4096

type Neurons = tuple[tuple[int, int], ...]
"""Layer and index of hidden neurons, ascending."""


@dataclass(frozen=True)
class Mapping:
    """A place for every node of a formula that needs one.

    Args:
        nodes: the formula's inner nodes, in its own order.
        neurons: the set of hidden neurons of each; disjoint.
    """

    nodes: tuple[Formula, ...]
    neurons: tuple[Neurons, ...]

    def __le__(self, other: "Mapping") -> bool:
        """Whether every node's neurons are among those that `other` gives it."""
        return all(set(mine) <= set(theirs) for mine, theirs in zip(self.neurons, other.neurons, strict=True))


def _pairs(count: int, pairs: Literal["ordered", "unordered"]) -> Int[np.ndarray, "pairs 2"]:
    """Base and source corners: all ordered pairs, or each once with the source first in order."""
    every = [(base, source) for base in range(count) for source in range(count) if base != source]
    return np.array([pair for pair in every if pairs == "ordered" or pair[1] < pair[0]])


def neuron_sets(sizes: Sequence[int], distributed: bool = False) -> Iterator[Neurons]:
    """Non-empty sets of hidden neurons within a layer, or within contiguous layers if `distributed`."""
    hidden = range(1, len(sizes) - 1)
    spans = [(a, b) for a in hidden for b in hidden if a <= b and (distributed or a == b)]
    for first, last in spans:
        layers = [[c for k in range(1, n + 1) for c in combinations(range(n), k)] for n in sizes[first : last + 1]]
        for choice in product(*layers):
            yield tuple((first + offset, i) for offset, layer in enumerate(choice) for i in layer)


def count_neuron_sets(sizes: Sequence[int], distributed: bool = False) -> int:
    """How many sets `neuron_sets` gives."""
    counts = [2**n - 1 for n in sizes[1:-1]]
    spans = [(a, b) for a in range(len(counts)) for b in range(a, len(counts)) if distributed or a == b]
    return sum(prod(counts[a : b + 1]) for a, b in spans)


def patched_bits(
    model: MLP, sets: Sequence[Neurons], x: Real[np.ndarray, "X n0"], pairs: Int[np.ndarray, "P 2"]
) -> Bool[np.ndarray, "sets P"]:
    """Output bit (above one half) when each set's neurons have their values from the source run, in the base run.

    All sets and pairs are run at once.
    """
    runs = model.activations(torch.as_tensor(np.asarray(x, float)))
    base, source = (torch.as_tensor(column.copy()) for column in pairs.T)
    h = runs[0][base].expand(len(sets), -1, -1)
    for layer, (W, b) in enumerate(zip(model.weights, model.biases, strict=True), 1):
        h = h @ W.T + b
        if layer == len(model.weights):
            break
        mask = torch.zeros(len(sets), 1, len(b), dtype=torch.bool)
        for index, neurons in enumerate(sets):
            for at, i in neurons:
                if at == layer:
                    mask[index, 0, i] = True
        h = torch.where(mask, runs[layer][source], model.act(h))
    return (h[..., 0] > 0.5).numpy()


def intervened_bits(formula: Formula, node: Formula, x: Int[np.ndarray, "X n"], pairs: Int[np.ndarray, "P 2"]):
    """Value of the formula on the base with `node` as it is on the source, ``(P,)``."""
    return formula.evaluate(x[pairs[:, 0]], {node: node.evaluate(x)[pairs[:, 1]]})


def interchange_accuracy(
    model: MLP, formula: Formula, node: Formula, neurons: Neurons, pairs: Literal["ordered", "unordered"] = "ordered"
) -> float:
    """Share of pairs of corners on which network and formula agree under the interchange of one node.

    Args:
        model: with one output.
        formula: the algorithm.
        node: one of its ``inner_nodes()``, or equal to just one of them.
        neurons: where the node is supposed to sit.
        pairs: all ordered pairs of different corners; or each once, as in the official code.

    Raises:
        InputError: if the formula has no such node, or the network no such neuron.
    """
    x = _inputs(model, formula)
    chosen, node = _pairs(len(x), pairs), _occurrence(formula, node)
    for layer, i in neurons:
        if not (1 <= layer < len(model.sizes) - 1 and 0 <= i < model.sizes[layer]):
            raise InputError(f"The network of sizes {model.sizes} has no hidden neuron {i} in layer {layer}.")
    return float((patched_bits(model, [neurons], x, chosen)[0] == intervened_bits(formula, node, x, chosen)).mean())


def _occurrence(formula: Formula, node: Formula) -> Formula:
    nodes = formula.inner_nodes()
    same = [one for one in nodes if one is node] or [one for one in nodes if one == node]
    if len(same) != 1:
        named = ", ".join(map(str, nodes)) or "none"
        raise InputError(f"{node} is {len(same)} of the nodes of {formula} to be located ({named}); take one of these.")
    return same[0]


def _inputs(model: MLP, *formulas: Formula) -> np.ndarray:
    n = model.sizes[0]
    if model.sizes[-1] != 1:
        raise InputError(
            f"Alignments are for networks of one output, this one has {model.sizes[-1]}; take model.output(i)."
        )
    for formula in formulas:
        highest = _variables(formula)
        if highest >= n:
            raise InputError(
                f"The formula {formula} has the variable {chr(65 + highest)}, the network only {n} inputs."
            )
    return corners(n)


def _variables(formula: Formula) -> int:
    return max([formula.variable, *map(_variables, formula.children)])


def find_alignments(
    model: MLP,
    formulas: Formula | Sequence[Formula],
    pairs: Literal["ordered", "unordered"] = "ordered",
    distributed: bool = False,
    minimal: bool = True,
) -> list[list[Mapping]]:
    """The mappings under which every node's interchange agrees on all pairs, for each formula.

    Nodes are tested one at a time, so each node's sets are found once and then combined.

    Args:
        model: with one output.
        formulas: candidates.
        pairs: see `interchange_accuracy`.
        distributed: sets may span contiguous layers.
        minimal: only mappings that contain no other one.

    Returns:
        A list for each formula; a formula without inner nodes has the empty mapping if it computes the network's bits.

    Raises:
        SearchTooLargeError: if there are over `MOST` sets of neurons.
        InputError: if the network has several outputs, or a formula more variables than it has inputs.
    """
    formulas = [formulas] if isinstance(formulas, Formula) else list(formulas)
    x = _inputs(model, *formulas)
    chosen = _pairs(len(x), pairs)
    if (number := count_neuron_sets(model.sizes, distributed)) > MOST:
        raise SearchTooLargeError(
            f"A network of sizes {model.sizes} has {number:,} sets of neurons, more than {MOST:,}; take a head"
            + (" or sets within one layer." if distributed else ".")
        )
    sets = list(neuron_sets(model.sizes, distributed))
    outputs = np.concatenate(
        [np.zeros((0, len(chosen)), bool)]
        + [patched_bits(model, sets[i : i + BLOCK], x, chosen) for i in range(0, len(sets), BLOCK)]
    )
    plain = (model(torch.as_tensor(x, dtype=torch.float64))[:, 0] > 0.5).numpy()
    found = []
    for formula in formulas:
        nodes = tuple(formula.inner_nodes())
        if not nodes:
            found.append([Mapping((), ())] if (formula.evaluate(x) == plain).all() else [])
            continue
        accepted: list[list[Neurons]] = []
        if len(nodes) <= sum(model.sizes[1:-1]):  # one neuron each at least
            for node in nodes:
                right = (outputs == intervened_bits(formula, node, x, chosen)).all(1)
                accepted.append([sets[i] for i in np.flatnonzero(right)])
                if not accepted[-1]:
                    break
        found.append(_combined(nodes, accepted, minimal) if accepted and accepted[-1] else [])
    return found


def _combined(nodes: tuple[Formula, ...], accepted: list[list[Neurons]], minimal: bool) -> list[Mapping]:
    """Disjoint choices of a set for each node.

    Any part of a mapping whose sets are accepted is a mapping too: its sets stay disjoint. So the minimal mappings are
    the disjoint choices of sets that contain no other accepted one, and the rest need not be listed.
    """
    if minimal:
        accepted = [[s for s in sets if not any(set(other) < set(s) for other in sets)] for sets in accepted]

    def extend(chosen: tuple[Neurons, ...], used: frozenset) -> Iterator[Mapping]:
        if len(chosen) == len(nodes):
            yield Mapping(nodes, chosen)
            return
        for neurons in accepted[len(chosen)]:
            if used.isdisjoint(neurons):
                yield from extend((*chosen, neurons), used | set(neurons))

    return list(extend((), frozenset()))

"""The space of circuits: which sub-networks are valid, how many there are, and all of them in blocks (spec 2.3).

A circuit is stored as the incoming edges of each neuron: an integer whose bit j says that neuron j of the layer before
it sends to it. A hidden neuron without incoming edges is not in the circuit; every other one has some, and sends
somewhere.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations, product
from math import comb

import numpy as np
from jaxtyping import Bool, Int

from iclr_shared.errors import InputError


@cache
def covering_matrices(rows: int, columns: int) -> int:
    """Binary matrices without a zero row or column: ``B(a, b) = sum_i (-1)^i C(a, i) (2^(a - i) - 1)^b``."""
    return sum((-1) ** i * comb(rows, i) * (2 ** (rows - i) - 1) ** columns for i in range(rows + 1))


def _allowed(sizes: Sequence[int], active: Sequence[int], include_all_nodes: bool, min_sparsity: float) -> bool:
    """Whether so many active neurons of each hidden layer are searched: strictly more than a share must be masked."""
    hidden = sum(sizes[1:-1])
    masked = hidden - sum(active)
    return masked > min_sparsity * hidden + 1e-9 or (include_all_nodes and masked == 0)


def count_circuits(sizes: Sequence[int], include_all_nodes: bool = False, min_sparsity: float = 0.0) -> int:
    """Number of valid circuits, in closed form: ``sum_k prod_l C(n_l, k_l) B(k_l, k_{l-1})``.

    Args:
        sizes: ``(n_0, ..., n_L)``.
        include_all_nodes: with the circuits that keep every neuron; the official search leaves them out.
        min_sparsity: only circuits that mask strictly more than this share of the hidden neurons.

    Raises:
        InputError: for sizes below 1 or a share outside [0, 1).
    """
    _check_space(sizes, min_sparsity)
    total = 0
    for active in product(*(range(1, n + 1) for n in sizes[1:-1])):
        if _allowed(sizes, active, include_all_nodes, min_sparsity):
            k = (sizes[0], *active, sizes[-1])
            ways = 1
            for n, a, before in zip(sizes[1:], k[1:], k[:-1], strict=True):
                ways *= comb(n, a) * covering_matrices(a, before)
            total += ways
    return total


def _check_space(sizes: Sequence[int], min_sparsity: float) -> None:
    if len(sizes) < 2 or min(sizes) < 1:
        raise InputError(f"A network has at least two layers of at least one neuron, got {tuple(sizes)}.")
    if not 0 <= min_sparsity < 1:
        raise InputError(f"min_sparsity must be in [0, 1), got {min_sparsity}.")


def node_masks(
    sizes: Sequence[int], include_all_nodes: bool = False, min_sparsity: float = 0.0
) -> Iterator[tuple[tuple[int, ...], ...]]:
    """The active neurons of all layers, for every allowed choice of hidden ones; layers without one do not occur."""
    _check_space(sizes, min_sparsity)
    choices = [[c for k in range(1, n + 1) for c in combinations(range(n), k)] for n in sizes[1:-1]]
    for hidden in product(*choices):
        if _allowed(sizes, [len(layer) for layer in hidden], include_all_nodes, min_sparsity):
            yield (tuple(range(sizes[0])), *hidden, tuple(range(sizes[-1])))


@cache
def _edge_choices(rows: int, columns: tuple[int, ...]) -> Int[np.ndarray, "choices rows"]:
    """All ways in which `rows` neurons can receive from `columns`, each from some and each column to some."""
    bits = np.array([sum(1 << j for i, j in enumerate(columns) if s >> i & 1) for s in range(1, 2 ** len(columns))])
    every = sum(1 << j for j in columns)
    grid = np.stack(np.meshgrid(*[bits] * rows, indexing="ij"), -1).reshape(-1, rows)
    return grid[np.bitwise_or.reduce(grid, 1) == every]


def edge_choices(layer: tuple[int, ...], before: tuple[int, ...], size: int) -> Int[np.ndarray, "choices size"]:
    """Incoming edges of a whole layer of `size` neurons, of which `layer` is active, for every valid choice."""
    chosen = _edge_choices(len(layer), before)
    whole = np.zeros((len(chosen), size), chosen.dtype)
    whole[:, layer] = chosen
    return whole


@dataclass(frozen=True)
class Circuit:
    """One circuit.

    Args:
        sizes: of the network.
        edges: for each linear layer the incoming edges of its neurons, as in the module's text.
    """

    sizes: tuple[int, ...]
    edges: tuple[tuple[int, ...], ...]

    @classmethod
    def from_masks(cls, sizes: Sequence[int], masks: Sequence[Bool[np.ndarray, "_ _"]]) -> "Circuit":
        """From edge masks ``E_l``, row = receiving neuron.

        Raises:
            InputError: naming the first neuron or layer that breaks a rule of validity.
        """
        if len(masks) != len(sizes) - 1:
            raise InputError(f"The network has {len(sizes) - 1} linear layers, got {len(masks)} edge masks.")
        sending = np.ones(sizes[0], bool)
        for layer, mask in enumerate(masks, 1):
            if mask.shape != (sizes[layer], sizes[layer - 1]):
                raise InputError(
                    f"The mask of layer {layer} has shape {mask.shape}, not {(sizes[layer], sizes[layer - 1])}."
                )
            receives, sends = mask.any(1), mask.any(0)
            if (sends & ~sending).any():
                raise InputError(
                    f"Neuron {int(np.argmax(sends & ~sending))} of layer {layer - 1} sends but is not active."
                )
            if (sending & ~sends).any():
                raise InputError(
                    f"Neuron {int(np.argmax(sending & ~sends))} of layer {layer - 1} is active but sends nowhere."
                )
            sending = receives
        if not sending.all():
            raise InputError(f"Output {int(np.argmin(sending))} receives nothing.")
        powers = [1 << np.arange(n) for n in sizes[:-1]]
        return cls(
            tuple(sizes), tuple(tuple(map(int, mask @ power)) for mask, power in zip(masks, powers, strict=True))
        )

    def masks(self) -> list[Bool[np.ndarray, "_ _"]]:
        """Edge masks ``E_l``."""
        return [
            (np.array(rows)[:, None] >> np.arange(before) & 1).astype(bool)
            for rows, before in zip(self.edges, self.sizes[:-1], strict=True)
        ]

    def active(self) -> list[Bool[np.ndarray, " _"]]:
        """Node masks ``M_l``, inputs included."""
        return [np.ones(self.sizes[0], bool), *(np.array(rows) > 0 for rows in self.edges)]


def enumerate_circuits(
    sizes: Sequence[int], include_all_nodes: bool = False, min_sparsity: float = 0.0
) -> Iterator[Circuit]:
    """All valid circuits, one by one; `find_circuits` evaluates them in blocks."""
    for nodes in node_masks(sizes, include_all_nodes, min_sparsity):
        layers = [edge_choices(nodes[i], nodes[i - 1], sizes[i]).tolist() for i in range(1, len(sizes))]
        for edges in product(*layers):
            yield Circuit(tuple(sizes), tuple(map(tuple, edges)))


def sample_circuits(
    sizes: Sequence[int],
    number: int,
    rng: np.random.Generator,
    include_all_nodes: bool = False,
    min_sparsity: float = 0.0,
) -> list[Int[np.ndarray, "number _"]]:
    """Circuits drawn uniformly, with replacement, where there are too many to list.

    Returns:
        For each linear layer the incoming edges, ``(number, n_l)``.
    """
    choices, weights = [], []
    for active in product(*(range(1, n + 1) for n in sizes[1:-1])):
        if _allowed(sizes, active, include_all_nodes, min_sparsity):
            k = (sizes[0], *active, sizes[-1])
            ways = 1
            for n, a, before in zip(sizes[1:], k[1:], k[:-1], strict=True):
                ways *= comb(n, a) * covering_matrices(a, before)
            choices.append(k)
            weights.append(float(ways))
    drawn = rng.choice(len(choices), number, p=np.array(weights) / np.sum(weights))
    edges = [np.zeros((number, n), int) for n in sizes[1:]]
    for row, choice in enumerate(drawn):
        k, before = choices[choice], np.arange(sizes[0])
        for layer, n in enumerate(sizes[1:]):
            nodes = np.sort(rng.choice(n, k[layer + 1], replace=False))
            while True:  # rejection: rows are never empty, columns seldom
                mask = rng.integers(0, 2, (len(nodes), len(before)))
                if mask.any(0).all() and mask.any(1).all():
                    break
            edges[layer][row, nodes] = mask @ (1 << before)
            before = nodes
    return edges

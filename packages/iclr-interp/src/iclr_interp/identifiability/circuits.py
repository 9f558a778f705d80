"""The space of circuits: which sub-networks are valid, how many there are, and all of them in blocks (spec 2.3).

A circuit is stored as the incoming edges of each neuron: an integer whose bit j says that neuron j of the layer before
it sends to it. A hidden neuron without incoming edges is not in the circuit; every other one has some, and sends
somewhere.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate, combinations, product
from math import comb
from random import Random

import numpy as np
from jaxtyping import Bool, Int

from iclr_shared.errors import InputError

#: Neurons of a layer that sends, at most.
WIDEST = 62


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
    return sum(ways for _, ways in _ways(sizes, include_all_nodes, min_sparsity))


def _ways(sizes: Sequence[int], include_all_nodes: bool, min_sparsity: float) -> Iterator[tuple[tuple[int, ...], int]]:
    """The numbers of active neurons of all layers, and how many circuits have them."""
    _check_space(sizes, min_sparsity)
    for active in product(*(range(1, n + 1) for n in sizes[1:-1])):
        if _allowed(sizes, active, include_all_nodes, min_sparsity):
            k = (sizes[0], *active, sizes[-1])
            ways = 1
            for n, a, before in zip(sizes[1:], k[1:], k[:-1], strict=True):
                ways *= comb(n, a) * covering_matrices(a, before)
            yield k, ways


def bits_at_least(sizes: Sequence[int], min_sparsity: float = 0.0) -> int:
    """A quick lower bound of the binary logarithm of the number of circuits: a full row and column, the rest free."""
    k = [sizes[0], *(max(1, int(n * (1 - min_sparsity)) - 1) for n in sizes[1:-1]), sizes[-1]]
    return sum((a - 1) * (b - 1) for a, b in zip(k[1:], k, strict=False))


def _check_space(sizes: Sequence[int], min_sparsity: float) -> None:
    if len(sizes) < 2 or min(sizes) < 1:
        raise InputError(f"A network has at least two layers of at least one neuron, got {tuple(sizes)}.")
    if not 0 <= min_sparsity < 1:
        raise InputError(f"min_sparsity must be in [0, 1), got {min_sparsity}.")


def _check_width(sizes: Sequence[int]) -> None:
    """Edges into a neuron are the bits of one integer."""
    if max(sizes[:-1]) > WIDEST:
        raise InputError(
            f"A layer has {max(sizes[:-1])} neurons; circuits of at most {WIDEST} are stored. Take a head."
        )


def node_masks(
    sizes: Sequence[int], include_all_nodes: bool = False, min_sparsity: float = 0.0
) -> Iterator[tuple[tuple[int, ...], ...]]:
    """The active neurons of all layers, for every allowed choice of hidden ones; layers without one do not occur."""
    _check_space(sizes, min_sparsity)
    _check_width(sizes)
    choices = [[c for k in range(1, n + 1) for c in combinations(range(n), k)] for n in sizes[1:-1]]
    for hidden in product(*choices):
        if _allowed(sizes, [len(layer) for layer in hidden], include_all_nodes, min_sparsity):
            yield (tuple(range(sizes[0])), *hidden, tuple(range(sizes[-1])))


@cache
def edge_sets(rows: int, senders: int) -> Int[np.ndarray, "choices rows"]:
    """All ways in which `rows` neurons can receive from `senders`, each from some and each sender to some.

    Entries are sets of senders as bits. Of rows and columns the fewer are the long ones to go through.
    """
    if rows < senders:
        columns = edge_sets(senders, rows)
        return sum((columns[:, [j]] >> np.arange(rows) & 1) << j for j in range(senders))
    every = 2**senders - 1
    grid = np.indices((every,) * rows).reshape(rows, -1).T + 1
    return np.ascontiguousarray(grid[np.bitwise_or.reduce(grid, 1) == every])


def spread(
    chosen: Int[np.ndarray, "choices active"], layer: Sequence[int], before: Sequence[int], size: int
) -> Int[np.ndarray, "choices size"]:
    """Sets of active senders of active neurons, written as incoming edges of the whole layer of `size` neurons."""
    whole = np.zeros((len(chosen), size), int)
    for i, j in enumerate(before):
        whole[:, layer] |= (chosen >> i & 1) << j
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
        layers = [
            spread(edge_sets(len(nodes[i]), len(nodes[i - 1])), nodes[i], nodes[i - 1], sizes[i]).tolist()
            for i in range(1, len(sizes))
        ]
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

    The numbers of active neurons are drawn by their exact shares of the closed form, then the neurons, then the edges
    row by row: no draw is thrown away.

    Returns:
        For each linear layer the incoming edges, ``(number, n_l)``.

    Raises:
        InputError: if no circuit is allowed.
    """
    _check_width(sizes)
    every = list(_ways(sizes, include_all_nodes, min_sparsity))
    if not every:
        raise InputError(f"No circuit of sizes {tuple(sizes)} masks more than {min_sparsity} of the hidden neurons.")
    numbers, ways = zip(*every, strict=True)
    limits, random = list(accumulate(ways)), Random(int(rng.integers(2**63)))
    edges = [np.zeros((number, n), int) for n in sizes[1:]]
    for row in range(number):
        k, before = numbers[bisect_right(limits, random.randrange(limits[-1]))], tuple(range(sizes[0]))
        for layer, n in enumerate(sizes[1:]):
            nodes = tuple(sorted(random.sample(range(n), k[layer + 1])))
            for i, senders in zip(nodes, _covering(len(nodes), len(before), random), strict=True):
                edges[layer][row, i] = sum(1 << before[j] for j in senders)
            before = nodes
    return edges


@cache
def _covers(rows: int, columns: int, uncovered: int) -> int:
    """Ways in which `rows` non-empty sets of columns cover at least the `uncovered` ones."""
    return sum((-1) ** i * comb(uncovered, i) * (2 ** (columns - i) - 1) ** rows for i in range(uncovered + 1))


def _covering(rows: int, columns: int, random: Random) -> list[list[int]]:
    """A uniform draw of the matrices that `covering_matrices` counts, row by row: the columns of each."""
    covered: list[int] = []
    uncovered, drawn = list(range(columns)), []
    for left in range(rows - 1, -1, -1):
        at = random.randrange(_covers(left + 1, columns, len(uncovered)))
        for fresh in range(len(uncovered) + 1):
            again = 2 ** len(covered) - (fresh == 0)
            ways = comb(len(uncovered), fresh) * again * _covers(left, columns, len(uncovered) - fresh)
            if at < ways:
                break
            at -= ways
        new = random.sample(uncovered, fresh)
        bits = random.randrange(2 ** len(covered) - again, 2 ** len(covered))
        drawn.append(new + [column for i, column in enumerate(covered) if bits >> i & 1])
        covered += new
        uncovered = [column for column in uncovered if column not in new]
    return drawn

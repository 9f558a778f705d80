"""Which circuits do what the network does: all of them, evaluated in blocks (spec 2.3)."""

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, Real

from iclr_interp.identifiability.circuits import (
    Circuit,
    bits_at_least,
    count_circuits,
    edge_sets,
    node_masks,
    sample_circuits,
    spread,
)
from iclr_interp.identifiability.networks import MLP
from iclr_shared.checkpoints import Checkpoint, save_arrays
from iclr_shared.errors import InputError, Unavailable

#: Circuits evaluated at once, circuits times inputs evaluated at once, and pairs of circuits compared at once.
BLOCK, CELLS, PAIRS = 65_536, 2**22, 2**23

#: Largest search unless something else is asked for.
LIMIT = 5_000_000

#: Binary logarithm of a number of circuits that is not even written out.
HUGE = 2000


class SearchTooLargeError(InputError):
    """There are more circuits than were allowed."""


@dataclass(frozen=True)
class CircuitTable:
    """The accepted circuits.

    Args:
        sizes: of the network.
        edges: for each linear layer the incoming edges of its neurons, ``(circuits, n_l)``; see `circuits`.
        accuracy: share of inputs on which the rounded outputs are the wanted ones.
        agreement: share on which they are the network's.
        similarity: 1 minus the mean squared difference from the network's outputs.
        searched: how many different circuits were evaluated.
        space: how many there are; more than `searched` if those were a sample.
    """

    sizes: tuple[int, ...]
    edges: tuple[np.ndarray, ...]
    accuracy: Float[np.ndarray, " circuits"]
    agreement: Float[np.ndarray, " circuits"]
    similarity: Float[np.ndarray, " circuits"]
    searched: int
    space: int

    @property
    def sampled(self) -> bool:
        """Whether only a sample of the space was evaluated."""
        return self.searched < self.space

    def estimate(self) -> tuple[float, float]:
        """Accepted circuits in the whole space, and the standard error; drawn without replacement, so 0 if all were."""
        share = len(self) / self.searched
        error = (share * (1 - share) / self.searched * (1 - self.searched / self.space)) ** 0.5
        return share * self.space, error * self.space

    def __len__(self) -> int:
        return len(self.accuracy)

    def __getitem__(self, index: int) -> Circuit:
        return Circuit(self.sizes, tuple(tuple(map(int, rows[index])) for rows in self.edges))

    def __iter__(self) -> Iterator[Circuit]:
        return (self[index] for index in range(len(self)))

    def node_bits(self) -> Bool[np.ndarray, "circuits hidden"]:
        """Active hidden neurons."""
        hidden = [rows > 0 for rows in self.edges[:-1]]
        return np.concatenate([np.zeros((len(self), 0), bool), *hidden], 1)

    def edge_bits(self) -> Bool[np.ndarray, "circuits edges"]:
        """Active edges, layer by layer, receiving neuron by receiving neuron."""
        parts = [
            (rows[:, :, None] >> np.arange(before) & 1).astype(bool).reshape(len(self), rows.shape[1] * before)
            for rows, before in zip(self.edges, self.sizes[:-1], strict=True)
        ]
        return np.concatenate(parts, 1)

    def sparsity(self, of: Literal["nodes", "edges", "both"] = "both") -> Float[np.ndarray, " circuits"]:
        """Share of hidden neurons, edges, or both that are masked."""
        return 1 - self._bits(of).mean(1)

    def _bits(self, of: str = "both") -> np.ndarray:
        bits = {"nodes": self.node_bits(), "edges": self.edge_bits()}
        return np.concatenate(list(bits.values()), 1) if of == "both" else bits[of]

    def within(self) -> Bool[np.ndarray, "circuits circuits"]:
        """Whether circuit i is part of circuit j: every active neuron and edge of i is active in j."""
        return np.concatenate([np.zeros((0, len(self)), bool), *(inside for inside, _ in self._pairs())])

    def minimal(self) -> Bool[np.ndarray, " circuits"]:
        """Circuits of which no accepted circuit is a proper part."""
        return sum((inside.sum(0) for inside, _ in self._pairs()), np.zeros(len(self), int)) == 1

    def comparable(self) -> float:
        """Share of pairs of which one is part of the other; NaN for fewer than two circuits."""
        n = len(self)
        return float((sum(inside.sum() for inside, _ in self._pairs()) - n) / (n * (n - 1) / 2)) if n > 1 else np.nan

    def jaccard(self) -> float:
        """Mean overlap of pairs, intersection over union of active hidden neurons and edges; NaN below two circuits."""
        n = len(self)
        if n < 2:
            return np.nan
        return float((sum(overlap.sum(dtype=float) for _, overlap in self._pairs()) - n) / (n * (n - 1)))

    def _pairs(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Order and overlap of some circuits with all, ``(some, circuits)``, in blocks that bound the memory."""
        bits = self._bits().astype(np.float32)
        size, step = bits.sum(1), max(1, PAIRS // max(1, len(self)))
        for start in range(0, len(self), step):
            both = bits[start : start + step] @ bits.T
            own = size[start : start + step, None]
            yield both == own, both / (own + size - both)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write an ``.npz`` with ``sizes``, ``edges0, edges1, ...`` and the columns."""
        columns = {name: getattr(self, name) for name in ("accuracy", "agreement", "similarity")}
        edges = {f"edges{i}": rows for i, rows in enumerate(self.edges)}
        searched = {name: np.array(float(getattr(self, name))) for name in ("searched", "space")}
        save_arrays(path, sizes=np.array(self.sizes), **edges, **columns, **searched)


def find_circuits(
    model: MLP,
    x: Real[np.ndarray, "X n0"],
    y: Real[np.ndarray, "Y *nL"] | Bool[np.ndarray, "Y *nL"],
    *,
    threshold: float = 0.99,
    reference: Literal["target", "model"] = "target",
    include_all_nodes: bool = False,
    min_sparsity: float = 0.0,
    limit: int = LIMIT,
    sample: int | None = None,
    rng: np.random.Generator | None = None,
    device: str = "cpu",
    checkpoint: Checkpoint | None = None,
    progress: Callable[[Iterable[Any]], Iterable[Any]] = lambda blocks: blocks,
) -> CircuitTable:
    """All valid circuits whose rounded outputs are right on more than `threshold` of the inputs.

    Neurons that are not in the circuit send 0; biases of those that are stay. Equal rows of `x` are evaluated once.

    Args:
        model: the network.
        x: inputs.
        y: wanted outputs, 0 or 1; a row for each input, or a number where there is one output.
        threshold: strict.
        reference: judge by the wanted outputs, or by the network's own rounded ones.
        include_all_nodes: with the circuits that keep every neuron; the official search leaves them out.
        min_sparsity: only circuits that mask strictly more than this share of the hidden neurons.
        limit: largest search.
        sample: evaluate so many different circuits drawn uniformly instead, with `rng`; all if there are no more.
        device: of the evaluation.
        checkpoint: to save what is found now and then, and to go on from it if it is of the same search.
        progress: wraps the loop over choices of neurons.

    Raises:
        SearchTooLargeError: with the number of circuits and what to do.
        Unavailable: if torch has no such device.
        InputError: if inputs or outputs do not fit the network, or outputs are not binary.
    """
    x, y, sizes = np.asarray(x, float), np.asarray(y, float), model.sizes
    y = y[:, None] if y.ndim == 1 else y
    if x.ndim != 2 or y.ndim != 2 or (x.shape[1], y.shape[1]) != (sizes[0], sizes[-1]) or not 0 < len(x) == len(y):
        raise InputError(f"Inputs {x.shape} and outputs {y.shape} do not fit a network of sizes {sizes}.")
    if not np.isfinite(x).all():
        raise InputError("The inputs hold NaN or infinity.")
    if not np.isin(y, (0, 1)).all():
        raise InputError("The wanted outputs must be 0 or 1.")
    if sample is not None and (rng is None or sample < 1):
        raise InputError("A sample needs a positive number of circuits and a generator rng.")
    total = search_space(sizes, include_all_nodes, min_sparsity, limit if sample is None else None)
    rows, inverse = np.unique(np.concatenate([x, y], 1), axis=0, return_inverse=True)
    net = _to(model, device)
    weights = torch.as_tensor(np.bincount(inverse.ravel()) / len(x), device=device)
    inputs, wanted = (torch.as_tensor(part, device=device) for part in np.split(rows, [sizes[0]], axis=1))
    own = net(inputs)
    own_bits, size = own.round(), max(1, min(BLOCK, CELLS // len(inputs)))

    def share(bits: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        same = bits == right[:, None]
        return weights @ (same[..., 0] if same.shape[-1] == 1 else same.all(-1)).to(weights.dtype)

    def judge(outputs: torch.Tensor) -> tuple[np.ndarray, list[np.ndarray]]:
        """Which circuits of a block are accepted, and their columns."""
        kept = share(outputs.round(), wanted if reference == "target" else own_bits).gt(threshold).nonzero()[:, 0]
        if not len(kept):
            return np.zeros(0, int), [np.zeros(0)] * 3
        outputs = outputs[:, kept]
        bits = outputs.round()
        similarity = 1 - weights @ (outputs - own[:, None]).square().mean(-1)
        columns = (share(bits, wanted), share(bits, own_bits), similarity)
        return kept.cpu().numpy(), [column.cpu().numpy() for column in columns]

    found = [[np.zeros((0, n), int) for n in sizes[1:]] + [np.zeros(0)] * 3]
    if sample is not None and sample < total:
        edges = _distinct(sizes, sample, rng, include_all_nodes, min_sparsity)
        for start in range(0, sample, size):
            some = [part[start : start + size] for part in edges]
            kept, columns = judge(masked_outputs(net, some, inputs).transpose(0, 1))
            found.append([*(part[kept] for part in some), *columns])
        return _table(sizes, found, sample, total)

    asked = [x, y, threshold, reference, include_all_nodes, min_sparsity]
    key = _digest(model.activation, *model.weights, *model.biases, *asked)
    done, evaluate = 0, _evaluator(net, inputs, size)
    if checkpoint is not None and (saved := checkpoint.latest()) is not None and saved[1].get("search") == key:
        done, state = saved
        found = [[state["found"][f"part{i}"] for i in range(len(found[0]))]]
    waiting: list[tuple] = []  # small blocks are judged together

    def judge_waiting() -> None:
        kept, columns = judge(torch.cat([block[-1] for block in waiting], 1))
        start = 0
        for nodes, before, last, outputs in waiting:
            here = slice(*np.searchsorted(kept, (start, start + outputs.shape[1])))
            first, second = np.divmod(kept[here] - start, len(last))
            start += outputs.shape[1]
            if len(first):
                chosen = zip(
                    [*(part[first] for part in before), last[second]], nodes[1:], nodes, sizes[1:], strict=False
                )
                found.append([*(spread(*part) for part in chosen), *(column[here] for column in columns)])
        waiting.clear()

    for index, nodes in enumerate(progress(list(node_masks(sizes, include_all_nodes, min_sparsity)))):
        if index < done:
            continue
        for block in evaluate(nodes):
            waiting.append((nodes, *block))
            if len(waiting) > 64 or sum(outputs.shape[1] for *_, outputs in waiting) > size // 8:
                judge_waiting()
        if checkpoint is not None and checkpoint.due():
            if waiting:
                judge_waiting()
            found[:] = [[np.concatenate(columns) for columns in zip(*found, strict=True)]]
            parts = {f"part{i}": part for i, part in enumerate(found[0])}
            checkpoint.save(index + 1, {"search": key, "found": parts})
    if waiting:
        judge_waiting()
    return _table(sizes, found, total, total)


def search_space(
    sizes: Sequence[int], include_all_nodes: bool = False, min_sparsity: float = 0.0, limit: int | None = LIMIT
) -> int:
    """Number of circuits.

    Raises:
        SearchTooLargeError: if it is over the limit, saying how large it is and what to do.
    """
    shown, bits = "-".join(map(str, sizes)), bits_at_least(sizes, min_sparsity)
    if bits > HUGE:
        raise SearchTooLargeError(
            f"A network of sizes {shown} has over 2^{bits} circuits, too many even for a sample: "
            "search its last layers (head), or raise min_sparsity."
        )
    total = count_circuits(sizes, include_all_nodes, min_sparsity)
    if limit is not None and total > limit:
        raise SearchTooLargeError(
            f"A network of sizes {shown} has {total:,} circuits (sum over active neurons of "
            f"prod C(n_l, k_l) B(k_l, k_(l-1))), more than the limit of {limit:,}: raise min_sparsity or the limit, "
            + ("leave out the circuits that keep every neuron, " if include_all_nodes else "")
            + "or evaluate a sample."
        )
    return total


def _distinct(sizes, number: int, rng: np.random.Generator, include_all_nodes: bool, min_sparsity: float):
    """Edges of `number` different circuits, drawn uniformly without replacement."""
    drawn = np.zeros((0, sum(sizes[1:])), int)
    while len(drawn) < number:
        more = sample_circuits(sizes, number, rng, include_all_nodes, min_sparsity)
        drawn = np.concatenate([drawn, np.concatenate(more, 1)])
        drawn = drawn[np.sort(np.unique(drawn, axis=0, return_index=True)[1])]
    return np.split(drawn[:number], np.cumsum(sizes[1:-1]), axis=1)


def _digest(*parts: Any) -> str:
    """Of what was asked, so that a checkpoint of another search is not gone on with."""
    digest = hashlib.sha256()
    for part in parts:
        array = np.asarray(part)
        digest.update(f"{array.dtype}{array.shape}".encode() + array.tobytes())
    return digest.hexdigest()


def masked_outputs(
    model: MLP, edges: Sequence[Int[np.ndarray, "N _"]], x: Real[torch.Tensor, "X n0"]
) -> Float[torch.Tensor, "N X nL"]:
    """Outputs of any circuits, one batched masked forward pass: what `find_circuits` computes by parts."""
    h = x.expand(len(edges[0]), *x.shape)
    for layer, (W, b, rows) in enumerate(zip(model.weights, model.biases, edges, strict=True), 1):
        incoming = torch.as_tensor(rows, device=x.device)
        mask = (incoming[:, :, None] >> torch.arange(W.shape[1], device=x.device) & 1).double()
        h = torch.einsum("nxj,nij->nxi", h, W * mask) + b
        h = h if layer == len(model.weights) else model.act(h) * (incoming > 0)[:, None].double()
    return h


def circuit_activations(
    model: MLP, circuit: Circuit, x: Real[torch.Tensor, "X n0"]
) -> list[Float[torch.Tensor, "X _"]]:
    """``[h_0, ..., h_L]`` of one circuit; neurons that are not in it have 0."""
    values = [x.double()]
    for layer, (W, b, mask) in enumerate(zip(model.weights, model.biases, circuit.masks(), strict=True), 1):
        h = values[-1] @ (W * torch.as_tensor(mask)).T + b
        values.append(h if layer == len(model.weights) else model.act(h) * torch.as_tensor(mask.any(1)))
    return values


def _to(model: MLP, device: str) -> MLP:
    if device == "cpu":
        return model
    moved = object.__new__(MLP)
    try:
        for name in ("weights", "biases"):
            object.__setattr__(moved, name, tuple(part.to(device) for part in getattr(model, name)))
    except (RuntimeError, AssertionError) as error:
        raise Unavailable(f"The device {device!r} cannot be used: {str(error).splitlines()[0]}") from None
    object.__setattr__(moved, "activation", model.activation)
    return moved


def _evaluator(model: MLP, x: torch.Tensor, size: int) -> Callable[..., Iterator[tuple]]:
    """The outputs of all circuits with given active neurons, in blocks of about `size`.

    Layer by layer: a neuron's value depends on the circuit before it and on its own incoming edges only, so it is
    computed once for each such pair and looked up for every choice of the layer's edges.

    Returns:
        A function of the active neurons of all layers, which yields sets of senders in the layers before the last,
        ``(S, active)`` each; those of the last, ``(C, n_L)``; and the outputs ``(X, S C, n_L)`` of all combinations,
        the last changing fastest.
    """

    @cache
    def choices(rows: int, senders: int) -> tuple:
        """Edges of a layer, masks of its units (a neuron with some senders), and which units a choice uses."""
        # A single neuron receives from all; of several each may receive from any set.
        sets = np.arange(1 if rows > 1 else 2**senders - 1, 2**senders)
        masks = torch.as_tensor(sets[:, None] >> np.arange(senders) & 1, device=x.device)
        found = edge_sets(rows, senders)
        return found, masks, torch.as_tensor(found - sets[0] + len(sets) * np.arange(rows), device=x.device)

    @cache
    def layer(at: int, active: tuple[int, ...], before: tuple[int, ...]) -> tuple:
        """Edges, weights and biases of the units, and which units a choice uses."""
        found, masks, index = choices(len(active), len(before))
        W, b = model.weights[at][list(active)], model.biases[at][list(active)]
        return found, (W[:, None, list(before)] * masks).flatten(0, 1), b.repeat_interleave(len(masks)), index

    def run(
        at: int, nodes: tuple[tuple[int, ...], ...], h: torch.Tensor
    ) -> Iterator[tuple[slice, slice, torch.Tensor]]:
        """Which of the circuits before it, which of the layer's edges, and its values ``(X, circuits, active)``."""
        found, W, b, index = layer(at, nodes[at + 1], nodes[at])
        step = max(1, size // len(found))
        for start in range(0, h.shape[1], step):
            values = torch.nn.functional.linear(h[:, start : start + step], W, b)
            values = values if at == last else model.act(values)
            for first in range(0, len(found), size):
                some = slice(first, first + size)
                yield slice(start, start + step), some, values[:, :, index[some]].flatten(1, 2)

    @cache
    def first(inputs: tuple[int, ...], active: tuple[int, ...]) -> list[tuple[slice, slice, torch.Tensor]]:
        """The first layer, which many choices of neurons share; remembered."""
        return list(run(0, (inputs, active), x[:, None]))

    def expand(at: int, nodes: tuple, h: torch.Tensor, before: list[np.ndarray]) -> Iterator[tuple]:
        found, *_ = layer(at, nodes[at + 1], nodes[at])
        for these, some, values in first(*nodes[:2]) if at == 0 else run(at, nodes, h):
            known, here = [part[these] for part in before], found[some]
            if at == last:
                yield known, here, values
            else:
                known = [part.repeat(len(here), 0) for part in known]
                number = values.shape[1] // len(here)
                yield from expand(at + 1, nodes, values, [*known, here if number == 1 else np.tile(here, (number, 1))])

    last = len(model.weights) - 1
    return lambda nodes: expand(0, nodes, x, [])


def _table(sizes, found, searched, space) -> CircuitTable:
    columns = [np.concatenate(parts) for parts in zip(*found, strict=True)]
    return CircuitTable(sizes, tuple(columns[:-3]), *columns[-3:], searched, space)

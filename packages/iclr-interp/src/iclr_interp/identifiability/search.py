"""Which circuits do what the network does: all of them, evaluated in blocks (spec 2.3)."""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, Real

from iclr_interp.identifiability.circuits import Circuit, count_circuits, edge_choices, node_masks, sample_circuits
from iclr_interp.identifiability.networks import MLP
from iclr_shared.checkpoints import Checkpoint, save_arrays
from iclr_shared.errors import InputError

#: Circuits evaluated at once.
BLOCK = 65_536


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
        searched: how many circuits were evaluated.
        sampled: whether those were a sample.
    """

    sizes: tuple[int, ...]
    edges: tuple[np.ndarray, ...]
    accuracy: Float[np.ndarray, " circuits"]
    agreement: Float[np.ndarray, " circuits"]
    similarity: Float[np.ndarray, " circuits"]
    searched: int
    sampled: bool = False

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
            (rows[:, :, None] >> np.arange(before) & 1).astype(bool).reshape(len(self), -1)
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
        bits = self._bits().astype(np.float32)
        return bits @ (1 - bits.T) == 0

    def minimal(self) -> Bool[np.ndarray, " circuits"]:
        """Circuits of which no accepted circuit is a proper part."""
        return self.within().sum(0) == 1

    def comparable(self) -> float:
        """Share of pairs of which one is part of the other; NaN for fewer than two circuits."""
        n = len(self)
        return float((self.within().sum() - n) / (n * (n - 1) / 2)) if n > 1 else np.nan

    def jaccard(self) -> float:
        """Mean overlap of pairs, intersection over union of active hidden neurons and edges; NaN below two circuits."""
        n, bits = len(self), self._bits().astype(np.float32)
        if n < 2:
            return np.nan
        both, size = bits @ bits.T, bits.sum(1)
        overlap = both / (size[:, None] + size - both)
        return float((overlap.sum() - n) / (n * (n - 1)))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write an ``.npz`` with ``sizes``, ``edges0, edges1, ...`` and the columns."""
        columns = {name: getattr(self, name) for name in ("accuracy", "agreement", "similarity")}
        edges = {f"edges{i}": rows for i, rows in enumerate(self.edges)}
        searched = {"searched": np.array(self.searched), "sampled": np.array(self.sampled)}
        save_arrays(path, sizes=np.array(self.sizes), **edges, **columns, **searched)


def find_circuits(
    model: MLP,
    x: Real[np.ndarray, "X n0"],
    y: Real[np.ndarray, "X nL"],
    *,
    threshold: float = 0.99,
    reference: Literal["target", "model"] = "target",
    include_all_nodes: bool = False,
    min_sparsity: float = 0.0,
    limit: int = 5_000_000,
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
        y: wanted outputs, 0 or 1.
        threshold: strict.
        reference: judge by the wanted outputs, or by the network's own rounded ones.
        include_all_nodes: with the circuits that keep every neuron; the official search leaves them out.
        min_sparsity: only circuits that mask strictly more than this share of the hidden neurons.
        limit: largest search.
        sample: evaluate so many circuits drawn uniformly instead, with `rng`.
        device: of the evaluation.
        checkpoint: to save what is found now and then, and to go on from it.
        progress: wraps the loop over choices of neurons.

    Raises:
        SearchTooLargeError: with the number of circuits and what to do.
        InputError: if inputs or outputs do not fit the network, or outputs are not binary.
    """
    x, y = np.asarray(x, float), np.asarray(y, float)
    sizes = model.sizes
    if x.shape[1] != sizes[0] or y.shape[1] != sizes[-1] or len(x) == 0:
        raise InputError(f"Inputs {x.shape} and outputs {y.shape} do not fit a network of sizes {sizes}.")
    if not np.isin(y, (0, 1)).all():
        raise InputError("The wanted outputs must be 0 or 1.")
    total = count_circuits(sizes, include_all_nodes, min_sparsity)
    if sample is None and total > limit:
        raise SearchTooLargeError(
            f"A network of sizes {'-'.join(map(str, sizes))} has {total:,} circuits (sum over active neurons of "
            f"prod C(n_l, k_l) B(k_l, k_(l-1))), more than the limit of {limit:,}: "
            "raise min_sparsity or the limit, or evaluate a sample."
        )
    rows, inverse = np.unique(np.concatenate([x, y], 1), axis=0, return_inverse=True)
    weights = torch.as_tensor(np.bincount(inverse.ravel()) / len(x), device=device)
    inputs, wanted = (torch.as_tensor(part, device=device) for part in np.split(rows, [sizes[0]], axis=1))
    net = _to(model, device)
    own = net(inputs)

    def judge(edges: list[np.ndarray], outputs: torch.Tensor) -> list[np.ndarray]:
        """Edges and columns of the accepted circuits of a block."""
        bits = outputs.round()
        accuracy, agreement = ((bits == right).all(-1).double() @ weights for right in (wanted, own.round()))
        similarity = 1 - (outputs - own).square().mean(-1) @ weights
        kept = ((accuracy if reference == "target" else agreement) > threshold).nonzero()[:, 0].cpu()
        return [
            *(part[kept.numpy()] for part in edges),
            *(c.cpu()[kept].numpy() for c in (accuracy, agreement, similarity)),
        ]

    empty = [np.zeros((0, n), int) for n in sizes[1:]] + [np.zeros(0)] * 3
    if sample is not None:
        if rng is None or sample < 1:
            raise InputError("A sample needs a positive number of circuits and a generator rng.")
        edges = sample_circuits(sizes, sample, rng, include_all_nodes, min_sparsity)
        parts = [
            judge(
                [part[i : i + BLOCK] for part in edges],
                masked_outputs(net, [part[i : i + BLOCK] for part in edges], inputs),
            )
            for i in range(0, sample, BLOCK)
        ]
        return _table(sizes, [empty, *parts], sample, True)

    done, found = 0, [empty]
    if checkpoint is not None and (kept := checkpoint.latest()) is not None:
        done, state = kept
        found = [[state["found"][f"part{i}"] for i in range(len(empty))]]
    for index, nodes in enumerate(progress(list(node_masks(sizes, include_all_nodes, min_sparsity)))):
        if index < done:
            continue
        found += [judge(edges, outputs) for edges, outputs in _outputs(net, nodes, inputs)]
        if checkpoint is not None and checkpoint.due():
            found = [[np.concatenate(columns) for columns in zip(*found, strict=True)]]
            checkpoint.save(index + 1, {"found": {f"part{i}": part for i, part in enumerate(found[0])}})
    return _table(sizes, found, total, False)


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
    for name in ("weights", "biases"):
        object.__setattr__(moved, name, tuple(part.to(device) for part in getattr(model, name)))
    object.__setattr__(moved, "activation", model.activation)
    return moved


def _outputs(
    model: MLP, nodes: tuple[tuple[int, ...], ...], x: torch.Tensor
) -> Iterator[tuple[list[np.ndarray], torch.Tensor]]:
    """Edges and outputs ``(N, X, n_L)`` of all circuits with these active neurons, in blocks.

    Layer by layer: a neuron's value depends on the circuit before it and on its own incoming edges only, so it is
    computed once for each such pair and looked up for every choice of the layer's edges.
    """

    def expand(layer: int, h: torch.Tensor, edges: list[np.ndarray]) -> Iterator[tuple[list[np.ndarray], torch.Tensor]]:
        choices = edge_choices(nodes[layer], nodes[layer - 1], model.sizes[layer])
        last = layer == len(model.weights)
        W, b = model.weights[layer - 1], model.biases[layer - 1]
        units, index = _units(choices, nodes[layer], W, b)
        step = max(1, BLOCK // len(choices))
        for start in range(0, len(h), step):
            piece = h[start : start + step]
            values = piece @ units[0].T + units[1]
            values = values if last else model.act(values)
            for first in range(0, len(choices), BLOCK):
                some = slice(first, first + BLOCK)
                chosen = values[:, :, index[some]].transpose(1, 2)  # (S, choices, X, active)
                whole = torch.zeros((*chosen.shape[:3], model.sizes[layer]), dtype=h.dtype, device=h.device)
                whole[..., list(nodes[layer])] = chosen
                count = len(choices[some])
                known = [np.repeat(part[start : start + step], count, 0) for part in edges]
                known.append(np.tile(choices[some], (len(piece), 1)))
                flat = whole.reshape(-1, *whole.shape[2:])
                if last:
                    yield known, flat
                else:
                    yield from expand(layer + 1, flat, known)

    yield from expand(1, x[None], [])


def _units(choices: np.ndarray, active: tuple[int, ...], W: torch.Tensor, b: torch.Tensor):
    """Masked weight rows of all (neuron, incoming edges) pairs, and which of them each choice of the layer uses."""
    rows, biases, index, offset = [], [], [], 0
    for i in active:
        subsets, where = np.unique(choices[:, i], return_inverse=True)
        bits = torch.as_tensor(subsets[:, None] >> np.arange(W.shape[1]) & 1, device=W.device)
        rows.append(W[i] * bits)
        biases.append(b[i].expand(len(subsets)))
        index.append(where.ravel() + offset)
        offset += len(subsets)
    return (torch.cat(rows), torch.cat(biases)), torch.as_tensor(np.stack(index, 1), device=W.device)


def _table(sizes, found, searched, sampled) -> CircuitTable:
    columns = [np.concatenate(parts) for parts in zip(*found, strict=True)]
    return CircuitTable(sizes, tuple(columns[:-3]), *columns[-3:], searched, sampled)

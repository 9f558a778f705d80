"""Networks trained on gates, many seeds side by side (spec 2.2)."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from iclr_interp.identifiability.gates import arity, corners, dataset, truth_table
from iclr_interp.identifiability.networks import ACTIVATIONS, MLP
from iclr_shared.errors import InputError


class NotConvergedError(InputError):
    """A network does not compute its gate, so its explanations are of something else."""


@dataclass(frozen=True)
class Training:
    """How networks are trained; defaults are those of the official code but for the patience.

    Args:
        repeats, val_repeats: rows of training and validation sets over 2^n.
        batch: rows of a step.
        lr: of AdamW, whose weight decay is torch's 0.01.
        epochs: at most.
        loss_target: stop below this mean squared error of an epoch.
        patience: stop after so many epochs without improvement (3 in the official code).
        noise: standard deviation of the inputs' noise.
        skewed: corners with random frequencies.
    """

    repeats: int = 1000
    val_repeats: int = 50
    batch: int = 100
    lr: float = 1e-3
    epochs: int = 1000
    loss_target: float = 0.01
    patience: int = 30
    noise: float = 0.0
    skewed: bool = False


@dataclass(frozen=True)
class Trained:
    """One trained network.

    Args:
        model: one output for each gate.
        seed: of data and initial weights.
        loss: mean squared error of its last epoch.
        accuracy: of rounded outputs on the validation set.
        epochs: that it was trained.
        converged: accuracy at least 0.99 and loss at most the target.
    """

    model: MLP
    seed: int
    loss: float
    accuracy: float
    epochs: int
    converged: bool

    def require(self) -> "Trained":
        """Itself.

        Raises:
            NotConvergedError: if it has not converged.
        """
        if not self.converged:
            raise NotConvergedError(
                f"The network of seed {self.seed} has not converged (loss {self.loss:.3g}, accuracy "
                f"{self.accuracy:.3g}): train it longer, or leave this seed out."
            )
        return self


def train_gates(
    gates: Sequence[str | Sequence[int]],
    hidden: Sequence[int] = (3, 3),
    seeds: Sequence[int] = (0,),
    training: Training = Training(),
    activation: str = "leaky_relu",
    progress: Callable[[Iterable[int]], Iterable[int]] = lambda epochs: epochs,
) -> list[Trained]:
    """Train one network for each seed, all at once: the same sequence of steps as one after the other.

    Args:
        gates: one output for each.
        hidden: widths of the hidden layers.
        seeds: of data, order and initial weights (torch's default initialisation).
        training: see `Training`.
        activation: of hidden layers.
        progress: wraps the epochs.
    """
    sizes = (arity(gates[0]), *hidden, len(gates))
    rngs = [np.random.default_rng([seed, 0]) for seed in seeds]
    sets = [dataset(gates, training.repeats, rng, training.noise, training.skewed) for rng in rngs]
    x, y = (torch.as_tensor(np.stack([part[i] for part in sets]), dtype=torch.float32) for i in range(2))
    W, b = _initial(sizes, seeds)
    optimizer = torch.optim.AdamW([*W, *b], lr=training.lr)
    act = ACTIVATIONS[activation]

    def forward(inputs: torch.Tensor) -> torch.Tensor:
        for layer, (weight, bias) in enumerate(zip(W, b, strict=True)):
            inputs = torch.baddbmm(bias[:, None], inputs, weight.transpose(1, 2))
            inputs = inputs if layer == len(W) - 1 else act(inputs)
        return inputs

    best, since = np.full(len(seeds), np.inf), np.zeros(len(seeds), int)
    done: dict[int, tuple[MLP, float, int]] = {}
    rows = x.shape[1]
    for epoch in progress(range(1, training.epochs + 1)):
        order = torch.as_tensor(np.stack([rng.permutation(rows) for rng in rngs]))
        total = torch.zeros(len(seeds))
        for start in range(0, rows, training.batch):
            index = order[:, start : start + training.batch, None]
            batch, wanted = (part.gather(1, index.expand(-1, -1, part.shape[2])) for part in (x, y))
            losses = (forward(batch) - wanted).square().mean((1, 2))
            optimizer.zero_grad()
            losses.sum().backward()
            optimizer.step()
            total += losses.detach() * index.shape[1]
        loss = (total / rows).numpy()
        since = np.where(loss < best, 0, since + 1)
        best = np.minimum(best, loss)
        for i in range(len(seeds)):
            if i not in done and (
                loss[i] < training.loss_target or since[i] >= training.patience or epoch == training.epochs
            ):
                layers = ([part[i].detach().double() for part in parts] for parts in (W, b))
                done[i] = MLP(*layers, activation), float(loss[i]), epoch
        if len(done) == len(seeds):
            break
    return [_judged(*done[i], gates, seed, training) for i, seed in enumerate(seeds)]


def _initial(sizes, seeds) -> tuple[list[Any], list[Any]]:
    """Torch's own initial weights of each seed, stacked."""
    W, b = [], []
    stacks = []
    with torch.random.fork_rng(devices=[]):
        for seed in seeds:
            torch.manual_seed(seed)
            stacks.append([torch.nn.Linear(n, m) for n, m in pairwise(sizes)])
    for layers in zip(*stacks, strict=True):
        W.append(torch.stack([layer.weight.detach() for layer in layers]).requires_grad_())
        b.append(torch.stack([layer.bias.detach() for layer in layers]).requires_grad_())
    return W, b


def _judged(model, loss, epochs, gates, seed, training) -> Trained:
    rng = np.random.default_rng([seed, 1])
    x, y = dataset(gates, training.val_repeats, rng, training.noise, training.skewed)
    accuracy = float((model(torch.as_tensor(x)).round().numpy() == y).mean())
    return Trained(model, seed, loss, accuracy, epochs, accuracy >= 0.99 and loss <= training.loss_target)


def require_gate(model: MLP, gate: str | Sequence[int]) -> None:
    """Check that a network computes a gate on all corners.

    Raises:
        NotConvergedError: saying on which corners it does not.
        InputError: if inputs or outputs do not fit.
    """
    table = truth_table(gate)
    if model.sizes[0] != arity(gate) or model.sizes[-1] != 1:
        raise InputError(
            f"The gate has {arity(gate)} inputs and one output, the network {model.sizes[0]} and {model.sizes[-1]}."
        )
    x = corners(arity(gate))
    wrong = np.flatnonzero(model(torch.as_tensor(x)).round().numpy()[:, 0] != table)
    if len(wrong):
        raise NotConvergedError(
            f"The network does not compute the gate: it is wrong on {[''.join(map(str, x[i])) for i in wrong]} "
            f"(accuracy {1 - len(wrong) / len(table):.3g}). Train it further."
        )

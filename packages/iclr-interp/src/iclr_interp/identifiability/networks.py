"""Small multilayer perceptrons as plain weights: from torch modules and files, run with and without interventions."""

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Real

from iclr_shared.errors import InputError
from iclr_shared.files import atomic_path

ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "leaky_relu": lambda x: torch.nn.functional.leaky_relu(x, 0.01),
    "relu": torch.relu,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
}
"""Of hidden layers; the output layer is linear."""

_MODULES = {
    torch.nn.LeakyReLU: "leaky_relu", torch.nn.ReLU: "relu", torch.nn.Tanh: "tanh", torch.nn.Sigmoid: "sigmoid"
}  # fmt: skip


@dataclass(frozen=True)
class MLP:
    """A network of L linear layers.

    Args:
        weights: ``W_l`` of shape ``(n_l, n_{l-1})``, l = 1..L, float64.
        biases: ``b_l`` of shape ``(n_l,)``.
        activation: of hidden layers, see `ACTIVATIONS`.

    Raises:
        InputError: if shapes do not fit together, a weight is not finite, or the activation is unknown.
    """

    weights: tuple[torch.Tensor, ...]
    biases: tuple[torch.Tensor, ...]
    activation: str = "leaky_relu"

    def __init__(self, weights: Sequence, biases: Sequence, activation: str = "leaky_relu"):
        fields = (
            [torch.as_tensor(np.asarray(part), dtype=torch.float64) for part in parts] for parts in (weights, biases)
        )
        for name, value in zip(("weights", "biases", "activation"), (*map(tuple, fields), activation), strict=True):
            object.__setattr__(self, name, value)
        if activation not in ACTIVATIONS:
            raise InputError(f"The activation {activation!r} is unknown; take one of {', '.join(ACTIVATIONS)}.")
        if not self.weights or len(self.weights) != len(self.biases):
            raise InputError(
                f"A network needs a bias for each weight matrix; got {len(self.weights)} and {len(self.biases)}."
            )
        for layer, (W, b) in enumerate(zip(self.weights, self.biases, strict=True), 1):
            if W.ndim != 2 or b.shape != W.shape[:1]:
                raise InputError(
                    f"Layer {layer} has weights {tuple(W.shape)} and biases {tuple(b.shape)}; not (n, m), (n,)."
                )
            if layer > 1 and W.shape[1] != self.weights[layer - 2].shape[0]:
                before = self.weights[layer - 2].shape[0]
                raise InputError(f"Layer {layer} takes {W.shape[1]} values, the layer before it gives {before}.")
            if not (torch.isfinite(W).all() and torch.isfinite(b).all()):
                raise InputError(f"Layer {layer} holds NaN or infinity.")

    @property
    def sizes(self) -> tuple[int, ...]:
        """``(n_0, ..., n_L)``."""
        return (self.weights[0].shape[1], *(W.shape[0] for W in self.weights))

    def act(self, x: torch.Tensor) -> torch.Tensor:
        """The hidden activation, elementwise."""
        return ACTIVATIONS[self.activation](x)

    def activations(self, x: Real[torch.Tensor, "X n0"]) -> list[Float[torch.Tensor, "X _"]]:
        """``[h_0, ..., h_L]``."""
        values = [x.to(torch.float64)]
        for layer, (W, b) in enumerate(zip(self.weights, self.biases, strict=True), 1):
            before = values[-1] @ W.T + b
            values.append(before if layer == len(self.weights) else self.act(before))
        return values

    def __call__(self, x: Real[torch.Tensor, "X n0"]) -> Float[torch.Tensor, "X nL"]:
        return self.activations(x)[-1]

    def output(self, index: int) -> "MLP":
        """The network of one output: the same hidden layers, one row of the last."""
        last = slice(index, index + 1)
        return MLP(
            (*self.weights[:-1], self.weights[-1][last]), (*self.biases[:-1], self.biases[-1][last]), self.activation
        )

    def head(self, layers: int) -> "MLP":
        """Its last `layers` linear layers."""
        if not 1 <= layers <= len(self.weights):
            raise InputError(f"The network has {len(self.weights)} linear layers; its head cannot have {layers}.")
        return MLP(self.weights[-layers:], self.biases[-layers:], self.activation)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write an ``.npz`` with ``w0, b0, w1, ...`` and ``activation``."""
        arrays = {f"w{i}": W.numpy() for i, W in enumerate(self.weights)}
        arrays |= {f"b{i}": b.numpy() for i, b in enumerate(self.biases)}
        with atomic_path(path) as temporary, open(temporary, "wb") as file:
            np.savez(file, **arrays, activation=np.array(self.activation))


def load(path: str | os.PathLike[str], activation: str | None = None) -> MLP:
    """A network from what `MLP.save` wrote, or from a torch state dict (``.pt``, ``.pth``) of `Linear` layers in order.

    Args:
        path: of the file.
        activation: of hidden layers; None takes what the file says, and leaky ReLU where it says nothing, as a state
            dict never does.

    Raises:
        InputError: if the file is missing or holds none.
    """
    path = Path(path)
    try:
        if path.suffix in (".pt", ".pth"):
            state = torch.load(path, map_location="cpu", weights_only=True)
            weights = [value for name, value in state.items() if name.endswith("weight")]
            biases = [value for name, value in state.items() if name.endswith("bias")]
            return MLP(weights, biases, activation or "leaky_relu")
        with np.load(path) as file:
            count = sum(name.startswith("w") for name in file.files)
            written = str(file["activation"]) if "activation" in file.files else "leaky_relu"
            weights, biases = ([file[f"{letter}{i}"] for i in range(count)] for letter in "wb")
            return MLP(weights, biases, activation or written)
    except InputError:
        raise
    except Exception as error:
        raise InputError(
            f"{path} holds no network: {error}. It needs arrays w0, b0, w1, ... or a state dict."
        ) from None


def from_torch(module: torch.nn.Module) -> MLP:
    """A network from a `torch.nn.Sequential` of `Linear` layers with one elementwise activation between them.

    Sequentials may be nested; `Identity`, and `Dropout` in evaluation mode, are passed over.

    Raises:
        InputError: naming the first module that is something else.
    """
    parts = [(name, part) for name, part in _leaves(module) if not _idle(part)]
    names = set()
    for position, (name, part) in enumerate(parts):
        linear = isinstance(part, torch.nn.Linear)
        if linear != (position % 2 == 0) or not (linear or type(part) in _MODULES):
            raise InputError(
                f"Module {name} is {type(part).__name__}: only Linear layers with an elementwise activation "
                "(LeakyReLU, ReLU, Tanh, Sigmoid) between them can be analysed."
            )
        if isinstance(part, torch.nn.LeakyReLU) and part.negative_slope != 0.01:
            raise InputError(f"Module {name} has the slope {part.negative_slope}; only 0.01 is known.")
        if not linear:
            names.add(_MODULES[type(part)])
        elif part.bias is None:
            raise InputError(f"Module {name} has no bias; give it one of zeros.")
    if len(parts) % 2 == 0 or len(names) > 1:
        raise InputError("The network must end in a Linear layer and have one kind of activation.")
    layers = [part for _, part in parts[::2]]
    weights, biases = ([getattr(layer, name).detach().cpu() for layer in layers] for name in ("weight", "bias"))
    return MLP(weights, biases, names.pop() if names else "leaky_relu")


def _leaves(module: torch.nn.Module, name: str = "") -> Iterator[tuple[str, torch.nn.Module]]:
    if not isinstance(module, torch.nn.Sequential):
        yield name or "0", module
        return
    for child_name, child in module.named_children():
        yield from _leaves(child, f"{name}.{child_name}" if name else child_name)


def _idle(module: torch.nn.Module) -> bool:
    return isinstance(module, torch.nn.Identity) or (isinstance(module, torch.nn.Dropout) and not module.training)

"""Circuits and interpretations against plain loops over sub-networks: `python benchmarks/identifiability.py`."""

import copy
import time
from collections.abc import Iterator

import numpy as np
import torch

from iclr_interp.identifiability import (
    MLP,
    Circuit,
    corners,
    count_circuits,
    count_interpretations,
    enumerate_circuits,
    find_circuits,
    iter_interpretations,
    truth_table,
    whole_network,
)
from iclr_interp.identifiability.examples import TRAINED
from iclr_shared.bench import compare, print_comparisons
from iclr_shared.tables import print_table

X, XOR = corners(2), truth_table("XOR")[:, None]
INPUTS = torch.as_tensor(X, dtype=torch.float64)


def modules(model: MLP) -> torch.nn.Sequential:
    layers: list[torch.nn.Module] = []
    for W, b in zip(model.weights, model.biases, strict=True):
        linear = torch.nn.Linear(W.shape[1], W.shape[0], dtype=torch.float64)
        linear.weight.data, linear.bias.data = W.clone(), b.clone()
        layers += [linear, torch.nn.LeakyReLU(0.01)]
    return torch.nn.Sequential(*layers[:-1])


def every() -> Iterator[Circuit]:
    return enumerate_circuits(TRAINED.sizes, include_all_nodes=True)


def one_by_one(net: torch.nn.Sequential) -> int:
    """A masked copy of the module and a forward pass for each circuit."""
    perfect = 0
    with torch.no_grad():
        for circuit in every():
            masked = copy.deepcopy(net)
            for layer, mask in zip(masked[::2], circuit.masks(), strict=True):
                layer.weight *= torch.as_tensor(mask)
            h = INPUTS
            for layer, active in zip(masked[::2], circuit.active()[1:], strict=True):
                h = layer(h)
                if layer is not masked[-1]:
                    h = torch.nn.functional.leaky_relu(h, 0.01) * torch.as_tensor(active)
            perfect += bool((h.round().numpy() == XOR).mean() > 0.99)
    return perfect


def numpy_loop() -> int:
    """The same in plain NumPy."""
    weights = [W.numpy() for W in TRAINED.weights]
    biases = [b.numpy() for b in TRAINED.biases]
    perfect = 0
    for circuit in every():
        h = X.astype(float)
        for layer, mask in enumerate(circuit.masks()):
            h = h @ (weights[layer] * mask).T + biases[layer]
            if layer < len(weights) - 1:
                h = np.where(h > 0, h, 0.01 * h) * mask.any(1)
        perfect += bool((h.round() == XOR).mean() > 0.99)
    return perfect


def search() -> None:
    net, number = modules(TRAINED), count_circuits(TRAINED.sizes, include_all_nodes=True)

    def same(outputs):
        assert set(outputs.values()) == {158}, outputs

    done = compare(
        {
            "ours": lambda: len(find_circuits(TRAINED, X, XOR, include_all_nodes=True)),
            "a masked module each": lambda: one_by_one(net),
            "a NumPy pass each": numpy_loop,
        },
        check=same, reps=5, label=f"2-3-3-1, {number:,} circuits",
    )  # fmt: skip
    print_comparisons([done], "search of all circuits, one thread")
    rows = [(name, number / done.median(name)) for name in done.seconds]
    print_table(("what", "circuits per second"), rows)


def growth() -> None:
    rows = []
    rng = np.random.default_rng(0)
    cases = ((2, 3, 3, 1), 0.0), ((3, 3, 3, 1), 0.0), ((2, 3, 3, 3, 1), 0.0), ((2, 4, 4, 1), 0.0), ((2, 5, 5, 1), 0.3)
    for sizes, sparsity in cases:
        weights = [rng.normal(size=(a, b)) for a, b in zip(sizes[1:], sizes, strict=False)]
        model = MLP(weights, [rng.normal(size=len(W)) for W in weights])
        x = corners(sizes[0])
        y = (model(torch.as_tensor(x)).round().numpy() > 0).astype(int)
        start = time.perf_counter()
        found = find_circuits(model, x, y, min_sparsity=sparsity)
        spent, number = time.perf_counter() - start, count_circuits(sizes, min_sparsity=sparsity)
        rows.append(("-".join(map(str, sizes)), number, len(found), spent, number / spent))
    print_table(("network", "circuits", "accepted", "s", "circuits per second"), rows, "growth")


def readings() -> None:
    circuit = max(find_circuits(TRAINED, X, XOR), key=lambda c: count_interpretations(TRAINED, c, X))

    def same(outputs):
        assert len(set(outputs.values())) == 1, outputs

    count = count_interpretations(TRAINED, circuit, X)
    compared = compare(
        {
            "ours (counted)": lambda: count_interpretations(TRAINED, circuit, X),
            "listed": lambda: sum(1 for _ in iter_interpretations(TRAINED, circuit, X)),
        },
        check=same, reps=3, label=f"{count:,} interpretations",
    )  # fmt: skip
    print_comparisons([compared], "interpretations of one circuit")
    start = time.perf_counter()
    number = count_interpretations(TRAINED, whole_network(TRAINED), X)
    print(f"the whole network: {number:,} interpretations counted in {1000 * (time.perf_counter() - start):.1f} ms")


if __name__ == "__main__":
    torch.set_num_threads(1)
    search()
    growth()
    readings()

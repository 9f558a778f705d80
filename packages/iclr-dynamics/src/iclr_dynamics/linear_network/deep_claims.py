"""The checks on deep nonlinear networks (claims C6): handwritten digits, five scales of initialisation."""

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from iclr_dynamics.linear_network.claims import mean_interval
from iclr_dynamics.linear_network.deep import DeepRun, ridge_accuracy, train
from iclr_dynamics.networks import digits
from iclr_shared.claims import ClaimRun, Measurement
from iclr_shared.plots import COLOURS, new_figure
from iclr_shared.seeds import root

#: What is measured on each network, as columns of the records.
COLUMNS = (
    "alignment0",
    "alignment",
    "neuron_alignment0",
    "neuron_alignment",
    "log_rescaling",
    "kernel_change",
    "train_loss",
    "train_accuracy",
    "test_accuracy",
)

Results = dict[float, list[dict[str, Any]]]


def small_deep_networks_align(run: ClaimRun, **sizes: Any) -> Measurement:
    """C6a. Rise of the alignment of layers from the smallest start; control: the largest start."""
    results = _networks(run, **sizes)
    rises = {scale: [r["alignment"] - r["alignment0"] for r in rs] for scale, rs in results.items()}
    small, lazy = min(rises), max(rises)
    _draw(run, results)
    return Measurement(
        measured=float(np.mean(rises[small])),
        baseline=(f"init scale {lazy:g}", float(np.mean(rises[lazy]))),
        ci=mean_interval(rises[small]),
        n=len(rises[small]),
        series=_table(results),
        details={
            f"labels of the layer pairs, init scale {s:g}": [r["labels"] for r in rs] for s, rs in results.items()
        },
    )


def large_deep_networks_do_not_align(run: ClaimRun, **sizes: Any) -> Measurement:
    """C6b. Change of the alignment of layers from the largest start; control: the smallest start."""
    results = _networks(run, **sizes)
    changes = {scale: [abs(r["alignment"] - r["alignment0"]) for r in rs] for scale, rs in results.items()}
    small, lazy = min(changes), max(changes)
    return Measurement(
        measured=max(changes[lazy]),
        baseline=(f"init scale {small:g}", min(changes[small])),
        n=len(changes[lazy]),
        series=_table(results),
    )


def small_deep_networks_generalise(
    run: ClaimRun, *, samples: int = 1_000, epochs: int = 400, longer: int = 10, **sizes: Any
) -> Measurement:
    """C6c. Test accuracy from the smallest start against the largest; controls: ridge regression, longer training.

    Args:
        samples: training images.
        epochs: of gradient descent.
        longer: the details also hold the accuracies after so many times more epochs; 0 leaves them out.
    """
    results = _networks(run, samples=samples, epochs=epochs, **sizes)
    accuracy = _accuracies(results)
    small, lazy = min(accuracy), max(accuracy)
    gains = accuracy[small] - accuracy[lazy]
    trees = [_tree(run.seeds.seed, i) for i in range(len(gains))]
    ridge = np.array([100 * ridge_accuracy(digits(tree.child("split").jax(), train=samples)) for tree in trees])
    details: dict[str, Any] = {"ridge regression, test accuracy in %": float(ridge.mean())}
    if longer:
        trained = _accuracies(_networks(run, samples=samples, epochs=longer * epochs, **sizes))
        for scale, values in trained.items():
            details[f"after {longer * epochs} epochs, init scale {scale:g}, test accuracy in %"] = values.tolist()
    return Measurement(
        measured=float(gains.mean()),
        baseline=("linear ridge regression minus the largest start", float((ridge - accuracy[lazy]).mean())),
        ci=mean_interval(gains),
        n=len(gains),
        series=_table(results),
        details=details,
    )


def _networks(
    run: ClaimRun,
    *,
    scales: Sequence[float] = (0.1, 0.3, 1.0, 3.0, 10.0),
    seeds: int = 3,
    samples: int = 1_000,
    epochs: int = 400,
    width: int = 128,
) -> Results:
    """All networks of one setting; those that another claim of this process has trained are not trained again."""
    shared = {"seed": run.seeds.seed, "samples": samples, "epochs": epochs, "width": width}
    grid = [{"scale": float(scale), "index": i, **shared} for scale in scales for i in range(seeds)]
    values = run.sweep(digit_network, grid, name=f"networks-{epochs}")
    results: Results = {}
    for point, value in zip(grid, values, strict=True):
        results.setdefault(point["scale"], []).append(value)
    return results


@functools.lru_cache(maxsize=256)
def digit_network(seed: int, index: int, scale: float, samples: int, epochs: int, width: int) -> dict[str, Any]:
    """Train one network on the digits and return what `COLUMNS` names, with the labels of its layer pairs."""
    tree = _tree(seed, index)
    data = digits(tree.child("split").jax(), train=samples)
    result = train(DeepRun(scale, epochs=epochs, hidden=(width, width)), data, tree.child("init").jax())
    labels = ", ".join(change.label for change in result.changes)
    return {**{name: getattr(result, name) for name in COLUMNS}, "labels": labels}


def _tree(seed: int, index: int):
    """A branch that the three claims share."""
    return root(seed).child("linear_network", "digits", index)


def _accuracies(results: Results) -> dict[float, np.ndarray]:
    return {scale: 100 * np.array([r["test_accuracy"] for r in rs]) for scale, rs in results.items()}


def _table(results: Results) -> dict[str, list[float]]:
    means = {name: [float(np.mean([r[name] for r in rs])) for rs in results.values()] for name in COLUMNS}
    return {"init scale": list(results), **means}


def _draw(run: ClaimRun, results: Results) -> None:
    figure, axes = new_figure(1, 3, width=11, height=3.6)
    labels = {
        "alignment": "alignment of consecutive layers",
        "kernel_change": "1 - CKA of tangent kernels",
        "test_accuracy": "test accuracy",
    }
    scales = list(results)
    for axis, (name, label) in zip(axes, labels.items(), strict=True):
        for i in range(len(results[scales[0]])):
            values = [results[scale][i][name] for scale in scales]
            axis.semilogx(scales, values, "o-", color=COLOURS[0], alpha=0.6, markersize=4)
        axis.set(xlabel="init scale", ylabel=label)
    before = [np.mean([r["alignment0"] for r in rs]) for rs in results.values()]
    axes[0].semilogx(scales, before, "k:", label="before training")
    axes[0].legend()
    run.figure("scales", figure)

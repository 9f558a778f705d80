"""``iclr ensembles VERB``: forecasts from the user's own predictions, tests of equivalence, training."""

import json
from pathlib import Path
from typing import Annotated, Any, Literal

import jax
import numpy as np
import tyro

from iclr_generalization.ensembles import predictions
from iclr_generalization.ensembles.decomposition import decompose
from iclr_generalization.ensembles.equivalence import equivalence_test
from iclr_generalization.ensembles.forecasts import forecast
from iclr_generalization.ensembles.training import MLP, Training, digits, predict, train_ensemble
from iclr_shared.checkpoints import save_arrays
from iclr_shared.errors import InputError
from iclr_shared.files import atomic_path, atomic_write
from iclr_shared.plots import new_figure
from iclr_shared.progress import progress
from iclr_shared.records import plain
from iclr_shared.tables import print_table

Files = tyro.conf.Positional[tuple[Path, ...]]
Sizes = Annotated[tuple[int, ...], tyro.conf.arg(name="sizes")]


def capacity(
    files: Files,
    labels: Path | None = None,
    sizes: Sizes = (2, 4, 8, 16, 32, 64),
    metric: Literal["brier", "nll", "welsch", "error", "mse"] = "brier",
    kind: predictions.Kind = "probabilities",
    target: float | None = None,
    out: Path | None = None,
) -> None:
    """Foresee the loss of ensembles with more members from the predictions of a few.

    Args:
        files: one CSV with columns member, label and one for each output; or .npy/.npz of shape (K, n, C); or one
            CSV/.npy for each member.
        labels: CSV or .npy of class indices, one-hot rows or regression targets; not needed with a label column.
        sizes: numbers of members to forecast.
        metric: brier (or mse for regression), nll, welsch (bounded), error (zero-one).
        kind: what the outputs are; logits are turned into probabilities, values are regression.
        target: also say how many members reach this loss.
        out: folder for forecast.json and forecast.png.
    """
    preds, y = _load(files, labels, kind)
    kind = "values" if kind == "values" else "probabilities"
    found = forecast(preds, y, sizes, metric, kind)
    rows = list(zip(map(int, found.sizes), found.loss.tolist(), (2 * found.std).tolist(), strict=True))
    K, n, _ = preds.shape
    print_table(("members", metric, "± (two s.e.)"), rows, f"forecast from {K} members on {n} points")
    print(f"infinitely many members: {found.limit:.6g}")
    summary: dict[str, Any] = {"members": K, "points": n, "metric": metric, "limit": found.limit}
    summary |= {"sizes": found.sizes, "loss": found.loss, "std": found.std}
    if metric in ("brier", "mse"):
        law = decompose(preds, y, kind).law
        summary |= {"limit": law.limit, "variance": law.variance}
        gained = law.loss(1) - law.loss(K)
        print(f"one member: {law.loss(1):.6g}; {K} gain {gained:.6g} of the {law.variance:.6g} there is to gain")
    if target is not None:
        many = law.required_members(target) if metric in ("brier", "mse") else found.required_members(target)
        shown = f"{many} members" if many else f"unreachable: infinitely many members give {found.limit:.6g}"
        print(f"{metric} <= {target:g}: {shown}")
        summary |= {"target": target, "required members": many}
    if out is not None:
        figure, axes = new_figure()
        axes.errorbar(found.sizes, found.loss, 2 * found.std, fmt="o-", label="forecast, two s.e.")
        axes.axhline(found.limit, color="black", linewidth=0.8, linestyle=":", label="infinitely many")
        axes.axvline(K, color="grey", linewidth=0.8, linestyle="--", label=f"measured, {K} members")
        axes.set(xscale="log", xlabel="members M", ylabel=metric)
        axes.set_xticks(found.sizes, [f"{size:g}" for size in found.sizes])
        axes.tick_params(axis="x", which="minor", bottom=False, labelbottom=False)
        axes.legend(frameon=False)
        _write(out, "forecast", summary, figure)


def equivalence(
    files: Files, labels: Path | None = None, kind: predictions.Kind = "probabilities", out: Path | None = None
) -> None:
    """Test whether members are of one kind: do their outputs have one law over the data?

    Args:
        files: as for capacity.
        labels: as for capacity.
        kind: what the outputs are; logits are turned into probabilities, values are regression.
        out: folder for equivalence.json.
    """
    preds, y = _load(files, labels, kind)
    found = equivalence_test(preds, y, "values" if kind == "values" else "probabilities")
    rows = [
        ("equivalence ratio (0 one law, 1 a pure shift), median of pairs", found.median_ratio),
        ("the same for the points' losses", float(np.median(found.loss_ratio))),
        ("disagreement, mean of pairs", float(found.disagreement.mean())),
        ("mean Wasserstein distance", float(found.wasserstein.mean())),
        ("what sampling alone gives", found.floor),
        ("spread of the members' losses (sd/mean)", found.loss_spread),
    ]
    print_table(("what", "value"), rows, f"{len(preds)} members on {preds.shape[1]} points")
    if out is not None:
        fields = {name: getattr(found, name) for name in found.__dataclass_fields__}
        _write(out, "equivalence", {**fields, "median_ratio": found.median_ratio, "loss_spread": found.loss_spread})


def train(
    data: tyro.conf.Positional[Path | None] = None,
    members: int = 8,
    width: int = 40,
    epochs: int = 100,
    learning_rate: float = 1e-3,
    batch_size: int = 64,
    seed: int = 0,
    out: Path = Path("ensemble"),
) -> None:
    """Train members side by side; a killed training goes on with the missing ones when it is repeated.

    Args:
        data: .npz with x (n, D), y (n,), x_test and y_test; without it scikit-learn's digits.
        members: how many; more can be added later.
        width: of both hidden layers.
        epochs: passes over the data.
        learning_rate: of Adam.
        batch_size: examples.
        seed: of the members and, for digits, of the split.
        out: folder for predictions.npy (K, n, C), labels.npy and the members' checkpoints.
    """
    if width < 1:
        raise InputError(f"width must be at least 1, got {width}.")
    split = digits(np.random.default_rng(seed)) if data is None else _arrays(data)
    model = MLP((width, width, int(max(split[1].max(), split[3].max())) + 1))
    settings = Training(epochs, learning_rate, batch_size)
    params = train_ensemble(
        model, split[0], split[1], members, jax.random.key(seed), training=settings, folder=out / "checkpoints",
        progress=lambda groups: progress(groups, desc="training"),
    )  # fmt: skip
    preds = predict(model, params, split[2])
    with atomic_path(out / "predictions.npy") as path:
        np.save(path, preds)
    with atomic_path(out / "labels.npy") as path:
        np.save(path, split[3])
    save_arrays(out / "arrays.npz", member_losses=decompose(preds, split[3]).member_losses)
    accuracy = (preds.argmax(2) == split[3]).mean(1)
    whole = float((preds.mean(0).argmax(1) == split[3]).mean())
    rows = [(str(k), float(a)) for k, a in enumerate(accuracy)] + [("ensemble", whole)]
    print_table(("member", "test accuracy"), rows)
    print(f"next: iclr ensembles capacity {out}/predictions.npy --labels {out}/labels.npy")


def _load(files: tuple[Path, ...], labels: Path | None, kind: predictions.Kind) -> tuple[np.ndarray, np.ndarray]:
    if not files:
        raise InputError("Name at least one file of predictions.")
    table = None
    if len(files) == 1 and files[0].suffix not in (".npy", ".npz"):
        if not files[0].exists():
            raise InputError(f"There is no file {files[0]}.")
        table = predictions.read_table(files[0])
    if table is not None:
        preds, y = table
        y = y if kind == "values" else y.astype(np.int64)
    elif labels is None:
        raise InputError("Give the true labels: --labels FILE, or a column 'label' in the table.")
    else:
        preds, y = predictions.read(files), predictions.read_labels(labels)
    if kind == "logits":
        preds = np.exp(preds - preds.max(2, keepdims=True))
        preds = preds / preds.sum(2, keepdims=True)
    predictions.check(preds, y, "values" if kind == "values" else "probabilities")
    return preds, y


def _arrays(path: Path) -> tuple[np.ndarray, ...]:
    try:
        with np.load(path, allow_pickle=False) as archive:
            parts = tuple(archive[name] for name in ("x", "y", "x_test", "y_test"))
    except (OSError, KeyError, ValueError) as error:
        raise InputError(f"{path} must be an .npz with x, y, x_test and y_test: {error}") from None
    x, y, x_test, y_test = parts
    if (
        x.ndim != 2
        or x_test.ndim != 2
        or x.shape[1] != x_test.shape[1]
        or len(x) != len(y)
        or len(x_test) != len(y_test)
    ):
        raise InputError(f"{path}: x and x_test must be (n, D) with as many labels as rows.")
    return x.astype(np.float32), y.astype(np.int64), x_test.astype(np.float32), y_test.astype(np.int64)


def _write(out: Path, name: str, summary: dict[str, Any], figure: Any = None) -> None:
    atomic_write(out / f"{name}.json", json.dumps(plain(summary, name, {}), indent=1) + "\n")
    if figure is not None:
        with atomic_path(out / f"{name}.png") as path:
            figure.savefig(path, format="png", dpi=130)
    print(f"written to {out}")

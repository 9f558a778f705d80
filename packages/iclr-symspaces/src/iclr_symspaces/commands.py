"""``iclr symspaces VERB``: compare heads on your covariances, train one, predict, measure distances to hyperplanes."""

import json
import tempfile
import zipfile
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import torch
import tyro
from sklearn.model_selection import LeaveOneGroupOut, StratifiedKFold, cross_val_score

from iclr_shared.adapters import torch_bytes
from iclr_shared.errors import InputError
from iclr_shared.files import atomic_path, atomic_write
from iclr_shared.progress import progress
from iclr_shared.tables import print_table
from iclr_symspaces import figures
from iclr_symspaces.covariances import BALL_BASELINES, SPD_BASELINES, covariances, real_numbers
from iclr_symspaces.estimator import BusemannClassifier, checked_labels, checked_seed, usable_device
from iclr_symspaces.functional import busemann, signed_distance
from iclr_symspaces.hyperbolic import PoincareBall
from iclr_symspaces.images import HyperbolicResNet, accuracy, channel_statistics, crop_and_flip, read_cifar
from iclr_symspaces.space import SymmetricSpace
from iclr_symspaces.spd import SPD
from iclr_symspaces.training import OFFICIAL, plain_state
from iclr_symspaces.training import fit as train_module

Manifold = Literal["spd", "ball"]


def classify(
    data: tyro.conf.Positional[Path],
    manifold: Manifold = "spd",
    folds: int = 5,
    epochs: int = 40,
    lr: float = 0.01,
    shared_flag: bool = False,
    estimator: str = "oas",
    seed: int = 0,
    out: Path | None = None,
    quiet: bool = False,
) -> None:
    """Cross-validated accuracies of the Busemann head and of the field's baselines on your data.

    Args:
        data: npz file with X and y: covariances (trials, n, n), recordings (trials, channels, time) or points of a ball
            (samples, d). If it holds groups (such as subjects), each is left out once instead of folds.
        manifold: spd or ball.
        folds: of the stratified cross-validation.
        epochs: of the heads trained by gradient.
        lr: their learning rate.
        shared_flag: one flag for all classes (spd; faster).
        estimator: of covariances from recordings: oas, lwf, scm …
        seed: of folds and initial values.
        out: folder for accuracies.json and accuracies.png.
        quiet: no progress bar.
    """
    seed = checked_seed(seed)
    X, y, groups = _read(data, manifold, estimator, labels=True)
    if out is not None:
        _writable(out / "accuracies.json")
    splits, fits = _splits(y, groups, folds, seed), {"epochs": epochs, "lr": lr, "random_state": seed}
    heads: dict[str, Any] = {"Busemann": BusemannClassifier(manifold, shared_flag=shared_flag, **fits)}
    if manifold == "ball":
        heads["geodesic"] = BusemannClassifier(manifold, "geodesic", **fits)
    heads |= {name: make() for name, make in (SPD_BASELINES if manifold == "spd" else BALL_BASELINES).items()}
    _check(X, manifold)
    scores = {
        name: cross_val_score(head, X, y, cv=splits, error_score="raise")
        for name, head in progress(heads.items(), desc="classifiers", total=len(heads), quiet=quiet)
    }
    kind = "groups" if groups is not None else "folds"
    rows = [(name, float(np.mean(s)), float(np.std(s)), float(np.min(s))) for name, s in scores.items()]
    chance = float(np.unique(y, return_counts=True)[1].max() / len(y))
    print_table(
        ("classifier", "accuracy", "standard deviation", "least"), rows,
        f"{len(X)} samples, {len(np.unique(y))} classes, {len(splits)} {kind}; largest class {chance:.3g}",
    )  # fmt: skip
    if out is not None:
        content = {
            "accuracies": {name: s.tolist() for name, s in scores.items()},
            "over": kind,
            "largest class": chance,
        }
        atomic_write(out / "accuracies.json", json.dumps(content, indent=2))
        title = f"{data.stem}: {len(np.unique(y))} classes"
        with atomic_path(out / "accuracies.png") as temporary:
            figures.accuracies_figure({title: {n: s.tolist() for n, s in scores.items()}}, kind).savefig(
                temporary, dpi=130
            )


def fit(
    train: tyro.conf.Positional[Path],
    out: Path,
    manifold: Manifold = "spd",
    head: Literal["busemann", "geodesic"] = "busemann",
    epochs: int = 40,
    batch: int = 60,
    lr: float = 0.01,
    optimizer: Literal["adam", "sgd"] = "adam",
    alpha: float = 1.0,
    beta: float = 0.0,
    c: float = 1.0,
    norm: Literal["riemannian", "gyro"] = "riemannian",
    clip: float | None = None,
    shared_flag: bool = False,
    estimator: str = "oas",
    device: str = "cpu",
    seed: int = 0,
    resume: bool = False,
    quiet: bool = False,
) -> None:
    """Train a classifier and write it to one file.

    Args:
        train: npz file with X and y: covariances (trials, n, n), recordings (trials, channels, time), or points
            (samples, d).
        out: model file, such as model.pt; OUT.state/ beside it holds the training's state until it is done.
        manifold: spd or ball.
        head: busemann, or geodesic as baseline.
        epochs: passes over the data.
        batch: samples a step.
        lr: learning rate.
        optimizer: Riemannian Adam or SGD.
        alpha: of the SPD metric.
        beta: of the SPD metric, above -alpha/n.
        c: minus the curvature of the ball.
        norm: riemannian, or gyro as the official hyperbolic head.
        clip: ball: X holds Euclidean features, cut at this norm.
        shared_flag: one flag for all classes (spd; faster).
        estimator: of covariances from recordings.
        device: cpu, or cuda.
        seed: of initial values and the order of samples.
        resume: go on with an interrupted training.
        quiet: no progress bar.
    """
    seed, device = checked_seed(seed), usable_device(device)
    X, y, _ = _read(train, manifold, estimator, labels=True)
    _writable(out)
    state = _state(out, resume)
    model = BusemannClassifier(
        manifold, head, alpha=alpha, beta=beta, c=c, norm=norm, clip=clip, shared_flag=shared_flag, epochs=epochs,
        batch=batch, lr=lr, optimizer=optimizer, device=device, random_state=seed,
    )  # fmt: skip
    model.fit(X, y, checkpoint=state, quiet=quiet)
    model.save(out)
    _remove(state)
    rows = [
        ("samples", len(X)), ("classes", len(model.classes_)), ("space", str(model.module_.space)),
        ("parameters", sum(p.numel() for p in model.module_.parameters())), ("loss, first epoch", model.losses_[0]),
        ("loss, last epoch", model.losses_[-1]), ("accuracy on the training data", float(model.score(X, y))),
    ]  # fmt: skip
    print_table(("what", "value"), rows, str(out))


def predict(
    model: tyro.conf.Positional[Path],
    data: tyro.conf.Positional[Path],
    out: Path,
    estimator: str = "oas",
    device: str = "cpu",
) -> None:
    """Labels and logits of new samples.

    Args:
        model: file of `fit`.
        data: npz file with X, and y if accuracies are wanted.
        out: CSV file: label, and a logit for each class.
        estimator: of covariances from recordings.
        device: cpu, or cuda.
    """
    trained = BusemannClassifier.load(model, device)
    X, y, _ = _read(data, "spd" if trained.manifold.startswith("spd") else "ball", estimator, labels=False)
    _writable(out)
    logits = trained.decision_function(X)
    labels = trained.classes_[logits.argmax(-1)]
    header = ",".join(["label", *(f"logit_{label}" for label in trained.classes_)])
    lines = [",".join([str(label), *(repr(float(v)) for v in row)]) for label, row in zip(labels, logits, strict=True)]
    atomic_write(out, "\n".join([header, *lines]) + "\n")
    names, counts = np.unique(labels, return_counts=True)
    print_table(("label", "samples"), [(str(n), int(k)) for n, k in zip(names, counts, strict=True)], str(out))
    if y is not None:
        print_table(("what", "value"), [("accuracy", float(np.mean(labels == y)))])


def distance(
    data: tyro.conf.Positional[Path],
    xi: Annotated[Path, tyro.conf.arg(name="xi")],
    manifold: Manifold = "spd",
    norm: Literal["riemannian", "gyro"] = "riemannian",
    transvection: Literal["symmetric", "triangular"] = "symmetric",
    alpha: float = 1.0,
    beta: float = 0.0,
    c: float = 1.0,
    estimator: str = "oas",
    out: Path | None = None,
) -> None:
    """Signed distances of points to hyperplanes.

    Args:
        data: npz file with X: covariances, recordings, or points of a ball.
        xi: npz file of K hyperplanes. spd: k (K, n, n) and a (K, n), or w (K, n, n) symmetric; ball: u (K, d). And p,
            the points that they pass through; without it, Busemann functions are printed.
        manifold: spd or ball.
        norm: riemannian, or gyro as the official hyperbolic head.
        transvection: of spd.
        alpha: of the SPD metric.
        beta: of the SPD metric.
        c: minus the curvature of the ball.
        estimator: of covariances from recordings.
        out: CSV file for all of them.
    """
    X, _, _ = _read(data, manifold, estimator, labels=False)
    if out is not None:
        _writable(out)
    n = X.shape[-1]
    space: SymmetricSpace = SPD(n, alpha, beta, transvection) if manifold == "spd" else PoincareBall(n, c)
    planes = {
        name: torch.as_tensor(real_numbers(value, f"{xi}: {name}", "(K, …)").astype(np.float64))
        for name, value in _arrays(xi).items()
        if name in ("k", "a", "w", "u", "p")
    }
    points = torch.as_tensor(X, dtype=torch.float64)
    boundary = space.boundary(_direction(planes, manifold, n, xi))
    count = len(boundary.a) if manifold == "spd" else len(boundary)
    if "p" in planes:
        values, name = signed_distance(space, points, boundary, planes["p"], norm), "s"
    else:
        values, name = busemann(space, points, boundary), "B"
    header = [f"{name}_{j}" for j in range(count)]
    rows = values.tolist()
    shown = [(i, *row) for i, row in enumerate(rows[:20])]
    more = f", the first 20 of {len(rows)}" if len(rows) > 20 else ""
    print_table(
        ("sample", *header), shown, f"{'signed distances' if name == 's' else 'Busemann functions'} on {space}{more}"
    )
    if out is not None:
        atomic_write(out, "\n".join([",".join(header), *(",".join(map(repr, row)) for row in rows)]) + "\n")


def images(
    folder: tyro.conf.Positional[Path],
    out: Path,
    epochs: int = OFFICIAL.epochs,
    batch: int = OFFICIAL.batch,
    lr: float = OFFICIAL.lr,
    width: int = 64,
    clip: float = 1.0,
    device: str = "cpu",
    seed: int = OFFICIAL.seed,
    resume: bool = False,
    quiet: bool = False,
) -> None:
    """Train the paper's image classifier, a ResNet-18 with a hyperbolic head, on your copy of CIFAR.

    Args:
        folder: unpacked binary version: cifar-10-batches-bin or cifar-100-binary.
        out: file of the model's parameters, such as cifar.pt; OUT.state/ beside it holds the training's state until it
            is done.
        epochs: passes over the data; the learning rate drops at 60, 120 and 160.
        batch: pictures a step.
        lr: learning rate of Riemannian SGD.
        width: channels of the first stage; the embedding is 8 times as large.
        clip: largest norm of the features.
        device: cpu, or cuda.
        seed: of initial values, the order of pictures, crops and mirrors.
        resume: go on with an interrupted training.
        quiet: no progress bar.
    """
    seed, device, data = checked_seed(seed), usable_device(device), read_cifar(folder)
    _writable(out)
    state, (mean, std) = _state(out, resume), channel_statistics(data.train)
    generator = torch.Generator().manual_seed(seed)
    module = HyperbolicResNet(len(data.names), generator, width=width, clip=clip, mean=mean, std=std).to(device)
    settings = replace(OFFICIAL, epochs=epochs, batch=batch, lr=lr, seed=seed)
    train, test = ((x.to(device), y.to(device)) for x, y in (data[:2], data[2:4]))
    losses = train_module(module, *train, settings, checkpoint=state, quiet=quiet, augment=crop_and_flip)
    share = accuracy(module, *test)
    content = {
        "format": "iclr-symspaces-images/1", "names": list(data.names), "width": width, "clip": clip,
        "losses": losses, "accuracy": share, "state": plain_state(module),
    }  # fmt: skip
    atomic_write(out, torch_bytes(content))
    _remove(state)
    rows = [
        ("pictures", len(data.train)), ("classes", len(data.names)), ("space", str(module.head.space)),
        ("parameters", sum(p.numel() for p in module.parameters())), ("loss, first epoch", losses[0]),
        ("loss, last epoch", losses[-1]), ("accuracy on the test pictures", share),
    ]  # fmt: skip
    print_table(("what", "value"), rows, str(out))


def _arrays(path: Path) -> dict[str, np.ndarray]:
    if not path.is_file():
        raise InputError(f"There is no file {path}.")
    try:
        with zipfile.ZipFile(path) as archive:
            strangers = [name for name in archive.namelist() if not name.endswith(".npy")]
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except (ValueError, OSError, EOFError, LookupError, NotImplementedError, zipfile.BadZipFile, zlib.error) as error:
        raise InputError(
            f"{path} is no npz file of plain arrays, or a damaged one ({error}); write it with numpy.savez."
        ) from error
    if strangers:
        raise InputError(f"{path} holds {strangers[0]}, which is no array; write it with numpy.savez.")
    return arrays


def _read(
    path: Path, manifold: Manifold, estimator: str, labels: bool
) -> tuple[np.ndarray, np.ndarray | None, np.ndarray | None]:
    """X as covariances or points, y, groups."""
    arrays = _arrays(path)
    needed = ["X", "y"] if labels else ["X"]
    missing = [name for name in needed if name not in arrays]
    if missing:
        raise InputError(f"{path} lacks {' and '.join(missing)}; it holds {', '.join(arrays) or 'nothing'}.")
    wanted = "(trials, channels, time) or (trials, n, n)" if manifold == "spd" else "(samples, d)"
    X, y, groups = real_numbers(arrays["X"], f"{path}: X", wanted), arrays.get("y"), arrays.get("groups")
    try:
        y, groups = (None if values is None else checked_labels(values, len(X)) for values in (y, groups))
        return (covariances(X, estimator) if manifold == "spd" else X), y, groups
    except InputError as error:
        raise InputError(f"{path}: {error}") from error


def _check(X: np.ndarray, manifold: Manifold) -> None:
    """Refuse bad points before anything is trained."""
    if manifold == "ball" and X.ndim != 2:
        raise InputError(f"manifold ball needs points of shape (samples, d), got {X.shape}.")
    space = SPD(X.shape[-1]) if manifold == "spd" else PoincareBall(X.shape[-1])
    space.check(torch.as_tensor(X, dtype=torch.float64))


def _splits(y: np.ndarray, groups: np.ndarray | None, folds: int, seed: int) -> list[tuple[np.ndarray, np.ndarray]]:
    counts = np.unique(y, return_counts=True)[1]
    if len(counts) < 2:
        raise InputError(f"y holds one class only, {y[0]}: there is nothing to tell apart.")
    if groups is not None:
        if len(np.unique(groups)) < 2:
            raise InputError("groups holds one group only: there is none to leave out.")
        return list(LeaveOneGroupOut().split(y, y, groups))
    if not 2 <= folds <= counts.min():
        raise InputError(f"--folds must be from 2 to {counts.min()}, the size of the smallest class; got {folds}.")
    return list(StratifiedKFold(folds, shuffle=True, random_state=seed).split(y, y))


def _direction(planes: dict[str, torch.Tensor], manifold: Manifold, n: int, path: Path) -> Any:
    wanted = "k and a, or w" if manifold == "spd" else "u"
    if manifold == "spd" and {"k", "a"} <= set(planes):
        return planes["k"], planes["a"]
    name = "w" if manifold == "spd" else "u"
    if name not in planes:
        raise InputError(f"{path} lacks {wanted}; it holds {', '.join(planes) or 'nothing'}.")
    shape = (n, n) if manifold == "spd" else (n,)
    if not planes[name].ndim or tuple(planes[name].shape[1:]) != shape:
        raise InputError(
            f"{path}: {name} must have shape (K, {', '.join(map(str, shape))}), got {(*planes[name].shape,)}."
        )
    return planes[name]


def _state(out: Path, resume: bool) -> Path:
    """Where the state of an unfinished training is kept."""
    state = out.with_name(out.name + ".state")
    if state.exists() and not resume:
        raise InputError(f"{state} holds an interrupted training: go on with --resume, or remove it.")
    return state


def _writable(path: Path) -> None:
    """Refuse an output file that could not be written, before any work is done for it."""
    reason = None
    above = next(folder for folder in path.absolute().parents if folder.exists())
    if not path.name or path.is_dir():
        reason = "it is a folder"
    elif not above.is_dir():
        reason = f"{above.name} is a file"
    else:
        try:
            with tempfile.TemporaryFile(dir=above):
                pass
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
    if reason is not None:
        raise InputError(f"Cannot write {path}: {reason}. Choose another file with --out.")


def _remove(folder: Path) -> None:
    import shutil

    shutil.rmtree(folder, ignore_errors=True)

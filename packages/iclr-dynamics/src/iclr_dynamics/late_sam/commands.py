"""The verbs of ``iclr late-sam``: train with a late switch, and look at what came out."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from tyro.conf import Positional

from iclr_dynamics.late_sam import runs
from iclr_dynamics.late_sam.attack import Attack, robust_error
from iclr_dynamics.late_sam.augmentation import crop_flip, crop_flip_cutout
from iclr_dynamics.late_sam.connectivity import linear_mode_connectivity, with_batch_norm
from iclr_dynamics.late_sam.images import Images
from iclr_dynamics.late_sam.objective import Model, evaluate, in_batches, loss_function, training_loss
from iclr_dynamics.late_sam.schedule import LearningRate, SwitchSchedule
from iclr_dynamics.late_sam.stability import (
    gd_stability_threshold,
    sam_stability_threshold,
    sgd_frobenius_bound,
    usam_factor,
    usam_frobenius_bound,
)
from iclr_dynamics.late_sam.sweep import switch_sweep
from iclr_dynamics.late_sam.training import RunResult, Training, fit
from iclr_dynamics.sharpness import frobenius_norm, top_eigenvalues
from iclr_shared.checkpoints import Checkpoint
from iclr_shared.errors import InputError
from iclr_shared.files import atomic_path, atomic_write
from iclr_shared.tables import print_table

Mode = Literal["sgd", "sam", "asam", "usam", "at"]
_AUGMENT = {"none": None, "crop-flip": crop_flip, "crop-flip-cutout": crop_flip_cutout}


def train(
    out: Positional[Path],
    dataset: str = "digits",
    network: str = "mlp",
    hidden: tuple[int, ...] = (64, 64, 64),
    activation: str = "relu",
    switch: float = 0.9,
    end: float | None = None,
    unit: Literal["fraction", "epochs", "steps"] = "fraction",
    first: Mode = "sgd",
    late: Mode = "sam",
    rho: float = 0.1,
    epochs: int = 60,
    learning_rate: float = 0.05,
    shape: Literal["constant", "multistep", "wrn"] = "constant",
    milestones: tuple[int, ...] = (),
    factor: float = 0.1,
    batch_size: int = 128,
    momentum: float = 0.9,
    weight_decay: float = 1e-4,
    loss: Literal["cross-entropy", "mse"] = "cross-entropy",
    smoothing: float = 0.1,
    carry_momentum: bool | None = None,
    augment: Literal["none", "crop-flip", "crop-flip-cutout"] = "none",
    eps: float = 4 / 255,
    alpha: float = 2 / 255,
    attack_steps: int = 10,
    attack_norm: Literal["linf", "l2"] = "linf",
    init: Path | None = None,
    sharpness_every: int = 0,
    seed: int = 0,
    resume: bool = False,
    quiet: bool = False,
) -> int | None:
    """Train a network with SGD, and with SAM or adversarial training from a switch on.

    The paper's recipes at full scale, each with --dataset CIFAR_FOLDER: --network vgg16-bn --epochs 160 --learning-rate
    0.01 --shape multistep --milestones 80 160 --augment crop-flip --late asam --rho 2 --unit epochs --switch 150, and
    --network wrn-16-8 --epochs 200 --shape wrn --augment crop-flip-cutout --unit epochs --switch 175.

    Args:
        out: folder for the network (model.npz, run.json), its history (history.csv) and checkpoints.
        dataset: 'digits', a .npz file with x_train y_train x_test y_test, or a folder with CIFAR's binary version.
        network: mlp, vgg16-bn, resnet20, wrn-16-8 or another depth.
        hidden: widths of the hidden layers of an mlp.
        activation: of an mlp: relu, tanh, gelu or linear.
        switch: start of the late phase; 1 (as a fraction) is SGD throughout, 0 is the late mode throughout.
        end: last epoch, step or fraction of the late phase, included; the end of training if not given.
        unit: what `switch` and `end` count.
        first: optimiser before (and after) the late phase.
        late: optimiser of the late phase.
        rho: radius of SAM: 0.05 to 0.2 for sam, 0.5 to 2 for asam.
        epochs: passes over the training data.
        learning_rate: at the start.
        shape: of the learning-rate schedule.
        milestones: epochs at which a multistep schedule drops.
        factor: of each drop.
        batch_size: 0 takes the whole training set.
        momentum: of SGD.
        weight_decay: of SGD, coupled.
        loss: what is minimised; mse is half the squared distance to one-hot targets.
        smoothing: label smoothing of the cross-entropy.
        carry_momentum: whether momentum survives the switch; by default for at, not for the SAM family.
        augment: of images.
        eps: radius of the attack of adversarial training, for inputs in [0, 1].
        alpha: its step size.
        attack_steps: its steps.
        attack_norm: of its ball.
        init: folder of a trained network to go on from (late fine-tuning); its architecture is kept.
        sharpness_every: measure the sharpness after every so many epochs; 0 does not.
        seed: of everything random.
        resume: go on with an interrupted run in `out`.
        quiet: no progress.
    """
    data = runs.read_dataset(dataset)
    training = Training(
        epochs=epochs,
        learning_rate=LearningRate(learning_rate, shape, milestones, factor),
        batch_size=batch_size or None,
        momentum=momentum,
        weight_decay=weight_decay,
        rho=rho,
        loss=loss,
        smoothing=smoothing,
        carry_momentum=carry_momentum,
        attack=Attack(eps, alpha, attack_steps, attack_norm),
    )
    schedule = SwitchSchedule(switch, end, first=first, late=late, unit=unit)
    settings = _settings(dataset, network, hidden, activation, data, training)
    settings |= {"schedule": dataclasses.asdict(schedule), "seed": seed, "augment": augment}
    model, start = runs.build(network, hidden, activation, tuple(data.x.shape[1:]), data.y.shape[1]), None
    if init is not None:
        saved = runs.load(init)
        _check_fit(saved, init, data)
        model, start = saved.model, (saved.params, saved.extra)
        settings |= {name: saved.settings[name] for name in ("network", "hidden", "activation")} | {"init": str(init)}
    if sharpness_every < 0:
        raise InputError(f"sharpness_every={sharpness_every} must be at least 0.")
    whole = training_loss(model, loss_function(loss, smoothing), batch_size or None)

    def measure(params, extra):
        # Official flatness script: the first 5,000 images.
        return {"sharpness": top_eigenvalues(whole, params, extra, data.x[:5000], data.y[:5000], tol=1e-3).values[0]}

    run = fit(
        model,
        data,
        schedule,
        training,
        key=jax.random.key(seed),
        init=start,
        augment=_AUGMENT[augment],
        measure=measure if sharpness_every else None,
        measure_every=sharpness_every or 1,
        checkpoint=_checkpoint(out, resume),
        quiet=quiet,
    )
    runs.save(out, run.params, run.extra, settings)
    atomic_write(out / "history.csv", _history(run, schedule, training))
    per_epoch = run.steps_per_epoch
    late_epochs = schedule.late_epochs(epochs, per_epoch)
    gradients = schedule.gradient_evaluations(epochs, per_epoch, attack_steps)
    row = _row(model, run, data, loss_function(loss, smoothing))
    base = SwitchSchedule(switch, end, first="sgd", late="sgd", unit=unit).gradient_evaluations(epochs, per_epoch)
    room = schedule.room(training.rate, epochs, per_epoch)
    print_table(
        (f"epochs of {late}", "late steps × rate", "gradients / SGD", "train loss", "test loss", "test error %"),
        [(late_epochs, room, gradients / base, *row)],
        title=f"{out}: {first} → {late}",
    )


def sweep(
    out: Positional[Path],
    dataset: str = "digits",
    switches: tuple[float, ...] = (0.0, 0.5, 0.8, 0.9, 1.0),
    network: str = "mlp",
    hidden: tuple[int, ...] = (64, 64, 64),
    activation: str = "relu",
    first: Mode = "sgd",
    late: Mode = "sam",
    rho: float = 0.1,
    epochs: int = 60,
    learning_rate: float = 0.05,
    batch_size: int = 128,
    momentum: float = 0.9,
    weight_decay: float = 1e-4,
    loss: Literal["cross-entropy", "mse"] = "cross-entropy",
    smoothing: float = 0.1,
    samples: int = 5000,
    seed: int = 0,
    resume: bool = False,
    quiet: bool = False,
) -> int | None:
    """Train with the switch at several points of one trunk, and compare sharpness and test error.

    Args:
        out: folder for the networks (a subfolder for each switch), sweep.csv, sweep.png and checkpoints.
        dataset: as in train.
        switches: fractions of training at which to switch; 1 is no switch.
        network: as in train.
        hidden: as in train.
        activation: as in train.
        first: optimiser before the switch.
        late: optimiser after it.
        rho: radius of SAM.
        epochs: passes over the training data.
        learning_rate: constant.
        batch_size: 0 takes the whole training set.
        momentum: of SGD.
        weight_decay: of SGD, coupled.
        loss: what is minimised.
        smoothing: label smoothing of the cross-entropy.
        samples: training samples that the sharpness is measured on.
        seed: of everything random.
        resume: go on with an interrupted sweep in `out`.
        quiet: no progress.
    """
    if samples < 1:
        raise InputError(f"samples={samples} must be at least 1.")
    if not all(0 <= switch <= 1 for switch in switches):
        raise InputError(f"The switches {switches} must be fractions of training, 0 to 1.")
    data = runs.read_dataset(dataset)
    training = Training(
        epochs=epochs,
        learning_rate=learning_rate,
        batch_size=batch_size or None,
        momentum=momentum,
        weight_decay=weight_decay,
        rho=rho,
        loss=loss,
        smoothing=smoothing,
    )
    model = runs.build(network, hidden, activation, tuple(data.x.shape[1:]), data.y.shape[1])
    _checkpoint(out, resume)
    results = switch_sweep(
        model,
        data,
        training,
        {round(switch * epochs) for switch in switches},
        key=jax.random.key(seed),
        first=first,
        late=late,
        folder=out / "checkpoints",
        quiet=quiet,
    )
    whole = training_loss(model, loss_function(loss, smoothing), batch_size or None)
    x, y = data.x[:samples], data.y[:samples]
    rows = []
    for switch, run in results.items():
        settings = _settings(dataset, network, hidden, activation, data, training)
        runs.save(out / f"switch-{switch}", run.params, run.extra, settings | {"switch": switch, "seed": seed})
        top = float(top_eigenvalues(whole, run.params, run.extra, x, y, tol=1e-3).values[0])
        room = SwitchSchedule(switch, late=late).room(training.rate, epochs, run.steps_per_epoch)
        scores = _row(model, run, data, loss_function(loss, smoothing))
        rows.append((switch, epochs - switch, room, top, *scores))
    late_columns = f"epochs of {late}", "late steps × rate"
    columns = ("switch epoch", *late_columns, "sharpness", "train loss", "test loss", "test error %")
    _write_csv(out / "sweep.csv", columns, rows)
    _plot(out / "sweep.png", [row[0] for row in rows], [row[3] for row in rows], "switch epoch", "sharpness λ₁", "o-")
    print_table(columns, rows, title=f"{out}: {first} → {late}")


def sharpness(
    run: Positional[tuple[Path, ...]],
    dataset: str | None = None,
    k: int = 2,
    samples: int = 5000,
    batch_size: int = 128,
    probes: int = 32,
    smoothing: float | None = None,
    seed: int = 0,
) -> int | None:
    """Leading Hessian eigenvalues and the Frobenius norm of the training loss at trained networks.

    Batch normalisation uses the statistics of each batch, there is no augmentation, and the loss is that of the
    training unless another smoothing is asked for (the official script measures with 0).

    Args:
        run: folders written by train or sweep.
        dataset: other data than the network was trained on.
        k: number of eigenvalues.
        samples: first training samples that are used.
        batch_size: of batch normalisation's statistics, and of memory.
        probes: random vectors for the Frobenius norm.
        smoothing: label smoothing in the loss that is measured.
        seed: of these vectors.
    """
    if batch_size < 1:
        raise InputError(f"batch_size={batch_size} must be at least 1.")
    rows = []
    for folder, saved, data in _loaded(run, dataset, samples):
        training = saved.settings["training"]
        loss = loss_function(training["loss"], training["smoothing"] if smoothing is None else smoothing)
        whole = training_loss(saved.model, loss, batch_size)
        batch = saved.extra, data.x, data.y
        top = top_eigenvalues(whole, saved.params, *batch, k=k, tol=1e-4)
        norm = frobenius_norm(whole, saved.params, *batch, key=jax.random.key(seed), samples=probes)
        value = float(jax.jit(whole)(saved.params, *batch))
        rows.append((str(folder), *map(float, top.values), norm.value, norm.standard_error, value))
    columns = ("run", *(f"λ{i + 1}" for i in range(k)), "|H|_F", "±", "train loss")
    print_table(columns, rows)


def connect(
    first: Positional[Path],
    second: Positional[Path],
    dataset: str | None = None,
    points: int = 40,
    samples: int = 5000,
    rebn: bool = False,
    out: Path | None = None,
) -> int | None:
    """Training loss along the straight line between two networks, and the barrier between them.

    The loss is that of the first network's training, without label smoothing; networks are in evaluation mode.

    Args:
        first: folder of a trained network, position 0.
        second: folder of another one of the same architecture, position 1.
        dataset: other data than the first network was trained on.
        points: positions between -0.2 and 1.2.
        samples: first training samples that are used.
        rebn: re-estimate batch normalisation at each position instead of interpolating its statistics.
        out: .csv file for the losses, or .png for a figure.
    """
    if points < 2:
        raise InputError(f"points={points} must be at least 2.")
    if out is not None and out.suffix not in (".csv", ".png"):
        raise InputError(f"out={out} must be a .csv or .png file.")
    ((_, one, data),) = _loaded((first,), dataset, samples)
    two, x, y = runs.load(second), data.x, data.y
    loss = loss_function(one.settings["training"]["loss"])

    def on_data(params: Any, extra: Any) -> float:
        return evaluate(one.model, params, extra, x, y, loss).loss

    batches = [batch for (batch,) in in_batches(128, x)]
    evaluate_pair = with_batch_norm(one.model, on_data, batches) if rebn else lambda pair: on_data(*pair)
    path = linear_mode_connectivity(
        (one.params, one.extra), (two.params, two.extra), evaluate_pair, np.linspace(-0.2, 1.2, points)
    )
    if out is not None and out.suffix == ".png":
        _plot(out, path.alphas, path.losses, "position α", "training loss", "-")
    elif out is not None:
        _write_csv(out, ("alpha", "loss"), zip(path.alphas, path.losses, strict=True))
    print_table(("loss at first", "loss at second", "highest between", "barrier"), [_summary(path)])


def attack(
    run: Positional[tuple[Path, ...]],
    dataset: str | None = None,
    eps: float = 4 / 255,
    alpha: float = 2 / 255,
    steps: int = 10,
    norm: Literal["linf", "l2"] = "linf",
) -> int | None:
    """Clean and robust test error of trained networks; the attack starts at the images themselves.

    Args:
        run: folders written by train or sweep.
        dataset: other data than the network was trained on.
        eps: radius of the attack, for inputs in [0, 1].
        alpha: step size.
        steps: of projected gradient descent.
        norm: of the ball.
    """
    rows = []
    for folder, saved, data in _loaded(run, dataset):
        network = saved.model, saved.params, saved.extra, data.x_test, data.y_test
        robust = robust_error(*network, Attack(eps, alpha, steps, norm))
        rows.append((str(folder), evaluate(*network).error, robust))
    print_table(("run", "clean error %", "robust error %"), rows)


def stability(
    eta: Positional[float],
    rho: tuple[float, ...] = (0.05, 0.1, 0.2),
    h: float | None = None,
    batch_size: int = 128,
    gamma: float = 1.0,
) -> int | None:
    """The sharpest minima that gradient descent and SAM can hold at a learning rate.

    Args:
        eta: learning rate.
        rho: radii of SAM.
        h: curvature of the minimum at the switch; None takes 2 / eta, where gradient descent ends.
        batch_size: of the bounds on the Frobenius norm.
        gamma: noise alignment in them.
    """
    h = gd_stability_threshold(eta) if h is None else h
    bound = sgd_frobenius_bound(eta, batch_size, gamma)
    rows = [("SGD", 0.0, gd_stability_threshold(eta), usam_factor(eta, 0.0, h), bound**0.5)]
    for radius in rho:
        bound = usam_frobenius_bound(eta, radius, batch_size, gamma)
        rows.append(("USAM", radius, sam_stability_threshold(eta, radius), usam_factor(eta, radius, h), bound**0.5))
    print_table(("optimiser", "rho", "largest sharpness", f"loss factor per step at h={h:g}", "largest |G|_F"), rows)


def _loaded(
    folders: tuple[Path, ...], dataset: str | None, samples: int | None = None
) -> Iterator[tuple[Path, runs.SavedRun, Images]]:
    """Trained networks with data that fits them, of which the first `samples` for training."""
    if not folders or (samples is not None and samples < 1):
        raise InputError("Name at least one folder written by train or sweep, and at least one sample.")
    for folder in folders:
        saved = runs.load(folder)
        data = runs.read_dataset(dataset or saved.settings["dataset"])
        _check_fit(saved, folder, data)
        yield folder, saved, data._replace(x=data.x[:samples], y=data.y[:samples])


def _check_fit(saved: runs.SavedRun, folder: Path, data: Images) -> None:
    wanted, got = (tuple(saved.settings["shape"]), saved.settings["classes"]), (data.x.shape[1:], data.y.shape[1])
    if wanted != got:
        raise InputError(
            f"The network in {folder} takes inputs of shape {wanted[0]} in {wanted[1]} classes; the data has inputs of "
            f"shape {got[0]} in {got[1]} classes."
        )


def _checkpoint(out: Path, resume: bool) -> Checkpoint:
    if (out / "checkpoints").exists() and not resume:
        raise InputError(f"{out} holds a run already; add --resume to go on with it, or choose another folder.")
    return Checkpoint(out / "checkpoints")


def _settings(dataset: str, network: str, hidden: tuple[int, ...], activation: str, data: Images, training: Training):
    return {
        "dataset": dataset if dataset == "digits" else str(Path(dataset).resolve()),
        "network": network,
        "hidden": list(hidden),
        "activation": activation,
        "shape": list(data.x.shape[1:]),
        "classes": data.y.shape[1],
        "training": dataclasses.asdict(training) | {"attack": training.attack._asdict()},
    }


def _row(model: Model, run: RunResult, data: Images, loss: Any) -> tuple[float, float, float]:
    train = evaluate(model, run.params, run.extra, data.x, data.y, loss)
    test = evaluate(model, run.params, run.extra, data.x_test, data.y_test, loss)
    return train.loss, test.loss, test.error


def _history(run: RunResult, schedule: SwitchSchedule, training: Training) -> str:
    per_epoch = run.steps_per_epoch
    sharp = {int(values["epoch"]) - 1: values["sharpness"] for values in run.measurements}
    lines = ["epoch,mode,learning_rate,loss,accuracy,weight_norm,sharpness"]
    for epoch in range(training.epochs):
        steps = slice(epoch * per_epoch, (epoch + 1) * per_epoch)
        values = run.losses[steps].mean(), run.accuracies[steps].mean(), run.norms[steps][-1]
        mode = schedule.mode((epoch + 1) * per_epoch - 1, training.epochs, per_epoch)
        numbers = ",".join(f"{value:.7g}" for value in values)
        lines.append(f"{epoch},{mode},{training.rate.at(epoch, training.epochs):g},{numbers},{sharp.get(epoch, '')}")
    return "\n".join(lines) + "\n"


def _summary(path: Any) -> tuple[float, float, float, float]:
    between = (path.alphas >= 0) & (path.alphas <= 1)
    return *path.ends, float(path.losses[between].max(initial=-jnp.inf)), path.barrier


def _write_csv(path: Path, columns: Any, rows: Any) -> None:
    lines = [",".join(columns), *(",".join(f"{value:.9g}" for value in row) for row in rows)]
    atomic_write(path, "\n".join(lines) + "\n")


def _plot(path: Path, x: Any, y: Any, xlabel: str, ylabel: str, style: str) -> None:
    from iclr_shared.plots import new_figure

    figure, axes = new_figure()
    axes.plot(x, y, style)
    axes.set(xlabel=xlabel, ylabel=ylabel)
    with atomic_path(path) as temporary:
        figure.savefig(temporary, dpi=130)

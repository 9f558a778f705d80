"""Training with a switch: SGD until some epoch, then SAM or adversarial training (Zhou et al., sections 3 and 5).

Two runs with one key see the same batches whatever their schedule, since the order of epoch e depends on
``fold_in(key, e)`` alone: up to the switch their weights are identical. Each mode keeps its own momentum, as the
official code does, so at the switch it starts from zero (`Training.carry_momentum`).
"""

import dataclasses
import hashlib
import json
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from itertools import pairwise
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import optax.contrib
from jaxtyping import Array, PRNGKeyArray, PyTree

from iclr_dynamics.late_sam.attack import OFFICIAL, Attack, adversarial, check_inputs
from iclr_dynamics.late_sam.objective import Model, loss_function
from iclr_dynamics.late_sam.sam import PERTURBATIONS, TrainState, base_optimizer, make_step, sam, with_learning_rate
from iclr_dynamics.late_sam.schedule import LearningRate, SwitchSchedule
from iclr_dynamics.networks import error_rate
from iclr_shared.adapters import pytree_arrays, pytree_restore
from iclr_shared.checkpoints import Checkpoint
from iclr_shared.errors import InputError
from iclr_shared.progress import progress

# Steps that one call of the compiled loop may take, and sample numbers that its batches may hold: what memory allows.
_CAPACITY, _INDICES = 1024, 2**24


@dataclass(frozen=True, slots=True)
class Training:
    """Numbers of a run. Defaults are the official VGG16 recipe on CIFAR unless said otherwise.

    Args:
        epochs: passes over the training data (official: 160; wide residual networks: 200).
        learning_rate: a number, or a `LearningRate` (official: 0.01, times 0.1 at epochs 80 and 160).
        batch_size: None is the whole training set (official: 128). What is left over after the last full batch of an
            epoch is dropped.
        momentum: of the base SGD.
        weight_decay: coupled: added to the gradient before momentum.
        rho: radius of the SAM family (official: 2 with ``asam``; 0.05 to 0.2 is usual for ``sam``).
        loss: ``"cross-entropy"``, or ``"mse"``, half the squared distance.
        smoothing: label smoothing of the cross-entropy; adversarial steps do without, as the official code does.
        sampling: ``"shuffle"``: each epoch is a permutation; ``"replacement"``: each batch is drawn afresh.
        carry_momentum: whether momentum survives the switch. None follows the official code: not between SGD and the
            SAM family, which have two optimisers there, but between SGD and AT, which have one.
        attack: of adversarial training.
    """

    epochs: int = 160
    learning_rate: LearningRate | float = LearningRate(0.01, "multistep", (80, 160))  # noqa: RUF009 (frozen)
    batch_size: int | None = 128
    momentum: float = 0.9
    weight_decay: float = 1e-4
    rho: float = 0.1
    loss: str = "cross-entropy"
    smoothing: float = 0.1
    sampling: str = "shuffle"
    carry_momentum: bool | None = None
    attack: Attack = OFFICIAL

    def __post_init__(self):
        if self.epochs < 1:
            raise InputError(f"epochs={self.epochs}: train for at least one epoch.")
        if self.batch_size is not None and self.batch_size < 1:
            raise InputError(f"batch_size={self.batch_size} must be at least 1, or None for the whole training set.")
        if not self.rho >= 0:
            raise InputError(f"rho is {self.rho}; the radius of SAM must be at least 0.")
        if not (0 <= self.momentum < 1 and self.weight_decay >= 0):
            raise InputError(
                f"momentum={self.momentum} must be in [0, 1), weight_decay={self.weight_decay} at least 0."
            )
        if self.sampling not in ("shuffle", "replacement"):
            raise InputError(f"sampling={self.sampling!r} is unknown; take 'shuffle' or 'replacement'.")

    @property
    def rate(self) -> LearningRate:
        """The learning rate as a `LearningRate`."""
        given = self.learning_rate
        return given if isinstance(given, LearningRate) else LearningRate(float(given))

    def steps_per_epoch(self, samples: int) -> int:
        """Full batches in one epoch.

        Raises:
            InputError: if a batch is larger than the training set.
        """
        size = self.batch_size or samples
        if size > samples:
            raise InputError(f"batch_size={size} is larger than the training set of {samples} samples.")
        return samples // size


class Course(NamedTuple):
    """Where a run stands: all that it needs to go on.

    Args:
        params, extra: of the model.
        optimizers: state of each mode's optimiser.
        step: how many steps have been taken.
    """

    params: PyTree
    extra: PyTree
    optimizers: dict[str, PyTree]
    step: int


@dataclass(frozen=True, slots=True)
class RunResult:
    """A run, finished or stopped after some epoch.

    Args:
        course: weights, optimiser states and position.
        losses: training loss before each step, in the mode's own terms (on adversarial inputs for AT).
        accuracies: training accuracy of each batch, with `norms` the norm of the weights before each step.
        steps_per_epoch: of the run.
        measurements: what `measure` returned, each with its ``"epoch"`` (number of epochs done).
    """

    course: Course
    losses: np.ndarray
    accuracies: np.ndarray
    norms: np.ndarray
    steps_per_epoch: int
    measurements: tuple[dict[str, float], ...] = ()

    @property
    def params(self) -> PyTree:
        """Weights."""
        return self.course.params

    @property
    def extra(self) -> PyTree:
        """Running statistics and the like."""
        return self.course.extra

    @property
    def epoch_losses(self) -> np.ndarray:
        """Mean training loss of each whole epoch."""
        whole = len(self.losses) // self.steps_per_epoch
        return self.losses[: whole * self.steps_per_epoch].reshape(whole, -1).mean(1)


def fit(
    model: Model,
    data: Any,
    schedule: SwitchSchedule,
    training: Training = Training(),
    *,
    key: PRNGKeyArray,
    init: PyTree | tuple[PyTree, PyTree] | None = None,
    start: RunResult | None = None,
    until: int | None = None,
    augment: Callable[[PRNGKeyArray, Array], Array] | None = None,
    optimizer: Callable[[float], optax.GradientTransformation] | None = None,
    measure: Callable[[PyTree, PyTree], Mapping[str, float]] | None = None,
    measure_every: int = 1,
    checkpoint: Checkpoint | None = None,
    checkpoint_every: int = 1,
    mesh: Any = None,
    sync_perturbation: bool = True,
    quiet: bool = True,
) -> RunResult:
    """Train with a switch between optimisers.

    Late fine-tuning of an existing model: ``fit(model, data, SwitchSchedule.always("sam"), ..., init=params)``.

    Args:
        model: the network, see `objective.flax_model` and `objective.function_model`.
        data: anything with fields ``x`` (samples, ...) and ``y`` (samples, classes), one-hot.
        schedule: when to switch.
        training: numbers of the run.
        key: of initial weights, batch order, augmentation, dropout and attacks.
        init: weights to start from, or ``(weights, extra)``; None draws them.
        start: an earlier part of the same run, to go on from; its schedule may have been another one.
        until: stop after this many epochs instead of at the end.
        augment: ``augment(key, images) -> images`` on each batch; keep one function object, it is compiled in.
        optimizer: ``optimizer(learning_rate)`` gives the base optimiser instead of SGD. Wrap its rate with
            `optax.inject_hyperparams` if it is to follow the learning-rate schedule.
        measure: ``measure(params, extra)``, recorded after every `measure_every` epochs.
        checkpoint: where the run is saved after every `checkpoint_every` epochs, and resumed from.
        mesh: `jax.sharding.Mesh` with one axis: each device takes its part of every batch.
        sync_perturbation: with a mesh, whether devices share SAM's perturbation; False is m-sharpness.
        quiet: hide progress.

    Returns:
        The run; `RunResult.params` are its weights.

    Raises:
        InputError: for data, schedules or checkpoints that do not fit, and when the loss stops being finite.
    """
    x, y = jnp.asarray(data.x), jnp.asarray(data.y)
    samples = len(x)
    if not samples or samples != len(y) or y.ndim != 2:
        raise InputError(f"Targets must be one-hot rows, one for each of {samples} samples; got shape {y.shape}.")
    per_epoch = training.steps_per_epoch(samples)
    if until is not None and until < 1:
        raise InputError(f"until={until}: stop after one epoch at least.")
    window = schedule.window(training.epochs, per_epoch)
    if window[0] == window[1] and schedule.unit == "fraction" and schedule.start < 1:
        warnings.warn(
            f"The switch at {schedule.start} of {training.epochs} epochs rounds to their end: no epoch of "
            f"{schedule.late}. Switch earlier, or count in steps.",
            stacklevel=2,
        )
    total = per_epoch * training.epochs if until is None else per_epoch * min(until, training.epochs)
    modes = tuple(dict.fromkeys((schedule.first, schedule.late)))
    if "at" in modes:
        training.attack.check()
        check_inputs(x)
    programs = {
        mode: _program(model, *_compiled_part(training, mode), augment, optimizer, mesh, sync_perturbation)
        for mode in modes
    }
    size = training.batch_size or samples
    if mesh is not None and size % mesh.size:
        raise InputError(f"A batch of {size} cannot be split over {mesh.size} devices; take a multiple.")
    whole = training.batch_size is None and mesh is None and training.sampling == "shuffle"
    capacity = _CAPACITY if whole else min(_CAPACITY, max(1, _INDICES // size))
    carry = training.carry_momentum if training.carry_momentum is not None else "at" in modes
    init_key, order_key, noise_key = jax.random.split(key, 3)

    course = _begin(model, x, init_key, init) if start is None else start.course
    optimizers = {mode: program.optimizer.init(course.params) for mode, program in programs.items()}
    course = course._replace(optimizers=optimizers | {m: s for m, s in course.optimizers.items() if m in modes})
    record = [np.zeros((3, 0), np.float32)]
    measurements: list[dict[str, float]] = []
    if start is not None:
        record.append(np.stack([start.losses, start.accuracies, start.norms]))
        measurements += start.measurements
    if checkpoint is not None:
        settings = _settings(training, schedule, key) | {"data": _digest((x, y)), "init": _digest(init)}
        settings |= {"augment": getattr(augment, "__qualname__", None), "sync_perturbation": sync_perturbation}
        if (saved := checkpoint.latest()) is not None:
            course, record, measurements = _resume(saved, settings, course, checkpoint)

    periods = [1] if training.rate.shape != "constant" else []
    periods += [measure_every] if measure else []
    periods += [checkpoint_every] if checkpoint else []
    stretches = _stretches(course.step, total, per_epoch, periods, window, capacity)
    for begin, stop in progress(stretches, desc="training", quiet=quiet):
        mode = schedule.late if window[0] <= begin < window[1] else schedule.first
        epoch = begin // per_epoch
        if carry and begin in window and begin > 0:
            course = _carry_momentum(course, schedule.first if begin == window[0] else schedule.late, mode)
        rate = training.rate.at(epoch, training.epochs)
        state = TrainState(course.params, course.extra, with_learning_rate(course.optimizers[mode], rate))
        steps = begin, stop - begin
        chosen = None if whole else _batches(samples, size, training.sampling, capacity, order_key, *steps)
        state, rows = programs[mode].run(state, x, y, chosen, noise_key, *steps)
        rows = np.asarray(rows)[:, : stop - begin]
        if not np.isfinite(rows).all() or not _finite(state.params):
            finite = _finite((x, y, course.params))
            raise InputError(
                f"The loss or the weights stopped being finite in steps {begin} to {stop} (epoch {epoch}, mode {mode}, "
                f"learning rate {rate:g}, rho {training.rho:g}); "
                + ("lower the rate or rho." if finite else "the data or the first weights are not finite themselves.")
            )
        record.append(rows)
        course = Course(state.params, state.extra, course.optimizers | {mode: state.optimizer}, stop)
        done, rest = divmod(stop, per_epoch)
        if measure and not rest and (done % measure_every == 0 or stop == total):
            values = measure(course.params, course.extra)
            measurements.append({"epoch": done} | {name: float(value) for name, value in values.items()})
        if checkpoint and not rest and (done % checkpoint_every == 0 or stop == total):
            _save(checkpoint, course, record, measurements, settings)

    losses, accuracies, norms = np.concatenate(record, axis=1)
    return RunResult(course, losses, accuracies, norms, per_epoch, tuple(measurements))


class _Program(NamedTuple):
    optimizer: optax.GradientTransformation
    run: Callable[..., tuple[TrainState, Array]]


def _compiled_part(training: Training, mode: str) -> tuple[Training, str]:
    """`training` without what a mode's compiled program does not depend on, so that runs share programs.

    SAM without a radius is SGD, and is run by its program. Adversarial steps minimise the plain cross-entropy.
    """
    mode = mode if mode == "at" or training.rho else "sgd"
    part = dataclasses.replace(
        training,
        epochs=1,
        learning_rate=1.0,
        carry_momentum=None,
        rho=training.rho if mode in PERTURBATIONS else 0.0,
        smoothing=0.0 if mode == "at" else training.smoothing,
        attack=training.attack if mode == "at" else OFFICIAL,
    )
    return part, mode


@cache
def _program(model, training, mode, augment, make_optimizer, mesh, sync_perturbation) -> _Program:
    axis = None if mesh is None else mesh.axis_names[0]
    base = (make_optimizer or partial(base_optimizer, momentum=training.momentum, weight_decay=training.weight_decay))(
        0.1
    )
    # SGD keeps the state of SAM around its own, so that momentum can be carried and rho = 0 is SGD.
    axis_of_sam = axis if training.rho else None
    optimizer = sam(base, training.rho, mode == "asam", mode != "usam", axis_name=axis_of_sam)
    loss = loss_function(training.loss, training.smoothing)

    def objective(params, extra, batch, key):
        (x, y), (augment_key, attack_key, dropout_key) = batch, jax.random.split(key, 3)
        if augment is not None:
            x = augment(augment_key, x)
        if mode == "at":
            x = jax.lax.stop_gradient(adversarial(model, params, extra, x, y, training.attack, attack_key))
        outputs, extra = model.apply(params, extra, x, True, dropout_key)
        return loss(outputs, y), (extra, 1 - error_rate(outputs, y))

    step = make_step(objective, optimizer, axis_name=axis, sync_perturbation=sync_perturbation or not training.rho)

    def run(state, x, y, chosen, noise_key, first, count):
        def body(offset, carry):
            state, rows = carry
            key = jax.random.fold_in(noise_key, first + offset)
            part = None if chosen is None else chosen[offset]
            if axis is not None:
                part = part.reshape(mesh.size, -1)[jax.lax.axis_index(axis)]
                key = jax.random.fold_in(key, jax.lax.axis_index(axis))
            batch = (x, y) if part is None else (x[part], y[part])
            norm = optax.tree.norm(state.params)
            state, (loss, accuracy) = step(state, batch, key)
            return state, rows.at[:, offset].set(jnp.stack([loss, accuracy, norm]))

        return jax.lax.fori_loop(0, count, body, (state, jnp.zeros((3, _CAPACITY), jnp.float32)))

    if mesh is not None:
        from jax.sharding import PartitionSpec

        everywhere = PartitionSpec()
        run = jax.shard_map(run, mesh=mesh, in_specs=everywhere, out_specs=everywhere, check_vma=False)
    return _Program(optimizer, jax.jit(run))


@partial(jax.jit, static_argnums=(0, 1, 2, 3))
def _batches(samples, size, sampling, capacity, key, first, count):
    """Sample numbers of each of `count` batches from step `first` on, in the first rows of (capacity, size).

    They depend on the key and on the step alone, not on the optimiser: the prefix of all switched runs is the same.
    """
    per_epoch = samples // size

    def shuffled(offset, carry):
        permutation, rows = carry
        epoch, position = jnp.divmod(first + offset, per_epoch)
        permutation = jax.lax.cond(
            (position == 0) | (offset == 0),
            lambda: jax.random.permutation(jax.random.fold_in(key, epoch), samples),
            lambda: permutation,
        )
        chosen = jax.lax.dynamic_slice_in_dim(permutation, position * size, size)
        return permutation, rows.at[offset].set(chosen)

    def drawn(offset, carry):
        numbers = jax.random.randint(jax.random.fold_in(key, first + offset), (size,), 0, samples)
        return carry[0], carry[1].at[offset].set(numbers)

    body = drawn if sampling == "replacement" else shuffled
    start = jnp.arange(samples), jnp.zeros((capacity, size), int)
    return jax.lax.fori_loop(0, count, body, start)[1]


def _begin(model: Model, x: Array, key: PRNGKeyArray, init: Any) -> Course:
    if init is None:
        params, extra = model.init(key, x[:1])
    elif isinstance(init, tuple) and len(init) == 2:
        params, extra = init
    else:
        params, extra = init, {}
    return Course(params, extra, {}, 0)


def _carry_momentum(course: Course, old: str, new: str) -> Course:
    inner = course.optimizers[old].opt_state
    return course._replace(optimizers=course.optimizers | {new: course.optimizers[new]._replace(opt_state=inner)})


def _stretches(
    begin: int, total: int, per_epoch: int, periods: list[int], window: tuple[int, int], capacity: int
) -> list[tuple[int, int]]:
    """The steps from `begin` to `total` cut at the window's edges, at every period (in epochs) and at the capacity."""
    cuts = {begin, total, *window}
    for period in periods:
        cuts.update(range(0, total, period * per_epoch))
    inside = sorted(cut for cut in cuts if begin <= cut <= total)
    return [
        (piece, min(piece + capacity, right))
        for left, right in pairwise(inside)
        for piece in range(left, right, capacity)
    ]


@jax.jit
def _all_finite(leaves):
    return jnp.stack([jnp.isfinite(leaf).all() for leaf in leaves]).all()


def _finite(params: PyTree) -> bool:
    return bool(_all_finite(jax.tree.leaves(params)))


def _settings(training: Training, schedule: SwitchSchedule, key: PRNGKeyArray) -> dict[str, Any]:
    settings = dataclasses.asdict(dataclasses.replace(training, learning_rate=training.rate))
    settings |= {f"switch_{name}": value for name, value in dataclasses.asdict(schedule).items()}
    settings["attack"] = training.attack._asdict()
    settings["key"] = np.asarray(jax.random.key_data(key)).tolist()
    return settings


def _digest(tree: PyTree) -> str:
    digest = hashlib.blake2b(digest_size=8)
    for leaf in jax.tree.leaves(tree):
        digest.update(np.asarray(leaf).tobytes())
    return digest.hexdigest()


def _save(checkpoint: Checkpoint, course: Course, record: list, measurements: list, settings: dict) -> None:
    state = {
        "course": pytree_arrays(course._replace(step=np.asarray(course.step))),
        "record": np.concatenate(record, axis=1),
    }
    checkpoint.save(course.step, state | {"measurements": measurements, "settings": settings})


def _resume(saved: tuple[int, dict], settings: dict, template: Course, checkpoint: Checkpoint):
    step, state = saved
    wanted = json.loads(json.dumps(settings))
    different = sorted(name for name in wanted if state["settings"].get(name) != wanted[name])
    if different:
        raise InputError(
            f"The checkpoint in {checkpoint.folder} belongs to a run with another {', '.join(different)}; "
            "choose another folder, or the same settings."
        )
    course = pytree_restore(template._replace(step=np.asarray(0)), state["course"])
    return course._replace(step=step), [state["record"]], state["measurements"]

"""Checks of rows 8 and 9 of the ledger: late adversarial training, and what late SAM costs."""

import time
from dataclasses import replace
from functools import cache

import jax
import numpy as np

from iclr_dynamics.late_sam import recipes
from iclr_dynamics.late_sam.claims import FULL, SEEDS
from iclr_dynamics.late_sam.intervals import bootstrap, mean
from iclr_dynamics.late_sam.objective import Model
from iclr_dynamics.late_sam.schedule import SwitchSchedule
from iclr_dynamics.late_sam.training import Training, fit
from iclr_shared.claims import ClaimRun, Measurement
from iclr_shared.plots import COLOURS, new_figure
from iclr_shared.seeds import root

# --- row 8: adversarial training ---


def _adversarial(run: ClaimRun, seeds: int, training: Training, late: str) -> dict[str, dict[str, np.ndarray]]:
    tree = root(run.seeds.seed)
    parts = [
        recipes.adversarial_arms(run.folder, tree, index, training, late)
        for index in run.progress(range(seeds), desc="seeds")
    ]
    return {name: {key: np.array([part[name][key] for part in parts]) for key in parts[0][name]} for name in parts[0]}


_TICKS = {
    "natural": "natural",
    "full": "AT\nthroughout",
    "late": "AT in the\nlast fifth",
    "early": "AT in the\nfirst fifth",
    "early 0.8": "AT up to\n0.8 T",
}


def _linear_gap(natural: np.ndarray, late: np.ndarray, full: np.ndarray) -> float:
    with np.errstate(divide="ignore", invalid="ignore"):
        return float(np.divide(natural.mean() - late.mean(), natural.mean() - full.mean()))


def late_adversarial_training_is_robust(
    run: ClaimRun, *, seeds: int = SEEDS, training: Training = recipes.ADVERSARIAL, late: str = "at"
) -> Measurement:
    """Row 8: AT in the last fifth closes the gap in robust error between natural and full AT."""
    arms = _adversarial(run, seeds, training, late)
    figure, panels = new_figure(1, 2, width=9)
    for axes, key, label in zip(
        panels, ("robust", "clean"), ("robust test error [%]", "clean test error [%]"), strict=True
    ):
        for place, values in enumerate(arms.values()):
            axes.bar(place, values[key].mean(), color=COLOURS[0], alpha=0.35)
            axes.plot(place + np.linspace(-0.2, 0.2, len(values[key])), values[key], ".", color=COLOURS[0])
        axes.set_xticks(range(len(arms)), [_TICKS[name] for name in arms], fontsize="small")
        axes.set(ylabel=label, title="One dot a seed, bars are means")
    run.figure("errors", figure)
    columns = [arms[name]["robust"] for name in ("natural", "late", "full")]
    early = _linear_gap(columns[0], arms["early"]["robust"], columns[2])
    details = {f"{name}: {key} error %": float(values[key].mean()) for name, values in arms.items() for key in values}
    interval = bootstrap(_linear_gap, *columns)
    return Measurement(_linear_gap(*columns), ("AT in the first fifth", early), interval, seeds, details=details)


def late_adversarial_training_is_as_clean(
    run: ClaimRun, *, seeds: int = SEEDS, training: Training = recipes.ADVERSARIAL, late: str = "at"
) -> Measurement:
    """Row 8: clean error of late minus that of full AT, in points."""
    arms = _adversarial(run, seeds, training, late)
    excess, interval = mean(arms["late"]["clean"] - arms["full"]["clean"])
    natural = float(np.mean(arms["natural"]["clean"] - arms["full"]["clean"]))
    return Measurement(excess, ("natural training", natural), interval, seeds)


# --- row 9: cost ---


@cache
def _counted(model: Model) -> tuple[Model, list[int]]:
    """`model`, and a list that grows by one whenever a gradient flows back through it."""
    counter: list[int] = []

    @jax.custom_vjp
    def tick(outputs):
        return outputs

    def backward(_, cotangent):
        jax.debug.callback(lambda: counter.append(1))
        return (cotangent,)

    tick.defvjp(lambda outputs: (outputs, None), backward)

    def apply(params, extra, inputs, train, key):
        outputs, extra = model.apply(params, extra, inputs, train, key)
        return tick(outputs), extra

    return Model(model.init, apply), counter


def _schedules(switch: float) -> dict[str, SwitchSchedule]:
    return {
        "sgd": SwitchSchedule.never(),
        "late": SwitchSchedule.late_from(switch, "usam", unit="fraction"),
        "full": SwitchSchedule.always("usam"),
    }


def late_sam_costs_a_tenth_more(run: ClaimRun, *, epochs: int = 200, switch: float = 0.9) -> Measurement:
    """Row 9: gradient evaluations, counted while training."""
    data, key = recipes.noisy_digits(run.seeds.child("data").jax()), run.seeds.child("run").jax()
    (model, counter), counts = _counted(recipes.network()), {}
    for name, schedule in _schedules(switch).items():
        counter.clear()
        fit(model, data, schedule, replace(FULL, epochs=epochs), key=key)
        jax.effects_barrier()
        counts[name] = len(counter)
    return Measurement(
        counts["late"] / counts["sgd"], ("USAM throughout", counts["full"] / counts["sgd"]), details=counts
    )


def late_sam_takes_little_longer(
    run: ClaimRun, *, epochs: int = 1500, switch: float = 0.9, rounds: int = 7
) -> Measurement:
    """Row 9: wall time of whole runs, interleaved; median of the ratios within rounds."""
    data, model, key = (
        recipes.noisy_digits(run.seeds.child("data").jax()),
        recipes.network(),
        run.seeds.child("run").jax(),
    )
    schedules = _schedules(switch)

    def seconds(schedule):
        begin = time.perf_counter()
        fit(model, data, schedule, replace(FULL, epochs=epochs), key=key)
        return time.perf_counter() - begin

    for schedule in schedules.values():
        fit(model, data, schedule, replace(FULL, epochs=10), key=key)
    times = {name: [] for name in schedules}
    for _ in run.progress(range(rounds), desc="rounds"):
        for name, schedule in schedules.items():
            times[name].append(seconds(schedule))
    late, full = (np.array(times[name]) / np.array(times["sgd"]) for name in ("late", "full"))
    details = {f"seconds, {name}": float(np.median(values)) for name, values in times.items()}
    return Measurement(
        float(np.median(late)),
        ("USAM throughout", float(np.median(full))),
        (float(late.min()), float(late.max())),
        rounds,
        details=details,
    )

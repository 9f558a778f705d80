"""Checks of rows 2 to 5 of the ledger: how flat late and early SAM end, and where late SAM fails.

The experiments are in `recipes`; claims of one run folder share their runs.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from iclr_dynamics.late_sam import recipes
from iclr_dynamics.late_sam.intervals import bootstrap, geometric_mean, mean
from iclr_dynamics.late_sam.schedule import SwitchSchedule
from iclr_dynamics.late_sam.stability import gd_stability_threshold, sam_stability_threshold
from iclr_dynamics.late_sam.training import Training
from iclr_shared.claims import ClaimRun, Measurement
from iclr_shared.plots import COLOURS, new_figure
from iclr_shared.seeds import root

SEEDS = 8
SWITCHES = (0.0, 0.25, 0.5, 0.75, 0.9, 0.95)
EARLY = (0.5, 0.8)
FULL = recipes.FULL_BATCH
ETA, RHO = 0.25, 0.1


def _arms(run: ClaimRun, training: Training, seeds: int, **options: Any) -> dict[str, dict[str, np.ndarray]]:
    """For each arm, each number over seeds."""
    tree = root(run.seeds.seed)
    parts = [
        recipes.arms(run.folder, tree, index, training, **options) for index in run.progress(range(seeds), desc="seeds")
    ]
    names = [name for name in parts[0] if name != "weights"]
    return {name: {key: np.array([part[name][key] for part in parts]) for key in parts[0][name]} for name in names}


def full_batch(run: ClaimRun, seeds: int, training: Training, late: str) -> dict[str, dict[str, np.ndarray]]:
    """Ends of all arms under full-batch gradient descent with USAM, by arm and quantity; computed once a run."""
    return _arms(run, training, seeds, family="usam", late=late, switches=SWITCHES, early=EARLY)


def _deviation(target: float) -> Callable[[np.ndarray], float]:
    return lambda values: geometric_mean(values) / target - 1


def _by_arm(arms: Mapping[str, Mapping[str, np.ndarray]], training: Training) -> dict[str, Any]:
    """Means over seeds for the record, with the range of the sharpness, and the room that each late arm had."""
    table: dict[str, Any] = {}
    for name, values in arms.items():
        if name.startswith("late "):
            schedule = SwitchSchedule.late_from(float(name.removeprefix("late ")), unit="fraction")
            room = schedule.room(training.rate, training.epochs, training.steps_per_epoch(recipes.SAMPLES))
            table[f"{name}: late steps times rate"] = room
        table[f"{name}: sharpness"] = geometric_mean(values["sharpness"])
        table[f"{name}: lowest and highest"] = [float(values["sharpness"].min()), float(values["sharpness"].max())]
        table[f"{name}: train loss"] = float(values["loss"].mean())
        table[f"{name}: test error %"] = float(values["error"].mean())
    return table


def _strip(
    run: ClaimRun, name: str, arms: Mapping[str, Any], column: str, label: str, lines: Mapping[str, float], title: str
) -> None:
    """One dot for each seed of each arm, with the geometric (sharpness) or plain mean as a bar."""
    figure, axes = new_figure(width=8)
    arms = {arm: values[column] for arm, values in arms.items() if arm != "late 0"}  # that is SAM throughout
    for place, dots in enumerate(arms.values()):
        seed, bar = ("one seed", "mean") if not place else (None, None)
        axes.plot(place + np.linspace(-0.15, 0.15, len(dots)), dots, "o", ms=4, color=COLOURS[0], alpha=0.6, label=seed)
        centre = geometric_mean(dots) if column == "sharpness" else dots.mean()
        axes.plot([place - 0.3, place + 0.3], [centre, centre], color=COLOURS[1], lw=2, label=bar)
    for text, value in lines.items():
        axes.axhline(value, color="0.4", lw=0.9, ls="--")
        axes.annotate(text, (1, value), xycoords=("axes fraction", "data"), ha="right", va="bottom", fontsize="small")
    axes.set_xticks(range(len(arms)), [_tick(arm) for arm in arms], fontsize="small")
    axes.set_ylabel(label)
    axes.set_title(title, loc="left")
    axes.legend(fontsize="small", loc="lower right", bbox_to_anchor=(1, 1), ncols=2, frameon=False)
    axes.grid(axis="x", visible=False)
    run.figure(name, figure)


def _tick(arm: str) -> str:
    """What an arm is called below the axis; T is the length of training."""
    kind, _, fraction = arm.partition(" ")
    late, early = f"SAM from\n{fraction} T", f"SAM up to\n{fraction} T"
    return {"sgd": "SGD", "sam": "SAM\nthroughout", "late": late, "early": early}[kind]


_EDGES = {"2/η": gd_stability_threshold(ETA), "h_SAM": sam_stability_threshold(ETA, RHO)}


def _gap(run: ClaimRun, arms: dict, arm: str, control: str, details: dict[str, Any]) -> Measurement:
    """The share of the gap between (S)GD and SAM throughout that `arm` closes, with that of a control arm."""
    sgd, sam = arms["sgd"]["sharpness"], arms["sam"]["sharpness"]
    values = arms[arm]["sharpness"]
    shares = [recipes.gap_closed(sgd, arms[name]["sharpness"], sam) for name in (arm, control)]
    interval = bootstrap(recipes.gap_closed, sgd, values, sam)
    series = {name: numbers["sharpness"].tolist() for name, numbers in arms.items()}
    return Measurement(shares[0], (_WORDS.format(control), shares[1]), interval, len(values), series, details)


_WORDS = "gap closed by the arm '{}'"


def late_sam_is_as_flat(
    run: ClaimRun, *, seeds: int = SEEDS, training: Training = FULL, late: str = "usam", switch: float = 0.9
) -> Measurement:
    """Row 2, the headline: USAM in the last tenth closes the gap in sharpness between GD and USAM throughout."""
    arms = full_batch(run, seeds, training, late)
    if switch == 0.9:
        _strip(run, "sharpness", arms, "sharpness", "sharpness λ₁", _EDGES, "Late USAM ends where full USAM does")
    return _gap(run, arms, f"late {switch:g}", "early 0.8", _by_arm(arms, training))


def later_sam_is_as_flat(
    run: ClaimRun, *, seeds: int = SEEDS, training: Training = FULL, late: str = "usam"
) -> Measurement:
    """Row 2 with the switch at 95 %."""
    return late_sam_is_as_flat(run, seeds=seeds, training=training, late=late, switch=0.95)


def _edge(run: ClaimRun, arms: dict, arm: str, target: float, control: str) -> Measurement:
    values = arms[arm]["sharpness"]
    worst = float(np.max(np.abs(values / target - 1)))
    deviation = _deviation(target)(values)
    interval = bootstrap(_deviation(target), values)
    details = {"predicted": target, "sharpness": geometric_mean(values), "worst seed": worst}
    details["sharpness by 30 power iterations"] = geometric_mean(arms[arm]["power"])
    baseline = (f"{control} from the same prediction", _deviation(target)(arms[control]["sharpness"]))
    return Measurement(deviation, baseline, interval, len(values), {arm: values.tolist()}, details)


def gd_ends_at_its_edge(
    run: ClaimRun, *, seeds: int = SEEDS, training: Training = FULL, late: str = "usam"
) -> Measurement:
    """Row 2: gradient descent ends at sharpness 2/eta."""
    return _edge(run, full_batch(run, seeds, training, late), "sgd", _EDGES["2/η"], "sam")


def full_sam_ends_at_its_edge(
    run: ClaimRun, *, seeds: int = SEEDS, training: Training = FULL, late: str = "usam"
) -> Measurement:
    """Row 2: USAM throughout ends at h_SAM."""
    return _edge(run, full_batch(run, seeds, training, late), "sam", _EDGES["h_SAM"], "sgd")


def late_sam_ends_at_its_edge(
    run: ClaimRun, *, seeds: int = SEEDS, training: Training = FULL, late: str = "usam"
) -> Measurement:
    """Row 2: USAM in the last tenth ends at h_SAM."""
    return _edge(run, full_batch(run, seeds, training, late), "late 0.9", _EDGES["h_SAM"], "sgd")


def late_sam_is_flatter_in_minibatches(
    run: ClaimRun, *, seeds: int = SEEDS, training: Training = recipes.MINIBATCH, late: str = "sam"
) -> Measurement:
    """Row 2b: batches of 10, normalised SAM in the last tenth."""
    arms = _arms(run, training, seeds, family="sam", late=late, switches=(0.8, 0.9), early=(0.8,))
    _strip(run, "sharpness", arms, "sharpness", "sharpness λ₁", {}, "Batches of 10: late SAM")
    return _gap(run, arms, "late 0.9", "early 0.8", _by_arm(arms, training))


def late_sam_generalises_better_than_gd(
    run: ClaimRun, *, seeds: int = SEEDS, training: Training = FULL, late: str = "usam"
) -> Measurement:
    """Row 3: test error of GD minus that of late USAM, in points."""
    arms = full_batch(run, seeds, training, late)
    _strip(run, "error", arms, "error", "test error [%]", {}, "Test error on 1,197 digits")
    gain, interval = mean(arms["sgd"]["error"] - arms["late 0.9"]["error"])
    full = float(np.mean(arms["sgd"]["error"] - arms["sam"]["error"]))
    series = {name: values["error"].tolist() for name, values in arms.items()}
    return Measurement(gain, ("gain of full USAM", full), interval, seeds, series, _by_arm(arms, training))


def late_sam_generalises_like_full_sam(
    run: ClaimRun, *, seeds: int = SEEDS, training: Training = FULL, late: str = "usam"
) -> Measurement:
    """Row 3: test error of late minus that of full USAM, in points."""
    arms = full_batch(run, seeds, training, late)
    excess, interval = mean(arms["late 0.9"]["error"] - arms["sam"]["error"])
    control = float(np.mean(arms["sgd"]["error"] - arms["sam"]["error"]))
    return Measurement(excess, ("excess of GD", control), interval, seeds, details=_by_arm(arms, training))


def _early(run: ClaimRun, seeds: int, training: Training, fraction: float) -> tuple[dict, np.ndarray]:
    arms = full_batch(run, seeds, training, "usam")
    return arms, arms[f"early {fraction:g}"]["sharpness"]


def early_sam_sharpens_again(
    run: ClaimRun, *, seeds: int = SEEDS, training: Training = FULL, fraction: float = 0.8
) -> Measurement:
    """Row 4: USAM for the first 80 %, then GD: the sharpness comes back."""
    arms, values = _early(run, seeds, training, fraction)
    interval = bootstrap(geometric_mean, values)
    baseline = ("USAM throughout", geometric_mean(arms["sam"]["sharpness"]))
    details = {"gradient descent": geometric_mean(arms["sgd"]["sharpness"]), "lowest": float(values.min())}
    return Measurement(geometric_mean(values), baseline, interval, seeds, {"sharpness": values.tolist()}, details)


def half_early_sam_sharpens_again(run: ClaimRun, *, seeds: int = SEEDS, training: Training = FULL) -> Measurement:
    """Row 4: USAM for the first half, then GD."""
    return early_sam_sharpens_again(run, seeds=seeds, training=training, fraction=0.5)


def early_sam_is_nearer_to_gd(run: ClaimRun, *, seeds: int = SEEDS, training: Training = FULL) -> Measurement:
    """Row 4: what early USAM keeps of the gap between GD and USAM."""
    arms, values = _early(run, seeds, training, 0.8)
    columns = arms["sgd"]["sharpness"], values, arms["sam"]["sharpness"]
    late = "late USAM, a tenth of the steps", recipes.gap_closed(columns[0], arms["late 0.9"]["sharpness"], columns[2])
    interval = bootstrap(recipes.gap_closed, *columns)
    return Measurement(recipes.gap_closed(*columns), late, interval, seeds, details=_by_arm(arms, training))


def early_sam_in_minibatches(
    run: ClaimRun, *, seeds: int = SEEDS, training: Training = recipes.MINIBATCH
) -> Measurement:
    """Row 4 with batches of 10, where SGD at that rate is known not to sharpen again in 1,200 steps."""
    arms = _arms(run, training, seeds, family="sam", late="sam", switches=(0.8, 0.9), early=(0.8,))
    return _gap(run, arms, "early 0.8", "late 0.9", _by_arm(arms, training))


def _sweep(run: ClaimRun, seeds: int, training: Training, late: str) -> tuple[dict, np.ndarray, list[float]]:
    arms = full_batch(run, seeds, training, late)
    columns = [arms[f"late {switch:g}"]["sharpness"] for switch in SWITCHES] + [arms["sgd"]["sharpness"]]
    return arms, np.log(np.stack(columns)), [*SWITCHES, 1.0]


def sweep_is_flat(run: ClaimRun, *, seeds: int = SEEDS, training: Training = FULL, late: str = "usam") -> Measurement:
    """Row 5: whatever the switch up to 0.9 of training, the end is as flat as that of USAM throughout."""
    arms, logs, switches = _sweep(run, seeds, training, late)
    closed = [recipes.gap_closed(arms["sgd"]["sharpness"], np.exp(row), arms["sam"]["sharpness"]) for row in logs]
    figure, axes = new_figure()
    axes.plot(switches, np.exp(logs), ".", color=COLOURS[0], alpha=0.5)
    axes.plot(switches, np.exp(logs.mean(1)), color=COLOURS[1], lw=2)
    for text, value in _EDGES.items():
        axes.axhline(value, color="0.4", lw=0.9, ls="--")
        axes.annotate(text, (0.3, value), va="bottom", fontsize="small")
    axes.set(xlabel="switch to USAM, t / T", ylabel="final sharpness λ₁", title="Only the end of training matters")
    run.figure("sweep", figure)
    flat = [value for switch, value in zip(switches, closed, strict=True) if switch <= 0.9]
    series = {"switch": switches, "gap_closed": closed, "sharpness": np.exp(logs.mean(1)).tolist()}
    early = recipes.gap_closed(*(arms[name]["sharpness"] for name in ("sgd", "early 0.8", "sam")))
    baseline = _WORDS.format("early 0.8"), early
    return Measurement(min(flat), baseline, n=seeds, series=series, details=_by_arm(arms, training))


def sweep_rises_monotonically(
    run: ClaimRun, *, seeds: int = SEEDS, training: Training = FULL, late: str = "usam"
) -> Measurement:
    """Row 5: largest fall of the mean log sharpness from one switch to a later one, over its rise to no switch."""
    _, logs, switches = _sweep(run, seeds, training, late)
    means = logs.mean(1)
    fall = float(np.max(np.maximum.accumulate(means) - means))
    rise = float(means[-1] - means[0])
    series = {"switch": switches, "log sharpness": means.tolist()}
    share = fall / rise if rise > 0 else math.nan  # without an effect there is no rise, and nothing holds
    return Measurement(share, ("rise of the mean log sharpness", rise), n=seeds, series=series)


# --- where it fails ---


def late_sam_after_the_rate_has_dropped(
    run: ClaimRun, *, seeds: int = SEEDS, training: Training = recipes.DECAYED
) -> Measurement:
    """Cross-entropy with smoothing, rate times 0.2 at half time: too few late steps at too low a rate."""
    arms = _arms(run, training, seeds, family="sam", switches=(0.8, 0.9), early=(0.8,))
    _strip(run, "sharpness", arms, "sharpness", "sharpness λ₁", {}, "Rate dropped at half time: late SAM does little")
    return _gap(run, arms, "late 0.8", "early 0.8", _by_arm(arms, training))


def late_sam_without_smoothing(
    run: ClaimRun, *, seeds: int = SEEDS, training: Training = recipes.UNSMOOTHED
) -> Measurement:
    """Plain cross-entropy at a constant rate: the sharpness that late SAM ends with, over that of SGD."""
    arms = _arms(run, training, seeds, family="sam", switches=(0.8, 0.9), early=(0.8,))
    _strip(run, "sharpness", arms, "sharpness", "sharpness λ₁", {}, "No smoothing: late SAM raises sharpness")
    ratio = lambda late, sgd: geometric_mean(late) / geometric_mean(sgd)  # noqa: E731
    late, sgd, sam = (arms[name]["sharpness"] for name in ("late 0.9", "sgd", "sam"))
    interval = bootstrap(ratio, late, sgd)
    return Measurement(
        ratio(late, sgd), ("SAM throughout", ratio(sam, sgd)), interval, seeds, details=_by_arm(arms, training)
    )

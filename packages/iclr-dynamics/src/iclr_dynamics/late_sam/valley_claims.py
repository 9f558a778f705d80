"""Checks of rows 1, 6 and 7 of the ledger: leaving a minimum, and staying in its valley."""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from iclr_dynamics.late_sam import recipes, valley
from iclr_dynamics.late_sam.claims import EARLY, ETA, FULL, RHO, SEEDS, SWITCHES, full_batch
from iclr_dynamics.late_sam.connectivity import Path, linear_mode_connectivity
from iclr_dynamics.late_sam.escape import escape_curve
from iclr_dynamics.late_sam.intervals import bootstrap, mean
from iclr_dynamics.late_sam.objective import loss_function, training_loss
from iclr_dynamics.late_sam.schedule import SwitchSchedule
from iclr_dynamics.late_sam.stability import sam_stability_threshold, usam_factor
from iclr_dynamics.late_sam.training import Training, fit
from iclr_dynamics.sharpness import top_eigenvalues
from iclr_shared.claims import ClaimRun, Measurement
from iclr_shared.plots import COLOURS, new_figure
from iclr_shared.seeds import root

# Row 1 of the ledger: eta = 0.1, start at h = 19 on the valley, 1e-6 relative displacement of b; final h by rho.
_VALLEY_ETA, _VALLEY_START, _LINEAR = 0.1, 19.0, 6
_VALLEY_FINAL = {0.002: 19.000, 0.005: 17.6034, 0.01: 14.7404, 0.02: 9.2112}


def _valley(rho: float, steps: int) -> dict[str, float]:
    with jax.enable_x64(True):
        start = valley.minimum(_VALLEY_START) * jnp.array([1.0, 1 + 1e-6])
        run = valley.descend(start, _VALLEY_ETA, rho, steps)
        losses, curvature = np.asarray(run.losses), np.asarray(run.curvature)
        final_loss, final = float(valley.loss(run.point)), float(run.final_curvature)
    predicted = usam_factor(_VALLEY_ETA, rho, _VALLEY_START)
    # The linear phase: in its first steps the loss, 5e-13 at the start, is tiny, and far above rounding.
    measured = math.log(losses[_LINEAR] / losses[0]) / _LINEAR
    return {
        "rho": rho,
        "predicted": math.log(predicted),
        "measured": measured,
        "final_h": final,
        "h_sam": sam_stability_threshold(_VALLEY_ETA, rho),
        "final_loss": final_loss,
        "peak_loss": float(losses.max()),
        "losses": losses,
        "curvature": curvature,
    }


def _valley_table(steps: int, rhos: tuple[float, ...]) -> tuple[list[dict], dict, dict]:
    rows, control = [_valley(rho, steps) for rho in rhos], _valley(0.0, steps)
    columns = ("rho", "predicted", "measured", "final_h", "h_sam", "final_loss", "peak_loss")
    return rows, control, {name: [row[name] for row in (control, *rows)] for name in columns}


def escape_rate_is_exact(
    run: ClaimRun, *, rhos: tuple[float, ...] = tuple(_VALLEY_FINAL), steps: int = 2000
) -> Measurement:
    """Row 1: the loss leaves a minimum that USAM cannot hold by the predicted factor per step."""
    rows, control, series = _valley_table(steps, rhos)
    figure, (left, right) = new_figure(1, 2, width=9)
    for row in (control, *rows):
        shown = slice(0, min(steps, 320))
        (line,) = left.semilogy(row["losses"][shown], label=f"ρ = {row['rho']:g}")
        right.plot(row["curvature"][shown], color=line.get_color())
        right.axhline(row["h_sam"], color=line.get_color(), lw=0.9, ls=":")
    right.plot([], [], ":", color="0.4", label="h_SAM: what that ρ can hold")
    right.legend(fontsize="small", loc="center", bbox_to_anchor=(0.6, 0.25))
    left.set(xlabel="step", ylabel="loss L", title="Escape and return", ylim=(1e-30, 1e2))
    right.set(xlabel="step", ylabel="curvature h = a² + b²", title="Same valley, flatter minimum")
    left.legend(fontsize="small")
    run.figure("valley", figure)
    worst = max(abs(row["measured"] - row["predicted"]) for row in rows)
    baseline = ("gradient descent: log factor of the loss per step", control["measured"])
    return Measurement(worst, baseline=baseline, n=len(rows), series=series)


def escape_lands_where_predicted(
    run: ClaimRun, *, rhos: tuple[float, ...] = tuple(_VALLEY_FINAL), steps: int = 2000
) -> Measurement:
    """Row 1: final curvatures of the reference table."""
    rows, control, series = _valley_table(steps, rhos)
    worst = max(abs(row["final_h"] - _VALLEY_FINAL[row["rho"]]) for row in rows)
    return Measurement(
        worst,
        baseline=("gradient descent: change of h", abs(control["final_h"] - _VALLEY_START)),
        n=len(rows),
        series=series,
    )


def escape_ends_below_the_threshold(
    run: ClaimRun, *, rhos: tuple[float, ...] = tuple(_VALLEY_FINAL), steps: int = 2000
) -> Measurement:
    """Row 1: every end point is a minimum that USAM holds, while gradient descent stays where it was."""
    rows, control, series = _valley_table(steps, rhos)
    worst = max(row["final_h"] / row["h_sam"] for row in rows)
    reach = max(control["final_h"] / sam_stability_threshold(_VALLEY_ETA, rho) for rho in rhos)
    return Measurement(
        worst, baseline=("gradient descent: final h over the same h_SAM", reach), n=len(rows), series=series
    )


def escape_returns_to_the_valley(
    run: ClaimRun, *, rhos: tuple[float, ...] = tuple(_VALLEY_FINAL), steps: int = 2000
) -> Measurement:
    """Row 1: the loss is zero again after the escape."""
    rows, control, series = _valley_table(steps, rhos)
    peak = max(row["peak_loss"] for row in rows)
    worst = max(row["final_loss"] for row in rows)
    return Measurement(
        worst,
        baseline=("gradient descent: final loss", control["final_loss"]),
        n=len(rows),
        series=series,
        details={"peak loss on the way": peak},
    )


def _training_loss(training: Training) -> Callable:
    return training_loss(recipes.network(), loss_function(training.loss, training.smoothing))


def late_sam_stays_in_the_valley(
    run: ClaimRun, *, seeds: int = 5, training: Training = FULL, late: str = "usam", partner: str = "late 0.9"
) -> Measurement:
    """Row 6: barrier between the ends of GD and of late USAM, relative to that between two GD runs."""
    tree, whole, model = root(run.seeds.seed), _training_loss(training), recipes.network()
    full_batch(run, seeds, training, late)
    paths: list[tuple[Path, ...]] = []
    for index in run.progress(range(seeds), desc="paths"):
        arms = recipes.arms(run.folder, tree, index, training, family="usam", late=late, switches=SWITCHES, early=EARLY)
        here = tree.child("late_sam", "arms", index)
        data = recipes.noisy_digits(here.child("data").jax())
        stranger = fit(model, data, SwitchSchedule.never(), training, key=here.child("stranger").jax())
        evaluate = jax.jit(lambda params, data=data: whole(params, {}, data.x, data.y))
        end = recipes.weights_of(arms["weights"]["sgd"])
        near = stranger.params if partner == "stranger" else recipes.weights_of(arms["weights"][partner])
        pairs = (end, near), (end, stranger.params), (stranger.params, near)
        paths.append(tuple(linear_mode_connectivity(*pair, evaluate) for pair in pairs))
    figure, axes = new_figure()
    for number, (near, far, _) in enumerate(paths):
        axes.plot(near.alphas, near.losses, color=COLOURS[0], label=None if number else "GD to late USAM")
        axes.plot(far.alphas, far.losses, color=COLOURS[1], label=None if number else "GD to GD, other initial weights")
    axes.set(xlabel="position α", ylabel="training loss", title="Straight lines between trained networks", yscale="log")
    axes.legend()
    run.figure("paths", figure)
    near, far, cross = np.array([[path.barrier for path in triple] for triple in paths]).T
    ratio = float(near.mean() / far.mean())
    interval = bootstrap(lambda a, b: a.mean() / b.mean(), near, far)
    details = {"barrier to late USAM": float(near.mean()), "barrier to another GD run": float(far.mean())}
    return Measurement(
        ratio,
        ("another GD run to late USAM", float(cross.mean() / far.mean())),
        interval,
        seeds,
        {"near": near.tolist(), "far": far.tolist()},
        details,
    )


def _escape(data: Any, whole: Callable, params: Any, rho: float, steps: int, settle: int, displacement: float):
    """Growth per step along the top eigenvector: (predicted, measured, curve, h)."""
    batch = {}, jnp.asarray(data.x, jnp.result_type(float)), jnp.asarray(data.y, jnp.result_type(float))
    params = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)
    if settle:
        params = escape_curve(whole, params, *batch, eta=ETA / 8, rho=0.0, steps=settle).params
    top = top_eigenvalues(whole, params, *batch, k=1)
    h, direction = float(top.values[0]), jax.tree.map(lambda leaf: np.asarray(leaf)[0], top.vectors)
    start = jax.tree.map(lambda leaf, along: np.asarray(leaf) + displacement * along, params, direction)
    curve = escape_curve(whole, start, *batch, eta=ETA, rho=rho, steps=steps, direction=direction)
    # Successive differences need no reference point, and grow by the same factor.
    moves = np.abs(np.diff(curve.projections))
    return math.log(usam_factor(ETA, rho, h)) / 2, float(np.log(moves[-1] / moves[0]) / (len(moves) - 1)), curve, h


def _escape_claim(
    run: ClaimRun, seeds: int, training: Training, rho: float, steps: int, settle: int, displacement: float, title: str
) -> Measurement:
    tree, whole = root(run.seeds.seed), _training_loss(training)
    full_batch(run, seeds, training, "usam")
    rows, controls, figure_rows = [], [], []
    with jax.enable_x64(True):
        for index in run.progress(range(seeds), desc="escapes"):
            arms = recipes.arms(run.folder, tree, index, training, family="usam", switches=SWITCHES, early=EARLY)
            with jax.enable_x64(False):
                data = recipes.noisy_digits(tree.child("late_sam", "arms", index).child("data").jax())
            params = recipes.weights_of(arms["weights"]["sgd"])
            predicted, measured, curve, h = _escape(data, whole, params, rho, steps, settle, displacement)
            rows.append((predicted, measured, h))
            _, still, bounce, _ = _escape(data, whole, params, 0.0, steps, settle, displacement)
            controls.append(still)
            figure_rows.append((*(np.abs(np.diff(each.projections)) for each in (curve, bounce)), predicted))
    figure, axes = new_figure()
    times = np.arange(1, steps + 1)
    for number, (moves, still, predicted) in enumerate(figure_rows):
        for values, style, colour, label in (
            (moves, "o-", COLOURS[0], "USAM"),
            (moves[0] * np.exp(predicted * (times - 1)), "--", COLOURS[1], "USAM, predicted"),
            (still, ".:", COLOURS[2], "gradient descent"),
        ):
            axes.semilogy(times, values, style, ms=4, lw=1.2, color=colour, label=None if number else label)
    axes.set(xlabel="steps after the switch", ylabel="|change along the top eigenvector|", title=title)
    axes.set_xticks(times)
    axes.legend(fontsize="small")
    run.figure("escape", figure)
    predicted, measured, h = np.array(rows).T
    error, interval = mean(np.abs(measured / _predicted(h) - 1))
    details = {
        "predicted log growth": float(predicted.mean()),
        "measured log growth": float(measured.mean()),
        "h at the switch": float(h.mean()),
    }
    series = {"h": h.tolist(), "predicted": predicted.tolist(), "measured": measured.tolist(), "gd": controls}
    return Measurement(error, ("log growth per step of GD", float(np.mean(controls))), interval, seeds, series, details)


def _predicted(h: np.ndarray) -> np.ndarray:
    """The paper's prediction for USAM, also where a test removes USAM."""
    return np.log([usam_factor(ETA, RHO, value) for value in h]) / 2


def escape_from_the_end_of_gd(
    run: ClaimRun, *, seeds: int = SEEDS, training: Training = FULL, rho: float = RHO, steps: int = 5
) -> Measurement:
    """Row 7 to the letter: USAM from the very last weights of GD, growth over the first 5 steps."""
    return _escape_claim(run, seeds, training, rho, steps, 0, 0.0, "Escape of a network from GD's last weights")


def escape_from_rest(
    run: ClaimRun, *, seeds: int = SEEDS, training: Training = FULL, rho: float = RHO, steps: int = 10
) -> Measurement:
    """Row 7 with room for an exponential phase: GD's end is first brought to rest, then displaced by 1e-6."""
    return _escape_claim(run, seeds, training, rho, steps, 32, 1e-6, "Escape of a network from rest")

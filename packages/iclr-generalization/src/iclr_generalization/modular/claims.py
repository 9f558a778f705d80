"""One check for each row of the claims ledger. Networks are trained once for all checks of a run."""

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import numpy as np
from scipy import stats

from iclr_generalization.modular import theory
from iclr_generalization.modular.dictionaries import (
    interpolation_error,
    modular_features,
    monolithic_features,
    smallest_sample,
)
from iclr_generalization.modular.experiments import IMAGE_SIZES, SINE_SIZES, Sizes, image_errors, sine_losses
from iclr_generalization.modular.recovery import module_recovery
from iclr_generalization.modular.search import Search, find_modules
from iclr_generalization.modular.tasks import SineTask, digit_images
from iclr_shared.claims import ClaimRun, Measurement
from iclr_shared.plots import new_figure
from iclr_shared.seeds import root

#: (P, n, values of p) of row 1.
PAIRS = ((60, 30, (10, 20, 45, 60)), (100, 60, (20, 40, 80, 100)), (200, 100, (40, 80, 130, 200)))
DIMENSIONS = (2, 4, 8, 16)
SEEDS = 3
#: In legends: one architecture, three ways to first projections.
LABELS = {"rule": "modular, found", "random": "modular, random", "oracle": "modular, true"}
#: As in the runs that the threshold of row 4 comes from; all rows in each step.
SEARCH = Search(steps=150)


def _interval(values: Sequence[float]) -> tuple[float, float]:
    """95 % t interval of the mean."""
    half = stats.t.ppf(0.975, len(values) - 1) * np.std(values, ddof=1) / math.sqrt(len(values))
    return float(np.mean(values) - half), float(np.mean(values) + half)


def _ratio_interval(ratios: Sequence[float]) -> tuple[float, float]:
    """95 % t interval of the geometric mean."""
    low, high = _interval(np.log(ratios).tolist())
    return math.exp(low), math.exp(high)


# --- row 1 ---


def closed_forms(run: ClaimRun, *, repeats: int = 300, pairs: Any = PAIRS) -> Measurement:
    """Row 1: losses of simulated least squares against the closed forms, in the units of what is allowed: the larger of
    3 s.e. and 5 %. Control: the test loss without the fit's variance, ``1 - p/P``."""
    worst, control, rows = 0.0, 0.0, []
    for P, n, values in pairs:
        for p in values:
            found = theory.simulate(P, p, n, run.seeds.child("draws", P * 1000 + p).numpy(), repeats=repeats)
            for kind, losses in (("test", found.test), ("train", found.train)):
                truth = float(getattr(theory, f"{kind}_loss")(P, p, n))
                allowed = max(3 * losses.std(ddof=1) / math.sqrt(repeats), 0.05 * truth, 1e-12)
                worst = max(worst, abs(losses.mean() - truth) / allowed)
                if kind == "test":
                    control = max(control, abs(losses.mean() - (1 - p / P)) / allowed)
                    rows.append((P, p, n, truth, losses.mean(), losses.std(ddof=1) / math.sqrt(repeats)))
    P, n, _ = pairs[0]
    medians = {
        f"median test loss, p = {p}": float(
            np.median(theory.simulate(P, p, n, run.seeds.child("peak", p).numpy()).test)
        )
        for p in (n // 2, n)
    }
    columns = dict(
        zip(("P", "p", "n", "closed form", "simulated", "s.e."), map(list, zip(*rows, strict=True)), strict=True)
    )
    return Measurement(worst, ("without the variance of the fit", control), n=repeats, series=columns, details=medians)


# --- row 2 ---


def monolithic_exponent(
    run: ClaimRun, *, dimensions: Sequence[int] = (1, 2, 3, 4, 5), repeats: int = 50, seeds: int = SEEDS, C: int = 3
) -> Measurement:
    """Row 2: slope of ln n(0.1) against m, all products of features. Control: modular features and targets."""
    sizes, slopes, others = [], [], []
    for seed in run.progress(range(seeds), desc="sample sizes"):
        rng = run.seeds.child("monolithic", seed).numpy()
        learner = partial(monolithic_features, C=C)
        found = [smallest_sample(learner, learner, m, rng, most=2 * C**m, repeats=repeats) for m in dimensions]
        sizes.append(found)
        slopes.append(np.polyfit(dimensions, np.log(found), 1)[0])
        room = [3, 4, 5]
        others.append(np.polyfit(room, np.log([_modular_sample(m, rng, repeats) for m in room]), 1)[0])
    wanted = [theory.sample_complexity(m, C=C) for m in dimensions]
    figure, axes = new_figure()
    axes.plot(dimensions, np.transpose(sizes), "o", color="#0072B2", alpha=0.6)
    axes.plot(dimensions, wanted, "k--", label="(1 - ε) 3ᵐ")
    axes.set(yscale="log", xlabel="dimension m", ylabel="samples n for a test loss of 0.1", title="Monolithic features")
    axes.set_xticks(dimensions)
    axes.legend(frameon=False)
    run.figure("samples", figure)
    series = {"m": list(dimensions), "n": np.mean(sizes, 0), "closed form": wanted}
    return Measurement(np.mean(slopes), ("modular", np.mean(others)), _interval(slopes), seeds, series)


def modular_exponent(
    run: ClaimRun,
    *,
    dimensions: Sequence[int] = (3, 4, 5, 6),
    repeats: int = 50,
    seeds: int = SEEDS,
    modular: bool = True,
) -> Measurement:
    """Row 2: the slope for targets of three one-dimensional modules. Control: all products, on the same targets.

    A non-modular learner of equal parameter count (7 random products) is in the details: it never gets there.
    """
    sizes, others, missed = [], [], []
    for seed in run.progress(range(seeds), desc="sample sizes"):
        rng = run.seeds.child("modular", seed).numpy()
        full = [
            smallest_sample(monolithic_features, _three_modules, m, rng, most=2 * 3**m, repeats=max(3, repeats // 5))
            for m in dimensions
        ]
        sizes.append([_modular_sample(m, rng, repeats) for m in dimensions] if modular else full)
        others.append(full)
        few = partial(_some_products, chosen=rng.permutation(3 ** dimensions[-1])[:7])
        missed.append(interpolation_error(few, _three_modules, dimensions[-1], 1000, rng, 5))
    slopes = [np.polyfit(dimensions, np.log(found), 1)[0] for found in sizes]
    control = np.mean([np.polyfit(dimensions, np.log(found), 1)[0] for found in others])
    figure, axes = new_figure()
    axes.plot(dimensions, np.mean(others, 0), "o-", label="all products of features")
    axes.plot(dimensions, np.mean(sizes, 0), "s-", label="modular")
    axes.set(yscale="log", xlabel="dimension m", ylabel="samples n for a test loss of 0.1", title="Modular targets")
    axes.set_xticks(dimensions)
    axes.legend(frameon=False)
    run.figure("samples", figure)
    return Measurement(
        abs(np.mean(slopes)),
        ("all products, the same targets", control),
        _interval(slopes),
        seeds,
        {"m": list(dimensions), "modular n": np.mean(sizes, 0), "all products n": np.mean(others, 0)},
        {"test loss of 7 random products at n = 1000, largest m": np.mean(missed)},
    )


def _three_modules(x: np.ndarray) -> np.ndarray:
    return modular_features(x, 3, 1)


def _some_products(x: np.ndarray, chosen: np.ndarray) -> np.ndarray:
    return monolithic_features(x)[:, chosen]


def _modular_sample(m: int, rng: np.random.Generator, repeats: int) -> int:
    found = smallest_sample(_three_modules, _three_modules, m, rng, most=100, repeats=repeats)
    return 100 if found is None else found


# --- rows 3 and 5: sine waves ---


def _sines(run: ClaimRun, dimensions: Sequence[int], seeds: int, n: int, sizes: Sizes) -> dict[str, np.ndarray]:
    """Losses by ``kind/learner``, shape (dimensions, seeds), trained once for all claims of a run.

    A seed has the same waves for every m, and only other projections: what changes with m is not the target.
    """
    tree = root(run.seeds.seed).child("modular", "sines")
    store = replace(run, claim="shared")
    rows = []
    for m in run.progress(dimensions, desc="sine waves"):
        for seed in range(seeds):
            checkpoint = store.checkpoint(f"sines-{m}-{seed}-{n}-{sizes.training.steps}-{sizes.search.steps}", keep=1)
            if (saved := checkpoint.latest()) is None:
                result = sine_losses(m, tree.child("task", seed).jax(), n=n, sizes=sizes)
                checkpoint.save(1, {"result": result})
            else:
                result = saved[1]["result"]
            rows.append(result)
    names = [(kind, name) for kind in ("test", "ood") for name in rows[0][kind]]
    shape = len(dimensions), seeds
    table = {f"{kind}/{name}": np.array([r[kind][name] for r in rows]).reshape(shape) for kind, name in names}
    return {**table, "recovery": np.array([r["recovery"] for r in rows]).reshape(shape)}


def _exponents(losses: dict[str, np.ndarray], dimensions: Sequence[int], kind: str = "test") -> dict[str, str]:
    """Slope of ln loss against ln m for each learner, with a 95 % interval over seeds."""
    found = {}
    for name, values in losses.items():
        if name.startswith(f"{kind}/") and values.shape[1] > 1:
            slopes = [np.polyfit(np.log(dimensions), np.log(column), 1)[0] for column in values.T]
            low, high = _interval(slopes)
            found[f"exponent in m, {name.split('/')[1]}"] = f"{np.mean(slopes):.2f} ({low:.2f} to {high:.2f})"
    return found


def _sine_measurement(
    run: ClaimRun, losses, dimensions, kind, measured, baseline, ratios=None, title=""
) -> Measurement:
    figure, axes = new_figure()
    names = [name for name in losses if name.startswith(f"{kind}/")]
    for name in names:
        axes.plot(dimensions, losses[name].mean(1), "o-", label=LABELS.get(name.split("/")[1], name.split("/")[1]))
    axes.set(xscale="log", yscale="log", xlabel="input dimension m", ylabel="loss / variance of targets", title=title)
    axes.set_xticks(dimensions, [str(m) for m in dimensions])
    axes.tick_params(axis="x", which="minor", bottom=False, labelbottom=False)
    axes.legend(frameon=False, fontsize=8)
    run.figure("losses", figure)
    series = {
        "m": list(dimensions),
        **{name: losses[name].mean(1) for name in names},
        "recovery": losses["recovery"].mean(1),
    }
    ci = _ratio_interval(ratios) if ratios is not None and len(ratios) > 1 else None
    return Measurement(
        measured, baseline, ci, losses["recovery"].shape[1], series, _exponents(losses, dimensions, kind),
        "The interval is that of the geometric mean over seeds of the same number, computed seed by seed.",
    )  # fmt: skip


def monolithic_loss_rises(
    run: ClaimRun, *, dimensions: Sequence[int] = DIMENSIONS, seeds: int = SEEDS, n: int = 1000,
    sizes: Sizes = SINE_SIZES, learner: str = "monolithic",
) -> Measurement:  # fmt: skip
    """Row 3: test loss at the largest m over that at the smallest. Control: the true modules."""
    losses = _sines(run, dimensions, seeds, n, sizes)
    chosen, oracle = losses[f"test/{learner}"], losses["test/oracle"]
    means = chosen.mean(1)
    control = ("oracle", oracle[-1].mean() / oracle[0].mean())
    return _sine_measurement(
        run, losses, dimensions, "test", means[-1] / means[0], control, chosen[-1] / chosen[0], "Fresh samples"
    )


def rule_loss_stays(
    run: ClaimRun, *, dimensions: Sequence[int] = DIMENSIONS, seeds: int = SEEDS, n: int = 1000,
    sizes: Sizes = SINE_SIZES, learner: str = "rule",
) -> Measurement:  # fmt: skip
    """Row 3: largest test loss over that of the smallest m, modules found by the rule. Control: the true modules."""
    losses = _sines(run, dimensions, seeds, n, sizes)
    chosen, oracle = losses[f"test/{learner}"], losses["test/oracle"]
    measured = chosen.mean(1).max() / chosen.mean(1)[0]
    control = ("oracle", oracle.mean(1).max() / oracle.mean(1)[0])
    return _sine_measurement(
        run, losses, dimensions, "test", measured, control, chosen.max(0) / chosen[0], "Fresh samples"
    )


def rule_beats_random_modules(
    run: ClaimRun, *, dimensions: Sequence[int] = DIMENSIONS, seeds: int = SEEDS, n: int = 1000,
    sizes: Sizes = SINE_SIZES, learner: str = "rule", least: int = 8,
) -> Measurement:  # fmt: skip
    """Row 3: test loss with found modules over that with random ones, worst m >= 8. Control: the true modules."""
    losses = _sines(run, dimensions, seeds, n, sizes)
    large = [i for i, m in enumerate(dimensions) if m >= least]
    chosen, random = losses[f"test/{learner}"][large], losses["test/random"][large]
    measured = (chosen.mean(1) / random.mean(1)).max()
    control = ("oracle", (losses["test/oracle"][large].mean(1) / random.mean(1)).max())
    return _sine_measurement(
        run, losses, dimensions, "test", measured, control, (chosen / random).max(0), "Fresh samples"
    )


def _far(run, dimensions, seeds, n, sizes, better, worse) -> Measurement:
    losses = _sines(run, dimensions, seeds, n, sizes)
    one, other = losses[f"ood/{better}"], losses[f"ood/{worse}"]
    near = losses[f"test/{better}"].mean() / losses[f"test/{worse}"].mean()
    return _sine_measurement(
        run, losses, dimensions, "ood", one.mean() / other.mean(), ("in distribution", near),
        one.mean(0) / other.mean(0), "Inputs at twice the scale",
    )  # fmt: skip


def rule_extrapolates(
    run: ClaimRun, *, dimensions: Sequence[int] = DIMENSIONS, seeds: int = SEEDS, n: int = 1000,
    sizes: Sizes = SINE_SIZES, learner: str = "rule",
) -> Measurement:  # fmt: skip
    """Row 5: loss at twice the scale, found over random modules, mean over m. Control: the ratio in distribution."""
    return _far(run, dimensions, seeds, n, sizes, learner, "random")


def random_modules_extrapolate(
    run: ClaimRun, *, dimensions: Sequence[int] = DIMENSIONS, seeds: int = SEEDS, n: int = 1000,
    sizes: Sizes = SINE_SIZES, learner: str = "random",
) -> Measurement:  # fmt: skip
    """Row 5: loss at twice the scale, random modules over monolithic, mean over m. Control: in distribution."""
    return _far(run, dimensions, seeds, n, sizes, learner, "monolithic")


# --- row 4 ---


def rule_recovers_modules(
    run: ClaimRun, *, m: int = 10, n: int = 500, modules: int = 3, seeds: int = 8, restarts: int = 20,
    search: Search = SEARCH, noise: bool = False,
) -> Measurement:  # fmt: skip
    """Row 4: recovery of the true projections. Control: random projections.

    Args:
        noise: replace the targets by noise.
    """
    found, control, first = [], [], []
    for seed in run.progress(range(seeds), desc="searches"):
        keys = [run.seeds.child(name, seed).jax() for name in ("task", "sample", "search", "random")]
        task = SineTask(m, modules, key=keys[0])
        x, y = task.sample(n, keys[1])
        if noise:
            y = jax.random.normal(keys[3], y.shape)
            search = replace(search, improve=math.inf, doubtful=math.inf)
        result = find_modules(x, y, modules, restarts=restarts, key=keys[2], search=search)
        true = np.asarray(task.U, dtype=np.float64)
        found.append(module_recovery(result.U, true))
        first.append(module_recovery(result.U[result.round == 0], true))
        draws = np.asarray(jax.random.normal(keys[3], (modules, 1, m)), dtype=np.float64)
        control.append(module_recovery(draws, true))
    figure, axes = new_figure()
    for number, trace in enumerate(result.trace):
        axes.plot(trace.T, color=f"C{number}", alpha=0.5, linewidth=0.8)
        axes.plot([], [], color=f"C{number}", label=f"round {number + 1}")
    axes.axhline(result.null[0], color="black", linestyle=":", linewidth=0.8, label="random projections")
    axes.set(xlabel="step", ylabel="objective J", title="Descents from random starts, last seed")
    axes.legend(frameon=False, fontsize=8)
    run.figure("search", figure)
    return Measurement(
        np.mean(found), ("random projections", np.mean(control)), _interval(found) if seeds > 1 else None, seeds,
        {"seed": list(range(seeds)), "recovery": found, "without deflation": first, "random": control},
    )  # fmt: skip


# --- rows 5 and 6: images ---


def _images(run: ClaimRun, ks: Sequence[int], seeds: int, n: int, sizes: Sizes) -> list[list[dict[str, Any]]]:
    """Errors for each k and seed, trained once for all claims of a run."""
    tree = root(run.seeds.seed).child("modular", "images")
    store = replace(run, claim="shared")
    images, labels = digit_images()
    rows = []
    for k in run.progress(ks, desc="images side by side"):
        rows.append([])
        for seed in range(seeds):
            checkpoint = store.checkpoint(f"images-{k}-{seed}-{n}-{sizes.training.steps}-{sizes.search.steps}", keep=1)
            if (saved := checkpoint.latest()) is None:
                result = image_errors(images, labels, k, tree.child("task", k, seed).jax(), n=n, sizes=sizes)
                checkpoint.save(1, {"result": result})
            else:
                result = saved[1]["result"]
            rows[-1].append(result)
    return rows


def _held_out_pairs(run, k, seeds, n, sizes, better, worse) -> Measurement:
    rows = _images(run, (k,), seeds, n, sizes)[0]
    ratios = {kind: [r[kind][better] / r[kind][worse] for r in rows] for kind in ("ood", "test")}
    series = {"learner": list(rows[0]["ood"])}
    series |= {
        title: [np.mean([r[kind][name] for r in rows]) for name in rows[0][kind]]
        for kind, title in (("ood", "error on held-out pairs"), ("test", "error on seen pairs"))
    }
    ci = _ratio_interval(ratios["ood"]) if seeds > 1 else None
    return Measurement(np.mean(ratios["ood"]), ("seen pairs", np.mean(ratios["test"])), ci, seeds, series)


def rule_composes(
    run: ClaimRun, *, k: int = 2, seeds: int = 2, n: int = 2000, sizes: Sizes = IMAGE_SIZES, learner: str = "rule"
) -> Measurement:
    """Row 5: error on held-out pairs of digits, found over random modules. Control: the ratio on seen pairs."""
    return _held_out_pairs(run, k, seeds, n, sizes, learner, "random")


def random_modules_compose(
    run: ClaimRun, *, k: int = 2, seeds: int = 2, n: int = 2000, sizes: Sizes = IMAGE_SIZES, learner: str = "random"
) -> Measurement:
    """Row 5: error on held-out pairs of digits, random modules over monolithic. Control: the ratio on seen pairs."""
    return _held_out_pairs(run, k, seeds, n, sizes, learner, "monolithic")


def rule_keeps_accuracy(
    run: ClaimRun, *, ks: Sequence[int] = (1, 2, 3, 4), seeds: int = 2, n: int = 2000, sizes: Sizes = IMAGE_SIZES,
    learner: str = "rule",
) -> Measurement:  # fmt: skip
    """Row 6: accuracy that a monolithic network loses from k = 1 to 4, minus what the rule loses.

    Control: random modules.
    """
    rows = _images(run, ks, seeds, n, sizes)
    errors = {name: 100 * np.array([[r["test"][name] for r in group] for group in rows]) for name in rows[0][0]["test"]}
    drops = {name: value[-1] - value[0] for name, value in errors.items()}
    saved = drops["monolithic"] - drops[learner]
    figure, axes = new_figure()
    for name, value in errors.items():
        axes.plot(ks, 100 - value.mean(1), "o-", label=LABELS.get(name, name))
    axes.set(xlabel="images side by side, k", ylabel="accuracy, % of positions", title="Mixed digits")
    axes.set_xticks(ks)
    axes.legend(frameon=False)
    run.figure("accuracy", figure)
    series = {"k": list(ks), **{f"error of {name}, %": value.mean(1) for name, value in errors.items()}}
    exact = {name: 100 * (1 - np.mean([r["exact"][name] for r in rows[-1]])) for name in errors}
    return Measurement(
        saved.mean(),
        ("random modules", (drops["monolithic"] - drops["random"]).mean()),
        _interval(saved) if seeds > 1 else None,
        seeds,
        series | {"recovery": [np.mean([r["recovery"] for r in group]) for group in rows]},
        {
            "true modules": (drops["monolithic"] - drops["oracle"]).mean(),
            **{f"all {ks[-1]} right, {name}, %": value for name, value in exact.items()},
        },
    )


# --- row 7 ---


def modules_leave_the_loss(
    run: ClaimRun, *, counts: Sequence[int] = (1, 2, 4, 8), b: int = 4, repeats: int = 400,
    ratios: Sequence[float] = (0.25, 0.75, 1.5), scale_samples: bool = True,
) -> Measurement:  # fmt: skip
    """Row 7: at fixed n/P the loss is the same for any number of modules. Control: at fixed n.

    Args:
        scale_samples: let n grow with P.
    """
    curves, fixed = [], []
    smallest = int(theory.features(modules=counts[0], b=b))
    for K in run.progress(counts, desc="modules"):
        P = int(theory.features(modules=K, b=b))
        for values, base in ((curves, P if scale_samples else smallest), (fixed, smallest)):
            sizes = [round(ratio * base) for ratio in ratios]
            rng = run.seeds.child("draws", K).numpy()
            few = max(12, repeats // K**2)  # larger problems average over themselves
            values.append([theory.simulate(P, P // 2, n, rng, repeats=few).test.mean() for n in sizes])
    spread, control = (np.abs(np.array(v) / np.mean(v, 0) - 1).max() for v in (curves, fixed))
    series = {"K": list(counts), **{f"n/P = {r:g}": [row[i] for row in curves] for i, r in enumerate(ratios)}}
    return Measurement(spread, ("the same n for all", control), n=repeats, series=series)


def double_descent(
    run: ClaimRun, *, P: int = 200, n: int = 80, repeats: int = 300, gap: int = 12, descent: bool = True
) -> Measurement:
    """Row 7: simulated test loss against the closed form, over p. Control: a curve without the peak, ``1 - p/P``.

    Args:
        gap: values of p nearer than this to n are left out of the comparison: there the mean does not settle.
        descent: compare with the closed form, and not with the control.
    """
    sizes = np.array([p for p in range(8, P + 1, 12) if abs(p - n) >= gap])
    means = np.array(
        [
            theory.simulate(P, int(p), n, run.seeds.child("draws", int(p)).numpy(), repeats=repeats).test.mean()
            for p in sizes
        ]
    )
    wanted, flat = theory.test_loss(P, sizes, n), np.maximum(1 - sizes / P, 1e-3)
    off, control = (np.abs(means / curve - 1).max() for curve in (wanted, flat))
    figure, axes = new_figure()
    every = np.arange(1, P + 1)
    axes.plot(every, theory.test_loss(P, every, n), label="closed form")
    axes.plot(every, theory.train_loss(P, every, n), "--", label="training loss")
    axes.plot(sizes, means, "ko", markersize=4, label=f"{repeats} simulations")
    axes.set(xlabel=f"features of the model p, of P = {P}", ylabel="test loss / signal variance", ylim=(0, 6))
    axes.set_title(f"Double descent, n = {n}")
    axes.legend(frameon=False)
    run.figure("descent", figure)
    series = {"p": sizes.tolist(), "closed form": wanted, "simulated": means}
    return Measurement(off if descent else control, ("without a peak", control), n=repeats, series=series)

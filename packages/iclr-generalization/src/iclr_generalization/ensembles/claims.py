"""One check for each row of the claims ledger. The networks of one width are trained once for all checks of a run."""

import itertools
import math
from collections.abc import Sequence

import numpy as np

from iclr_generalization.ensembles.capacity import Capacity, capacity_study
from iclr_generalization.ensembles.curves import loss_curve
from iclr_generalization.ensembles.decomposition import decompose
from iclr_generalization.ensembles.equivalence import equivalence_test
from iclr_generalization.ensembles.forecasts import binary_error, error_forecast, forecast
from iclr_generalization.ensembles.training import MLP, Training, digits, predict, train_ensemble
from iclr_shared.claims import ClaimRun, Measurement
from iclr_shared.plots import COLOURS, new_figure
from iclr_shared.seeds import root

MEMBERS = 32
WIDTHS = (10, 20, 40, 80, 160)
WIDTH = 40
LARGER = (8, 16, 32)


def trained(
    run: ClaimRun, width: int = WIDTH, members: int = MEMBERS, epochs: int = 100
) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities (K, n, 10) on fresh digits of networks 64-k-k-10, and the labels (n,)."""
    tree = root(run.seeds.seed).child("ensembles")
    data = digits(tree.child("split").numpy())
    model = MLP((width, width, 10))
    params = train_ensemble(
        model,
        data.x,
        data.y,
        members,
        tree.child("members", width).jax(),
        training=Training(epochs=epochs),
        folder=run.folder / "checkpoints" / "shared" / "ensembles",
        progress=lambda groups: run.progress(groups, desc=f"width {width}"),
    )
    return predict(model, params, data.x_test), data.y_test


# --- row 1 ---


def law_is_exact(run: ClaimRun, *, members: int = 8, points: int = 200, classes: int = 5) -> Measurement:
    """Row 1: B + V/M against all subsets, Brier and MSE. Control: V estimated around the members' own mean (biased)."""
    draw = run.seeds.child("predictions").numpy()
    logits = draw.normal(size=(members, points, classes))
    probabilities = np.exp(logits) / np.exp(logits).sum(2, keepdims=True)
    y = draw.integers(0, classes, points)
    worst, control = 0.0, 0.0
    for preds, target, kind in ((probabilities, y, "probabilities"), (logits, np.eye(classes)[y], "values")):
        truth = np.eye(classes)[y]
        parts = decompose(preds, target, kind)
        biased = preds.var(0).sum(1).mean()
        limit = parts.member_losses.mean() - biased
        for M in range(1, members + 1):
            subsets = itertools.combinations(range(members), M)
            exact = np.mean([np.square(preds[list(s)].mean(0) - truth).sum(1).mean() for s in subsets])
            worst = max(worst, abs(exact - parts.law.loss(M)))
            control = max(control, abs(exact - (limit + biased / M)))
    return Measurement(worst, ("variance around the members' own mean", control), n=2 * members)


# --- row 2 ---


def brier_forecast(run: ClaimRun, *, draws: int = 20, known: int = 4, members: int = MEMBERS) -> Measurement:
    """Row 2: Brier forecasts from 4 members. Control: the last measured value, carried forward."""
    return _forecasts(run, "brier", draws, known, members)


def nll_forecast(run: ClaimRun, *, draws: int = 20, known: int = 4, members: int = MEMBERS) -> Measurement:
    """Row 2: forecasts of the negative log-likelihood from 4 members. Control: the last measured value."""
    return _forecasts(run, "nll", draws, known, members)


def error_forecast_holds(run: ClaimRun, *, draws: int = 20, known: int = 4, members: int = MEMBERS) -> Measurement:
    """Row 5: forecasts of the zero-one error from 4 members. Control: the last measured value."""
    return _forecasts(run, "error", draws, known, members)


def forecast_covers(
    run: ClaimRun, *, draws: int = 20, known: int = 4, members: int = MEMBERS, shrink: float = 1.0
) -> Measurement:
    """Row 2: Brier forecasts on a quarter of the points, truth on the others. Control: bars over members alone."""
    preds, y = trained(run, members=members)
    sizes = [M for M in LARGER if members >= M]
    inside, members_only = [], []
    for index in range(draws):
        order = run.seeds.child("points", index).numpy().permutation(len(y))
        seen, fresh = order[: len(y) // 4], order[len(y) // 4 :]
        truth = loss_curve(preds[:, fresh], y[fresh], sizes=sizes)
        found = forecast(_drawn(run, preds[:, seen], index, known), y[seen], sizes)
        off = np.abs(found.loss - truth)
        inside.append(off <= 2 * shrink * found.std)
        members_only.append(off <= 2 * shrink * found.over_members)
    return Measurement(np.mean(inside), ("bars over members alone", np.mean(members_only)), n=draws * len(sizes))


def _drawn(run: ClaimRun, preds: np.ndarray, index: int, known: int) -> np.ndarray:
    return preds[run.seeds.child("draw", index).numpy().permutation(len(preds))[:known]]


def _forecasts(run: ClaimRun, metric: str, draws: int, known: int, members: int) -> Measurement:
    preds, y = trained(run, members=members)
    sizes = [M for M in LARGER if members >= M]
    truth = loss_curve(preds, y, metric, sizes=sizes)
    found, last = [], []
    for index in run.progress(range(draws), desc="forecasts"):
        some = _drawn(run, preds, index, known)
        found.append(error_forecast(some, y, sizes) if metric == "error" else forecast(some, y, sizes, metric).loss)
        last.append(np.full(len(sizes), loss_curve(some, y, metric, sizes=[known])[0]))
    off, naive = np.abs(np.array(found) / truth - 1), np.abs(np.array(last) / truth - 1)
    figure, axes = new_figure()
    measured = loss_curve(preds, y, metric)
    axes.plot(np.arange(1, members + 1), measured, color="black", label=f"all {members} members")
    for row in found:
        axes.plot(sizes, row, ".", color=COLOURS[0], alpha=0.5)
    axes.plot([], [], ".", color=COLOURS[0], label=f"forecasts from {known}")
    axes.set(xscale="log", xlabel="members M", ylabel=metric, title="Foreseen from a few members")
    axes.legend(frameon=False)
    run.figure(f"forecast-{metric}", figure)
    medians = np.median(off, 0)
    return Measurement(
        np.median(off),
        ("last measured value", np.median(naive)),
        tuple(np.quantile(np.median(off, 1), (0.025, 0.975))),
        draws,
        {"M": sizes, "truth": truth, "median relative error": medians, "of the last value": np.median(naive, 0)},
    )


# --- row 3 ---


def members_are_equivalent(run: ClaimRun, *, members: int = 8, width: int = WIDTH, epochs: int = 100) -> Measurement:
    """Row 3: median equivalence ratio of pairs. Control: one class's output shifted by a tenth."""
    preds, y = trained(run, width, members, epochs)
    found = equivalence_test(preds, y)
    shift = np.zeros(preds.shape[2])
    shift[0] = 0.1
    control = equivalence_test(np.stack([preds[0], preds[1] + shift]), np.eye(preds.shape[2])[y], "values")
    figure, axes = new_figure()
    for member in preds[:4]:
        axes.plot(np.linspace(0, 1, len(y)), np.sort(member[np.arange(len(y)), y]), alpha=0.7)
    axes.set(xlabel="quantile over test points", ylabel="probability of the true class", title="One law, four members")
    run.figure("laws", figure)
    details = {
        "ratio of the true class's probability": np.median(found.true_class_ratio),
        "ratio of the point losses": np.median(found.loss_ratio),
        "disagreement": found.disagreement.mean(),
        "sampling floor of W1": found.floor,
        "mean W1": found.wasserstein.mean(),
        "mean KS distance": found.kolmogorov.mean(),
        "mean energy distance": found.energy.mean(),
    }
    interval = tuple(np.quantile(found.ratio, (0.025, 0.975)))
    baseline = ("one output shifted by 0.1", control.median_ratio)
    return Measurement(found.median_ratio, baseline, interval, len(found.ratio), details=details)


def losses_are_alike(
    run: ClaimRun, *, members: int = MEMBERS, width: int = WIDTH, widths: Sequence[int] = WIDTHS
) -> Measurement:
    """Row 3: spread of the members' Brier scores. Control: members of all widths together."""
    preds, y = trained(run, width, members)
    losses = decompose(preds, y).member_losses
    mixed = np.concatenate([decompose(trained(run, w, members)[0][:2], y).member_losses for w in widths])
    return Measurement(
        losses.std(ddof=1) / losses.mean(),
        (f"members of {len(widths)} widths", mixed.std(ddof=1) / mixed.mean()),
        n=members,
        details={"smallest loss": losses.min(), "largest loss": losses.max()},
    )


def other_kinds_are_not_equivalent(
    run: ClaimRun, *, members: int = 4, kinds: Sequence[tuple[int, int]] = ((160, 100), (WIDTH, 20))
) -> Measurement:
    """Row 3: ratio between kinds (other width or epochs) over that of one kind; the smallest. Control: one kind."""
    preds, y = trained(run, WIDTH, 2 * members)
    same = equivalence_test(preds[:members], y).median_ratio
    again = equivalence_test(preds[members:], y).median_ratio
    ratios = {}
    for width, epochs in kinds:
        other = trained(run, width, members, epochs)[0]
        pairs = [equivalence_test(np.stack(pair), y).ratio[0] for pair in zip(preds, other, strict=False)]
        ratios[f"width {width}, {epochs} epochs"] = float(np.median(pairs)) / same
    return Measurement(min(ratios.values()), ("other members of one kind", again / same), n=members, details=ratios)


# --- row 4 ---


def better_than_any_member(
    run: ClaimRun, *, repeats: int = 20, size: int = 8, members: int = MEMBERS, width: int = WIDTH
) -> Measurement:
    """Row 4: ensembles of 8 that beat their best member (Brier). Control: the best of 8 fresh members against it."""
    preds, y = trained(run, width, members)
    wins, others = [], []
    for index in range(repeats):
        order = run.seeds.child("repeat", index).numpy().permutation(members)
        parts = decompose(preds[order[:size]], y)
        fresh = decompose(preds[order[size : 2 * size]], y)
        wins.append(parts.law.loss(size) < parts.member_losses.min())
        others.append(fresh.member_losses.min() < parts.member_losses.min())
    return Measurement(np.mean(wins), ("best of 8 other members", np.mean(others)), n=repeats)


def gap_explains_nothing(run: ClaimRun, *, repeats: int = 8, weak: int = 7, weak_epochs: int = 3) -> Measurement:
    """Row 4: one strong member among weak ones. Control: the same number of strong members."""
    strong, y = trained(run, WIDTH, max(repeats, weak + 1))
    poor = trained(run, WIDTH, weak + 1, weak_epochs)[0][:weak]
    excess, gaps = [], []
    for index in range(repeats):
        parts = decompose(np.concatenate([strong[index : index + 1], poor]), y)
        excess.append(parts.law.loss(weak + 1) - parts.member_losses.min())
        gaps.append(parts.jensen_gap(weak + 1))
    control = decompose(strong[: weak + 1], y)
    return Measurement(
        min(excess),
        ("as many strong members", control.law.loss(weak + 1) - control.member_losses.min()),
        n=repeats,
        details={"smallest Jensen gap": min(gaps), "Jensen gap of strong members": control.jensen_gap(weak + 1)},
    )


# --- row 5 ---


def other_losses_fall(run: ClaimRun, *, members: int = MEMBERS, width: int = WIDTH) -> Measurement:
    """Row 5: zero-one error and Welsch loss over nested sizes. Control: the points with negative mean margin alone."""
    preds, y = trained(run, width, members)
    sizes = [M for M in (1, 2, 4, 8, 16, 32) if members >= M]
    curves = {metric: loss_curve(preds, y, metric, sizes, "sampled") for metric in ("error", "welsch")}
    mean = preds.mean(0)
    others = np.where(np.eye(mean.shape[1], dtype=bool)[y], -np.inf, mean)
    wrong = mean[np.arange(len(y)), y] < others.max(1)
    control = loss_curve(preds[:, wrong], y[wrong], "error", sizes, "sampled") if wrong.any() else np.full(2, np.nan)
    figure, axes = new_figure()
    for metric, curve in curves.items():
        axes.plot(sizes, curve / curve[0], "o-", label=metric)
    axes.plot(sizes, control / control[0], "s--", label="error, points with negative mean margin")
    axes.set(xscale="log", xlabel="members M", ylabel="loss over that of one member", title="Without convexity")
    axes.legend(frameon=False)
    run.figure("losses", figure)
    rises = [np.diff(curve).max() for curve in curves.values()]
    name = "points with negative mean margin"
    return Measurement(max(rises), (name, np.diff(control).max()), n=len(y), series={"M": sizes, **curves})


def negative_margins_rise(run: ClaimRun, *, margin: float = -0.2, sd: float = 0.5, points: int = 4000) -> Measurement:
    """Row 5: simulated members whose margin has a negative mean. Control: the same with a positive one."""
    sizes = np.array([1, 2, 4, 8, 16])
    draw = run.seeds.child("members").numpy().normal(size=(16, points))

    def errors(mean):
        return np.array([((mean + sd * draw[:M].mean(0)) < 0).mean() for M in sizes])

    theory = binary_error(margin, sd, sizes)
    return Measurement(
        np.diff(errors(margin)).min(),
        ("positive margin", np.diff(errors(-margin)).min()),
        n=points,
        series={"M": sizes, "error": errors(margin), "closed form": theory},
    )


# --- row 6 ---


def limit_stays(run: ClaimRun, *, members: int = MEMBERS, width: int = WIDTH, groups: int = 4) -> Measurement:
    """Row 6: B from disjoint groups of members, largest distance from that of all in s.e. Control: single losses."""
    preds, y = trained(run, width, members)
    whole = decompose(preds, y)
    size = members // groups
    drifts, limits = [], []
    for index in range(groups):
        some = decompose(preds[index * size : (index + 1) * size], y)
        left_out = np.array([some.without(j).limit for j in range(size)])
        # The points are the same for all groups, so only the spread over members counts.
        error = math.sqrt((size - 1) / size * np.square(left_out - left_out.mean()).sum())
        limits.append(some.law.limit)
        drifts.append(abs(some.law.limit - whole.law.limit) / error)
    control = abs(whole.law.loss(1) - whole.law.limit) / (np.std(limits, ddof=1) + 1e-12)
    series = {"group": list(range(groups)), "B": limits, "drift": drifts}
    return Measurement(max(drifts), ("loss of a single member", control), n=groups, series=series)


def width_changes_the_limit(run: ClaimRun, *, members: int = MEMBERS, widths: Sequence[int] = WIDTHS) -> Measurement:
    """Row 6: B of the narrowest minus B of the widest networks, in s.e. Control: two halves of one width."""
    study = _study(run, members, widths)
    preds, y = trained(run, widths[0], members)
    halves = capacity_study({1: preds[: members // 2], 2: preds[members // 2 :]}, y)
    figure, panels = new_figure(1, 2, width=9)
    M = np.arange(1, members + 1)
    for index, width in enumerate(study.widths):
        panels[0].plot(M, study.law(index).loss(M), label=f"width {width:g}")
    panels[0].set(xscale="log", xlabel="members M", ylabel="Brier score", title="Ensembling removes V")
    panels[0].legend(frameon=False, fontsize=8)
    panels[1].errorbar(study.widths, study.limit, study.limit_std, fmt="o-", label="limit B")
    panels[1].errorbar(study.widths, study.variance, study.variance_std, fmt="s--", label="variance V")
    panels[1].set(xscale="log", xlabel="width k", title="Widening moves both")
    panels[1].legend(frameon=False)
    run.figure("capacity", figure)
    equivalent = [study.equivalent_width(i, members) for i in range(len(study.widths))]
    columns = {"width": study.widths, "B": study.limit, "V": study.variance, f"width like M = {members}": equivalent}
    return Measurement(_apart(study), ("two halves of one width", abs(_apart(halves))), n=members, series=columns)


def gains_correlate(run: ClaimRun, *, members: int = MEMBERS, widths: Sequence[int] = WIDTHS) -> Measurement:
    """Row 6: correlation over widths of the gains. Control: the part of the widening gain that goes through V alone."""
    gains = _study(run, members, widths).gains()
    columns = {name: column[:-1] for name, column in gains.items()}
    correlation = np.corrcoef(columns["ensembling"], columns["widening"])[0, 1]
    control = np.corrcoef(columns["ensembling"], columns["widening through V"])[0, 1]
    return Measurement(
        correlation,
        ("gain through V", control),
        n=len(widths) - 1,
        series={"width": list(widths[:-1]), **columns},
        note="With so few widths a correlation is a description, not evidence.",
    )


def _study(run: ClaimRun, members: int, widths: Sequence[int]) -> Capacity:
    y = trained(run, widths[0], members)[1]
    return capacity_study({width: trained(run, width, members)[0] for width in widths}, y)


def _apart(study: Capacity) -> float:
    return float((study.limit[0] - study.limit[-1]) / math.hypot(study.limit_std[0], study.limit_std[-1]))

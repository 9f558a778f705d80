"""``iclr modular VERB``: predict sample sizes, and find modules in the user's own table."""

import csv
import io
import math
from pathlib import Path
from typing import Annotated, Literal

import jax
import jax.numpy as jnp
import numpy as np
import tyro

from iclr_generalization.modular import theory
from iclr_generalization.modular.networks import Monolithic, Training, count, equal_width, fit, initialise
from iclr_generalization.modular.regressor import ModularRegressor
from iclr_generalization.modular.search import Search
from iclr_shared.errors import InputError
from iclr_shared.files import atomic_path, atomic_write
from iclr_shared.plots import COLOURS, new_figure
from iclr_shared.progress import progress
from iclr_shared.tables import print_table


def samples(
    dims: tuple[int, ...] = (1, 2, 4, 6, 8, 10),
    modules: int = 3,
    module_dim: int = 1,
    features: float = 3.0,
    eps: float = 0.1,
    noise: float = 0.0,
    have: int | None = None,
    out: Path | None = None,
) -> None:
    """Predict how many samples a monolithic and a modular network need, dimension by dimension.

    Args:
        dims: input dimensions m.
        modules: number of modules K.
        module_dim: dimension b of each module's input.
        features: C, features for each dimension: how finely one dimension must be resolved.
        eps: wanted test loss, relative to the variance of the signal.
        noise: variance of the labels' noise, relative to that of the signal.
        have: samples at hand; also print the losses to expect with them.
        out: folder for samples.csv and samples.png.
    """
    if not dims:
        raise InputError("Name at least one dimension.")
    if have is not None and have < 1:
        raise InputError(f"have must be at least 1 sample, got {have}.")
    P_modular = theory.features(modules=modules, b=module_dim, C=features)
    wanted = {"C": features, "eps": eps, "noise": noise}
    modular = theory.sample_complexity(modules=modules, b=module_dim, **wanted)
    columns = ["m", "monolithic features", "monolithic n", "modular features", "modular n"]
    if have is not None:
        columns += [f"monolithic loss, n = {have}", f"modular loss, n = {have}"]
    rows = []
    for m in dims:
        P = theory.features(m, C=features)
        row = [m, P, theory.sample_complexity(m, **wanted)]
        # A modular target of this dimension exists only where its modules have room.
        fits = m >= module_dim
        row += [P_modular, modular] if fits else [None, None]
        if have is not None:
            row.append(float(theory.test_loss(P, P, have, noise)))
            row.append(float(theory.test_loss(P_modular, P_modular, have, noise)) if fits else None)
        rows.append(tuple(row))
    shown = [tuple("" if value is None else value for value in row) for row in rows]
    print_table(columns, shown, f"samples for a test loss of {eps:g} ({modules} modules of {module_dim} dimensions)")
    if out is None:
        return
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([columns, *shown])
    atomic_write(out / "samples.csv", text.getvalue())
    figure, axes = new_figure(1, 2, width=10)
    m = np.array(dims)
    axes[0].plot(m, [row[2] for row in rows], "o-", label="monolithic")
    axes[0].plot(m[m >= module_dim], [modular] * int((m >= module_dim).sum()), "s-", label="modular")
    axes[0].set(yscale="log", xlabel="input dimension m", ylabel=f"samples n for a test loss of {eps:g}")
    axes[0].legend(frameon=False)
    curves = [(theory.features(d, C=features), f"monolithic, m = {d}") for d in sorted({*m[[0, -1]].tolist()})]
    for P, label in [*curves, (P_modular, "modular")]:
        n = np.unique(np.geomspace(1, 20 * P, 400).astype(int))
        axes[1].plot(n, np.clip(theory.test_loss(P, P, n, noise), 1e-3, 1e3), label=label)
    axes[1].axhline(eps, color="black", linewidth=0.8, linestyle=":", label=f"wanted: {eps:g}")
    axes[1].set(xscale="log", yscale="log", xlabel="samples n", ylabel="test loss / signal variance", ylim=(0.01, 10))
    axes[1].legend(frameon=False, fontsize=8)
    _save(out / "samples.png", figure)
    print(f"written to {out}")


def train(
    data: tyro.conf.Positional[Path],
    target: Annotated[tuple[str, ...], tyro.conf.arg(name="target")],
    modules: int = 3,
    dim: int = 1,
    kernel: Literal["rbf", "arccos", "ntk"] = "rbf",
    lam: float = 1.0,
    length: float = 1.0,
    restarts: int | None = None,
    search_steps: int = 500,
    steps: int = 2000,
    hidden: int = 64,
    test: float = 0.2,
    seed: int = 0,
    out: Path = Path("modules"),
) -> None:
    """Find the modules in a table, train a modular network on them, and compare it with networks that have none.

    A killed search goes on where it was when it is repeated.

    Args:
        data: CSV of numbers below a line of column names.
        target: column(s) to predict; all others are inputs.
        modules: modules to look for, at most.
        dim: dimension of each module's input.
        kernel: of the search.
        lam: ridge of the search, relative to the variance of the target.
        length: unit of length of the kernel, in standard deviations of an input; about the root of dim.
        restarts: random starts in each round; 20 or twice the modules if not given.
        search_steps: descent steps from each start.
        steps: training steps of the networks.
        hidden: width of each module's hidden layers.
        test: fraction of the rows that is kept for the comparison.
        seed: of everything random.
        out: folder for model.npz, modules.csv, predictions.csv and train.png.
    """
    names, X, y = _read(data, target)
    if not 0 < test < 1:
        raise InputError(f"test must lie between 0 and 1, got {test:g}.")
    order = np.random.default_rng(seed).permutation(len(X))
    cut = round(test * len(X))
    if cut < 1 or len(X) - cut < 10:
        raise InputError(f"{data} has {len(X)} rows; too few to keep {test:.0%} for the test and train on 10 or more.")
    held, kept = order[:cut], order[cut:]
    model = ModularRegressor(
        modules, dim, hidden=hidden, kernel=kernel, lam=lam, restarts=restarts, random_state=seed,
        search=Search(length=length, steps=search_steps), training=Training(steps=steps),
    )  # fmt: skip
    model.fit(
        X[kept], y[kept], folder=out / "search", progress=lambda groups: progress(groups, desc="searching modules")
    )
    found = model.modules_
    rows = []
    for k, U in enumerate(found.U):
        loads = np.sqrt(np.square(U).sum(0))
        top = np.argsort(-loads)[:3]
        rows.append((k, found.J[k] / found.null[k], ", ".join(f"{names[i]} {loads[i]:.2f}" for i in top)))
    print_table(("module", "objective / that of random projections", "largest loadings"), rows, "modules")
    if found.note:
        print(found.note)
    scores = {"modular": model.predict(X[held]), **_baselines(model, X, y, kept, held, steps, seed)}
    spread = np.square(y[held] - y[kept].mean(0)).mean()
    table = [(name, float(1 - np.square(value - y[held]).mean() / spread)) for name, value in scores.items()]
    print_table(("network", "R² on the rows kept for it"), table, f"{len(held)} test rows")

    model.save(out / "model.npz")
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["module", "axis", "objective", "null", *names])
    for k, U in enumerate(found.U):
        writer.writerows([k, axis, found.J[k], found.null[k], *row] for axis, row in enumerate(U))
    atomic_write(out / "modules.csv", text.getvalue())
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["row", *target, *(f"predicted {name}" for name in target)])
    writer.writerows([i, *y[i], *p] for i, p in zip(held.tolist(), scores["modular"], strict=True))
    atomic_write(out / "predictions.csv", text.getvalue())
    _save(out / "train.png", _drawn(model, X, target))
    print(f"written to {out}")


def _baselines(model, X, y, kept, held, steps, seed) -> dict[str, np.ndarray]:
    """Predictions of a monolithic network with as many parameters, and of ordinary least squares."""
    x = (X - model.modules_.mean) / model.modules_.scale
    mean, scale = y[kept].mean(0), np.where(y[kept].std(0) > 0, y[kept].std(0), 1.0)
    width = equal_width(X.shape[1], y.shape[1], count(model._params))
    network = Monolithic((width, width, y.shape[1]))
    key = jax.random.fold_in(jax.random.key(seed), 3)
    params = initialise(network, X.shape[1], key)
    goal = jnp.asarray((y[kept] - mean) / scale)
    params, _ = fit(network, params, x[kept], goal, key, training=Training(steps=steps))
    ones = np.ones((len(x), 1))
    linear = np.linalg.lstsq(np.hstack([x[kept], ones[kept]]), y[kept], rcond=None)[0]
    return {
        f"monolithic, {width} wide": np.asarray(network.apply(params, jnp.asarray(x[held]))) * scale + mean,
        "linear": np.hstack([x[held], ones[held]]) @ linear,
    }


def _drawn(model: ModularRegressor, X: np.ndarray, target: tuple[str, ...]):
    figure, axes = new_figure(1, 2, width=10)
    found = model.modules_
    for number, trace in enumerate(found.trace):
        axes[0].plot(trace.T, color=COLOURS[number % len(COLOURS)], alpha=0.4, linewidth=0.8)
        axes[0].plot([], [], color=COLOURS[number % len(COLOURS)], label=f"round {number + 1}")
    axes[0].axhline(found.null[0], color="black", linewidth=0.8, linestyle=":", label="random projections, round 1")
    axes[0].set(xlabel="step", ylabel="objective J", title="Search")
    axes[0].legend(frameon=False, fontsize=8)
    # The leading axis of the trained projection; what a module adds to the prediction against it.
    x = (X - found.mean) / found.scale
    parts = model.contributions(X)[:, :, 0]
    for k, U in enumerate(model.projections_):
        axes[1].plot(x @ U[0], parts[k], ".", markersize=2, label=f"module {k}")
    axes[1].set(xlabel="projected input, first axis", ylabel=f"contribution to {target[0]}", title="What modules do")
    axes[1].legend(frameon=False, markerscale=4)
    return figure


def _read(path: Path, target: tuple[str, ...]) -> tuple[list[str], np.ndarray, np.ndarray]:
    try:
        with open(path, encoding="utf-8", newline="") as file:
            rows = [row for row in csv.reader(file) if row]
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"Cannot read {path}: {error}") from None
    if len(rows) < 2:
        raise InputError(f"{path} must hold a line of column names and rows of numbers.")
    names = [name.strip() for name in rows[0]]
    for column in (names, list(target)):
        if twice := [name for name in column if column.count(name) > 1]:
            raise InputError(f"{path}: the column {twice[0]} is named twice.")
    missing = [name for name in target if name not in names]
    if missing or not target:
        raise InputError(f"{path} has no column {', '.join(missing)}; it has {', '.join(names)}.")
    values = np.empty((len(rows) - 1, len(names)))
    for number, row in enumerate(rows[1:]):
        if len(row) != len(names):
            raise InputError(f"{path}, line {number + 2}: {len(row)} values for {len(names)} columns.")
        for column, cell in enumerate(row):
            try:
                values[number, column] = float(cell)
                if not math.isfinite(values[number, column]):
                    raise ValueError
            except ValueError:
                raise InputError(
                    f"{path}, line {number + 2}, column {names[column]}: "
                    f"{cell!r} is no finite number. Drop the column, or code it."
                ) from None
    inputs = [name for name in names if name not in target]
    if not inputs:
        raise InputError(f"{path} has no columns besides the target.")
    y = values[:, [names.index(name) for name in target]]
    return inputs, values[:, [names.index(name) for name in inputs]], y


def _save(path: Path, figure) -> None:
    with atomic_path(path) as temporary:
        figure.savefig(temporary, format="png", dpi=130)

"""The verbs of ``iclr uv-model``."""

import shutil
from collections import Counter
from pathlib import Path
from tempfile import TemporaryFile
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from tyro.conf import Positional

from iclr_dynamics import networks
from iclr_dynamics import sharpness as curvature
from iclr_dynamics.uv_model import bifurcations as diagrams
from iclr_dynamics.uv_model import maps, period_doubling
from iclr_dynamics.uv_model.examples import read_examples, read_weights, write_weights
from iclr_dynamics.uv_model.fixed_points import PHASES, critical_lr, fixed_points
from iclr_dynamics.uv_model.fixed_points import phase as classify
from iclr_dynamics.uv_model.tracking import train_and_track
from iclr_dynamics.uv_model.weights import UVParams, initial_coordinates
from iclr_shared.checkpoints import Checkpoint, save_arrays
from iclr_shared.errors import InputError
from iclr_shared.files import atomic_path
from iclr_shared.progress import progress
from iclr_shared.seeds import root
from iclr_shared.tables import print_table


def phase(
    eta: float | None = None,
    c: float | None = None,
    k: float = 1.0,
    y: float = 2.0,
    lambda0: float | None = None,
    f0: float = 0.0,
    n: int | None = None,
    p: float = 1.0,
    sigma_w: float = 0.5,
    norm: float = 1.0,
    draws: int = 200,
    seed: int = 0,
) -> None:
    """Say what a learning rate will do, with the numbers behind it and the fixed points there.

    Give either the start itself (--k --lambda0 --f0), or how it is drawn (--n --p --sigma-w --norm): then k follows and
    many starts are classified.

    Args:
        eta: learning rate for the loss (f - y)^2 / 2.
        c: learning rate in units of the critical one, instead of --eta.
        k: coupling |x| / sqrt(n_eff).
        y: target.
        lambda0: tangent kernel at the start.
        f0: output at the start.
        n: width.
        p: parameterisation, 0 (NTK) to 1 (maximal update).
        sigma_w: scale of the initial weights.
        norm: |x|.
        draws: number of starts, with --n.
        seed: of the draws.
    """
    with jax.enable_x64(True):
        if (lambda0 is None) == (n is None):
            raise InputError("Give either --lambda0 (with --k and --f0) or --n (with --p, --sigma-w and --norm).")
        if draws < 1:
            raise InputError(f"--draws {draws} must be at least 1.")
        if n is not None:
            params = UVParams(x=np.array([norm]), y=y, n=n, p=p, sigma_w=sigma_w)
            k = params.k
            P0, M0 = initial_coordinates(root(seed).child("phase").jax(), params, draws)
            residual, ntk = maps.observables(P0, M0, k, y)
            starts = list(zip(np.asarray(ntk).tolist(), np.asarray(residual + y).tolist(), strict=True))
        else:
            starts = [(lambda0, f0)]
        rate = _rate(eta, c, k, y)
        found = [classify(rate, k, y, *start) for start in starts]
        counts = Counter(one.label for one in found)
        rows = [(label, times / len(found), PHASES[label]) for label, times in counts.most_common()]
        print_table(("phase", "share", "meaning"), rows)
        print()
        names = {
            "c": "eta / eta_c",
            "eta_ntk": "eta lambda_0",
            "eta_limit": "eta lambda_inf of gradient flow",
            "laziness": "k max(|y|, |f_0|) / lambda_0",
        }
        middle = [(text, float(np.median([getattr(one, name) for one in found]))) for name, text in names.items()]
        rows = [("eta", rate), *middle]
        print_table(("number (median over starts)" if n else "number", "value"), rows)
        if y < 0:
            print("y < 0: mirrored, (y, f) -> (-y, -f)")
        print()
        points = [(p.kind, p.stability, p.residual, p.ntk, *p.multipliers) for p in fixed_points(rate, k, y)]
        print_table(("fixed point", "stability", "f - y", "lambda", "multiplier", "multiplier"), points)


def simulate(
    eta: float | None = None,
    c: float | None = None,
    k: float = 1.0,
    y: float = 2.0,
    lambda0: float | None = None,
    f0: float = 0.0,
    n: int = 512,
    p: float = 1.0,
    sigma_w: float = 0.5,
    norm: float = 1.0,
    steps: int = 1000,
    stride: int = 1,
    seed: int = 0,
    out: Path | None = None,
) -> None:
    """Train the UV model in function space, and compare with gradient flow.

    Args:
        eta: learning rate for the loss (f - y)^2 / 2.
        c: learning rate in units of the critical one, instead of --eta.
        k: coupling, with --lambda0.
        y: target.
        lambda0: tangent kernel at the start; without it the start is drawn from --n --p --sigma-w --norm.
        f0: output at the start, with --lambda0.
        n: width.
        p: parameterisation, 0 (NTK) to 1 (maximal update).
        sigma_w: scale of the initial weights.
        norm: |x|.
        steps: of gradient descent.
        stride: record every so many steps.
        seed: of the start.
        out: folder for trajectory.npz and trajectory.png.
    """
    from iclr_dynamics.uv_model.figures import trajectory_figure

    with jax.enable_x64(True):
        if lambda0 is None:
            params = UVParams(x=np.array([norm]), y=y, n=n, p=p, sigma_w=sigma_w)
            k = params.k
            P0, M0 = (value[0] for value in initial_coordinates(root(seed).child("simulate").jax(), params, 1))
        else:
            P0, M0 = maps.coordinates(f0, lambda0, k)
        rate, out = _rate(eta, c, k, y), _folder(out)
        ran = maps.simulate(P0, M0, k, y, rate, steps, stride=stride)
        step = stride * np.arange(len(ran.ntk))
        flow_residual, flow_ntk = maps.observables(*maps.gradient_flow(P0, M0, k, y, rate * jnp.asarray(step)), k, y)
        chosen = np.unique(np.linspace(0, len(step) - 1, 11).astype(int))
        loss = np.asarray(ran.residual) ** 2 / 2
        columns = loss, rate * ran.ntk, rate * ran.sharpness, rate * flow_ntk
        rows = [(int(step[i]), *(float(column[i]) for column in columns)) for i in chosen]
        print_table(("step", "loss", "eta lambda", "eta lambda_H", "eta lambda of gradient flow"), rows)
        if int(ran.diverged) >= 0:
            print(f"diverged at step {int(ran.diverged)}")
        if out:
            names = ("residual", "ntk", "sharpness", "delta", "P", "M", "diverged")
            save_arrays(
                out / "trajectory.npz", step=step, eta=rate, k=k, y=y, flow_residual=np.asarray(flow_residual),
                flow_ntk=np.asarray(flow_ntk), **{name: np.asarray(getattr(ran, name)) for name in names},
            )  # fmt: skip
            label = f"c = {rate * k * abs(y):.4g}"
            _save(out / "trajectory.png", trajectory_figure({label: (ran, rate)}, stride))


def bifurcation(
    c: str = "0.8:2.0:1201",
    eta: str | None = None,
    z0: float = 0.37,
    sigma_w: float | None = None,
    n: int = 512,
    p: float = 1.0,
    norm: float = 1.0,
    y: float = 2.0,
    burn_in: int = 4000,
    record: int = 256,
    chunk: int = 200,
    seed: int = 0,
    out: Path | None = None,
    resume: bool = False,
) -> None:
    """Draw which values eta * sharpness keeps visiting over a grid of learning rates.

    Args:
        c: grid of learning rates in units of the critical one, FIRST:LAST:COUNT.
        eta: grid of learning rates themselves, instead; k follows from --n --p --norm.
        z0: start f / y on the edge-of-stability manifold.
        sigma_w: start from random weights of this scale instead; the diagram then has the basin of real starts.
        n: width.
        p: parameterisation, 0 (NTK) to 1 (maximal update).
        norm: |x|.
        y: target, not 0.
        burn_in: steps before the record.
        record: steps kept.
        chunk: rates computed between two checkpoints.
        seed: of the random weights.
        out: folder for bifurcation.npz, bifurcation.png and checkpoints.
        resume: go on from the checkpoints in --out.
    """
    from iclr_dynamics.uv_model.figures import bifurcation_figure

    with jax.enable_x64(True):
        params = UVParams(x=np.array([norm]), y=y, n=n, p=p, sigma_w=sigma_w or 0.0)
        grid = _grid(c, "--c") if eta is None else _grid(eta, "--eta") * params.k * abs(y)
        if y < 0:
            print("y < 0: mirrored, (y, f) -> (-y, -f)")
        if chunk < 1:
            raise InputError(f"--chunk {chunk} must be at least 1.")
        start = None
        if sigma_w is not None:
            start = tuple(value[0] for value in initial_coordinates(root(seed).child("bifurcation").jax(), params, 1))
        settings = {"grid": grid.tolist(), "start": [z0, sigma_w, n, p, norm, y, seed], "steps": [burn_in, record]}
        out = _folder(out, resume)
        parts, checkpoint = _resumed(out, resume, settings)
        begin = len(parts["diverged"]) if parts else 0
        for first in progress(range(begin, len(grid), chunk), desc="rates"):
            new = diagrams.bifurcation(
                grid[first : first + chunk], z0=z0, k=params.k, y=y, start=start, burn_in=burn_in, record=record
            )._asdict()
            parts = {k: np.concatenate([parts[k], np.asarray(v)]) if parts else np.asarray(v) for k, v in new.items()}
            if checkpoint:
                checkpoint.save(len(parts["diverged"]), {"parts": parts, "settings": settings})
        diagram = diagrams.Bifurcation(**parts)
        onsets, periods = period_doubling.onsets(6), diagrams.recurrence(np.asarray(diagram.z)).tolist()
        rows = []
        for index in np.unique(np.linspace(0, len(grid) - 1, 13).astype(int)):
            if diagram.diverged[index] >= 0:
                rows.append((grid[index], "diverges", None, None, None))
                continue
            values = diagram.sharpness[index]
            rows.append((grid[index], periods[index] or "none", values.min(), values.max(), values.mean()))
        print_table(("c", "period", "min eta lambda_H", "max", "mean"), [tuple(map(_plain, row)) for row in rows])
        bounded = grid[np.asarray(diagram.diverged) < 0]
        if len(bounded) < len(grid):
            print(f"bounded up to c = {bounded.max():.6g}" if len(bounded) else "every rate diverges")
        if out:
            save_arrays(out / "bifurcation.npz", eta=grid / (params.k * abs(y)), onsets=onsets, **parts)
            inside = [onset for onset in onsets if grid.min() <= onset <= grid.max()]
            _save(out / "bifurcation.png", bifurcation_figure(diagram, inside))


def onsets(doublings: int = 6, out: Path | None = None) -> None:
    """Where the period doublings of the edge of stability sit, and how their gaps shrink.

    Args:
        doublings: how many, up to 12.
        out: folder for onsets.npz.
    """
    found, out = period_doubling.onsets(doublings), _folder(out)
    ratios = [None, *period_doubling.gap_ratios(found), None] if doublings > 1 else [None]
    rows = [(2 ** (j + 1), f"{c:.12f}", ratio if ratio is None else float(ratio)) for j, (c, ratio) in
            enumerate(zip(found, ratios, strict=True))]  # fmt: skip
    print_table(("period born", "c = eta / eta_c", "ratio of gaps before and after"), rows)
    if doublings > 1:
        print(f"accumulation near c = {period_doubling.accumulation(found):.8f}")
        print(f"Feigenbaum's ratio {period_doubling.FEIGENBAUM:.6f}")
    if out:
        save_arrays(out / "onsets.npz", c=found)


def train(
    data: Positional[Path | None] = None,
    rates: tuple[float, ...] = (0.5, 1, 2, 4, 8, 16),
    unit: Literal["sharpness", "absolute"] = "sharpness",
    steps: int = 1000,
    every: int = 20,
    width: int = 64,
    depth: int = 3,
    activation: str = "relu",
    sigma_w: float = 1.0,
    p: float | None = None,
    samples: int = 500,
    batch_size: int | None = None,
    trace_samples: int = 0,
    ntk: bool = False,
    seed: int = 0,
    out: Path | None = None,
    resume: bool = False,
    quiet: bool = False,
) -> None:
    """Train a fully connected network at several learning rates, follow its sharpness, and name its regimes.

    Loss: half the squared error, mean over samples; so the edge of stability is at eta * sharpness = 2.

    Args:
        data: .npz with x (samples, ...) and y (integer labels or real targets); without it, scikit-learn's digits.
        rates: learning rates.
        unit: of the rates: 'sharpness' means C / lambda_H at the start, 'absolute' the rates themselves.
        steps: of full-batch gradient descent, a multiple of --every.
        every: steps between two measurements.
        width: of the hidden layers.
        depth: layers.
        activation: relu, tanh, gelu or linear.
        sigma_w: scale of the initial weights (1: variance 1 / fan_in).
        p: parameterisation 0 (NTK) to 1 (maximal update); without it the standard one. The rates are then multiplied by
            width^p.
        samples: training images, for the digits.
        batch_size: for stochastic gradient descent.
        trace_samples: sign vectors for an estimate of the Hessian's trace at each measurement.
        ntk: measure the tangent kernel's norm as well.
        seed: of weights, data split and batches.
        out: folder for tracks.npz, tracks.png, the trained weights and checkpoints.
        resume: go on from the checkpoints in --out.
        quiet: no progress.
    """
    from iclr_dynamics.uv_model.figures import tracks_figure

    if depth < 1 or width < 1:
        raise InputError(f"depth={depth} and width={width} must be at least 1.")
    if every >= 1 and steps < 3 * every:
        raise InputError(f"--steps {steps} with --every {every} gives too few records to name regimes; take 3 or more.")
    if not rates or not all(np.isfinite(rate) and rate > 0 for rate in rates):
        raise InputError(f"rates={rates} must be positive.")
    tree, out = root(seed), _folder(out, resume)
    if data is None:
        split = networks.digits(tree.child("data").jax(), train=samples)
        x, y = split.x, split.y
    else:
        x, y = read_examples(data)
    model = networks.MLP((width,) * (depth - 1) + (y.shape[1],), activation, sigma_w, p)
    params = jax.jit(model.init)(tree.child("weights").jax(), x)
    factor = model.learning_rate_factor
    start = curvature.sharpness(networks.network_loss(model), params, x, y)
    if unit == "sharpness" and not start > 0:
        raise InputError(f"The sharpness at the start is {start:g}: give the rates themselves, with --unit absolute.")
    # In a maximal-update network eta stands for the rate that multiplies the gradient, width^p included.
    unit_rate = 1 / start if unit == "sharpness" else factor
    if out and not resume:
        shutil.rmtree(out / "checkpoints", ignore_errors=True)
    tracks = []
    for index, rate in enumerate(rates):
        checkpoint = Checkpoint(out / "checkpoints" / f"rate-{index}") if out else None
        key = tree.child("training", index).jax()
        tracks.append(
            train_and_track(
                model, params, x, y, eta=rate * unit_rate, steps=steps, every=every, batch_size=batch_size, key=key,
                trace_samples=trace_samples, ntk=ntk, checkpoint=checkpoint, quiet=quiet,
            )
        )  # fmt: skip
    rows = []
    for rate, track in zip(rates, tracks, strict=True):
        named, end = track.regimes(), track.diverged < 0
        last, late = (float(track.sharpness[-1]), float(track.late().mean())) if end else (None, None)
        rows.append((rate, track.eta, float(track.loss[-1]), last, late, named.label))
    print(f"sharpness at the start {start:.6g}, so 2 / sharpness = {2 / start:.6g}")
    unit_name = "C = eta x sharpness_0" if unit == "sharpness" else "rate"
    print_table((unit_name, "eta", "loss", "sharpness", "late eta x sharpness", "regimes"), rows)
    if out:
        columns = {
            f"{name}_{index}": np.asarray(getattr(track, name))
            for index, track in enumerate(tracks)
            for name in ("step", "loss", "sharpness", "trace", "ntk")
        }
        save_arrays(out / "tracks.npz", eta=[track.eta for track in tracks], **columns)
        for index, track in enumerate(tracks):
            write_weights(out / f"weights-{index}.npz", track.params)
        _save(out / "tracks.png", tracks_figure(tracks, [f"{unit_name.split()[0]} = {rate:g}" for rate in rates]))


def sharpness(
    weights: Positional[Path],
    data: Positional[Path | None] = None,
    k: int = 5,
    activation: str = "relu",
    p: float | None = None,
    samples: int = 500,
    probes: int = 64,
    seed: int = 0,
    out: Path | None = None,
) -> None:
    """Leading Hessian eigenvalues, trace and Frobenius norm of a saved network's loss on your data.

    Args:
        weights: .npz with w0 (inputs, width), b0, w1, ...; `iclr uv-model train --out` writes such files.
        data: .npz with x and y; without it the digits that `train` used with the same --seed and --samples.
        k: how many eigenvalues.
        activation: relu, tanh, gelu or linear.
        p: parameterisation the weights belong to; none for the standard one.
        samples: training images, for the digits.
        probes: sign vectors for trace and Frobenius norm.
        seed: of the digits' split and the probes.
        out: folder for spectrum.npz.
    """
    tree, out = root(seed), _folder(out)
    params, features, bias = read_weights(weights)
    x, y = networks.digits(tree.child("data").jax(), train=samples)[:2] if data is None else read_examples(data)
    first = params["params"]["w0"].shape[0]
    if (x.shape[1], y.shape[1]) != (first, features[-1]):
        raise InputError(
            f"The network maps {first} inputs to {features[-1]} outputs, the data {x.shape[1]} to {y.shape[1]}."
        )
    loss = networks.network_loss(networks.MLP(features, activation, 1.0, p, bias))
    spectrum = curvature.top_eigenvalues(loss, params, x, y, k=k)
    probe = {"key": tree.child("probes").jax(), "samples": probes}
    trace = curvature.trace(loss, params, x, y, **probe)
    frobenius = curvature.frobenius_norm(loss, params, x, y, **probe)
    values = spectrum.values.tolist()
    print_table(("eigenvalue", "residual"), zip(values, spectrum.residuals.tolist(), strict=True))
    print()
    rows = [("loss", float(loss(params, x, y)), None), ("trace", *trace), ("Frobenius norm", *frobenius)]
    rows.append(("largest stable learning rate 2 / sharpness", 2 / values[0] if values[0] > 0 else float("inf"), None))
    print_table(("number", "value", "standard error"), rows)
    if out:
        save_arrays(out / "spectrum.npz", values=spectrum.values, residuals=spectrum.residuals, trace=trace.value)


def _rate(eta: float | None, c: float | None, k: float, y: float) -> float:
    if (eta is None) == (c is None):
        raise InputError("Give the learning rate as --eta, or as --c in units of the critical one.")
    rate = eta if c is None else c * critical_lr(k, y)
    if not (np.isfinite(rate) and rate > 0):
        raise InputError(f"{'eta' if c is None else 'c'}={rate if c is None else c:g} must be positive and finite.")
    return rate


def _grid(text: str, option: str) -> np.ndarray:
    try:
        first, last, count = text.split(":")
        grid = np.linspace(float(first), float(last), int(count))
    except ValueError:
        raise InputError(f"{option} {text}: write FIRST:LAST:COUNT, such as 0.8:2.0:1201.") from None
    if not (len(grid) and np.isfinite(grid).all() and (grid > 0).all()):
        raise InputError(f"{option} {text}: at least one rate is needed, and all of them positive.")
    return grid


def _folder(out: Path | None, resume: bool = False) -> Path | None:
    """The output folder, made before anything is computed for it."""
    if out is None:
        if resume:
            raise InputError("--resume needs --out, the folder of the interrupted run.")
        return None
    try:
        out.mkdir(parents=True, exist_ok=True)
        TemporaryFile(dir=out).close()
    except OSError as error:
        raise InputError(f"Cannot write to {out}: {error.strerror}. Choose another output place.") from None
    return out


def _resumed(out: Path | None, resume: bool, settings: dict) -> tuple[dict | None, Checkpoint | None]:
    if out is None:
        return None, None
    folder = out / "checkpoints"
    if not resume:
        shutil.rmtree(folder, ignore_errors=True)
    checkpoint = Checkpoint(folder)
    saved = checkpoint.latest()
    if saved is None:
        return None, checkpoint
    if saved[1]["settings"] != settings:
        raise InputError(f"{folder} holds a diagram with other settings. Leave out --resume to start anew.")
    return saved[1]["parts"], checkpoint


def _plain(value):
    return float(value) if isinstance(value, np.floating) else value


def _save(path: Path, figure) -> None:
    with atomic_path(path) as temporary:
        figure.savefig(temporary, format="png", dpi=150)

"""``iclr linear-network VERB``: the exact solution on the user's own data, parameterisations and networks."""

import csv
import functools
import io
import json
import math
import shutil
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import jax
import numpy as np
import tyro
from jaxtyping import PRNGKeyArray

from iclr_dynamics.linear_network.data import LineData, fit_stats, read_csv
from iclr_dynamics.linear_network.initialisations import draw
from iclr_dynamics.linear_network.layers import Layout, layer_changes
from iclr_dynamics.linear_network.mechanisms import Mechanism
from iclr_dynamics.linear_network.mechanisms import mechanism as find_mechanism
from iclr_dynamics.linear_network.network import Setting
from iclr_dynamics.linear_network.phases import PARAMETERISATIONS, Exponents, PhaseGrid, phase_numeric
from iclr_dynamics.linear_network.phases import phase as phase_of
from iclr_dynamics.linear_network.trajectory import Trajectory, default_times, rate, time_to
from iclr_dynamics.linear_network.trajectory import solve as solve_exactly
from iclr_shared.checkpoints import Checkpoint, save_arrays
from iclr_shared.errors import InputError
from iclr_shared.files import atomic_path, atomic_write
from iclr_shared.plots import new_figure
from iclr_shared.progress import progress
from iclr_shared.seeds import root
from iclr_shared.tables import print_table

Parameterisation = Literal["ntk", "mean-field", "standard", "mup"]


@dataclass(frozen=True)
class NetworkOptions:
    """The network.

    Args:
        width: number of hidden neurons.
        parameterisation: how scales and rates depend on the width.
        gamma: output scale, in place of the parameterisation's.
        sigma_u: initial standard deviation of the second layer, in place of the parameterisation's.
        sigma_w: initial standard deviation of the first layer, in place of the parameterisation's.
        eta_u: rate of the second layer, in place of the parameterisation's.
        eta_w: rate of the first layer, in place of the parameterisation's.
        loss_factor: the loss is this times the mean squared error.
        antisymmetric: start from exactly zero output (needs an even width).
        seed: of the initial weights.
    """

    width: int = 100
    parameterisation: Parameterisation = "mean-field"
    gamma: float | None = None
    sigma_u: float | None = None
    sigma_w: float | None = None
    eta_u: float | None = None
    eta_w: float | None = None
    loss_factor: float = 0.5
    antisymmetric: bool = False
    seed: int = 0

    def key(self) -> PRNGKeyArray:
        """Of the initial weights."""
        return root(self.seed).child("weights").jax()

    def setting(self) -> Setting:
        given = {name: getattr(self, name) for name in ("gamma", "sigma_u", "sigma_w", "eta_u", "eta_w")}
        own = {name: value for name, value in given.items() if value is not None}
        return replace(PARAMETERISATIONS[self.parameterisation].at(self.width, self.loss_factor), **own)


@dataclass(frozen=True)
class DataOptions:
    """The columns of the data.

    Args:
        target: name of the target column; the last one by default.
        features: names of the feature columns; all but the target by default.
        center: subtract the means of features and target, for a line that misses the origin.
        rtol: largest second singular value, relative to the first, that counts as one-dimensional; 1e-8 by default.
    """

    target: str | None = None
    features: tuple[str, ...] = ()
    center: bool = False
    rtol: float | None = None

    def read(self, path: Path) -> LineData:
        X, y, names, target = read_csv(path, self.target, self.features)
        if self.center:
            X, y = X - X.mean(0), y - y.mean()
        data = fit_stats(X, y, self.rtol)
        rows = [
            ("samples", len(y), f"{', '.join(names)} → {target}" + (", centred" if self.center else "")),
            ("A = E xi²", data.A, ""),
            ("B = E xi y", data.B, ""),
            ("F* = B / A", data.target, "slope of the best linear fit"),
            ("rest E (y - F* xi)²", data.floor, f"{data.floor / data.Ey2:.1%} of E y²" if data.Ey2 else ""),
        ]
        print_table(("data", "value", "meaning"), rows)
        return data


Network = tyro.conf.OmitArgPrefixes[NetworkOptions]
Data = tyro.conf.OmitArgPrefixes[DataOptions]


def _double[**P, R](command: Callable[P, R]) -> Callable[P, R]:
    """Run a command in double precision."""

    @functools.wraps(command)
    def in_double(*args: P.args, **kwargs: P.kwargs) -> R:
        with jax.enable_x64(True):
            return command(*args, **kwargs)

    return in_double


@_double
def solve(
    csv_file: tyro.conf.Positional[Path],
    data: Data = DataOptions(),
    network: Network = NetworkOptions(),
    time: float | None = None,
    points: int = 200,
    eps: float = 0.01,
    weights: bool = False,
    out: tuple[Path, ...] = (),
) -> None:
    """The exact training trajectory of a two-layer linear network on data that lies on a line.

    Args:
        csv_file: numbers below a line of column names; the features must lie on one line through the origin.
        time: end of the trajectory; 20 / rate by default.
        points: times in the output, log-spaced.
        eps: also say when |F - F*| has shrunk to this fraction of |F*|.
        weights: put all weights at all times into the .npz file.
        out: files to write: .npz (arrays), .csv (table), .png (figure); several may be given.
    """
    _check_suffixes(out, (".npz", ".csv", ".png"))
    if points < 2:
        raise InputError(f"points must be at least 2, got {points}.")
    line, setting = data.read(csv_file), network.setting()
    net, layers = setting.net, draw(network.key(), setting, len(line.nhat), network.antisymmetric)
    _print_setting(setting, network)
    if time is None:
        t = default_times(net, line, *layers, points)
    elif 0 < time < math.inf:
        t = np.geomspace(time / 2000, time, points)
    else:
        raise InputError(f"time must be a positive number, got {time}.")
    path, found = _saying_warnings(
        lambda: (solve_exactly(net, line, *layers, t, weights=weights), find_mechanism(net, line, *layers))
    )
    finite = phase_numeric(setting, line.target, line.A)
    scale = abs(line.target) or 1.0
    rows = [
        ("rate s", rate(net, line, *layers), "final exponential rate, 1 / time"),
        (
            f"time to {eps:g}" + " |F*|" * (line.target != 0),
            time_to(net, line, *layers, eps * scale),
            "when |F - F*| is that small",
        ),
        ("theta", found.theta, "targets far below it are learned lazily"),
        ("F0", found.F0, "slope at the start"),
        ("F∞", found.F, "slope at the end"),
        ("K∞ / K0", found.K_ratio, "change of the tangent kernel"),
        ("zeta0", found.zeta0, "alignment of the layers at the start"),
        ("zeta∞", found.zeta, "at the end"),
        ("ln N∞ / N0", found.log_rescaling, "change of gamma |u| |a|"),
        ("mechanism", ", ".join(found.labels), "dominant one first" + (", the slope changes sign" * found.sign_flip)),
        ("phase", finite.label, "of a typical start at this width"),
    ]
    print_table(("solution", "value", "meaning"), rows)
    for file in out:
        if file.suffix == ".npz":
            arrays = {name: value for name, value in path._asdict().items() if value is not None}
            record = {**asdict(setting), "seed": network.seed, "antisymmetric": network.antisymmetric}
            save_arrays(file, **arrays, **vars(line), setting=np.array(json.dumps(record)))
        elif file.suffix == ".csv":
            names = ("t", "F", "K", "zeta", "zeta_w", "u_norm", "a_norm", "loss", "excess")
            _write_csv(file, names, zip(*(np.asarray(getattr(path, name)).tolist() for name in names), strict=True))
        else:
            _write_png(file, _draw_trajectory(path, line))
    _print_files(out)


@_double
def mechanism(
    csv_file: tyro.conf.Positional[Path],
    data: Data = DataOptions(),
    network: Network = NetworkOptions(),
    scales: tuple[float, ...] = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0),
    out: tuple[Path, ...] = (),
) -> None:
    """How a network learns your data, from small to large starts: alignment, disalignment, rescaling, or the kernel.

    Args:
        csv_file: numbers below a line of column names; the features must lie on one line through the origin.
        scales: factors on both initial standard deviations.
        out: files to write: .csv (table), .png (figure); several may be given.
    """
    _check_suffixes(out, (".csv", ".png"))
    if not scales or min(scales) <= 0:
        raise InputError(f"scales must be positive numbers, got {scales}.")
    line, setting = data.read(csv_file), network.setting()
    _print_setting(setting, network)
    found: list[Mechanism] = []
    rows = []
    for scale in scales:
        scaled = replace(setting, sigma_u=scale * setting.sigma_u, sigma_w=scale * setting.sigma_w)
        layers = draw(network.key(), scaled, len(line.nhat), network.antisymmetric)
        one = _saying_warnings(lambda: find_mechanism(setting.net, line, *layers))  # noqa: B023 - called at once
        t = time_to(setting.net, line, *layers, 0.01 * (abs(line.target) or 1.0))
        found.append(one)
        rows.append((scale, one.F0, one.K_ratio, one.zeta0, one.zeta, one.log_rescaling, t, ", ".join(one.labels)))
    columns = ("scale", "F0", "K∞/K0", "zeta0", "zeta∞", "ln N∞/N0", "time to 1 %", "mechanism")
    print_table(columns, rows, f"from each start to F* = {line.target:.6g}")
    for file in out:
        if file.suffix == ".csv":
            _write_csv(file, columns, rows)
        else:
            _write_png(file, _draw_mechanisms(scales, found))
    _print_files(out)


@_double
def phase(
    parameterisation: tyro.conf.Positional[Parameterisation | None] = None,
    g: float | None = None,
    bu: float = 0.0,
    bw: float = 0.0,
    eu: float = 0.0,
    ew: float = 0.0,
    width: int = 1000,
    target: float = 1.0,
    grid: bool = False,
    points: int = 40,
    g_range: tuple[float, float] = (-0.5, 2.5),
    b_range: tuple[float, float] = (-1.0, 2.0),
    widths: tuple[int, int] = (1_000, 100_000),
    random_start: bool = False,
    seed: int = 0,
    out: tuple[Path, ...] = (),
    resume: bool = False,
) -> None:
    """The phase of one parameterisation (by name or exponents), or with --grid the whole diagram, measured.

    Args:
        parameterisation: a named one; or give --g and the other exponents.
        g: exponent of the output scale, gamma = d^-g.
        bu: exponent of the second layer's initial variance, sigma_u² = d^-bu.
        bw: exponent of the first layer's initial variance, sigma_w² = d^-bw.
        eu: exponent of the second layer's rate, eta_u = d^-eu (also for --grid).
        ew: exponent of the first layer's rate, eta_w = d^-ew (also for --grid).
        width: at which the finite network is described.
        target: slope to be learned.
        grid: measure theta and the kernel's change on a grid over g and b = bu = bw, between two widths.
        points: grid points along each axis.
        g_range: smallest and largest g of the grid.
        b_range: smallest and largest b of the grid.
        widths: the two widths.
        random_start: draw all neurons of the grid's networks freely, instead of antisymmetric pairs with F0 = 0.
        seed: of the grid's random networks.
        out: files to write with --grid: .npz (arrays), .csv (one line for each point), .png (figure).
        resume: go on with an interrupted grid of the same --out.
    """
    _check_suffixes(out, (".npz", ".csv", ".png"))
    if grid:
        if parameterisation or g is not None:
            raise InputError("--grid measures all output scales: give it no name and no --g, but --g-range.")
        chosen = PhaseGrid(g_range, b_range, points, eu, ew, widths, target, not random_start)
        rows = _grid_rows(chosen, seed, out[0] if out else None, resume)
        _report_grid(chosen, rows, out)
        return
    if out or resume:
        raise InputError("--out and --resume belong to --grid.")
    if (parameterisation is None) == (g is None):
        raise InputError(f"Give either a name ({', '.join(PARAMETERISATIONS)}) or --g with its exponents, or --grid.")
    exponents = PARAMETERISATIONS[parameterisation] if parameterisation else Exponents(g, bu, bw, eu, ew)
    limit, setting = phase_of(exponents), exponents.at(width)
    finite = phase_numeric(setting, target)
    print_table(("exponent", "value"), [(name, value) for name, value in asdict(exponents).items()])
    rows = [
        ("h", limit.h, "theta ~ d^h"),
        ("rho", limit.rho, "rate ~ d^rho"),
        ("phase", limit.label, "as the width grows"),
        ("speed", limit.speed, "as the width grows"),
    ]
    print_table(("limit", "value", "meaning"), rows)
    print_table(("setting", "value"), [(name, value) for name, value in asdict(setting).items()])
    rows = [
        ("theta", finite.theta, "targets far below it are learned lazily"),
        ("rate s", finite.rate, "1 / time, for A = 1"),
        ("K∞ / K0", finite.K_ratio, "change of the tangent kernel from F0 = 0"),
        ("delay", finite.delay, "time to half-way"),
        ("phase", finite.label, f"at this width, for F* = {target:g}"),
    ]
    print_table((f"d = {width}", "value", "meaning"), rows)


def layers(
    before: tyro.conf.Positional[Path],
    after: tyro.conf.Positional[Path],
    layout: Layout = "in-out",
    out: tuple[Path, ...] = (),
) -> None:
    """Which mechanism a deep network of your own used: alignment and norms of its layers before and after training.

    Save the weights with `numpy.savez`, one array for each name; names give the order of the layers.

    Args:
        before: .npz file of the weights at initialisation.
        after: .npz file of the weights after training.
        layout: axes of a weight: "in-out" as in Flax and Keras, "out-in" as in PyTorch.
        out: .csv file to write.
    """
    _check_suffixes(out, (".csv",))
    changes = layer_changes(_read_npz(before), _read_npz(after), layout)
    columns = ("layers", "alignment", "after", "neuron alignment", "after", "ln norms", "mechanism")
    rows = [
        (
            f"{c.before.first} → {c.before.second}",
            c.before.alignment,
            c.after.alignment,
            c.before.neuron_alignment,
            c.after.neuron_alignment,
            c.log_rescaling,
            c.label,
        )
        for c in changes
    ]
    print_table(columns, rows)
    for file in out:
        names = ("layers", "alignment0", "alignment", "neuron_alignment0", "neuron_alignment", "log_rescaling", "label")
        _write_csv(file, names, rows)
    _print_files(out)


def _grid_rows(grid: PhaseGrid, seed: int, out: Path | None, resume: bool) -> np.ndarray:
    """The measured rows, each of them saved beside the first output file as soon as it is there."""
    settings = {**json.loads(json.dumps(asdict(grid))), "seed": seed}
    checkpoint = Checkpoint(out.with_name(out.name + ".rows")) if out else None
    rows: list[np.ndarray] = []
    if checkpoint and not resume:
        shutil.rmtree(checkpoint.folder, ignore_errors=True)  # of an older grid, of whatever settings
    if resume:
        found = checkpoint.latest() if checkpoint else None
        if found is None:
            raise InputError("There is nothing to resume: no unfinished grid beside the first --out file.")
        if found[1]["settings"] != settings:
            raise InputError(f"The unfinished grid was made with other settings: {found[1]['settings']}.")
        rows = list(found[1]["rows"])
    key = root(seed).child("diagram").jax()
    for index in progress(range(len(rows), grid.points), desc="rows of the phase diagram"):
        rows.append(grid.row(key, index))
        if checkpoint:
            checkpoint.save(index + 1, {"rows": np.array(rows), "settings": settings})
    return np.array(rows)


def _report_grid(grid: PhaseGrid, rows: np.ndarray, out: Sequence[Path]) -> None:
    theta, change = grid.exponents(rows)
    h, rho = grid.predicted()
    off = np.abs(h) > 0.1
    shares = [float(np.mean(np.sign(m[off]) == np.sign(p[off]))) for m, p in ((theta, h), (change, -h))]
    table = [
        ("points", grid.points**2, f"widths {grid.widths[0]} and {grid.widths[1]}"),
        ("kernel phase", int((h > 0).sum()), "points with h > 0"),
        ("theta as predicted", shares[0], "share of signs off the boundary, |h| > 0.1"),
        ("kernel as predicted", shares[1], "share of signs of the exponent of |K∞/K0 - 1|"),
    ]
    print_table(("phase diagram", "value", "meaning"), table)
    g, b = np.broadcast_to(grid.g[:, None], h.shape), np.broadcast_to(grid.b[None, :], h.shape)
    columns = {"g": g, "b": b, "h": h, "rho": rho, "theta_exponent": theta, "kernel_change_exponent": change}
    for file in out:
        if file.suffix == ".npz":
            save_arrays(file, **columns, settings=np.array(json.dumps(asdict(grid))))
        elif file.suffix == ".csv":
            _write_csv(file, tuple(columns), zip(*(c.ravel().tolist() for c in columns.values()), strict=True))
        else:
            _write_png(file, _draw_grid(grid, {"θ": theta, "|K∞/K0 - 1|": change}))
    _print_files(out)
    if out:
        shutil.rmtree(out[0].with_name(out[0].name + ".rows"), ignore_errors=True)


def _draw_trajectory(path: Trajectory, line: LineData):
    figure, axes = new_figure(2, 2, width=9, height=6, sharex=True)
    axes[0, 0].semilogx(path.t, path.F, label="F")
    axes[0, 0].axhline(line.target, color="k", linestyle=":", linewidth=1, label="F*")
    axes[0, 1].semilogx(path.t, path.K / path.K[0])
    axes[1, 0].semilogx(path.t, path.zeta, label="with the active part a")
    if len(line.nhat) > 1:
        axes[1, 0].semilogx(path.t, path.zeta_w, "--", label="with all of w")
    norms = np.array([path.u_norm, path.a_norm])
    axes[1, 1].semilogx(path.t, norms.T, label=["|u|", "|a|"])
    axes[1, 1].set_yscale("log" if norms.max() > 10 * norms.min() > 0 else "linear")
    titles = (("slope F", "kernel K / K0"), ("alignment ζ", "norms of the layers"))
    for panel, label in zip(axes.flat, np.ravel(titles), strict=True):
        panel.set_ylabel(label)
        if panel.get_legend_handles_labels()[0]:
            panel.legend()
    for panel in axes[1]:
        panel.set_xlabel("time t")
    return figure


def _draw_mechanisms(scales: Sequence[float], found: Sequence[Mechanism]):
    figure, axes = new_figure(1, 2, width=9, height=3.8)
    axes[0].loglog(scales, [one.K_ratio for one in found], "o-")
    axes[0].set(xlabel="init scale", ylabel="K∞ / K0")
    axes[1].semilogx(scales, [abs(one.zeta0) for one in found], "o:", label="start")
    axes[1].semilogx(scales, [abs(one.zeta) for one in found], "o-", label="end")
    axes[1].set(xlabel="init scale", ylabel="alignment |ζ|", ylim=(-0.02, 1.02))
    axes[1].legend()
    return figure


def _draw_grid(grid: PhaseGrid, exponents: Mapping[str, np.ndarray]):
    figure, axes = new_figure(1, 2, width=11, height=4.4)
    for panel, (name, values) in zip(axes, exponents.items(), strict=True):
        limit = float(np.abs(values).max())
        mesh = panel.pcolormesh(grid.b, grid.g, values, cmap="RdBu_r", vmin=-limit, vmax=limit, rasterized=True)
        boundary = 1 + abs(grid.eu - grid.ew) / 2 - grid.b
        panel.plot(grid.b, boundary, "k--", linewidth=1.2)
        panel.set(xlabel="b  (σ² = d⁻ᵇ)", ylabel="g  (γ = d⁻ᵍ)", xlim=grid.b_range, ylim=grid.g_range)
        panel.set_title("dashed: h = 0")
        panel.grid(False)
        figure.colorbar(mesh, ax=panel, label=f"measured exponent of {name}")
    return figure


def _print_setting(setting: Setting, network: NetworkOptions) -> None:
    start = "antisymmetric" if network.antisymmetric else "random"
    rows = [*asdict(setting).items(), ("kappa", setting.net.kappa), ("start", f"{start}, seed {network.seed}")]
    print_table(("setting", "value"), rows)


def _saying_warnings[R](work: Callable[[], R]) -> R:
    """Do the work; what it warns of becomes a line on stderr."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", RuntimeWarning)
        result = work()
    for message in dict.fromkeys(str(warning.message) for warning in caught):
        print(f"warning: {message}", file=sys.stderr)
    return result


def _check_suffixes(out: Sequence[Path], allowed: Sequence[str]) -> None:
    for file in out:
        if file.suffix not in allowed:
            raise InputError(f"Cannot write {file}: this command writes {', '.join(allowed)} files.")


def _read_npz(path: Path) -> dict[str, np.ndarray]:
    try:
        with np.load(path, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    except (OSError, ValueError, AttributeError) as error:
        raise InputError(f"Cannot read {path}: {error}. Give an .npz file of named weights (numpy.savez).") from error


def _write_csv(file: Path, columns: Sequence[str], rows: Any) -> None:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(rows)
    atomic_write(file, text.getvalue())


def _write_png(file: Path, figure) -> None:
    with atomic_path(file) as temporary:
        figure.savefig(temporary, format="png", dpi=130)


def _print_files(out: Sequence[Path]) -> None:
    for file in out:
        print(f"wrote {file}")

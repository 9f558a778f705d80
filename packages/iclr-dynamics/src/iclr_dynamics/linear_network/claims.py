"""The checks of the paper's claims; each runs its control beside it."""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy import stats

from iclr_dynamics.linear_network.data import unit_data
from iclr_dynamics.linear_network.descent import integrate_flow, simulate_gd
from iclr_dynamics.linear_network.initialisations import draw, init_layers, prototypes, random_problem
from iclr_dynamics.linear_network.mechanisms import Mechanism, mechanism
from iclr_dynamics.linear_network.network import (
    Layers,
    LinearNet,
    alignment,
    invariants,
    log_ntk_ratio,
    ntk_ratio,
    output_slope,
)
from iclr_dynamics.linear_network.phases import PARAMETERISATIONS, PhaseGrid, measure
from iclr_dynamics.linear_network.trajectory import Trajectory, rate, solve, solve_lazy
from iclr_shared.claims import ClaimRun, Measurement
from iclr_shared.plots import new_figure
from iclr_shared.seeds import SeedTree

#: Widths of the random problems; few different ones, as each is compiled once.
WIDTHS = (1, 2, 3, 8, 20, 50)


def _double[**P](check: Callable[P, Measurement]) -> Callable[P, Measurement]:
    """Run a check in double precision."""

    @functools.wraps(check)
    def in_double(*args: P.args, **kwargs: P.kwargs) -> Measurement:
        with jax.enable_x64(True):
            return check(*args, **kwargs)

    return in_double


# --- C1: the exact solution ------------------------------------------------------------------------------------------


@_double
def trajectory_is_exact(
    run: ClaimRun,
    *,
    problems: int = 50,
    inputs: int = 5,
    widths: Sequence[int] = WIDTHS,
    solution: Callable[..., Trajectory] = solve,
) -> Measurement:
    """C1a. Random problems of all widths against DOP853 on all weights; control: the frozen-kernel approximation."""
    scaled = np.geomspace(0.05, 12, 60)
    errors, controls, drawn, curves = [], [], [], []
    for i in run.progress(range(problems), desc="random problems"):
        d = widths[i % len(widths)]
        net, data, layers = random_problem(run.seeds.child("problem", i).numpy(), d, inputs)
        t = scaled / rate(net, data, *layers)
        u, w = integrate_flow(net, data, *layers, t, rtol=1e-12, atol=1e-14)
        path, lazy = solution(net, data, *layers, t), solve_lazy(net, data, *layers, t)
        errors.append(_distance(path, u, w))
        controls.append(_distance(lazy, u, w))
        drawn.append(d)
        integrated = net.gamma * np.einsum("td,td->t", u, w @ data.nhat)
        curves.append([slope / data.target for slope in (path.F, lazy.F, integrated)])
    figure, axis = new_figure()
    for i in np.argsort(controls)[::-1][:4]:  # those that the frozen kernel misses most
        exact, lazy, integrated = curves[i]
        (line,) = axis.semilogx(scaled, exact, label=f"d = {drawn[i]}")
        axis.semilogx(scaled, lazy, ":", color=line.get_color(), linewidth=1.2)
        axis.semilogx(scaled[::8], integrated[::8], "o", color=line.get_color(), markersize=4)
    axis.set(xlabel="time s t", ylabel="slope F / F*")
    axis.set_title("exact (line), adaptive solver (dots), frozen kernel (dotted)")
    axis.legend()
    run.figure("trajectories", figure)
    return Measurement(
        measured=max(errors),
        baseline=("frozen-kernel approximation", max(controls)),
        n=problems,
        series={"width": drawn, "error": errors, "frozen-kernel error": controls},
        details={"solver": "DOP853, rtol 1e-12, atol 1e-14", "inputs": inputs, "times": len(scaled)},
    )


@_double
def descent_approaches_the_trajectory(
    run: ClaimRun,
    *,
    problems: int = 8,
    width: int = 20,
    steps: Sequence[int] = (100, 200, 400, 800, 1600),
    solution: Callable[..., Trajectory] = solve,
) -> Measurement:
    """C1b. Euler steps on the weights up to one fixed time; control: their distance to the frozen-kernel solution."""
    errors, controls = np.empty((2, problems, len(steps)))
    for i in run.progress(range(problems), desc="random problems"):
        net, data, layers = random_problem(run.seeds.child("problem", i).numpy(), width, 3)
        T = 2 / rate(net, data, *layers)
        exact, lazy = solution(net, data, *layers, T), solve_lazy(net, data, *layers, T)
        for j, n in enumerate(steps):
            scaled = LinearNet(net.gamma, net.eta_u * T / n, net.eta_w * T / n)
            us, ws = simulate_gd(scaled, data, *layers, steps=n, every=n)
            end = np.asarray(us)[-1:], np.asarray(ws)[-1:]
            errors[i, j], controls[i, j] = _distance(exact, *end), _distance(lazy, *end)
    step = 1 / np.array(steps)
    slopes, flat = ([stats.linregress(np.log(step), np.log(e)).slope for e in es] for es in (errors, controls))
    figure, axis = new_figure()
    axis.loglog(step, np.median(errors, 0), "o-", label="exact solution")
    axis.loglog(step, np.median(controls, 0), "s--", label="frozen kernel (control)")
    axis.set(xlabel="step / T", ylabel="largest weight error, median", title="Euler steps against the closed form")
    axis.legend()
    run.figure("convergence", figure)
    return Measurement(
        measured=float(np.mean(slopes)),
        baseline=("distance to the frozen-kernel solution", float(np.mean(flat))),
        ci=mean_interval(slopes),
        n=problems,
        series={
            "step": step.tolist(),
            "error": np.median(errors, 0).tolist(),
            "control": np.median(controls, 0).tolist(),
        },
    )


# --- C2: kernel and feature phase in one formula ---------------------------------------------------------------------


@_double
def wide_ntk_networks_are_lazy(
    run: ClaimRun,
    *,
    widths: Sequence[int] = (100, 1_000, 10_000, 100_000),
    seeds: int = 8,
    parameterisation: str = "ntk",
) -> Measurement:
    """C2a. The kernel change over widths, from exactly F0 = 0; control: the mean-field parameterisation."""
    changes = {
        name: np.array([_kernel_change(run.seeds.child(d), name, d, seeds) for d in widths])
        for name in (parameterisation, "mean-field")
    }
    slopes = {n: [stats.linregress(np.log(widths), np.log(c)).slope for c in cs.T] for n, cs in changes.items()}
    figure, axis = new_figure()
    for (name, change), marker in zip(changes.items(), "os", strict=False):
        axis.loglog(widths, np.median(change, 1), f"{marker}-", label=name)
    axis.loglog(widths, 0.5 / np.array(widths), "k:", label="ntk, predicted: 1 / (2 d)")
    axis.set(xlabel="width d", ylabel="|K∞/K0 - 1|", title="change of the tangent kernel over training")
    axis.legend()
    run.figure("kernel-change", figure)
    return Measurement(
        measured=float(np.mean(slopes[parameterisation])),
        baseline=("mean-field parameterisation", float(np.mean(slopes["mean-field"]))),
        ci=mean_interval(slopes[parameterisation]),
        n=seeds,
        series={"width": list(widths), **{name: np.median(c, 1).tolist() for name, c in changes.items()}},
        details=_settings((parameterisation, "mean-field"), widths[-1]),
    )


@_double
def wide_mean_field_networks_learn_features(
    run: ClaimRun, *, width: int = 100_000, seeds: int = 8, parameterisation: str = "mean-field"
) -> Measurement:
    """C2b. The kernel ratio of wide mean-field networks for F* = 1; control: the NTK parameterisation."""
    ratios, control = (
        1 + np.array(_kernel_change(run.seeds.child("start"), name, width, seeds)) for name in (parameterisation, "ntk")
    )
    return Measurement(
        measured=float(np.abs(ratios / math.sqrt(2) - 1).max()),
        baseline=("NTK parameterisation", float(np.abs(control / math.sqrt(2) - 1).max())),
        n=seeds,
        details={
            "mean K ratio": float(ratios.mean()),
            "mean K ratio, NTK": float(control.mean()),
            **_settings((parameterisation, "ntk"), width),
        },
    )


@_double
def descent_confirms_the_kernel_ratio(
    run: ClaimRun, *, widths: Sequence[int] = (100, 1_000), seeds: int = 3, step: float = 0.02, horizon: float = 15.0
) -> Measurement:
    """C2c. K from the weights after gradient descent, in both phases; control: a kernel that never moves."""
    data, errors, frozen, series = unit_data(), [], [], {}
    for name in ("ntk", "mean-field"):
        for width in widths:
            setting = PARAMETERISATIONS[name].at(width)
            for i in run.progress(range(seeds), desc=f"{name}, d = {width}"):
                layers = draw(run.seeds.child(name, width, i).jax(), setting, antisymmetric=True)
                net, a = setting.net, np.asarray(layers.w)[:, 0]
                dt = step / rate(net, data, *layers)
                scaled = LinearNet(net.gamma, net.eta_u * dt, net.eta_w * dt)
                n = round(horizon / step)
                us, ws = simulate_gd(scaled, data, *layers, steps=max(n, 1), every=max(n, 1))
                descended = float(
                    _kernel_of(net, np.asarray(us)[-1], np.asarray(ws)[-1, :, 0]) / _kernel_of(net, layers.u, a)
                )
                formula = float(
                    _ntk_ratio(_output_slope(net, layers.u, a), data.target, _invariants(net, layers.u, a).theta)
                )
                errors.append(abs(descended / formula - 1))
                frozen.append(abs(1 / formula - 1))
                for column, value in (("width", width), ("K ratio of descent", descended), ("of the formula", formula)):
                    series.setdefault(column, []).append(value)
    return Measurement(
        measured=max(errors), baseline=("kernel that never moves", max(frozen)), n=len(errors), series=series
    )


# --- C3: the three mechanisms ----------------------------------------------------------------------------------------


@_double
def three_mechanisms(run: ClaimRun, *, width: int = 100, seeds: int = 5, learn: bool = True) -> Measurement:
    """C3a. Labels of the three starts; control: letting the larger logarithm decide. `learn` off: F* = F0."""
    right, naive, table = [], [], {}
    figure, axis = new_figure()
    for i in range(seeds):
        for name, (net, data, layers) in prototypes(run.seeds.child(i).numpy(), width).items():
            if not learn:
                data = unit_data(1, float(_output_slope(net, layers.u, layers.w[:, 0])))
            found = mechanism(net, data, *layers)
            right.append(found.label == name)
            naive.append(_larger_logarithm(found) == name)
            if i == 0:
                table[name] = f"zeta {found.zeta0:.3f} → {found.zeta:.3f}, K ratio {found.K_ratio:.3g}, {found.labels}"
                path = solve(net, data, *layers, np.linspace(0, 12, 200) / rate(net, data, *layers), weights=False)
                axis.plot(np.abs(path.F), np.abs(path.zeta), label=name)
                axis.plot(np.abs(path.F[:1]), np.abs(path.zeta[:1]), "ko", markersize=4)
    axis.set(
        xlabel="slope |F| (dot: start; all end at F* = 1)",
        ylabel="|alignment ζ|",
        xscale="log",
        ylim=(0, 1.05),
        title="three mechanisms",
    )
    axis.legend()
    run.figure("mechanisms", figure)
    return Measurement(
        measured=float(np.mean(right)),
        baseline=("the larger of the two logarithms decides", float(np.mean(naive))),
        n=len(right),
        details=table,
    )


@_double
def alignment_follows_the_slope(
    run: ClaimRun, *, width: int = 100, inputs: int = 3, seeds: int = 3, area: bool = True
) -> Measurement:
    """C3b. zeta of integrated weights against F / sqrt(F² + kappa² S); control: the cosine with all of w."""
    errors, diluted = [], []
    for net, _, layers, u, w, data in _integrated(run, width, inputs, seeds):
        a = w @ data.nhat
        S = _invariants(net, layers.u, layers.w @ data.nhat).S if area else 0.0
        formula = _alignment(_output_slope(net, u, a), S, net.kappa)
        cosine = np.sum(u * a, -1) / np.linalg.norm(u, axis=-1) / np.linalg.norm(a, axis=-1)
        errors.append(float(np.abs(cosine - formula).max()))
        whole = np.linalg.norm(np.einsum("td,tdk->tk", u, w), axis=-1)
        whole = np.sign(cosine) * whole / np.linalg.norm(u, axis=-1) / np.linalg.norm(w, axis=(1, 2))
        diluted.append(float(np.abs(whole - formula).max()))
    return Measurement(
        measured=max(errors), baseline=("cosine with the whole first layer", max(diluted)), n=len(errors)
    )


@_double
def area_is_conserved(run: ClaimRun, *, width: int = 100, seeds: int = 3, flow: bool = True) -> Measurement:
    """C3c. Relative drift of S along integrated weights; control: gradient descent with steps of 0.5 / s."""
    drifts, controls = [], []
    for net, name, layers, u, w, data in _integrated(run, width, 1, seeds):
        if name == "rescaling":  # aligned: the area is zero from the start, and nothing is left to be conserved
            continue
        dt = 0.5 / rate(net, data, *layers)
        us, ws = simulate_gd(LinearNet(net.gamma, net.eta_u * dt, net.eta_w * dt), data, *layers, steps=20)
        S0 = float(_invariants(net, layers.u, layers.w[:, 0]).S)
        integrated, descended = (
            float(np.abs(_invariants(net, second, first[:, :, 0]).S / S0 - 1).max())
            for second, first in ((u, w), (us, ws))
        )
        drifts.append(integrated if flow else descended)
        controls.append(descended)
    return Measurement(
        measured=max(drifts), baseline=("gradient descent with steps of 0.5 / s", min(controls)), n=len(drifts)
    )


@_double
def lazy_networks_do_not_align(
    run: ClaimRun, *, width: int = 10_000, seeds: int = 5, parameterisation: str = "ntk"
) -> Measurement:
    """C3d. Change of zeta from an antisymmetric start in the NTK parameterisation; control: a small random start."""
    setting, data, changes, controls = PARAMETERISATIONS[parameterisation].at(width), unit_data(), [], []
    for i in range(seeds):
        layers = draw(run.seeds.child(i).jax(), setting, antisymmetric=True)
        found = mechanism(setting.net, data, *layers)
        changes.append(abs(found.zeta - found.zeta0))
        net, data, layers = prototypes(run.seeds.child("small", i).numpy(), 100)["alignment"]
        found = mechanism(net, data, *layers)
        controls.append(abs(found.zeta - found.zeta0))
    return Measurement(measured=max(changes), baseline=("small random start", min(controls)), n=seeds)


# --- C4: the phase diagram -------------------------------------------------------------------------------------------


@_double
def phase_diagram_of_theta(run: ClaimRun, **sizes: Any) -> Measurement:
    """C4a. Sign of theta's measured exponent against that of h, off the boundary; control: shuffled predictions."""
    return _phase_agreement(run, which=0, **sizes)


@_double
def phase_diagram_of_the_kernel(run: ClaimRun, **sizes: Any) -> Measurement:
    """C4b. Sign of the measured exponent of |K ratio - 1| against that of -h; control: shuffled predictions."""
    return _phase_agreement(run, which=1, **sizes)


def _phase_agreement(
    run: ClaimRun,
    which: int,
    *,
    points: int = 40,
    widths: tuple[int, int] = (1_000, 100_000),
    margin: float = 0.1,
    antisymmetric: bool = True,
    shuffle: bool = False,
) -> Measurement:
    grid = PhaseGrid(points=points, widths=widths, antisymmetric=antisymmetric)
    key = run.seeds.child("diagram").jax()
    rows = [grid.row(key, i) for i in run.progress(range(points), desc="rows of the phase diagram")]
    exponents = grid.exponents(np.array(rows))[which]
    h, _ = grid.predicted()
    off = np.abs(h) > margin
    predicted = np.sign(h if which == 0 else -h)[off]
    permuted = run.seeds.child("shuffle").numpy().permutation(predicted)
    agreement, control = (float(np.mean(np.sign(exponents[off]) == p)) for p in (predicted, permuted))
    figure, axis = new_figure()
    limit = float(np.abs(exponents).max())
    mesh = axis.pcolormesh(grid.b, grid.g, exponents, cmap="RdBu_r", vmin=-limit, vmax=limit, rasterized=True)
    axis.plot(grid.b, 1 - grid.b, "k--", linewidth=1.2)
    axis.set(xlabel="b  (σ² = d⁻ᵇ)", ylabel="g  (γ = d⁻ᵍ)", ylim=grid.g_range, xlim=grid.b_range)
    axis.set_title("dashed: predicted boundary h = 0")
    axis.grid(False)
    figure.colorbar(mesh, ax=axis, label="measured exponent of " + ("θ", "|K∞/K0 - 1|")[which])
    run.figure("diagram", figure)
    return Measurement(
        measured=control if shuffle else agreement,
        baseline=("shuffled predictions", control),
        n=int(off.sum()),
        details={
            "largest distance of theta's exponent from h": float(np.abs(grid.exponents(np.array(rows))[0] - h).max())
        },
    )


# --- C5: layer-wise rates --------------------------------------------------------------------------------------------


@_double
def layer_rates_set_theta(run: ClaimRun, **sizes: Any) -> Measurement:
    """C5a. The ratio of rates with the smallest theta; control: predicting equal rates, whatever the variances."""
    return _rate_ratio(run, "theta", **sizes)


@_double
def layer_rates_set_the_kernel_change(run: ClaimRun, **sizes: Any) -> Measurement:
    """C5b. The ratio of rates with the largest kernel change; control as in C5a."""
    return _rate_ratio(run, "kernel", **sizes)


def _rate_ratio(
    run: ClaimRun,
    which: str,
    *,
    sigmas: Sequence[tuple[float, float]] = ((0.3, 1.0), (1.0, 1.0), (1.0, 0.3), (0.1, 0.5)),
    width: int = 1_000,
    seeds: int = 5,
    use_variances: bool = True,
) -> Measurement:
    ratios = 10 ** np.linspace(-3, 3, 61)
    ones = np.ones_like(ratios)
    nets = jax.tree.unflatten(_NET, (ones / width, width * ratios**0.5, width / ratios**0.5, 0.5 * ones))
    figure, axis = new_figure()
    distances, controls, found = [], [], {}
    for sigma_u, sigma_w in sigmas:
        predicted = sigma_u**2 / sigma_w**2
        for i in range(seeds):
            layers = init_layers(run.seeds.child(f"{sigma_u} {sigma_w}", i).jax(), width, 1, sigma_u, sigma_w)
            theta, F0 = _thetas(nets, layers)
            values = -theta if which == "theta" else _log_ntk_ratio(F0, 1.0, theta)
            best = int(jnp.argmax(values))
            nearest = int(np.abs(np.log(ratios / (predicted if use_variances else 1.0))).argmin())
            distances.append(abs(best - nearest))
            controls.append(abs(best - int(np.abs(np.log(ratios)).argmin())))
            found.setdefault(f"predicted {predicted:.3g}, found", []).append(float(f"{ratios[best]:.3g}"))
        (line,) = axis.loglog(
            ratios, theta if which == "theta" else jnp.exp(values), label=rf"$\sigma_u={sigma_u},\ \sigma_w={sigma_w}$"
        )
        axis.axvline(predicted, color=line.get_color(), linestyle=":", linewidth=1)
    axis.set(
        xlabel=r"$\eta_u / \eta_w$ at constant $\kappa$",
        ylabel="θ" if which == "theta" else "K∞ / K0",
        title=r"dotted: where $\sigma_u^2/\eta_u = \sigma_w^2/\eta_w$",
    )
    axis.legend()
    run.figure("rates", figure)
    return Measurement(
        measured=float(max(distances)), baseline=("equal rates", float(max(controls))), n=len(distances), details=found
    )


# --- what the checks share -------------------------------------------------------------------------------------------

_NET = jax.tree.structure(LinearNet(1.0))
_invariants, _output_slope, _alignment = jax.jit(invariants), jax.jit(output_slope), jax.jit(alignment)
_ntk_ratio, _log_ntk_ratio = jax.jit(ntk_ratio), jax.jit(log_ntk_ratio)
_thetas = jax.jit(
    jax.vmap(
        lambda net, layers: (invariants(net, *_active(layers)).theta, output_slope(net, *_active(layers))), (0, None)
    )
)


def _active(layers: Layers):
    return layers.u, layers.w[:, 0]


def _integrated(run: ClaimRun, width: int, inputs: int, seeds: int):
    """Each start of each seed, with its weights along the flow by the adaptive solver at high accuracy."""
    for i in run.progress(range(seeds), desc="integrating"):
        for name, (net, data, layers) in prototypes(run.seeds.child(i).numpy(), width, inputs).items():
            t = np.linspace(1, 10, 10) / rate(net, data, *layers)
            u, w = integrate_flow(net, data, *layers, t, rtol=1e-12, atol=1e-14)
            yield net, name, layers, u, w, data


def _larger_logarithm(found: Mechanism) -> str:
    if abs(found.log_rescaling) >= abs(found.log_alignment):
        return "rescaling"
    return "alignment" if found.log_alignment > 0 else "disalignment"


def _kernel_change(tree: SeedTree, name: str, width: int, seeds: int) -> list[float]:
    drawn = measure(tree.jax(), [PARAMETERISATIONS[name]] * seeds, width, antisymmetric=True)
    return np.abs(np.expm1(np.asarray(drawn.log_K_ratio))).tolist()


def _kernel_of(net: LinearNet, u, a):
    return net.gamma**2 * (net.eta_w * np.sum(np.square(u)) + net.eta_u * np.sum(np.square(a)))


def _settings(names: Sequence[str], width: int) -> dict[str, str]:
    """What each parameterisation means at a width, for the record."""
    return {f"{name} at d={width}": str(PARAMETERISATIONS[name].at(width)) for name in names}


def _distance(path: Trajectory, u, w) -> float:
    return max(float(np.abs(np.asarray(ours) - np.asarray(other)).max()) for ours, other in ((path.u, u), (path.w, w)))


def mean_interval(values: Sequence[float] | np.ndarray) -> tuple[float, float]:
    """95 % interval of the mean, by Student's t."""
    values = np.asarray(values, float)
    half = stats.t.ppf(0.975, len(values) - 1) * values.std(ddof=1) / math.sqrt(len(values)) if len(values) > 1 else 0.0
    return float(values.mean() - half), float(values.mean() + half)

"""Beyond the Matthew effect: concave returns (Fig. 6) and the nine combinations of monotonicity (Fig. 4)."""

import numpy as np

from iclr_shared.claims import ClaimRun, Measurement
from iclr_shared.plots import new_figure
from iclr_welfare import charts, scenarios
from iclr_welfare.conditions import rate_rawls
from iclr_welfare.growth import rate_locked
from iclr_welfare.incomes import from_incomes, load_401ksubs
from iclr_welfare.simulation import simulate


def concave_right_limit(
    run: ClaimRun, *, M: int = 1, T: int = 10_000, group: float = 200, simulated: str = "rawlsian"
) -> Measurement:
    """C6a. Control: max_welfare; util_gain would not do, since with concave returns it grows as fast as rawlsian."""
    people = scenarios.concave(
        from_incomes(load_401ksubs(), group, rng=run.seeds.child("incomes").numpy()),
        M,
        rng=run.seeds.child("turns").numpy(),
    )
    target = rate_rawls(people, M)
    names = dict.fromkeys((simulated, "util_gain", "max_welfare"))
    results = {name: simulate(people, name, M, T, key=run.seeds.jax()) for name in names}
    slopes = {name: float(result.late_slope()) for name, result in results.items()}
    figure, axes = new_figure()
    charts.growth_curves(axes, results, {"rawlsian": target, "max_welfare": rate_locked(people, range(M))})
    run.figure("concave", figure)
    return Measurement(
        measured=abs(slopes[simulated] / target - 1),
        baseline=("such an error of max_welfare", abs(slopes["max_welfare"] / target - 1)),
        n=1,
        details={"closed form": target, **{f"late slope of {name}": s for name, s in slopes.items()}},
    )


WINNERS = {
    ("increasing", "decreasing"): (265.25, 216.5),
    ("decreasing", "decreasing"): (230.25, 230.25),
    ("constant", "decreasing"): (247.75, 247.75),
    ("increasing", "increasing"): (216.5, 265.25),
    ("decreasing", "increasing"): (181.5, 181.5),
    ("constant", "increasing"): (199.0, 247.75),
    ("increasing", "constant"): (240.875, 240.875),
    ("decreasing", "constant"): (205.875, 205.904),
    ("constant", "constant"): (223.375, 223.375),
}
"""(trend of f, trend of g): late slopes of rawlsian and util_gain at N = 40, M = 1, as found before."""


def _nine(run: ClaimRun, N: int, T: int, policies: tuple[str, str]) -> dict[tuple[str, str], tuple[float, float]]:
    U0 = run.seeds.child("welfare").numpy().uniform(-100, 500, N)
    found = {}
    for f, g in run.progress(list(WINNERS), desc="combinations"):
        people = scenarios.monotonicity(U0, f, g)
        found[f, g] = tuple(
            float(simulate(people, name, 1, T, key=run.seeds.jax(), record=(), record_every=T // 2).late_slope())
            for name in policies
        )
    figure, axes = new_figure(width=7.6)
    for k, name in enumerate(policies):
        slopes = [v[k] for v in found.values()]
        axes.bar(np.arange(9) + 0.4 * k - 0.2, slopes, 0.4, color=charts.colour(name), label=name)
    short = {"increasing": "rises", "decreasing": "falls", "constant": "level"}
    axes.set_xticks(range(9), [f"f {short[f]}\ng {short[g]}" for f, g in found], fontsize=8)
    axes.set(ylabel="late slope (welfare per step)", ylim=(0, 320))
    axes.legend(frameon=False, ncols=2)
    run.figure("nine", figure)
    return found


def _named(found: dict[tuple[str, str], tuple[float, float]]) -> dict[str, str]:
    return {f"f {f}, g {g}: rawlsian, util_gain": f"{a:.4f}, {b:.4f}" for (f, g), (a, b) in found.items()}


def constant_decay_no_gap(run: ClaimRun, *, N: int = 40, T: int = 6_000, g_trend: str = "constant") -> Measurement:
    """C6b. Control: the same gap with falling g. `g_trend` puts another trend in place of the constant."""
    found = _nine(run, N, T, ("rawlsian", "util_gain"))
    gaps = {
        trend: max(abs(a - b) for (_, g), (a, b) in found.items() if g == trend)
        for trend in ("constant", "decreasing", "increasing")
    }
    baseline = ("largest gap with falling g", gaps["decreasing"])
    return Measurement(measured=gaps[g_trend], baseline=baseline, n=3, details=_named(found))


def monotonicity_table(
    run: ClaimRun, *, N: int = 40, T: int = 6_000, policies: tuple[str, str] = ("rawlsian", "util_gain")
) -> Measurement:
    """C6c. Control: the table with the two policies exchanged."""
    found = _nine(run, N, T, policies)
    off = max(abs(x - y) for key, values in found.items() for x, y in zip(values, WINNERS[key], strict=True))
    swapped = max(abs(x - y) for key, values in found.items() for x, y in zip(values, WINNERS[key][::-1], strict=True))
    return Measurement(measured=off, baseline=("with the policies exchanged", swapped), n=18, details=_named(found))

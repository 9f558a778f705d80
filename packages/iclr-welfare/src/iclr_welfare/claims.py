"""The claims' checks; those of the heat map (C5) are in `heat_map`, those of other shapes (C6) in `beyond_matthew`."""

import numpy as np
from scipy.stats import spearmanr

from iclr_shared.claims import ClaimRun, Measurement
from iclr_shared.plots import new_figure
from iclr_welfare import charts, scenarios
from iclr_welfare.beyond_matthew import concave_right_limit, constant_decay_no_gap, monotonicity_table
from iclr_welfare.conditions import rate_rawls, survival, who_wins
from iclr_welfare.dynamics import Noise
from iclr_welfare.growth import rate_locked, rate_random
from iclr_welfare.heat_map import heat_map_corner, heat_map_falls, heat_map_short_run
from iclr_welfare.incomes import from_incomes, load_401ksubs
from iclr_welfare.population import Population
from iclr_welfare.response import Constant
from iclr_welfare.simulation import compare, simulate, simulate_many
from iclr_welfare.trajectories import Result, crossing_time

__all__ = [
    "concave_right_limit",
    "constant_decay_no_gap",
    "heat_map_corner",
    "heat_map_falls",
    "heat_map_short_run",
    "monotonicity_table",
]


def _start(run: ClaimRun, group: float) -> np.ndarray:
    """Initial welfare drawn from the incomes of 401ksubs."""
    return from_incomes(load_401ksubs(), group, rng=run.seeds.child("incomes").numpy())


def _homogeneous(run: ClaimRun, M: int, group: float, effect: float) -> Population:
    """Fig. 1's people; `effect` scales f^+ - f^- and g^+ - g^-, so that 0 removes the Matthew effect."""
    U0 = _start(run, group)
    N = U0.size
    g_minus, f_minus = 10.0, 240.0 * N
    levels = {
        "g_plus": g_minus + 50.0 * effect,
        "g_minus": g_minus,
        "f_minus": f_minus,
        "f_plus": f_minus + 35.0 * N * effect,
    }
    # The turning points of the full effect: they are drawn so that f + g rises, which nothing does without an effect.
    full = scenarios.turning_points(N, run.seeds.child("turns").numpy(), np.full(N, 35.0 * N), np.full(N, 50.0))
    people = scenarios.linear(U0, x=full, **levels)
    people.check_budget(M)
    return people


def _closed(population: Population, M: int) -> dict[str, float]:
    locked = rate_locked(population, range(M))
    return {"rawlsian": rate_rawls(population, M), "util_gain": locked, "random": rate_random(population, M)}


def _experiment(
    run: ClaimRun, M: int, T: int, seeds: int, group: float, effect: float, policies, common_noise: bool = False
) -> tuple[Population, dict[str, Result]]:
    """Fig. 1. Each policy has shocks of its own, as in the official code, unless `common_noise`."""
    people = _homogeneous(run, M, group, effect)
    noise = Noise.official(people, M)
    key = run.seeds.child("noise", M).jax()
    return people, compare(people, policies, M, T, seeds, key=key, noise=noise, common_noise=common_noise)


def _share(first: Result, second: Result, T: int) -> float:
    return float(np.mean(first.growth_at(T) > second.growth_at(T)))


_THREE = ("rawlsian", "util_gain", "random")


def _order(run, leader, follower, at, budgets, T, seeds, group, effect, name) -> Measurement:
    """Lowest share over budgets of seeds in which `leader` is ahead of `follower` at horizon `at`; control: random in
    the place of util_gain."""
    shares, controls, details = [], [], {}
    figure, axes = new_figure(1, len(budgets), width=5.5 * len(budgets) + 0.5)
    for M, panel in zip(run.progress(budgets, desc="budgets"), np.atleast_1d(axes), strict=True):
        people, results = _experiment(run, M, T, seeds, group, effect, _THREE)
        shares.append(_share(results[leader], results[follower], at))
        instead = {"rawlsian": results["rawlsian"], "util_gain": results["random"]}
        controls.append(_share(instead[leader], instead[follower], at))
        _, same = _experiment(run, M, T, seeds, group, effect, (leader, follower), common_noise=True)
        details[f"M={M}, share"] = shares[-1]
        details[f"M={M}, share under common shocks"] = _share(same[leader], same[follower], at)
        details[f"M={M}, N"] = people.N
        for policy, result in results.items():
            details[f"M={M}, mean R({at}) of {policy}"] = float(result.growth_at(at).mean())
        charts.growth_curves(panel, results, _closed(people, M))
        panel.set_title(f"M = {M}, N = {people.N}")
    run.figure(name, figure)
    first, second = (name.replace("util_gain", "random") for name in (leader, follower))
    return Measurement(
        measured=min(shares),
        baseline=(f"lowest share of seeds with {first} ahead of {second}", min(controls)),
        n=seeds * len(budgets),
        details=details,
        note="Each policy has shocks of its own, as in the official code. With the same limits for all, random help "
        "grows as fast as Rawlsian help in the long run; they differ in who is worst off, not in the mean.",
    )


def utilitarian_leads_early(
    run: ClaimRun,
    *,
    budgets: tuple[int, ...] = (1, 10),
    T: int = 10_000,
    at: int = 10,
    seeds: int = 20,
    group: float = 200,
    effect: float = 1.0,
) -> Measurement:
    """C1a: R_util(10) > R_rawls(10) in every seed. Control: random in the place of util_gain. `effect` scales
    f^+ - f^- and g^+ - g^-."""
    return _order(run, "util_gain", "rawlsian", at, budgets, T, seeds, group, effect, "growth")


def rawlsian_wins_late(
    run: ClaimRun,
    *,
    budgets: tuple[int, ...] = (1, 10),
    T: int = 10_000,
    seeds: int = 20,
    group: float = 200,
    effect: float = 1.0,
) -> Measurement:
    """C1b: R_rawls(T) > R_util(T) in every seed. Control: random in the place of util_gain. `effect` as in
    `utilitarian_leads_early`."""
    return _order(run, "rawlsian", "util_gain", T, budgets, T, seeds, group, effect, "growth")


def _slopes(run, policy, budgets, T, seeds, group, simulated) -> Measurement:
    """Largest relative error of late slopes with noise; control: the other policy's slope and this closed form."""
    errors, controls, details = [], [], {}
    figure, axes = new_figure(1, len(budgets), width=4.2 * len(budgets) + 0.5)
    other = "util_gain" if policy == "rawlsian" else "rawlsian"
    for M, panel in zip(run.progress(budgets, desc="budgets"), np.atleast_1d(axes), strict=True):
        people, results = _experiment(run, M, T, seeds, group, 1.0, (simulated or policy, other))
        target = _closed(people, M)[policy]
        slope, against = (results[name].late_slope() for name in (simulated or policy, other))
        errors.append(np.abs(slope / target - 1).max())
        controls.append(np.abs(against / target - 1).max())
        details |= {f"M={M}, closed form": target, f"M={M}, mean late slope": float(slope.mean())}
        details |= {f"M={M}, largest error": float(errors[-1]), f"M={M}, largest error of {other}": controls[-1]}
        details |= {f"M={M}, error of the mean": float(abs(slope.mean() / target - 1))}
        panel.plot(np.arange(seeds), slope, "o", color=charts.colour(policy), label=f"{policy}, simulated")
        panel.axhline(target, color="black", linestyle="--", linewidth=1, label="closed form")
        panel.set(xlabel="seed", ylabel="late slope (welfare per step)", title=f"M = {M}")
        panel.xaxis.get_major_locator().set_params(integer=True)
        panel.legend(frameon=False)
    run.figure("slopes", figure)
    return Measurement(
        measured=float(max(errors)),
        baseline=(f"such an error of {other}", float(max(controls))),
        n=seeds * len(budgets),
        details=details,
        note="At M = 10 the two closed forms are 1.5 % apart, so that 2 % can tell them apart at M = 1 only.",
    )


def rawlsian_late_slope(
    run: ClaimRun,
    *,
    budgets: tuple[int, ...] = (1, 10),
    T: int = 10_000,
    seeds: int = 20,
    group: float = 200,
    simulated: str | None = None,
) -> Measurement:
    """C1c: (M f^+ - (N - M) g^-)/N. `simulated` puts another policy in place of the one the closed form is for."""
    return _slopes(run, "rawlsian", budgets, T, seeds, group, simulated)


def utilitarian_late_slope(
    run: ClaimRun,
    *,
    budgets: tuple[int, ...] = (1, 10),
    T: int = 10_000,
    seeds: int = 20,
    group: float = 200,
    simulated: str | None = None,
) -> Measurement:
    """C1d: (M f^+ - (N - M) g^+)/N. Under noise the locked set still swaps members at times: the slope lies a little
    above its closed form."""
    return _slopes(run, "util_gain", budgets, T, seeds, group, simulated)


def noise_free_late_slopes(
    run: ClaimRun, *, budgets: tuple[int, ...] = (1, 10), T: int = 10_000, group: float = 200, noise: float = 0.0
) -> Measurement:
    """C1e: both rates to rounding. Control: R(T), transient included. `noise` scales the official variance."""
    errors, details, controls = [], {}, []
    for M in budgets:
        people = _homogeneous(run, M, group, 1.0)
        shocks = Noise(noise * Noise.official(people, M).variance)
        for policy in ("rawlsian", "util_gain"):
            result = simulate(people, policy, M, T, key=run.seeds.child(M).jax(), noise=shocks, record=())
            slope, target = float(result.late_slope()), _closed(people, M)[policy]
            errors.append(abs(slope / target - 1))
            controls.append(abs(float(result.growth_at(T)) / target - 1))
            details[f"M={M}, {policy}: slope, closed form"] = f"{slope:.10f}, {target:.10f}"
    baseline = ("smallest such error of R(T) from the start, transient included", min(controls))
    return Measurement(measured=max(errors), baseline=baseline, n=len(errors), details=details)


def crossing_comes_early(
    run: ClaimRun, *, T: int = 10_000, seeds: int = 20, group: float = 200, effect: float = 1.0
) -> Measurement:
    """C1f. The crossing for good: a seed that does not stay ahead to the end counts as infinitely late."""
    _, results = _experiment(run, 1, T, seeds, group, effect, _THREE)
    times = {
        (name, lasting): np.float64(crossing_time(results[name], results["util_gain"], lasting=lasting))
        for name in ("rawlsian", "random")
        for lasting in (False, True)
    }
    late = {what: np.where(t < 0, np.inf, t) for what, t in times.items()}
    figure, axes = new_figure(1, 1)
    gap = results["rawlsian"].growth[:, 1:] - results["util_gain"].growth[:, 1:]
    axes.plot(results["rawlsian"].times[1:], gap.T, color="0.6", linewidth=0.6)
    axes.plot(results["rawlsian"].times[1:], gap.mean(0), color="black", label="mean over seeds")
    axes.axhline(0, color=charts.colour("util_gain"), linewidth=1)
    axes.set(xscale="log", xlabel="horizon T (steps)", ylabel="R_rawls(T) - R_util(T) (welfare per step)")
    axes.legend(frameon=False)
    run.figure("crossing", figure)
    return Measurement(
        measured=float(late["rawlsian", True].max()),
        baseline=("latest crossing time of random over utilitarian", float(late["random", True].max())),
        n=seeds,
        details={
            "median first crossing": float(np.median(late["rawlsian", False])),
            "latest first crossing": float(late["rawlsian", False].max()),
            "median crossing for good": float(np.median(late["rawlsian", True])),
        },
    )


def _heterogeneous(run: ClaimRun, N: int, M: int, kind: str) -> Population:
    rng = run.seeds.child("people", M, kind).numpy()
    U0 = rng.choice(load_401ksubs() / 1000.0, N, replace=False)
    people = scenarios.heterogeneous(U0, M, rng=rng)
    if kind == "linear-clipped":
        return people
    return Population(U0, Constant(people.f_plus), Constant(people.g_minus))


def equalised_rate_is_exact(
    run: ClaimRun, *, N: int = 40, budgets: tuple[int, ...] = (1, 3), T: int = 10_000, policy: str = "rawlsian"
) -> Measurement:
    """C2a, for constant and for linear-clipped f and g. Control: the official code's rate, with N in place of M."""
    errors, official, details = [], [], {}
    figure, axes = new_figure(width=4.8, height=4.4)
    for M in budgets:
        for kind in ("constant", "linear-clipped"):
            people = _heterogeneous(run, N, M, kind)
            target = rate_rawls(people, M)
            slope = float(simulate(people, policy, M, T, key=run.seeds.jax(), record=()).late_slope())
            weight = 1 / (people.f_plus + people.g_minus)
            theirs = float(np.sum(people.f_plus * weight) / np.sum(weight))
            errors.append(abs(slope / target - 1))
            official.append(abs(theirs / target - 1))
            details[f"M={M}, {kind}: slope, r(f⁺, g⁻), official formula"] = f"{slope:.4f}, {target:.4f}, {theirs:.1f}"
            axes.plot([target], [slope], "o" if kind == "constant" else "s", label=f"M = {M}, {kind}")
    axes.axline((target, target), slope=1, color="black", linewidth=0.8, linestyle="--")
    axes.set(xlabel="equalised rate r(f⁺, g⁻)", ylabel="simulated late slope (welfare per step)")
    axes.legend(frameon=False)
    run.figure("rates", figure)
    baseline = ("smallest such error of the official code's formula", min(official))
    return Measurement(measured=max(errors), baseline=baseline, n=len(errors), details=details)


def spread_vanishes(
    run: ClaimRun,
    *,
    N: int = 40,
    M: int = 1,
    horizons: tuple[int, ...] = (1_000, 3_000, 10_000, 30_000),
    policy: str = "rawlsian",
) -> Measurement:
    """C2b: (max U(T) - min U(T))/T falls like 1/T. Control: util_gain, whose spread grows like T."""
    people = _heterogeneous(run, N, M, "linear-clipped")
    spread = {
        name: [
            float(np.ptp(simulate(people, name, M, T, key=run.seeds.jax(), record=(), record_every=100).U_T)) / T
            for T in horizons
        ]
        for name in (policy, "util_gain")
    }
    slope = {name: float(np.polyfit(np.log(horizons), np.log(values), 1)[0]) for name, values in spread.items()}
    figure, axes = new_figure(width=5.6)
    for name, values in spread.items():
        axes.plot(horizons, values, "o-", color=charts.colour(name), label=f"{name}: slope {slope[name]:.2f}")
    axes.set(
        xscale="log", yscale="log", xlabel="horizon T (steps)", ylabel="(max U(T) - min U(T))/T (welfare per step)"
    )
    axes.legend(frameon=False)
    run.figure("spread", figure)
    series = {"T": list(horizons), **{f"spread/T, {name}": values for name, values in spread.items()}}
    return Measurement(
        measured=slope[policy], baseline=("util_gain", slope["util_gain"]), n=len(horizons), series=series
    )


def locked_rate_is_exact(
    run: ClaimRun, *, N: int = 40, budgets: tuple[int, ...] = (1, 3), T: int = 10_000, observed: bool = True
) -> Measurement:
    """C2c, S being whom the simulation helped in its second half. Control: another S (also `observed=False`)."""
    errors, controls, details = [], [], {}
    for M in budgets:
        people = _heterogeneous(run, N, M, "linear-clipped")
        for policy in ("util_gain", "util_return", "max_welfare"):
            result = simulate(people, policy, M, T, key=run.seeds.jax(), record=())
            slope, S = float(result.late_slope()), result.locked_set
            wrong = np.setdiff1d(np.arange(2 * M + 1), S)[:M]
            errors.append(abs(slope / rate_locked(people, S if observed else wrong) - 1))
            controls.append(abs(slope / rate_locked(people, wrong) - 1))
            details[f"M={M}, {policy}: slope, S"] = f"{slope:.6f}, {S.tolist()}"
    baseline = ("smallest such error with another set", min(controls))
    return Measurement(measured=max(errors), baseline=baseline, n=len(errors), details=details)


def _random_people(rng: np.random.Generator, N: int, M: int, incomes: np.ndarray) -> Population:
    """People around those of Fig. 1, each limit spread by a factor of its own; the spread itself is drawn too."""
    spread = rng.uniform(0.0, 0.3)
    f_minus = rng.uniform(1.2, 6.0) * 60.0 * N / M * rng.uniform(1 - spread, 1 + spread, N)
    f_plus = f_minus * (1 + rng.uniform(0.05, 0.6) * rng.uniform(1 - spread, 1 + spread, N))
    g_plus = 60.0 * rng.uniform(1 - spread, 1 + spread, N)
    g_minus = g_plus * rng.uniform(0.05, 0.9)
    return scenarios.linear(rng.choice(incomes, N, replace=False), f_minus, f_plus, g_plus, g_minus, sum_check=False)


def condition_names_the_winner(
    run: ClaimRun, *, populations: int = 200, N: int = 30, M: int = 2, T: int = 6_000, shuffle: bool = False
) -> Measurement:
    """C3: sign of the simulated long-run difference against the inequality, S as observed; |gap| < 0.5 % left out.

    Control: always naming Rawlsian, as the homogeneous theorem does. `shuffle` gives each population the verdict on
    another one.
    """
    rng, incomes, people = run.seeds.child("people").numpy(), load_401ksubs() / 1000.0, []
    while len(people) < populations:
        drawn = _random_people(rng, N, M, incomes)
        if survival(drawn, M) and not drawn.sum_falls.any():
            people.append(drawn)
    key = run.seeds.child("simulation").jax()
    results = {
        name: simulate_many(people, name, M, T, key=key, record=(), record_every=100)
        for name in ("rawlsian", "util_gain")
    }
    measured = (results["rawlsian"].late_slope() - results["util_gain"].late_slope())[:, 0]
    verdicts = [who_wins(p, M, S) for p, S in zip(people, results["util_gain"].locked_set[:, 0], strict=True)]
    gap = np.array([v.gap for v in verdicts])
    clear = np.abs(gap) >= 0.005 * np.array([max(abs(v.rawls), abs(v.locked)) for v in verdicts])
    said = np.roll(gap, 1) if shuffle else gap
    right = np.sign(measured[clear]) == np.sign(said[clear])
    figure, axes = new_figure(width=5.2, height=4.6)
    axes.plot(gap[clear], measured[clear], "o", markersize=3, label="populations")
    axes.plot(gap[~clear], measured[~clear], "o", markersize=3, color="0.7", label="|gap| < 0.5 %, left out")
    axes.axline((0, 0), slope=1, color="black", linewidth=0.8, linestyle="--")
    axes.set(xlabel="R_rawls - R_S in closed form", ylabel="simulated difference of late slopes (welfare per step)")
    axes.legend(frameon=False)
    run.figure("winners", figure)
    return Measurement(
        measured=float(right.mean()),
        baseline=("always naming Rawlsian", float((measured[clear] > 0).mean())),
        n=int(clear.sum()),
        details={
            "left out, |gap| < 0.5 %": int((~clear).sum()),
            "utilitarian policy not fully locked in the second half": int((~results["util_gain"].is_locked).sum()),
        },
    )


def _ruin(run: ClaimRun, N: int) -> Population:
    rng = run.seeds.child("people").numpy()
    U0 = np.round(rng.choice(load_401ksubs() / 1000.0, N, replace=False))
    return scenarios.ruin_example(U0, rng=rng)


def _ruin_slope(run: ClaimRun, policy: str, simulated: str, N: int, T: int) -> Measurement:
    people = _ruin(run, N)
    target = {"rawlsian": rate_rawls(people, 1), "util_gain": rate_locked(people, [0])}[policy]
    other = {"rawlsian": "util_gain", "util_gain": "rawlsian"}[policy]
    results = {
        name: simulate(people, name, 1, T, key=run.seeds.jax(), record=("min",))
        for name in dict.fromkeys((simulated, other))
    }
    slope, against = (float(results[name].late_slope()) for name in (simulated, other))
    figure, axes = new_figure()
    charts.growth_curves(axes, results, {policy: target})
    run.figure("ruin", figure)
    return Measurement(
        measured=abs(slope / target - 1),
        baseline=(f"such an error of {other}", abs(against / target - 1)),
        n=1,
        details={"late slope": slope, "closed form": target},
    )


def ruin_rawlsian_slope(run: ClaimRun, *, N: int = 200, T: int = 10_000, simulated: str = "rawlsian") -> Measurement:
    """C4a, without noise: r(f^-, g^+). Control: util_gain. `simulated` puts another policy in its place."""
    return _ruin_slope(run, "rawlsian", simulated, N, T)


def ruin_utilitarian_slope(
    run: ClaimRun, *, N: int = 200, T: int = 10_000, simulated: str = "util_gain"
) -> Measurement:
    """C4b, without noise: R_S. Control: rawlsian. `simulated` puts another policy in its place."""
    return _ruin_slope(run, "util_gain", simulated, N, T)


def ruin_reverses(run: ClaimRun, *, N: int = 200, T: int = 10_000, seeds: int = 20, ruined: bool = True) -> Measurement:
    """C4c, with noise. Control: the returns of Fig. 1, under which everyone survives (also with `ruined=False`)."""
    ruin = _ruin(run, N)
    fig1 = scenarios.homogeneous(ruin.U0, rng=run.seeds.child("turns").numpy())
    options = {"key": run.seeds.jax(), "common_noise": False, "record_every": 10}
    found = [
        compare(p, ("rawlsian", "util_gain"), 1, T, seeds, noise=Noise.official(p, 1), **options) for p in (ruin, fig1)
    ]
    shares = [_share(results["util_gain"], results["rawlsian"], T) for results in found]
    people, results = (ruin, found[0]) if ruined else (fig1, found[1])
    figure, axes = new_figure()
    charts.growth_curves(axes, results, {"rawlsian": rate_rawls(people, 1), "util_gain": rate_locked(people, [0])})
    run.figure("growth", figure)
    return Measurement(
        measured=shares[0 if ruined else 1],
        baseline=("with the returns of Fig. 1, under which everyone survives", shares[1]),
        n=seeds,
        details={f"mean R({T}) of {name}": float(result.growth_at(T).mean()) for name, result in results.items()},
    )


_SIX = ("rawlsian", "util_gain", "util_return", "util_need", "max_welfare", "random")


def _ranked(run: ClaimRun, at: int, M: int, T: int, seeds: int, group: float, effect: float) -> Measurement:
    _, results = _experiment(run, M, T, seeds, group, effect, _SIX)
    horizons = sorted({t for t in (10, 100, 1_000, 10_000, T) if t <= T})
    early, late = charts.ranks(results, 10), charts.ranks(results, T)
    values = {t: [float(results[name].growth_at(t).mean()) for name in _SIX] for t in (10, T)}
    figure, axes = new_figure(width=8)
    charts.rank_chart(axes, results, horizons)
    run.figure("ranks", figure)
    table = charts.ranks(results, at)
    return Measurement(
        measured=float(table["rawlsian"]),
        baseline=("rank of util_gain at the same horizon", float(table["util_gain"])),
        n=seeds,
        details={
            f"rank correlation of T = 10 and T = {T}": float(spearmanr(values[10], values[T]).statistic),
            "ranks at 10": early,
            f"ranks at {T}": late,
            **{f"mean R({t})": dict(zip(_SIX, values[t], strict=True)) for t in values},
        },
        note="With the same limits for all, rawlsian, util_need and random have one long-run rate and share a rank.",
    )


def short_horizon_misjudges(
    run: ClaimRun,
    *,
    at: int = 10,
    M: int = 1,
    T: int = 10_000,
    seeds: int = 20,
    group: float = 200,
    effect: float = 1.0,
) -> Measurement:
    """C7a: rank 5 is second to last of six, or a tie for the last place. Control: util_gain's rank. `effect` as in
    `utilitarian_leads_early`."""
    return _ranked(run, at, M, T, seeds, group, effect)


def long_horizon_vindicates(
    run: ClaimRun, *, M: int = 1, T: int = 10_000, seeds: int = 20, group: float = 200, at: int | None = None
) -> Measurement:
    """C7b: rank 1, shared with those within 0.1 %. Control: util_gain's rank. `at` judges at another horizon."""
    return _ranked(run, at or T, M, T, seeds, group, 1.0)

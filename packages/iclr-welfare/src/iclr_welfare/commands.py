"""The verbs: simulate, condition and compare, on the user's own CSV of welfare or incomes."""

import contextlib
import dataclasses
import functools
import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
import tyro

from iclr_shared.checkpoints import Checkpoint
from iclr_shared.errors import InputError
from iclr_shared.files import atomic_path, atomic_write
from iclr_shared.progress import progress
from iclr_shared.tables import print_table
from iclr_welfare import charts
from iclr_welfare.conditions import (
    assumptions,
    burn_in,
    is_absorbing,
    rate_rawls,
    regime,
    ruin_margin,
    survival_margin,
    who_wins,
    wins_whatever_happens,
)
from iclr_welfare.dynamics import Noise
from iclr_welfare.growth import (
    best_locked_set,
    rate_locked,
    rate_random,
    rate_rawls_down,
    rate_rawls_up,
    worst_locked_set,
)
from iclr_welfare.incomes import read_population
from iclr_welfare.policies import LOCKING, POLICIES, find
from iclr_welfare.population import Population, name_people
from iclr_welfare.scenarios import official_returns
from iclr_welfare.simulation import simulate as simulate_policy
from iclr_welfare.trajectories import Result, crossing_time


@dataclasses.dataclass(frozen=True)
class People:
    """How the file is read, and what help and neglect do where the file does not say."""

    column: str = "welfare"
    """Column of initial welfare, or of incomes in dollars with --group."""
    group: float | None = None
    """Households per person: the column holds incomes, and people are drawn from them, in thousands of dollars."""
    g_plus: float = 60.0
    """Decay at low welfare, per step, for people without a column g_plus."""
    g_minus: float = 10.0
    """Decay at high welfare, per step, for people without a column g_minus."""
    f_minus: float | None = None
    """Return at low welfare, per step, for people without a column f_minus. Default: 4 g_plus N."""
    f_plus: float | None = None
    """Return at high welfare, per step, without a column f_plus. Default: f_minus + (g_minus + g_plus) N/2."""
    matthew: bool = True
    """Whether to insist on the Matthew effect (f does not fall, g does not rise with welfare)."""

    def read(self, file: Path, seed: int) -> Population:
        """The population in `file`."""

        def levels(N: int) -> dict[str, float]:
            low, high = official_returns(N, self.g_plus, self.g_minus, self.f_minus, self.f_plus)
            return {"f_minus": low, "f_plus": high, "g_plus": self.g_plus, "g_minus": self.g_minus}

        if seed < 0:
            raise InputError(f"--seed must not be negative, but is {seed}.")
        rng = np.random.default_rng(seed)
        options = {"levels": levels, "group": self.group, "rng": rng, "matthew": self.matthew, "sum_check": False}
        return read_population(file, self.column, **options)


@dataclasses.dataclass(frozen=True)
class Run:
    """How the simulation is run."""

    budget: int = 1
    """Interventions per step, M."""
    horizon: int = 10_000
    """Steps, T."""
    policies: str = "rawlsian,util_gain,random"
    """Names joined by commas: rawlsian, util_gain, util_return, util_need, max_welfare, random."""
    seeds: int = 20
    """Number of seeds. All policies get the same shocks."""
    seed: int = 0
    """Root of all random numbers."""
    noise: str = "official"
    """Variance of the shocks per step, 0 for none; "official" is M (max f⁺ + max g⁺)."""
    rounded: bool = False
    """Whether returns, decays and shocks are rounded to integers, as in the official code."""
    gini_shift: float | None = None
    """Record the Gini coefficient after adding this to everyone's welfare (it has no meaning for negative welfare)."""
    record_every: int | None = None
    """Steps between records. Default: so that records stay within about 250 MB."""
    resume: bool = False
    """Go on with an interrupted run in the same --out."""
    quiet: bool = False
    """Show no progress."""

    @property
    def every(self) -> int:
        """Steps between records."""
        return -(-self.horizon * self.seeds // 10_000_000) if self.record_every is None else self.record_every

    def names(self) -> list[str]:
        """The policies asked for, each once."""
        names = list(dict.fromkeys(name.strip() for name in self.policies.split(",") if name.strip()))
        if not names:
            raise InputError("No policy was named; try --policies rawlsian,util_gain.")
        for name in names:
            find(name)
        return names

    def shocks(self, population: Population) -> Noise:
        """The noise asked for."""
        if self.noise == "official":
            return Noise.official(population, self.budget)
        try:
            return Noise(float(self.noise))
        except ValueError as error:
            if isinstance(error, InputError):
                raise
            raise InputError(f"--noise must be a variance or 'official', not {self.noise!r}.") from None

    def results(self, population: Population, out: Path) -> dict[str, Result]:
        """Simulate each policy, in chunks that are kept in OUT/checkpoints until all are done."""
        population.check_budget(self.budget)
        T, kept = self.horizon, out / "checkpoints"
        if self.seeds < 1:
            raise InputError(f"At least one seed is needed, not {self.seeds}.")
        _make_folder(out)
        if not self.resume:
            _forget(kept)
        every = self.every
        record = ("mean", "average", "min", *(("gini",) if self.gini_shift is not None else ()))
        results = {}
        for name in self.names():
            results[name] = simulate_policy(
                population,
                name,
                self.budget,
                T,
                key=jax.random.key(self.seed),
                seeds=self.seeds,
                noise=self.shocks(population),
                record=record,
                record_every=every,
                gini_shift=self.gini_shift or 0.0,
                rounded=self.rounded,
                chunk=every * max(T // (50 * every), 1) if every > 0 else None,
                progress=functools.partial(progress, desc=name, quiet=self.quiet),
                checkpoint=Checkpoint(kept / name, keep=1, every_s=5.0),
            )
        _forget(kept)
        return results


def _make_folder(out: Path) -> None:
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"Cannot write to {out}: {error.strerror}. Choose another --out.") from None


def _forget(kept: Path) -> None:
    """Remove the checkpoints of a run, and their folder unless it holds anything else, which is the user's."""
    for name in POLICIES:
        shutil.rmtree(kept / name, ignore_errors=True)
    with contextlib.suppress(OSError):
        kept.rmdir()


def simulate(
    file: tyro.conf.Positional[Path],
    people: tyro.conf.OmitArgPrefixes[People],
    run: tyro.conf.OmitArgPrefixes[Run],
    *,
    out: Path = Path("welfare-simulate"),
) -> None:
    """Simulate who is helped, and how welfare grows, under intervention policies.

    Writes OUT/trajectories.csv (mean over seeds at each recorded time), OUT/people.csv (who is helped, and where each
    person ends up), OUT/run.json (all parameters) and OUT/simulate.png.

    Args:
        file: CSV with a column of initial welfare (or of incomes, with --group) and, if each person has parameters of
            their own, columns f_minus, f_plus, g_plus, g_minus and f_x_minus, f_x_plus, g_x_plus, g_x_minus.
        people: how the file is read.
        run: how the simulation is run.
        out: folder for the results.
    """
    population = people.read(file, run.seed)
    results = run.results(population, out)
    closed = {name: closed_form(population, result) for name, result in results.items()}
    settled = _long_run_is_reached(population, run.horizon)
    rows = []
    for name, result in results.items():
        late = float(result.late_slope().mean()) if settled else None
        share = (result.selected_counts.mean(axis=0) > 0).mean()
        row = [name, _at(result, 10), _at(result, run.horizon), late, closed[name], float(result.min[:, -1].mean())]
        rows.append([*row, f"{100 * share:.0f} %", *_gini(result)])
    columns = ["policy", "R(10)", f"R({run.horizon})", "late slope", "closed form", "min U(T)", "people ever helped"]
    print_table(
        [*columns, *(["Gini(T)"] if run.gini_shift is not None else [])],
        rows,
        title=f"{file.name}: {population.N} people, {run.budget} helped per step, {run.seeds} seeds",
    )
    print(f"regime: {regime(population, run.budget)}")
    _say_caveats(population, run.horizon)
    _write_trajectories(results, out / "trajectories.csv")
    _write_people(population, results, out / "people.csv")
    _write_parameters(results, out / "run.json")
    known = {name: rate for name, rate in closed.items() if rate is not None}
    _save(charts.simulation_figure(results, known), out / "simulate.png")
    print(f"wrote {out}/trajectories.csv, people.csv, run.json, simulate.png")


def condition(
    file: tyro.conf.Positional[Path],
    people: tyro.conf.OmitArgPrefixes[People],
    *,
    budget: int = 1,
    helped: str = "",
    seed: int = 0,
    scales: tuple[float, float] = (0.01, 10.0),
    out: Path = Path("welfare-condition"),
) -> None:
    """The exact conditions: does help save everyone or ruin everyone, and does Rawlsian or utilitarian help win?

    No simulation. Writes OUT/conditions.json, OUT/regions.csv (the region for each factor on the returns and each
    budget) and OUT/regions.png. An assumption that fails is named, with the people for whom it fails.

    Args:
        file: CSV as for `simulate`.
        people: how the file is read.
        budget: interventions per step, M.
        helped: the set S that the utilitarian policy helps, as row numbers from 0 joined by commas; empty for all sets.
        seed: used with --group only.
        scales: range of the factor on the returns f in the map of regions.
        out: folder for the results.
    """
    if not 1e-9 <= scales[0] < scales[1] <= 1e9:
        raise InputError(
            f"--scales needs two positive numbers in ascending order (1e-9 to 1e9), not {scales[0]:g} {scales[1]:g}."
        )
    population = people.read(file, seed)
    population.check_budget(budget)
    _make_folder(out)
    M = budget
    held = assumptions(population, M)
    print_table(
        ["assumption", "holds", "detail"],
        [[a.name, "yes" if a.holds else "NO" if a.needed else "no (warning)", a.detail] for a in held],
        title=f"{file.name}: {population.N} people, {M} helped per step",
    )
    S = _indices(helped)
    best, worst = best_locked_set(population, M), worst_locked_set(population, M)
    where = regime(population, M)
    facts: dict[str, Any] = {"N": population.N, "M": M, "regime": where}
    facts |= {"survival margin": survival_margin(population, M), "ruin margin": ruin_margin(population, M)}
    if where == "indeterminate":
        facts |= {"R rawlsian, if all rise": rate_rawls_up(population, M)}
        facts |= {"R rawlsian, if all fall": rate_rawls_down(population, M)}
    else:
        facts["R rawlsian"] = rate_rawls(population, M)
    facts["R random"] = _or_none(lambda: rate_random(population, M))
    facts["R utilitarian, best set S"] = rate_locked(population, best)
    facts["R utilitarian, worst set S"] = rate_locked(population, worst)
    if S is not None:
        if len(S) != M:
            raise InputError(f"--helped names {len(S)} people but the budget is {M}.")
        facts["R utilitarian, S given"] = rate_locked(population, S)
        facts["S given is kept for ever by util_gain"] = is_absorbing(population, S)
    failed = "; ".join(f"{a.name} fails ({a.detail})" for a in held if a.needed and not a.holds)
    if failed:
        facts["winner"] = None
        answer = f"no closed-form answer: {failed}. Simulate instead."
    else:
        facts["winner"] = who_wins(population, M, S).winner if S is not None else wins_whatever_happens(population, M)
        answer = f"winner in the long run: {facts['winner']}" + ("" if S is not None else " (over all sets S)")
    print_table(["quantity", "value"], [[name, value] for name, value in facts.items() if name != "winner"])
    print(answer)
    low, high = scales
    factors = np.geomspace(low, high, 61)
    budgets = np.unique(np.geomspace(1, population.N - 1, 40).round().astype(int)).tolist()
    grid = charts.region_grid(population, factors, budgets)
    facts["assumptions"] = [dataclasses.asdict(a) for a in held]
    atomic_write(out / "conditions.json", json.dumps(facts, indent=1, ensure_ascii=False))
    rows = [
        {"factor": f, "budget": m, "region": charts.REGIONS[grid[j, i]]}
        for j, m in enumerate(budgets)
        for i, f in enumerate(factors)
    ]
    _write_csv(rows, out / "regions.csv")
    _save(charts.region_figure(population, M, factors, budgets, grid), out / "regions.png")
    print(f"wrote {out}/conditions.json, regions.csv, regions.png")


def compare(
    file: tyro.conf.Positional[Path],
    people: tyro.conf.OmitArgPrefixes[People],
    run: tyro.conf.OmitArgPrefixes[Run],
    *,
    horizons: str = "10,100,1000,10000",
    out: Path = Path("welfare-compare"),
) -> None:
    """Rank policies at short and long horizons, and hold the simulation against the closed forms.

    The crossing time is that of the first policy named over the second. Writes OUT/ranks.csv, OUT/trajectories.csv,
    OUT/run.json and OUT/compare.png.

    Args:
        file: CSV as for `simulate`.
        people: how the file is read.
        run: how the simulation is run.
        horizons: times at which policies are ranked, joined by commas; those beyond the horizon, or between records,
            are left out.
        out: folder for the results.
    """
    names = run.names()
    if len(names) < 2:
        raise InputError("Comparing needs at least two policies, such as --policies rawlsian,util_gain.")
    wanted = _indices(horizons) or []
    if any(t <= 0 for t in wanted):
        raise InputError(f"--horizons must be positive, not {min(wanted)}.")
    times = [t for t in sorted({*wanted, run.horizon}) if t == run.horizon or (t < run.horizon and t % run.every == 0)]
    population = people.read(file, run.seed)
    results = run.results(population, out)
    closed = {name: closed_form(population, result) for name, result in results.items()}
    settled = _long_run_is_reached(population, run.horizon)
    ranked = {t: charts.ranks(results, t) for t in times}
    rows = []
    for name, result in results.items():
        slope = result.late_slope()
        error = abs(float(slope.mean()) / closed[name] - 1) if settled and closed[name] else None
        cells = [f"{ranked[t][name]} ({_at(result, t):.6g})" for t in times]
        rows.append([name, *cells, float(slope.mean()) if settled else None, closed[name], error])
    print_table(
        ["policy", *(f"rank (R) at {t}" for t in times), "late slope", "closed form", "relative error"],
        rows,
        title=f"{file.name}: {population.N} people, {run.budget} helped per step, {run.seeds} seeds",
    )
    first, second = (results[name] for name in names[:2])
    crossings = crossing_time(first, second)
    crossed = crossings[crossings >= 0]
    typical = int(np.median(crossed)) if crossed.size else None
    if crossed.size:
        print(
            f"{names[0]} overtakes {names[1]} at T* = {typical} (median; {crossed.min()} to {crossed.max()}; "
            f"in {crossed.size} of {run.seeds} seeds)"
        )
    else:
        print(f"{names[0]} does not overtake {names[1]} within {run.horizon} steps")
    _say_verdict(population, results, settled)
    _say_caveats(population, run.horizon)
    table = [
        {"policy": name, "T": t, "R": _at(results[name], t), "rank": ranked[t][name], "closed_form": closed[name]}
        for name in names
        for t in times
    ]
    _write_csv(table, out / "ranks.csv")
    _write_trajectories(results, out / "trajectories.csv")
    _write_parameters(results, out / "run.json")
    known = {name: rate for name, rate in closed.items() if rate is not None}
    _save(charts.comparison_figure(results, known, times, typical), out / "compare.png")
    print(f"wrote {out}/ranks.csv, trajectories.csv, run.json, compare.png")


def closed_form(population: Population, result: Result) -> float | None:
    """The long-run rate of the policy in closed form; None where there is none, or where it depends on the set S that
    a simulation shorter than the burn-in does not show."""
    if result.policy == "rawlsian":
        return _or_none(lambda: rate_rawls(population, result.M))
    if result.policy == "random":
        return _or_none(lambda: rate_random(population, result.M))
    if result.policy in LOCKING and not (population.f_falls.any() or population.g_rises.any()):
        if _long_run_is_reached(population, result.T):
            return float(np.mean([rate_locked(population, S) for S in result.locked_set.reshape(-1, result.M)]))
        best, worst = (rate_locked(population, S(population, result.M)) for S in (best_locked_set, worst_locked_set))
        return best if np.isclose(best, worst, rtol=1e-12) else None
    return None


def _say_verdict(population: Population, results: Mapping[str, Result], settled: bool) -> None:
    """The exact condition beside what was simulated, for the Rawlsian policy against a locking one."""
    rivals = [name for name in results if name in LOCKING]
    if "rawlsian" not in results or not rivals:
        return
    rival = results[rivals[0]]
    try:
        if not settled:
            winner = wins_whatever_happens(population, rival.M)
            print(f"exact condition over all sets S, winner in the long run: {winner}")
            return
        verdicts = [who_wins(population, rival.M, S) for S in rival.locked_set]
    except InputError as error:
        print(f"exact condition: {error}")
        return
    winners = sorted({v.winner for v in verdicts})
    gap = results["rawlsian"].late_slope() - rival.late_slope()
    agree = np.mean(np.sign(gap) == np.sign([v.gap for v in verdicts]))
    print(
        f"exact condition with the sets S that {rivals[0]} helped: {' or '.join(winners)} wins in the long run; "
        f"the simulated late slopes agree in {100 * agree:.0f} % of seeds"
    )


def _long_run_is_reached(population: Population, horizon: int) -> bool:
    return horizon // 2 >= burn_in(population)


def _say_caveats(population: Population, horizon: int) -> None:
    if not _long_run_is_reached(population, horizon):
        steps = burn_in(population)
        print(
            f"horizon too short for a long-run statement: the burn-in alone is about {steps} steps; "
            f"use --horizon {2 * steps} or more"
        )
    if population.sum_falls.any():
        print(f"warning: f + g falls with welfare for {name_people(np.flatnonzero(population.sum_falls))}")


def _or_none(function: Callable[[], float]) -> float | None:
    try:
        return function()
    except InputError:
        return None


def _at(result: Result, t: int) -> float | None:
    return float(result.growth_at(t).mean()) if t in result.times else None


def _gini(result: Result) -> list[float | None]:
    if result.gini is None:
        return []
    last = result.gini[:, -1]
    return [None if np.isnan(last).any() else float(last.mean())]


def _indices(text: str) -> list[int] | None:
    if not text.strip():
        return None
    try:
        return [int(part) for part in text.split(",") if part.strip()]
    except ValueError:
        raise InputError(f"Expected whole numbers joined by commas, not {text!r}.") from None


def _write_csv(rows: list[dict[str, Any]] | dict[str, Any], path: Path) -> None:
    import pandas

    with atomic_path(path) as temporary:
        pandas.DataFrame(rows).to_csv(temporary, index=False)


def _write_trajectories(results: Mapping[str, Result], path: Path) -> None:
    import pandas

    tables = []
    for name, result in results.items():
        columns = {"policy": name, "t": result.times, "mean": result.mean.mean(0), "R": result.growth.mean(0)}
        columns |= {"R_low": result.growth.min(0), "R_high": result.growth.max(0), "min": result.min.mean(0)}
        if result.gini is not None:
            columns["gini"] = result.gini.mean(0)
        tables.append(pandas.DataFrame(columns))
    with atomic_path(path) as temporary:
        pandas.concat(tables).to_csv(temporary, index=False)


def _write_people(population: Population, results: Mapping[str, Result], path: Path) -> None:
    columns: dict[str, Any] = {"person": np.arange(population.N), "welfare": population.U0}
    for name, result in results.items():
        columns[f"{name}_helped_share"] = result.selected_counts.mean(axis=0) / result.T
        columns[f"{name}_welfare"] = result.U_T.mean(axis=0)
        columns[f"{name}_late_rate"] = result.rates.mean(axis=0)
    _write_csv(columns, path)


def _write_parameters(results: Mapping[str, Result], path: Path) -> None:
    atomic_write(path, json.dumps({name: result.parameters for name, result in results.items()}, indent=1))


def _save(figure: Any, path: Path) -> None:
    with atomic_path(path) as temporary:
        figure.savefig(temporary, format="png", dpi=130)

"""The ledger's checks. What several rows read is computed once for each seed and size."""

from functools import cache
from typing import Any

import numpy as np

from iclr_afedpg import clocks, figures
from iclr_afedpg.agents import LocalAgents, Pace, SimulatedAgents
from iclr_afedpg.clocks import EventClock, Lognormal
from iclr_afedpg.federation import Federation
from iclr_afedpg.policies import GaussianMLP
from iclr_afedpg.sampling import Gradient
from iclr_afedpg.schedules import THEORY_ALPHA, THEORY_ETA, Constant
from iclr_afedpg.tabular import TabularMDP, noisy_run
from iclr_afedpg.training import METHODS, evaluate
from iclr_afedpg.updates import Read, Rule, Server
from iclr_shared.claims import ClaimRun, Measurement

CLOCKS = ((1, 1, 1, 10), (1, 2, 3, 4), (1, 1, 1, 1), (0.5, 1, 1, 2, 4, 8))
SPEEDUPS = (7.75, 25 / 12, 1.0, 6.5)
THEORY = Rule(THEORY_ALPHA, THEORY_ETA)
ALONE = Rule(Constant(1.0), THEORY_ETA, lookahead=False)
POINTS = (1000, 3000, 10_000, 20_000)


# --- C1, C3: the event clock ---------------------------------------------------------------------------------------


def _rates(times: tuple, updates: int) -> tuple[float, float]:
    """Gradients per second without and with a barrier, both from the event simulation."""
    rates = []
    for synchronous in (False, True):
        agents = SimulatedAgents(EventClock(times), _nothing)
        federation = Federation(Server(np.zeros(1), ALONE), agents, synchronous)
        federation.start()
        applied = [federation.step() for _ in range(updates // (len(times) if synchronous else 1))]
        rates.append(sum(len(update.agents) for update in applied) / applied[-1].time)
    return rates[0], rates[1]


def _nothing(agent: int, n: int, read: Read) -> Gradient:
    return Gradient(np.ones_like(read.theta))


def asynchronous_rate(run: ClaimRun, *, updates: int = 20_000, barrier: bool = False) -> Measurement:
    """Row 1: K / T against sum(1 / t_i). Control: the same with a barrier."""
    wanted = np.array([clocks.async_rate(times) for times in CLOCKS])
    rates = np.array([_rates(times, updates) for times in run.progress(CLOCKS, desc="clocks")])
    errors = np.abs(rates / wanted[:, None] - 1).max(0)
    run.figure("delays", figures.delays_figure(clocks.timeline(EventClock(CLOCKS[0]), updates), 4))
    series = {"t": [str(t) for t in CLOCKS], "expected (1/s)": wanted, "without": rates[:, 0], "with": rates[:, 1]}
    return Measurement(errors[int(barrier)], baseline=("with a barrier", errors[1]), n=updates, series=series)


def speedup_is_harmonic(run: ClaimRun, *, updates: int = 20_000, mean: bool = False) -> Measurement:
    """Row 1: measured speed-up against max(t) / HM(t). Control: the arithmetic mean in its place."""
    measured = np.array([np.divide(*_rates(times, updates)) for times in run.progress(CLOCKS, desc="clocks")])
    arithmetic = np.array([max(times) / np.mean(times) for times in CLOCKS])
    errors = [np.abs(measured / wanted - 1).max() for wanted in (np.array(SPEEDUPS), arithmetic)]
    series = {"t": [str(t) for t in CLOCKS], "speed-up": measured, "max / harmonic mean": SPEEDUPS}
    return Measurement(errors[int(mean)], baseline=("max over arithmetic mean", errors[1]), n=updates, series=series)


def delay_identity(run: ClaimRun, *, updates: int = 20_000, barrier: bool = False) -> Measurement:
    """Row 3: sum of delays plus ages in flight minus K (N - 1), an integer. Control: delays with a barrier, all 0."""
    random = [EventClock([Lognormal(1.0, sigma), 1, 2.5, Lognormal(3.0, sigma)]) for sigma in (0.1, 0.5, 1.0)]
    deviations, controls, means = [], [], []
    for clock in run.progress([*map(EventClock, CLOCKS), *random], desc="clocks"):
        found = clocks.timeline(clock, updates, run.seeds.int32())
        total = updates * (clock.agents - 1)
        deviations.append(abs(int(found.delay.sum() + found.ages.sum()) - total))
        controls.append(total)
        means.append(found.delay.mean() / (clock.agents - 1))
    measured = controls if barrier else deviations
    return Measurement(
        max(measured), baseline=("delays of 0", min(controls)), n=updates, series={"mean delay / (N - 1)": means}
    )


# --- C2: real processes --------------------------------------------------------------------------------------------

SECONDS = (0.02, 0.02, 0.02, 0.2)


@cache
def _real(seed: int, seconds: float, size: int, times: tuple[float, ...]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, synchronous in (("without", False), ("with", True)):
        agents = LocalAgents(len(times), _nothing, {i: Pace(seconds=time) for i, time in enumerate(times)})
        try:
            federation = Federation(Server(np.zeros(size, np.float32), ALONE), agents, synchronous)
            federation.start()
            applied = []
            while agents.now < seconds and (update := federation.step(seconds)) is not None:
                applied.append(update)
        finally:
            agents.close()
        delays = [update.applied.delay for update in applied]
        gradients = sum(len(update.agents) for update in applied)
        found[name] = {"rate": gradients / applied[-1].time, "mean delay": np.mean(delays), "max delay": max(delays)}
    return found


def real_rate(
    run: ClaimRun, *, seconds: float = 20.0, size: int = 5000, times: tuple[float, ...] = SECONDS, barrier: bool = False
) -> Measurement:
    """Row 2: four processes that take 20, 20, 20 and 200 ms. Control: with a barrier."""
    found, wanted = _real(run.seeds.seed, seconds, size, times), clocks.async_rate(times)
    rates = [found[name]["rate"] / wanted for name in ("without", "with")]
    details = {"updates per second": found["without"]["rate"], "expected": wanted}
    details |= {name: found["without"][name] for name in ("mean delay", "max delay")}
    return Measurement(rates[int(barrier)], baseline=("with a barrier", rates[1]), details=details)


def real_speedup(
    run: ClaimRun, *, seconds: float = 20.0, size: int = 5000, times: tuple[float, ...] = SECONDS
) -> Measurement:
    """Row 2: gradients consumed without over with a barrier. Control: the barrier's own ratio, 1."""
    found = _real(run.seeds.seed, seconds, size, times)
    details = {"expected": clocks.speedup(times), "with a barrier (gradients per second)": found["with"]["rate"]}
    return Measurement(found["without"]["rate"] / found["with"]["rate"], baseline=("barrier", 1.0), details=details)


# --- C4: the lookahead ---------------------------------------------------------------------------------------------


def _quadratic(run: ClaimRun, lookahead: bool, updates: int, size: int) -> np.ndarray:
    """Distances of direction and gradient, J = -(theta - c)' A (theta - c) / 2, exact momentum at the start."""
    rng = run.seeds.child("quadratic").numpy()
    root, c = rng.standard_normal((size, size)), rng.standard_normal(size)
    A = root @ root.T / size + 0.1 * np.eye(size)
    server = Server(np.zeros(size), Rule(THEORY_ALPHA, THEORY_ETA, lookahead=lookahead))
    server.direction = A @ (c - server.theta)
    distances = []
    for _ in range(updates):
        read, exact = server.pull(), A @ (c - server.theta)
        server.push(read, A @ (c - read.theta))
        distances.append(np.linalg.norm(server.direction - exact))
    return np.array(distances)


def lookahead_cancels(run: ClaimRun, *, updates: int = 1000, size: int = 5, lookahead: bool = True) -> Measurement:
    """Row 4: direction against exact gradient, one agent. Control: without the lookahead."""
    distances = [_quadratic(run, used, updates, size) for used in (lookahead, False)]
    figure, axes = figures.new_figure()
    for values, name in zip(distances, ("with lookahead", "without"), strict=True):
        axes.semilogy(np.maximum(values, 1e-17), label=name)
    axes.set(xlabel="update k", ylabel=r"$|d_k - \nabla J(\theta_k)|$", title="Error of the momentum on a quadratic")
    axes.legend(frameon=False)
    run.figure("error", figure)
    return Measurement(distances[0].max(), baseline=("without lookahead", distances[1].max()), n=updates)


def no_lookahead_does_not(run: ClaimRun, *, updates: int = 1000, size: int = 5, lookahead: bool = False) -> Measurement:
    """Row 4: the same distance without the lookahead. Control: with it."""
    distances = [_quadratic(run, used, updates, size).max() for used in (lookahead, True)]
    return Measurement(distances[0], baseline=("with lookahead", distances[1]), n=updates)


# --- C5, C6: rates on an exact MDP ---------------------------------------------------------------------------------


@cache
def _gaps(seed: int, agents: int, rule: Rule, at: tuple[int, ...], seeds: int) -> np.ndarray:
    return noisy_run(TabularMDP.random(), rule, EventClock([1] * agents), seeds, at, first_seed=seed * seeds)[0]


def _slope(K, gaps) -> float:
    return float(np.polyfit(np.log(K), np.log(gaps.mean(1)), 1)[0])


def _interval(K, gaps, rng, resamples: int = 1000) -> tuple[float, float]:
    """95 % of the slopes over resampled seeds."""
    draws = rng.integers(gaps.shape[1], size=(resamples, gaps.shape[1]))
    low, high = np.quantile([_slope(K, gaps[:, draw]) for draw in draws], (0.025, 0.975))
    return float(low), float(high)


def _rate(run: ClaimRun, agents: int, rule: Rule, control: Rule, at: tuple[int, ...], seeds: int) -> Measurement:
    gaps, other = (_gaps(run.seeds.seed, agents, which, at, seeds) for which in (rule, control))
    return Measurement(
        _slope(at, gaps),
        baseline=("without momentum" if control == ALONE else "AFedPG", _slope(at, other)),
        ci=_interval(at, gaps, run.seeds.child("resamples").numpy()),
        n=seeds,
        series={"K": list(at), "gap": gaps.mean(1), "control": other.mean(1)},
        details={"momentum_at": rule.momentum_at, "slopes of single seeds": [_slope(at, g[:, None]) for g in gaps.T]},
    )


def rate_of_one_agent(
    run: ClaimRun, *, at: tuple[int, ...] = POINTS, seeds: int = 8, rule: Rule = THEORY
) -> Measurement:
    """Row 5, N = 1. Control: normalised steps without momentum and lookahead."""
    curves = {"AFedPG, N = 1": _gaps(run.seeds.seed, 1, rule, at, seeds)}
    curves |= {"AFedPG, N = 4": _gaps(run.seeds.seed, 4, rule, at, seeds)}
    curves |= {"no momentum, N = 1": _gaps(run.seeds.seed, 1, ALONE, at, seeds)}
    run.figure("gaps", figures.gaps_figure(at, curves))
    return _rate(run, 1, rule, ALONE, at, seeds)


def rate_of_four_agents(
    run: ClaimRun, *, at: tuple[int, ...] = POINTS, seeds: int = 8, rule: Rule = THEORY
) -> Measurement:
    """Row 5, N = 4. Controls: no momentum and lookahead; momentum without lookahead, in the details."""
    found = _rate(run, 4, rule, ALONE, at, seeds)
    bare = Rule(rule.alpha, rule.eta, lookahead=False)
    found.details["slope without lookahead"] = _slope(at, _gaps(run.seeds.seed, 4, bare, at, seeds))
    return found


def rate_without_momentum(
    run: ClaimRun, *, at: tuple[int, ...] = POINTS, seeds: int = 8, rule: Rule = ALONE
) -> Measurement:
    """Row 5: normalised steps without momentum and lookahead, N = 1. Control: AFedPG."""
    return _rate(run, 1, rule, THEORY, at, seeds)


def gap_without_momentum(
    run: ClaimRun, *, at: tuple[int, ...] = POINTS, seeds: int = 8, rule: Rule = ALONE
) -> Measurement:
    """Row 5: last gap without momentum over AFedPG's. Control: AFedPG with four agents."""
    last = [
        _gaps(run.seeds.seed, agents, which, at, seeds).mean(1)[-1]
        for agents, which in ((1, rule), (1, THEORY), (4, THEORY))
    ]
    return Measurement(last[0] / last[1], baseline=("AFedPG, N = 4", last[2] / last[1]), n=seeds)


AGENTS = (1, 2, 4, 8)


def _every(updates: int, every: int) -> tuple[int, ...]:
    return tuple(range(every, updates + 1, every))


def staleness_is_free(
    run: ClaimRun, *, updates: int = 20_000, every: int = 200, seeds: int = 8, rule: Rule = THEORY
) -> Measurement:
    """Row 6: seed-mean gap after all updates, N = 2, 4, 8 against 1. Control: a quarter of the updates."""
    at = _every(updates, every)
    gaps = [_gaps(run.seeds.seed, N, rule, at, seeds).mean(1) for N in run.progress(AGENTS, desc="agents")]
    figure, axes = figures.new_figure()
    for N, values in zip(AGENTS, gaps, strict=True):
        axes.loglog(np.array(at) / N, values, label=f"N = {N}")
    axes.axhline(0.05, color="black", linewidth=0.8, linestyle=":")
    axes.set(
        xlabel="virtual time", ylabel=r"$J^* - J(\theta)$, mean of seeds", title="The same updates in 1/N of the time"
    )
    axes.legend(frameon=False)
    run.figure("time", figure)
    last = np.array([values[-1] for values in gaps])
    quarter = gaps[0][len(at) // 4 - 1]
    return Measurement(
        np.abs(last / last[0] - 1).max(), baseline=("a quarter of the updates", quarter / last[0] - 1), n=seeds,
        series={"N": list(AGENTS), "gap": last},
    )  # fmt: skip


def time_falls_with_agents(
    run: ClaimRun,
    *,
    updates: int = 20_000,
    every: int = 200,
    seeds: int = 8,
    target: float = 0.05,
    barrier: bool = False,
) -> Measurement:
    """Row 6: virtual time until the seed-mean gap is first below `target`. Control: the same with updates for time."""
    at = _every(updates, every)
    needed = []
    for N in AGENTS:
        below = np.flatnonzero(_gaps(run.seeds.seed, N, THEORY, at, seeds).mean(1) <= target)
        needed.append(at[below[0]] if len(below) else np.nan)
    slopes = [np.polyfit(np.log(AGENTS), np.log(np.array(needed) / per), 1)[0] for per in (AGENTS, 1)]
    return Measurement(
        slopes[int(barrier)], baseline=("in updates", slopes[1]), n=seeds,
        series={"N": list(AGENTS), "updates": needed, "time": np.array(needed) / AGENTS},
        note="Time is updates over N by construction; what is tested is that staleness costs no extra updates.",
    )  # fmt: skip


# --- C7, C8: learning ----------------------------------------------------------------------------------------------


def train_once(method: str, env: str, seed: int, times: list, budget: dict, options: dict, last: int = 10) -> dict:
    """Train, and return what the ledger needs as plain numbers; the policy's defaults are those of `Settings`.

    Args:
        method: key of `METHODS`.
        env: registered environment.
        seed: of the run.
        times: of the agents.
        budget: keyword arguments of ``run``.
        options: of the trainer; ``policy`` as keyword arguments of `GaussianMLP`.
        last: gradients to average at the end.

    Returns:
        ``final``, ``untrained``, ``updates``, and the curves ``time``, ``steps`` and ``return``.
    """
    options = options | {
        "policy": GaussianMLP(**{k: tuple(v) if k == "hidden" else v for k, v in options["policy"].items()})
    }
    trainer = METHODS[method](env, clock=EventClock(times), seed=seed, **options)
    untrained = evaluate(trainer.result().policy, env, 20, options["horizon"], seed, deterministic=False)
    frame = trainer.run(**budget).frame
    gradients = last if not trainer.synchronous else max(1, round(last / len(times)))
    return {
        "final": float(frame.ret_mean[-gradients:].mean()),
        "untrained": float(untrained.mean()),
        "updates": len(frame),
        "time": frame.t_virtual.tolist(),
        "steps": frame.env_steps_total.tolist(),
        "return": frame.ret_mean.tolist(),
    }


PENDULUM = {
    "policy": {"hidden": [], "log_std": float(np.log(0.5)), "last_scale": 0.0},
    "eta": 0.3, "batch_steps": 512, "horizon": 200,
}  # fmt: skip
SWIMMER = {"policy": {}, "eta": 0.2, "batch_steps": 2000, "horizon": 200}
UNEQUAL = [1, 1, 1, 10]


def _trained(
    run: ClaimRun, env: str, arms: dict[str, dict], seeds: int, times, budget, options
) -> dict[str, list[dict]]:
    """Results by arm, for all seeds; trainings are points of one sweep and survive a kill."""
    key = (env, tuple(times), tuple(budget.items()), str(options), str(arms), seeds, run.folder, run.seeds.seed)
    if key not in _DONE:
        grid = [
            {
                "method": arm.get("method", "afedpg"), "env": env, "seed": run.seeds.seed * seeds + seed,
                "times": list(times), "budget": budget,
                "options": options | {name: value for name, value in arm.items() if name != "method"},
            }
            for arm in arms.values()
            for seed in range(seeds)
        ]  # fmt: skip
        results = iter(run.sweep(train_once, grid, name="trainings"))
        _DONE[key] = {name: [next(results) for _ in range(seeds)] for name in arms}
    return _DONE[key]


_DONE: dict[tuple, dict[str, list[dict]]] = {}

PENDULUM_ARMS = {
    "AFedPG": {"alpha": 0.5},
    "FedPG": {"method": "fedpg"},
    "AsyncPG (no lookahead)": {"method": "asyncpg", "alpha": 0.2},
}


def _median(results: list[dict], name: str = "final") -> float:
    return float(np.median([result[name] for result in results]))


def learns_to_balance(
    run: ClaimRun, *, seeds: int = 4, time: float = 40, options: dict = PENDULUM, arm: str = "AFedPG"
) -> Measurement:
    """Row 7: InvertedPendulum-v5, t = (1, 1, 1, 10), time 40. Controls: FedPG; asynchronous without lookahead."""
    found = _trained(run, "InvertedPendulum-v5", PENDULUM_ARMS, seeds, UNEQUAL, {"max_virtual_time": time}, options)
    run.figure("learning", figures.learning_figure(found, "time", "virtual time"))
    finals = [result["final"] for result in found[arm]]
    series = {name: [result["final"] for result in results] for name, results in found.items()}
    details = {f"updates, {name}": results[0]["updates"] for name, results in found.items()}
    return Measurement(
        _median(found[arm]), baseline=("FedPG", _median(found["FedPG"])), ci=(min(finals), max(finals)), n=seeds,
        series=series, details=details | {"interval": "smallest and largest seed", "momentum_at": "server"},
    )  # fmt: skip


def barrier_does_not(
    run: ClaimRun, *, seeds: int = 4, time: float = 40, options: dict = PENDULUM, arm: str = "AFedPG"
) -> Measurement:
    """Row 7: AFedPG's return over FedPG's at equal virtual time. Control: asynchronous without lookahead."""
    found = _trained(run, "InvertedPendulum-v5", PENDULUM_ARMS, seeds, UNEQUAL, {"max_virtual_time": time}, options)
    base = _median(found["FedPG"])
    other = "AsyncPG (no lookahead)"
    return Measurement(_median(found[arm]) / base, baseline=(other, _median(found[other]) / base), n=seeds)


SWIMMER_ARMS = {"AFedPG": {"alpha": 0.5}, "FedPG": {"method": "fedpg"}}


def learns_to_swim(
    run: ClaimRun, *, seeds: int = 3, env_steps: int = 120_000, options: dict = SWIMMER, arm: str = "AFedPG"
) -> Measurement:
    """Row 8: Swimmer-v5, four equal agents, 120,000 steps. Controls: the untrained policy, FedPG."""
    found = _swimmers(run, seeds, env_steps, options)
    run.figure("learning", figures.learning_figure(found, "steps", "environment steps"))
    gains = [result["final"] - result["untrained"] for result in found[arm]]
    fed = float(np.median([result["final"] - result["untrained"] for result in found["FedPG"]]))
    series = {name: [result["final"] for result in results] for name, results in found.items()}
    series["untrained"] = [result["untrained"] for result in found[arm]]
    return Measurement(
        float(np.median(gains)), baseline=("FedPG, same steps", fed), ci=(min(gains), max(gains)), n=seeds,
        series=series, details={"interval": "smallest and largest seed", "momentum_at": "server"},
    )  # fmt: skip


def swims_per_sample(
    run: ClaimRun, *, seeds: int = 3, env_steps: int = 120_000, options: dict = SWIMMER
) -> Measurement:
    """Row 8: AFedPG minus FedPG after the same environment steps. Control: AFedPG minus its untrained policy."""
    found = _swimmers(run, seeds, env_steps, options)
    gains = [a["final"] - b["final"] for a, b in zip(found["AFedPG"], found["FedPG"], strict=True)]
    learned = float(np.median([result["final"] - result["untrained"] for result in found["AFedPG"]]))
    return Measurement(
        float(np.median(gains)), baseline=("AFedPG minus untrained", learned), ci=(min(gains), max(gains)), n=seeds
    )


def _swimmers(run, seeds, env_steps, options):
    return _trained(run, "Swimmer-v5", SWIMMER_ARMS, seeds, [1, 1, 1, 1], {"max_env_steps": env_steps}, options)


def swims_further_in_time(
    run: ClaimRun, *, seeds: int = 3, time: float = 20, options: dict = SWIMMER, arm: str = "AFedPG"
) -> Measurement:
    """Row 8: final returns at equal virtual time, t = (1, 1, 1, 10), time 20. Control: FedPG minus untrained."""
    found = _trained(run, "Swimmer-v5", SWIMMER_ARMS, seeds, UNEQUAL, {"max_virtual_time": time}, options)
    run.figure("learning", figures.learning_figure(found, "time", "virtual time"))
    gains = [a["final"] - b["final"] for a, b in zip(found[arm], found["FedPG"], strict=True)]
    control = float(np.median([result["final"] - result["untrained"] for result in found["FedPG"]]))
    series = {name: [result["final"] for result in results] for name, results in found.items()}
    return Measurement(
        float(np.median(gains)), baseline=("FedPG minus untrained", control), ci=(min(gains), max(gains)), n=seeds,
        series=series, details={f"updates, {name}": results[0]["updates"] for name, results in found.items()},
    )  # fmt: skip

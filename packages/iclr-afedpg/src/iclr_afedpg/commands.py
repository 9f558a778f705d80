"""``iclr afedpg VERB``: train on an environment, predict what speeds bring, evaluate a run."""

import json
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import tyro

from iclr_afedpg import clocks, figures
from iclr_afedpg.agents import AgentError, Pace
from iclr_afedpg.clocks import EventClock
from iclr_afedpg.policies import CategoricalMLP, GaussianMLP
from iclr_afedpg.sampling import make_environment
from iclr_afedpg.schedules import LinearDecay
from iclr_afedpg.training import METHODS, AFedPG, Result, load_policy, read_settings
from iclr_afedpg.training import evaluate as returns_of
from iclr_shared.errors import InputError
from iclr_shared.files import atomic_path, atomic_write
from iclr_shared.tables import print_table

Hidden = Annotated[tuple[int, ...], tyro.conf.arg(name="hidden")]


def train(
    env: str,
    out: Path,
    agents: int = 4,
    method: Literal["afedpg", "fedpg", "asyncpg", "pg"] = "afedpg",
    backend: Literal["simulated", "local", "ray"] = "simulated",
    times: str | None = None,
    slow: tuple[str, ...] = (),
    alpha: float | None = None,
    eta: float = 0.2,
    batch_steps: int = 2048,
    horizon: int = 1000,
    gamma: float = 0.99,
    baseline: Literal["none", "time-mean", "value-net"] = "time-mean",
    hidden: Hidden = (64, 64),
    updates: int | None = None,
    env_steps: int | None = None,
    virtual_time: float | None = None,
    seconds: float | None = None,
    seed: int = 0,
    resume: bool = False,
    quiet: bool = False,
) -> None:
    """Train one policy on several agents.

    Args:
        env: registered gymnasium environment, such as Swimmer-v5.
        out: folder for checkpoints, settings.json, updates.csv, policy.npz and pictures.
        agents: how many; taken from --times if those are given.
        method: afedpg, or a baseline: fedpg waits for all, asyncpg has no lookahead, pg is one agent.
        backend: simulated in virtual time, local processes, or Ray actors.
        times: seconds of each simulated agent's iterations, such as 1,1,1,10.
        slow: real agents that are slowed down, such as 3:10 for agent 3 by a factor of 10.
        alpha: momentum and lookahead rate; each method has its own.
        eta: step length at the start; decays linearly with the used budget.
        batch_steps: environment steps for each gradient.
        horizon: cut of each episode.
        gamma: discount.
        baseline: of the gradient's advantages.
        hidden: widths of the policy's hidden layers.
        updates: stop after so many.
        env_steps: stop after so many, in all.
        virtual_time: stop then (simulated).
        seconds: stop then (local, ray).
        seed: of initial weights and episodes.
        resume: go on with the run in --out; only budgets are read then.
        quiet: no progress bar.
    """
    budgets = {
        "max_updates": updates, "max_env_steps": env_steps, "max_virtual_time": virtual_time, "max_seconds": seconds
    }  # fmt: skip
    if all(limit is None for limit in budgets.values()):
        raise InputError("Give a budget: --updates, --env-steps, --virtual-time or --seconds.")
    if resume:
        trainer: AFedPG = AFedPG.resume(out)
    else:
        if (out / "settings.json").exists():
            raise InputError(f"{out} already holds a run: go on with --resume, or choose another folder.")
        clock = None if times is None else EventClock(_numbers(times))
        trainer = METHODS[method](
            env,
            n_agents=clock.agents if clock is not None else 1 if method == "pg" else agents,
            policy=_policy(env, hidden),
            alpha=alpha,
            eta=LinearDecay(eta),
            batch_steps=batch_steps,
            horizon=horizon,
            gamma=gamma,
            baseline=baseline,
            clock=clock,
            backend=backend,
            paces=dict(map(_pace, slow)),
            seed=seed,
        )
    try:
        result = trainer.run(**budgets, out=out, quiet=quiet)
    except AgentError as error:
        raise InputError(str(error)) from error
    _show(result, out)


def predict(
    times: str | None = None, trace: Path | None = None, updates: int = 20_000, out: Path | None = None
) -> None:
    """Foresee the speed-up over a barrier, and the delays, from the agents' speeds.

    Args:
        times: seconds of each agent's iterations, such as 1,1,1,10.
        trace: instead, a CSV of measured ones with the columns agent, iteration, seconds.
        updates: how many to simulate.
        out: folder for prediction.json and delays.png.
    """
    if (times is None) == (trace is None):
        raise InputError("Give either --times or --trace.")
    if updates < 1:
        raise InputError(f"--updates must be at least 1, got {updates}.")
    clock = EventClock.from_trace(trace) if trace is not None else EventClock(_numbers(times))
    means = list(clock.times) if trace is None else [float(np.mean(part.seconds)) for part in clock.times]
    found = clocks.timeline(clock, updates)
    names = {
        "updates per second without a barrier": clocks.async_rate(means),
        "gradients per second with a barrier": clocks.sync_rate(means),
        "speed-up": clocks.speedup(means),
        "updates per second, simulated": updates / found.time[-1],
        "mean delay, simulated (updates)": found.delay.mean(),
        "largest delay, simulated": int(found.delay.max()),
        "its bound": clocks.largest_delay(means),
    }
    if trace is not None:
        del names["its bound"]  # holds for constant times
    print_table(("what", "value"), list(names.items()), f"{clock.agents} agents, {updates} updates")
    shares = np.bincount(found.agent, minlength=clock.agents) / updates
    delays = [found.delay[found.agent == agent] for agent in range(clock.agents)]
    rows = [
        (agent, float(means[agent]), float(share), float(part.mean()) if len(part) else "none arrived")
        for agent, (share, part) in enumerate(zip(shares, delays, strict=True))
    ]
    print_table(("agent", "seconds", "share of updates", "mean delay"), rows)
    if out is not None:
        summary = {name: float(value) for name, value in names.items()} | {"shares": shares.tolist()}
        atomic_write(out / "prediction.json", json.dumps(summary, indent=2))
        _save(figures.delays_figure(found, clock.agents), out / "delays.png")


def evaluate(
    run: tyro.conf.Positional[Path],
    episodes: int = 20,
    stochastic: bool = False,
    seed: int = 0,
    out: Path | None = None,
) -> None:
    """Returns of a trained policy over whole episodes.

    Args:
        run: folder of `train`.
        episodes: how many.
        stochastic: draw actions instead of taking the mean or likeliest ones.
        seed: of the episodes.
        out: JSON file for the returns.
    """
    if episodes < 1:
        raise InputError(f"--episodes must be at least 1, got {episodes}.")
    settings = read_settings(run)
    returns = returns_of(load_policy(run), settings.env, episodes, settings.horizon, seed, not stochastic)
    spread = float(returns.std(ddof=1)) if episodes > 1 else 0.0
    rows = [("mean return", returns.mean()), ("standard deviation", spread), ("worst", returns.min())]
    print_table(("what", "value"), [*rows, ("best", returns.max())], f"{settings.env}, {episodes} episodes")
    if out is not None:
        atomic_write(out, json.dumps({"env": settings.env, "seed": seed, "returns": returns.tolist()}, indent=2))


def _show(result: Result, out: Path) -> None:
    frame = result.frame
    if frame.empty:
        raise InputError(f"No update came within this budget: go on with --resume --out {out} and a larger one.")
    last = frame.tail(10)
    clock = frame.t_virtual.iloc[-1] if result.settings.backend == "simulated" else frame.t_wall.iloc[-1]
    rows = [
        ("updates", len(frame)),
        ("environment steps", int(frame.env_steps_total.iloc[-1])),
        ("virtual seconds" if result.settings.backend == "simulated" else "seconds", float(clock)),
        ("mean delay (updates)", float(frame.delay.mean())),
        ("largest delay", int(frame.delay.max())),
        ("mean return, last 10 updates", float(last.ret_mean.mean())),
        ("dropped gradients", result.dropped),
        ("updates without a direction", result.skipped),
        ("momentum kept at", result.settings.rule.momentum_at),
    ]
    rows += [(f"agent {event.agent} {event.kind}", f"at {event.time:.3g} s") for event in result.events]
    print_table(("what", "value"), rows, str(result.settings.env))
    axis = "time" if result.settings.backend == "simulated" else "wall"
    curve = {"time": frame.t_virtual, "wall": frame.t_wall, "return": frame.ret_mean}
    label = "virtual time (s)" if axis == "time" else "time (s)"
    _save(figures.learning_figure({"training": [curve]}, axis, label), out / "learning.png")
    if not result.settings.synchronous:
        columns = (frame.agent, frame.t_virtual if axis == "time" else frame.t_wall, frame.delay)
        arrivals = clocks.Timeline(*(column.to_numpy() for column in columns), np.array([], int))
        _save(figures.delays_figure(arrivals, result.settings.agents), out / "delays.png")


def _save(figure, path: Path) -> None:
    with atomic_path(path) as temporary:
        figure.savefig(temporary, format="png", dpi=130)


def _policy(env: str, hidden: tuple[int, ...]):
    """The environment's usual policy with these layers; None for tables, which have none."""
    import gymnasium

    made = make_environment(env)
    tables = isinstance(made.observation_space, gymnasium.spaces.Discrete)
    continuous = isinstance(made.action_space, gymnasium.spaces.Box)
    made.close()
    return GaussianMLP(hidden) if continuous else None if tables else CategoricalMLP(hidden)


def _numbers(text: str) -> list:
    """Numbers between commas, exactly: ties of whole seconds stay ties."""
    try:
        return [Fraction(part.strip()) for part in text.split(",")]
    except (ValueError, ZeroDivisionError):
        raise InputError(f"Times must be numbers between commas, such as 1,1,1,10; got {text!r}.") from None


def _pace(text: str) -> tuple[int, Pace]:
    try:
        agent, factor = text.split(":")
        return int(agent), Pace(factor=float(factor))
    except ValueError as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"A slowed agent is AGENT:FACTOR, such as 3:10; got {text!r}.") from None

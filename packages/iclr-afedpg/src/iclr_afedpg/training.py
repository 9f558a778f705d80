"""Train one policy on many agents: AFedPG, and beside it FedPG, AsyncPG and PG, the same loop otherwise set."""

import itertools
import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from os import PathLike
from pathlib import Path
from typing import Any, Literal
from zipfile import BadZipFile

import gymnasium
import numpy as np
import pandas as pd
from jaxtyping import Float

from iclr_afedpg.agents import AgentError, Agents, Arrival, Flight, Pace, SimulatedAgents, real_agents
from iclr_afedpg.clocks import EventClock
from iclr_afedpg.estimator import Estimator
from iclr_afedpg.federation import Event, Federation, Update
from iclr_afedpg.policies import default_policy
from iclr_afedpg.sampling import Gradient, Sampler, make_environment, rollout
from iclr_afedpg.schedules import LinearDecay, Schedule, as_schedule
from iclr_afedpg.settings import Settings
from iclr_afedpg.updates import SHORTEST, Read, Rule, Server
from iclr_shared.checkpoints import Checkpoint
from iclr_shared.errors import InputError
from iclr_shared.files import atomic_path, atomic_write
from iclr_shared.progress import progress

COLUMNS = (
    "k", "agent", "t_virtual", "t_wall", "delay", "grad_norm", "dir_norm", "ret_mean", "env_steps_total"
)  # fmt: skip
"""Of `Result.frame`. `agent` is -1 where the update averages several; `ret_mean` is the mean return of its episodes."""


COUNTS = ("k", "agent", "delay", "env_steps_total")
"""The columns that are whole numbers."""


@dataclass(frozen=True)
class TrainedPolicy:
    """A policy with its parameters.

    Args:
        policy: bound to an environment's spaces.
        theta: ``(d,)``.
    """

    policy: Any
    theta: np.ndarray

    def act(self, observation: Any, rng: np.random.Generator | None = None) -> Any:
        """An action for ``env.step``: drawn with `rng`, else the mean or likeliest one."""
        return self.policy.to_env(self.policy.actor(self.theta)(np.asarray(observation), rng))


@dataclass(frozen=True)
class Result:
    """What a run has come to.

    Args:
        frame: one row for each update; see `COLUMNS`. Real agents have no virtual time, simulated ones both.
        events: agents lost and joined, gradients dropped.
        policy: the server's.
        settings: of the run.
    """

    frame: pd.DataFrame
    events: tuple[Event, ...]
    policy: TrainedPolicy
    settings: Settings

    @property
    def dropped(self) -> int:
        """Gradients that were not finite."""
        return sum(event.kind == "dropped" for event in self.events)

    @property
    def skipped(self) -> int:
        """Updates without a step, as their direction had no length (such as a lone episode against its own mean)."""
        return int((self.frame.dir_norm < SHORTEST).sum())

    def save(self, folder: str | PathLike[str]) -> None:
        """Write ``settings.json``, ``updates.csv``, ``events.json`` and ``policy.npz``."""
        folder = Path(folder)
        atomic_write(folder / "settings.json", self.settings.to_json())
        atomic_write(folder / "updates.csv", self.frame.to_csv(index=False))
        atomic_write(folder / "events.json", json.dumps([event._asdict() for event in self.events], indent=2))
        with atomic_path(folder / "policy.npz") as temporary, open(temporary, "wb") as file:
            np.savez(file, theta=self.policy.theta)


def load_policy(
    folder: str | PathLike[str], env_fn: Callable[[], gymnasium.Env] | None = None, policy: Any = None
) -> TrainedPolicy:
    """The policy that a run left in its folder; an environment or policy of your own has to be given again.

    Raises:
        InputError: if the folder holds no run, a file of it cannot be read, or it is not of this environment.
    """
    settings = read_settings(folder, env=env_fn, policy=policy)
    path = Path(folder) / "policy.npz"
    try:
        with open(path, "rb") as raw, np.load(raw) as file:
            theta = file["theta"]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, EOFError, BadZipFile) as error:
        raise InputError(f"{path} is no policy that this package saved ({error}).") from None
    bound = _bound(settings)
    if theta.shape != (bound.size,):
        raise InputError(f"{path} has {theta.shape} parameters, the policy for {settings.env} has ({bound.size},).")
    if theta.dtype.kind != "f" or not np.all(np.isfinite(theta)):
        raise InputError(f"{path} holds parameters that are no finite numbers.")
    return TrainedPolicy(bound, theta)


def evaluate(
    trained: TrainedPolicy,
    env: str | Callable[[], gymnasium.Env],
    episodes: int = 10,
    horizon: int = 1000,
    seed: int = 0,
    deterministic: bool = True,
) -> Float[np.ndarray, " episodes"]:
    """Undiscounted returns of whole episodes, with the mean or likeliest actions if `deterministic`.

    Raises:
        InputError: if `episodes` or `horizon` is below 1.
    """
    if episodes < 1 or horizon < 1:
        raise InputError(f"episodes and horizon must be at least 1, got {episodes} and {horizon}.")
    made = make_environment(env)
    act = trained.policy.actor(trained.theta)
    quiet = (lambda observation, rng: act(observation)) if deterministic else act
    streams = (np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(n,))) for n in range(episodes))
    return np.array([rollout(made, trained.policy, quiet, rng, horizon).rewards.sum() for rng in streams])


class AFedPG:
    """Asynchronous federated policy gradient: no barrier, lookahead, delay-adaptive rates, normalised updates.

    Args:
        env_id: registered gymnasium environment; or give `env_fn`, which makes one.
        n_agents: how many; taken from `clock` if that is given.
        policy: see `Settings`.
        alpha: momentum and lookahead rate in (0, 1], a number or a schedule.
        eta: step length; a number decays linearly with the used budget, to a twentieth.
        batch_steps, horizon: of each gradient; see `Settings`.
        gamma, baseline, discount_weighting, normalize: see `Estimator`.
        clock: seconds of each simulated agent's iterations.
        backend: ``"simulated"`` (virtual time), ``"local"`` (processes) or ``"ray"``.
        paces: real agents that are slowed down.
        seed: root of all randomness.
        rule: further switches of the update (`momentum_at`, `alpha_index`, ...), as keyword arguments of `Rule`.

    Raises:
        InputError: for values out of range.
        SpaceError: if the environment's spaces do not suit the policy.
    """

    synchronous = False
    lookahead = True
    alpha: float = 0.5

    def __init__(
        self,
        env_id: str | None = None,
        *,
        env_fn: Callable[[], gymnasium.Env] | None = None,
        n_agents: int | None = None,
        policy: Any = None,
        alpha: float | Schedule | None = None,
        eta: float | Schedule = 0.2,
        batch_steps: int = 2048,
        horizon: int = 1000,
        gamma: float = 0.99,
        baseline: Literal["none", "time-mean", "value-net"] = "time-mean",
        discount_weighting: bool = False,
        normalize: bool = True,
        clock: EventClock | Sequence[float] | None = None,
        backend: Literal["simulated", "local", "ray"] = "simulated",
        paces: Mapping[int, Pace] | None = None,
        seed: int = 0,
        **rule: Any,
    ):
        if (env_id is None) == (env_fn is None):
            raise InputError("Give either env_id or env_fn.")
        if clock is not None and not isinstance(clock, EventClock):
            clock = EventClock(clock)
        agents = n_agents if n_agents is not None else clock.agents if clock is not None else 1
        rates = {
            "alpha": as_schedule(self.alpha if alpha is None else alpha),
            "eta": eta if callable(eta) else LinearDecay(float(eta)),
            "lookahead": self.lookahead,
        }
        self._begin(
            Settings(
                env=env_id if env_fn is None else env_fn,
                agents=agents,
                policy=policy,
                rule=Rule(**(rates | rule)),
                estimator=Estimator(gamma, baseline, discount_weighting, normalize),
                batch_steps=batch_steps,
                horizon=horizon,
                synchronous=self.synchronous,
                clock=clock,
                backend=backend,
                paces=tuple((paces or {}).items()),
                seed=seed,
            )
        )

    def _begin(self, settings: Settings) -> None:
        policy = _bound(settings)
        at_agent = settings.rule.momentum_at == "agent"
        self.settings = settings
        self._work = Sampler(
            settings.env, policy, settings.estimator, settings.batch_steps, settings.horizon, at_agent, settings.seed
        )
        start = policy.initial(np.random.default_rng(np.random.SeedSequence(settings.seed, spawn_key=(2**31,))))
        self._server = Server(start, settings.rule)
        self._server.pull()  # rates that are out of range are refused before anything starts
        self._federation: Federation | None = None
        self._env_steps, self._events, self._rows = 0, [], []
        self._elapsed = 0.0
        self._iterations = [0] * settings.agents  # of real agents: their random streams go on after a restart

    @classmethod
    def resume(
        cls,
        folder: str | PathLike[str],
        env_fn: Callable[[], gymnasium.Env] | None = None,
        clock: EventClock | None = None,
        policy: Any = None,
        **rule: Any,
    ) -> "AFedPG":
        """The run in `folder`; its next `run` goes on where it stopped, from the start if nothing was saved yet.

        Simulated runs go on to the same sequence. Real agents are handed the model anew: what was in flight is lost.
        What the folder cannot hold has to be given again: `env_fn`, a `clock` or rates (`alpha`, `eta`, as in `Rule`)
        made of functions, a `policy` of your own.

        Raises:
            InputError: if there is no run, or its checkpoint is damaged.
        """
        settings = read_settings(folder, env=env_fn, clock=clock, policy=policy)
        settings = replace(settings, rule=replace(settings.rule, **rule))
        kept = Checkpoint(Path(folder) / "checkpoint")
        found = kept.latest()
        if found is None and kept.steps():
            raise InputError(f"No checkpoint in {kept.folder} is complete; remove it to train from the beginning.")
        trainer = cls.__new__(cls)
        trainer._begin(settings)
        if found is not None:
            trainer._restore(found[1])
        return trainer

    def run(
        self,
        *,
        max_updates: int | None = None,
        max_virtual_time: float | None = None,
        max_env_steps: int | None = None,
        max_seconds: float | None = None,
        out: str | PathLike[str] | None = None,
        every_s: float = 30.0,
        quiet: bool = True,
    ) -> Result:
        """Train until the first budget is used up, counted from the run's beginning, resumed or not.

        Args:
            max_updates: of the server.
            max_virtual_time: of simulated agents, seconds.
            max_env_steps: in all gradients received.
            max_seconds: of real agents.
            out: folder for checkpoints and results.
            every_s: seconds between checkpoints.
            quiet: without a progress bar.

        Raises:
            InputError: without a budget, or with one that this backend does not know.
            AgentError: if an agent fails for good, or none is left.
        """
        budgets = {
            "updates": max_updates, "virtual": max_virtual_time, "env_steps": max_env_steps, "seconds": max_seconds
        }  # fmt: skip
        budgets = {name: limit for name, limit in budgets.items() if limit is not None}
        simulated = self.settings.backend == "simulated"
        if not budgets or any(not limit > 0 for limit in budgets.values()):
            raise InputError("A run needs a positive budget: updates, virtual time, environment steps or seconds.")
        if (max_virtual_time is not None and not simulated) or (max_seconds is not None and simulated):
            raise InputError("Virtual time is for simulated agents, seconds for real ones.")

        checkpoint = None if out is None else Checkpoint(Path(out) / "checkpoint", every_s=every_s)
        if checkpoint is not None:
            if not self._server.k and checkpoint.steps():
                raise InputError(f"{out} already holds a run: go on with `resume`, or choose another folder.")
            atomic_write(Path(out) / "settings.json", self.settings.to_json())
        federation = self._gather(budgets)
        until = max_virtual_time if simulated else None if max_seconds is None else max_seconds - self._elapsed
        begun, before = time.perf_counter(), self._elapsed
        try:
            for _ in progress(itertools.count(), desc="updates", total=max_updates, quiet=quiet):
                counted = {"updates": self._server.k, "env_steps": federation.env_steps}
                if any(counted[name] >= limit for name, limit in budgets.items() if name in counted):
                    break
                update = federation.step(math.inf if until is None else until)
                if update is None and not federation.alive:
                    raise AgentError(
                        f"All {self.settings.agents} agents are lost after {self._server.k} updates; "
                        "resume the run once they can start again."
                    )
                if update is None:
                    break
                self._elapsed = before + time.perf_counter() - begun
                self._rows.append(self._row(update))
                if checkpoint is not None and checkpoint.due():
                    checkpoint.save(self._server.k, self._state())
        finally:
            self._env_steps = federation.env_steps
            if not simulated:
                federation.agents.close()
            if checkpoint is not None and self._server.k:
                checkpoint.save(self._server.k, self._state())
        result = self.result()
        if out is not None:
            result.save(out)
        return result

    def result(self) -> Result:
        """What the run has come to so far."""
        frame = pd.DataFrame(self._rows, columns=list(COLUMNS)).astype(dict.fromkeys(COUNTS, int))
        policy = TrainedPolicy(self._work.policy, self._server.theta.copy())
        return Result(frame, tuple(self._events), policy, self.settings)

    def _gather(self, budgets: Mapping[str, float]) -> Federation:
        """The federation of this run: simulated agents go on where they were, real ones start."""

        def used(federation: Federation) -> float:
            spent = {
                "updates": self._server.k,
                "virtual": federation.agents.now,
                "env_steps": federation.env_steps,
                "seconds": self._elapsed,
            }
            return min(1.0, max(float(spent[name] / limit) for name, limit in budgets.items()))

        federation = self._federation
        if federation is None or self.settings.backend != "simulated":
            federation = Federation(self._server, self._agents(), self.settings.synchronous, used)
            federation.env_steps, federation.events = self._env_steps, self._events
            federation.start()
        federation.progress = used
        self._federation = federation
        return federation

    def _agents(self) -> Agents:
        settings = self.settings
        if settings.backend != "simulated":
            agents = real_agents(settings.backend, settings.agents, self._work, dict(settings.paces))
            agents.iterations = self._iterations
            return agents
        return SimulatedAgents(settings.clock or EventClock([1] * settings.agents), self._work, settings.seed)

    def _row(self, update: Update) -> tuple:
        applied, returns = update.applied, [value for gradient in update.gradients for value in gradient.returns]
        self._env_steps = self._federation.env_steps
        return (
            applied.k,
            update.agents[0] if len(update.agents) == 1 else -1,
            float(update.time) if self.settings.backend == "simulated" else math.nan,
            self._elapsed,
            applied.delay,
            applied.gradient_norm,
            applied.direction_norm,
            float(np.mean(returns)) if returns else math.nan,
            self._env_steps,
        )

    def _state(self) -> dict[str, Any]:
        """Everything that the next update depends on."""
        server, agents = self._server, self._federation.agents
        state: dict[str, Any] = {
            "server": {"theta": server.theta, "previous": server.previous, "direction": server.direction},
            "rows": np.array(self._rows, float).reshape(-1, len(COLUMNS)),
            "counters": {
                "k": server.k,
                "skipped": server.skipped,
                "env_steps": self._federation.env_steps,
                "elapsed": self._elapsed,
                "events": [event._asdict() for event in self._events],
                "iterations": self._iterations,
            },
        }
        if isinstance(agents, SimulatedAgents):
            flights = [flight for _, _, flight in agents.flights]
            reads = {f"flight-{i}": flight.read for i, flight in enumerate(flights) if flight.read is not None}
            waiting = list(self._federation.round.values())
            reads |= {f"waiting-{i}": arrival.read for i, arrival in enumerate(waiting)}
            state["agents"] = {
                "now": _encode(agents.now),
                "iterations": agents.iterations,
                "alive": sorted(self._federation.alive),
                "flights": [
                    [_encode(flight.time), flight.agent, flight.kind]
                    + ([flight.read.k, flight.read.alpha, flight.read.eta] if flight.read is not None else [])
                    for flight in flights
                ],
                "bad": [self._federation.bad[agent] for agent in range(self.settings.agents)],
                "waiting": [
                    [arrival.agent, arrival.time, read.k, read.alpha, read.eta, *arrival.gradient[1:]]
                    for arrival in waiting
                    for read in (arrival.read,)
                ],
            }
            state |= {f"vector-{i}": arrival.gradient.vector for i, arrival in enumerate(waiting)}
            for name, read in reads.items():
                direction = {} if read.direction is None else {"direction": read.direction}
                state[name] = {"theta": read.theta} | direction
            state |= {f"work-{name}": data for name, data in self._work.state().items()}
        return state

    def _restore(self, state: Mapping[str, Any]) -> None:
        server, counters = self._server, state["counters"]
        if state["server"]["theta"].shape != server.theta.shape:
            raise InputError(
                f"The checkpoint's policy has {state['server']['theta'].shape} parameters, this run's "
                f"{server.theta.shape}: it is of another environment or policy."
            )
        for name, value in state["server"].items():
            setattr(server, name, value)
        server.k, server.skipped = counters["k"], counters["skipped"]
        self._env_steps, self._elapsed = counters["env_steps"], counters["elapsed"]
        self._events = [Event(**event) for event in counters["events"]]
        self._rows = [tuple(row) for row in state["rows"]]
        self._iterations = list(counters["iterations"])
        if "agents" not in state:
            return
        kept, agents = state["agents"], self._agents()
        agents.now, agents.iterations, agents.flights = _decode(kept["now"]), list(kept["iterations"]), []
        for i, (finish, agent, kind, *rates) in enumerate(kept["flights"]):
            read = _read(rates, state[f"flight-{i}"]) if rates else None
            agents.push(Flight(_decode(finish), agent, kind, read))
        self._work.restore(
            {name.removeprefix("work-"): data for name, data in state.items() if name.startswith("work-")}
        )
        self._federation = Federation(server, agents, self.settings.synchronous)
        self._federation.alive = set(kept["alive"])
        self._federation.bad.update(enumerate(kept["bad"]))
        for i, (agent, time_, k, alpha, eta, returns, steps, seconds) in enumerate(kept["waiting"]):
            gradient = Gradient(state[f"vector-{i}"], tuple(returns), steps, seconds)
            read = _read((k, alpha, eta), state[f"waiting-{i}"])
            self._federation.round[agent] = Arrival("gradient", agent, time_, read, gradient)
        self._federation.env_steps, self._federation.events = self._env_steps, self._events


class FedPG(AFedPG):
    """The synchronous baseline: waits for all agents, averages their gradients, one normalised step; no momentum."""

    synchronous = True
    lookahead = False
    alpha = 1.0


class AsyncPG(AFedPG):
    """`AFedPG` without the lookahead; with ``alpha=1`` without momentum too."""

    lookahead = False
    alpha = 0.2


class PG(AFedPG):
    """One agent, no momentum, no lookahead: normalised policy gradient."""

    lookahead = False
    alpha = 1.0

    def _begin(self, settings: Settings) -> None:
        if settings.agents != 1:
            raise InputError(f"PG is one agent, got {settings.agents}; AsyncPG(alpha=1) has several and no momentum.")
        super()._begin(settings)


METHODS = {"afedpg": AFedPG, "fedpg": FedPG, "asyncpg": AsyncPG, "pg": PG}
"""Trainers by the name that the command line uses."""


def _bound(settings: Settings) -> Any:
    env = make_environment(settings.env)
    try:
        spec = settings.policy or default_policy(env.observation_space, env.action_space)
        return spec.bind(env.observation_space, env.action_space)
    finally:
        env.close()


def read_settings(folder: str | PathLike[str], **given: Any) -> Settings:
    """The settings of the run in `folder`; see `Settings.from_json`.

    Raises:
        InputError: if there are none, or they cannot be read.
    """
    path = Path(folder) / "settings.json"
    if not path.is_file():
        raise InputError(f"{folder} holds no training run: it has no settings.json.")
    try:
        return Settings.from_json(path.read_text(encoding="utf-8"), **given)
    except UnicodeDecodeError:
        raise InputError(f"{path} is no text: these are no settings of a run.") from None


def _read(rates: Sequence[Any], arrays: Mapping[str, np.ndarray]) -> Read:
    k, alpha, eta = rates
    return Read(k, arrays["theta"], arrays.get("direction"), alpha, eta)


def _encode(seconds: Any) -> float | int | str:
    return str(seconds) if isinstance(seconds, Fraction) else seconds


def _decode(seconds: float | int | str) -> Any:
    return Fraction(seconds) if isinstance(seconds, str) else seconds

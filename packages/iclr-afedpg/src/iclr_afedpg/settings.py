"""All that a training run is made of, as plain data: it goes to JSON beside the results and comes back."""

import dataclasses
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Literal

import gymnasium

from iclr_afedpg.agents import Pace
from iclr_afedpg.clocks import EventClock, Exponential, Failure, Lognormal, Trace
from iclr_afedpg.estimator import Estimator
from iclr_afedpg.policies import CategoricalMLP, GaussianMLP, TabularSoftmax
from iclr_afedpg.schedules import Constant, LinearDecay, PowerDecay
from iclr_afedpg.updates import Rule
from iclr_shared.errors import InputError

type Environment = str | Callable[[], gymnasium.Env]

_KINDS = {
    kind.__name__: kind
    for kind in (
        CategoricalMLP, Constant, Estimator, EventClock, Exponential, Failure, GaussianMLP, LinearDecay, Lognormal,
        Pace, PowerDecay, Rule, TabularSoftmax, Trace,
    )
}  # fmt: skip


@dataclass(frozen=True)
class Settings:
    """A training run.

    Args:
        env: id of a registered gymnasium environment, or a function that makes one.
        agents: how many.
        policy: `GaussianMLP`, `CategoricalMLP` or `TabularSoftmax`, or any object with their ``bind``; None takes what
            fits the environment.
        rule: of the server's updates.
        estimator: of the agents' gradients.
        batch_steps: environment steps for each gradient, at least; whole episodes.
        horizon: cut of each episode, in steps.
        synchronous: with a barrier (FedPG).
        clock: of simulated agents.
        backend: ``"simulated"``, ``"local"`` or ``"ray"``.
        paces: of real agents that are slowed down, by agent.
        seed: of initial weights and episodes.
    """

    env: Environment
    agents: int
    policy: Any = None
    rule: Rule = field(default_factory=Rule)
    estimator: Estimator = field(default_factory=Estimator)
    batch_steps: int = 2048
    horizon: int = 1000
    synchronous: bool = False
    clock: EventClock | None = None
    backend: Literal["simulated", "local", "ray"] = "simulated"
    paces: tuple[tuple[int, Pace], ...] = ()
    seed: int = 0

    def __post_init__(self):
        for name in ("agents", "batch_steps", "horizon"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} must be at least 1, got {getattr(self, name)}.")
        if self.clock is not None and self.clock.agents != self.agents:
            raise InputError(f"The clock has times of {self.clock.agents} agents, the run has {self.agents}.")
        if self.clock is not None and self.backend != "simulated":
            raise InputError(f"A clock is for simulated agents; the backend {self.backend!r} runs on real time.")
        for agent, _ in self.paces:
            if not 0 <= agent < self.agents:
                raise InputError(f"A pace names agent {agent}; agents are 0 to {self.agents - 1}.")
        if self.paces and self.backend == "simulated":
            raise InputError("Paces slow real agents down; give simulated ones a clock.")

    def to_json(self) -> str:
        """As JSON text; what is no plain data (functions that make environments or times) becomes null."""
        return json.dumps(_plain(self), indent=2)

    @classmethod
    def from_json(cls, text: str, env: Environment | None = None, clock: EventClock | None = None) -> "Settings":
        """Read `to_json`; `env` and `clock` replace what could not be written.

        Raises:
            InputError: if the environment was a function and `env` is not given, or the text is none of ours.
        """
        try:
            data = {name: _rebuilt(value) for name, value in json.loads(text).items() if name != "kind"}
            data["paces"] = tuple((agent, pace) for agent, pace in data["paces"])
            data |= {name: value for name, value in (("env", env), ("clock", clock)) if value is not None}
            if data["env"] is None:
                raise InputError("This run's environment was made by a function: give it again as env_fn.")
            return cls(**data)
        except (KeyError, TypeError, AttributeError, json.JSONDecodeError) as error:
            raise InputError(f"These are no settings of a run: {error!r}.") from None


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and (type(value).__name__ in _KINDS or isinstance(value, Settings)):
        fields = {entry.name: _plain(getattr(value, entry.name)) for entry in dataclasses.fields(value)}
        return {"kind": type(value).__name__} | fields
    if isinstance(value, Fraction):
        return {"kind": "Fraction", "value": str(value)}
    if isinstance(value, (tuple, list)):
        return [_plain(item) for item in value]
    return value if isinstance(value, (str, int, float, bool)) else None


def _rebuilt(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(_rebuilt(item) for item in value)
    if not isinstance(value, dict):
        return value
    if value["kind"] == "Fraction":
        return Fraction(value["value"])
    return _KINDS[value["kind"]](**{name: _rebuilt(item) for name, item in value.items() if name != "kind"})

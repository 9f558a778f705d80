"""All that a training run is made of, as plain data: it goes to JSON beside the results and comes back."""

import dataclasses
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction
from numbers import Integral
from typing import Any, Literal

import gymnasium
import numpy as np

from iclr_afedpg.agents import Pace
from iclr_afedpg.clocks import EventClock, Exponential, Failure, Lognormal, Trace
from iclr_afedpg.estimator import Estimator
from iclr_afedpg.policies import CategoricalMLP, GaussianMLP, TabularSoftmax
from iclr_afedpg.schedules import Constant, LinearDecay, PowerDecay
from iclr_afedpg.updates import Rule
from iclr_shared.errors import InputError

type Environment = str | Callable[[], gymnasium.Env]


@dataclass(frozen=True)
class Unwritten:
    """Stands where a run had a function or an object of its user's: any use says that it must be given again."""

    what: str

    def __call__(self, *arguments: Any) -> Any:
        raise InputError(f"This run's {self.what!r} was no plain data, so its folder does not hold it: give it again.")

    bind = __call__


_KINDS = {
    kind.__name__: kind
    for kind in (
        CategoricalMLP, Constant, Estimator, EventClock, Exponential, Failure, GaussianMLP, LinearDecay, Lognormal,
        Pace, PowerDecay, Rule, TabularSoftmax, Trace, Unwritten,
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
            if not (isinstance(getattr(self, name), Integral) and getattr(self, name) >= 1):
                raise InputError(f"{name} must be at least 1, and whole, got {getattr(self, name)}.")
        if not (isinstance(self.seed, Integral) and self.seed >= 0):
            raise InputError(f"seed must be a whole number of at least 0, got {self.seed}.")
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
        """As JSON text; of what is no plain data (functions, own policies) it keeps that it was there."""
        return json.dumps(_plain(self, "settings"), indent=2)

    @classmethod
    def from_json(cls, text: str, **given: Any) -> "Settings":
        """Read `to_json`; what is `given` (`env`, `clock`, `policy`) replaces what could not be written.

        Raises:
            InputError: if the environment was a function and `env` is not given, or the text is none of ours.
        """
        try:
            data = {name: _rebuilt(value) for name, value in json.loads(text).items() if name != "kind"}
            data["paces"] = tuple((agent, pace) for agent, pace in data["paces"])
            data |= {name: value for name, value in given.items() if value is not None}
            if isinstance(data["env"], Unwritten):
                raise InputError("This run's environment was made by a function: give it again as env_fn.")
            return cls(**data)
        except (KeyError, TypeError, AttributeError, json.JSONDecodeError) as error:
            raise InputError(f"These are no settings of a run: {error!r}.") from None


def _plain(value: Any, name: str) -> Any:
    if dataclasses.is_dataclass(value) and (type(value).__name__ in _KINDS or isinstance(value, Settings)):
        fields = {entry.name: _plain(getattr(value, entry.name), entry.name) for entry in dataclasses.fields(value)}
        return {"kind": type(value).__name__} | fields
    if isinstance(value, Fraction):
        return {"kind": "Fraction", "value": str(value)}
    if isinstance(value, (tuple, list)):
        return [_plain(item, name) for item in value]
    if isinstance(value, np.generic):
        return value.item()
    return value if isinstance(value, str | int | float | None) else {"kind": "Unwritten", "what": name}


def _rebuilt(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(_rebuilt(item) for item in value)
    if not isinstance(value, dict):
        return value
    if value["kind"] == "Fraction":
        return Fraction(value["value"])
    return _KINDS[value["kind"]](**{name: _rebuilt(item) for name, item in value.items() if name != "kind"})

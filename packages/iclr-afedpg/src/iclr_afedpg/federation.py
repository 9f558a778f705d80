"""Server and agents at work: the asynchronous loop and the synchronous one, update by update."""

import math
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from iclr_afedpg.agents import AgentError, Agents, Arrival, finite
from iclr_afedpg.sampling import Gradient
from iclr_afedpg.updates import Applied, Server

#: An agent that sends this many unusable vectors in a row is given up.
PATIENCE = 3


class Update(NamedTuple):
    """One applied update and what it was made of."""

    applied: Applied
    agents: tuple[int, ...]
    """Whose gradients it holds: one without a barrier, all that are alive with one."""
    time: float
    """Seconds, virtual or real, at which it was applied."""
    gradients: tuple[Gradient, ...]


class Event(NamedTuple):
    """An agent was lost or joined, or its gradient was dropped."""

    kind: str
    agent: int
    time: float
    k: int


class Federation:
    """Agents around one server.

    Args:
        server: parameters and rule.
        agents: where they run.
        synchronous: wait for all agents that are alive and average their gradients (FedPG), or apply each as it comes.
        progress: share of the budget that is used, asked before each message; schedules see it.

    Attributes:
        env_steps: environment steps in all gradients received.
        events: losses, joins and dropped gradients, in order.
        bad: how many unusable vectors in a row each agent has sent.
        round: gradients that wait at the barrier, by agent.
    """

    def __init__(
        self,
        server: Server,
        agents: Agents,
        synchronous: bool = False,
        progress: Callable[["Federation"], float] = lambda federation: 0.0,
    ):
        self.server, self.agents, self.synchronous, self.progress = server, agents, synchronous, progress
        self.alive = set(range(agents.count))
        self.env_steps = 0
        self.events: list[Event] = []
        self.bad: Counter[int] = Counter()
        self.round: dict[int, Arrival] = {}

    @property
    def dropped(self) -> int:
        """Gradients that were not finite."""
        return sum(event.kind == "dropped" for event in self.events)

    def start(self) -> None:
        """Hand the model to all agents."""
        self._submit(*sorted(self.alive))

    def step(self, until: float = math.inf) -> Update | None:
        """Wait for the next update, apply it, and put the agents it came from to work again.

        Args:
            until: no update later than this, in the agents' seconds.

        Returns:
            The update, or None if none comes in time or no agent is left that could bring one.

        Raises:
            AgentError: if an agent sends three vectors in a row that hold NaN or infinity, or its work raises an error.
        """
        while self.agents.upcoming <= until and (arrival := self.agents.next()) is not None:
            if arrival.kind == "lost":
                self.alive.discard(arrival.agent)
                self.round.pop(arrival.agent, None)
                self._note(arrival)
            elif arrival.kind == "joined":
                self.alive.add(arrival.agent)
                self._note(arrival)
                self._submit(arrival.agent)
            else:
                self.env_steps += arrival.gradient.env_steps
                if not finite(arrival.gradient):
                    self._drop(arrival)
                    continue
                self.bad[arrival.agent] = 0
                self.round[arrival.agent] = arrival
            if self.round and (not self.synchronous or self.alive <= self.round.keys()):
                return self._apply()
        return None

    def _apply(self) -> Update:
        arrivals = list(self.round.values())
        self.round.clear()
        for arrival in arrivals:
            self.server.check(arrival.gradient.vector)
        mean = np.mean([arrival.gradient.vector for arrival in arrivals], axis=0, dtype=self.server.theta.dtype)
        # All of a round read the same model, save one that joined in between; the oldest read sets the delay.
        read = min((arrival.read for arrival in arrivals), key=lambda read: read.k)
        applied = self.server.push(read, mean, self.progress(self))
        update = Update(
            applied,
            tuple(arrival.agent for arrival in arrivals),
            arrivals[-1].time,
            tuple(arrival.gradient for arrival in arrivals),
        )
        self._submit(*(agent for agent in update.agents if agent in self.alive))
        return update

    def _submit(self, *agents: int) -> None:
        read = self.server.pull(self.progress(self))
        for agent in agents:
            self.agents.submit(agent, read)

    def _drop(self, arrival: Arrival) -> None:
        self._note(arrival._replace(kind="dropped"))
        self.bad[arrival.agent] += 1
        self._submit(arrival.agent)
        if self.bad[arrival.agent] >= PATIENCE:
            raise AgentError(
                f"Agent {arrival.agent} sent NaN or infinity {PATIENCE} times in a row: "
                "look at its environment's rewards, or take a smaller step length."
            )

    def _note(self, arrival: Arrival) -> None:
        self.events.append(Event(arrival.kind, arrival.agent, float(arrival.time), self.server.k))

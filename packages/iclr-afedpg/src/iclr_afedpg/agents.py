"""Where agents run: in virtual time, in local processes, or as Ray actors. All three have one interface.

``submit(agent, read)`` hands an idle agent the model; ``next()`` waits for whatever happens first and returns an
`Arrival`, or None once no agent is alive; ``now`` is the time in seconds and ``upcoming`` the earliest time that the
next arrival can have; ``close()`` ends what was started.
"""

import contextlib
import heapq
import math
import multiprocessing
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

import cloudpickle
import numpy as np

from iclr_afedpg.clocks import EventClock, Seconds
from iclr_afedpg.sampling import Gradient, Work
from iclr_afedpg.updates import Read
from iclr_shared.errors import InputError, require


class Arrival(NamedTuple):
    """Something that happened to an agent."""

    kind: Literal["gradient", "lost", "joined"]
    agent: int
    time: float
    read: Read | None = None
    gradient: Gradient | None = None


@runtime_checkable
class Agents(Protocol):
    """What `Federation` needs of a place where agents run."""

    count: int
    now: Seconds
    upcoming: Seconds

    def submit(self, agent: int, read: Read) -> None: ...
    def next(self) -> Arrival | None: ...
    def close(self) -> None: ...


class Flight(NamedTuple):
    """A job in virtual time."""

    time: Any
    agent: int
    kind: str
    read: Read | None


class SimulatedAgents:
    """Agents in virtual time: exact, reproducible, in one process.

    A gradient is computed when its job finishes, at the model that was read when it started, so that only the N models
    in flight are held. Ties go to the lower agent.
    """

    def __init__(self, clock: EventClock, work: Work, seed: int = 0):
        self.clock, self.work, self.seed = clock, work, seed
        self.count = clock.agents
        self.now: Seconds = 0
        self.iterations = [0] * clock.agents
        self.flights: list[tuple[Any, int, Flight]] = []
        for failure in clock.failures:
            self.push(Flight(failure.dies, failure.agent, "lost", None))

    @property
    def upcoming(self) -> Seconds:
        """When the next event happens; infinity if none will."""
        return self.flights[0][0] if self.flights else math.inf

    def submit(self, agent: int, read: Read) -> None:
        """Start the agent's next iteration now."""
        finish = self.now + self.clock.duration(agent, self.iterations[agent], self.seed)
        self.push(Flight(finish, agent, "gradient", read))

    def next(self) -> Arrival | None:
        """The next event in virtual time. If its work raises an error, the job stays in flight."""
        if not self.flights:
            return None
        flight, result = self.flights[0][-1], None
        if flight.kind == "gradient":
            result = self.work(flight.agent, self.iterations[flight.agent], flight.read)
        heapq.heappop(self.flights)
        self.now = flight.time
        if flight.kind == "gradient":
            self.iterations[flight.agent] += 1
        elif flight.kind == "lost":
            self._lose(flight.agent)
        return Arrival(flight.kind, flight.agent, float(self.now), flight.read, result)

    def _lose(self, agent: int) -> None:
        """The agent's job is lost, and so is what would befall it until it joins again."""
        joins = self.clock.joins(agent, self.now)
        mine = [flight for _, owner, flight in self.flights if owner == agent]
        self.iterations[agent] += any(flight.kind == "gradient" for flight in mine)
        self.flights = [entry for entry in self.flights if entry[1] != agent]
        heapq.heapify(self.flights)
        if joins is not None:
            self.push(Flight(joins, agent, "joined", None))
            for flight in mine:
                if flight.kind == "lost" and flight.time >= joins:
                    self.push(flight)

    def close(self) -> None:
        """Nothing was started."""

    def push(self, flight: Flight) -> None:
        """Put an event on the clock."""
        heapq.heappush(self.flights, (flight.time, flight.agent, flight))


@dataclass(frozen=True)
class Pace:
    """Makes a real agent slower, for tests and rehearsals.

    Args:
        factor: an iteration takes this many times as long as the work needs.
        seconds: an iteration takes at least this long.
    """

    factor: float = 1.0
    seconds: float = 0.0

    def __post_init__(self):
        if not (self.factor >= 1 and self.seconds >= 0):
            raise InputError(f"A pace must have a factor of at least 1 and at least 0 seconds, got {self}.")

    def wait(self, start: float) -> None:
        spent = time.perf_counter() - start
        time.sleep(max(self.factor * spent, self.seconds) - spent if self != Pace() else 0)


def _context() -> multiprocessing.context.BaseContext:
    """Agents are forked from a server that has imported this module once; fresh processes where that is unknown."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__, "iclr_afedpg.claims"])
    return context


def _iterate(work: Work, pace: Pace, agent: int, n: int, read: Read) -> Gradient:
    start = time.perf_counter()
    gradient = work(agent, n, read)
    pace.wait(start)
    return gradient._replace(seconds=time.perf_counter() - start)


def _serve(connection: Connection, pickled: bytes, pace: Pace, agent: int) -> None:
    """The loop of an agent's process, until the server hangs up."""
    import torch

    torch.set_num_threads(1)
    work = cloudpickle.loads(pickled)
    connection.send("ready")
    while True:
        try:
            n, read = connection.recv()
        except (EOFError, OSError, KeyboardInterrupt):
            return
        try:
            answer: Any = _iterate(work, pace, agent, n, read)
        except KeyboardInterrupt:
            return
        except Exception as error:  # told to the server, which knows what to do about it
            answer = f"{type(error).__name__}: {error}"
        try:
            connection.send(answer)
        except OSError:
            return


class AgentError(RuntimeError):
    """An agent cannot go on: its work raised an error, or it sent unusable vectors three times in a row."""


class LocalAgents:
    """One process for each agent on this machine, and a pipe to each; the caller is the server.

    An agent whose process dies is lost: the others go on.

    Args:
        count: how many.
        work: sent to each process once, by cloudpickle: functions of a script or notebook will do.
        paces: of the agents that are slowed down.
    """

    def __init__(self, count: int, work: Work, paces: Mapping[int, Pace] | None = None):
        context, pickled = _context(), cloudpickle.dumps(work)
        self.count, self.iterations, self._reads = count, [0] * count, {}
        self._connections: dict[Connection, int] = {}
        self.processes = []
        for agent in range(count):
            mine, theirs = context.Pipe()
            arguments = (theirs, pickled, (paces or {}).get(agent, Pace()), agent)
            process = context.Process(target=_serve, args=arguments, daemon=True, name=f"agent-{agent}")
            process.start()
            theirs.close()
            self.processes.append(process)
            self._connections[mine] = agent
        for connection, agent in self._connections.items():  # the clock starts when all do, not while they import
            try:
                connection.recv()
            except EOFError:
                self.close()
                raise AgentError(
                    f"The process of agent {agent} ended before it began: can it import the work? "
                    "A script must train under `if __name__ == '__main__':`."
                ) from None
        self._start: float | None = None

    @property
    def now(self) -> float:
        """Seconds since the first model was handed out."""
        return 0.0 if self._start is None else time.perf_counter() - self._start

    @property
    def upcoming(self) -> float:
        return self.now

    def submit(self, agent: int, read: Read) -> None:
        """Send the model; if the process is gone, `next` says so."""
        self._start = self._start or time.perf_counter()
        self._reads[agent] = read
        connection = next((mine for mine, owner in self._connections.items() if owner == agent), None)
        if connection is not None:
            with contextlib.suppress(OSError):  # its end of the pipe is closed: `next` finds that too
                connection.send((self.iterations[agent], read))

    def next(self) -> Arrival | None:
        """The next message, or the next death, in order of arrival.

        Raises:
            AgentError: if an agent's work raised an error.
        """
        if not self._connections:
            return None
        connection = wait(list(self._connections))[0]
        agent = self._connections[connection]
        try:
            answer = connection.recv()
        except (EOFError, OSError):
            del self._connections[connection]
            connection.close()
            return Arrival("lost", agent, self.now)
        self.iterations[agent] += 1
        if isinstance(answer, str):
            raise AgentError(f"Agent {agent} failed: {answer}")
        return Arrival("gradient", agent, self.now, self._reads.pop(agent), answer)

    def close(self) -> None:
        """Hang up and end the processes."""
        for connection in self._connections:
            connection.close()
        self._connections.clear()
        for process in self.processes:
            process.terminate()
            process.join()


class _RayAgent:
    def __init__(self, work: Work, pace: Pace, agent: int):
        import torch

        torch.set_num_threads(1)
        self.work, self.pace, self.agent = work, pace, agent

    def ready(self) -> bool:
        return True

    def iterate(self, n: int, read: Read) -> Gradient:
        return _iterate(self.work, self.pace, self.agent, n, read)


class RayAgents:
    """Ray actors, on this machine or on the cluster of ``ray.init(address=...)``; the caller is the server.

    An actor that dies is started again once; after that its agent is lost.

    Args:
        count: how many.
        work: sent to each actor, by cloudpickle.
        paces: of the agents that are slowed down.
        cpus: reserved for each actor.
    """

    def __init__(self, count: int, work: Work, paces: Mapping[int, Pace] | None = None, cpus: float = 1.0):
        self._ray = require("ray", "iclr-afedpg[ray]")
        self._owner = not self._ray.is_initialized()
        if self._owner:
            # On this machine alone agents may share cores; Ray would wait for ever for more than there are.
            cores = max(os.cpu_count() or 1, math.ceil(count * cpus))
            self._ray.init(num_cpus=cores, include_dashboard=False, log_to_driver=False, configure_logging=False)
        actor = self._ray.remote(num_cpus=cpus, max_restarts=1, max_task_retries=0)(_RayAgent)
        self.count, self.iterations = count, [0] * count
        self.actors = [actor.remote(work, (paces or {}).get(agent, Pace()), agent) for agent in range(count)]
        self._ray.get([actor.ready.remote() for actor in self.actors])
        self._pending: dict[Any, tuple[int, Read]] = {}
        self._joined: list[int] = []
        self._start: float | None = None

    @property
    def now(self) -> float:
        """Seconds since the first model was handed out."""
        return 0.0 if self._start is None else time.perf_counter() - self._start

    @property
    def upcoming(self) -> float:
        return self.now

    def submit(self, agent: int, read: Read) -> None:
        """Ask the actor for its next gradient."""
        self._start = self._start or time.perf_counter()
        self._pending[self.actors[agent].iterate.remote(self.iterations[agent], read)] = agent, read
        self.iterations[agent] += 1

    def next(self) -> Arrival | None:
        """The next result, death or restart, in order of arrival.

        Raises:
            AgentError: if an agent's work raised an error.
        """
        if self._joined:
            return Arrival("joined", self._joined.pop(), self.now)
        if not self._pending:
            return None
        [done], _ = self._ray.wait(list(self._pending), num_returns=1)
        agent, read = self._pending.pop(done)
        try:
            gradient = self._ray.get(done)
        except self._ray.exceptions.ActorUnavailableError:
            self._joined.append(agent)  # Ray restarts it
            return Arrival("lost", agent, self.now)
        except self._ray.exceptions.RayActorError:
            return Arrival("lost", agent, self.now)
        except self._ray.exceptions.RayTaskError as error:
            raise AgentError(f"Agent {agent} failed: {error.cause}") from None
        return Arrival("gradient", agent, self.now, read, gradient)

    def close(self) -> None:
        """End the actors, and Ray if it was started here."""
        for actor in self.actors:
            self._ray.kill(actor)
        if self._owner:
            self._ray.shutdown()


def real_agents(backend: str, count: int, work: Work, paces: Mapping[int, Pace] | None = None) -> Agents:
    """Agents of the backend ``"local"`` or ``"ray"``.

    Raises:
        InputError: for another name.
    """
    kinds: dict[str, Callable[..., Agents]] = {"local": LocalAgents, "ray": RayAgents}
    if backend not in kinds:
        raise InputError(f"The backend {backend!r} is unknown; take 'simulated', 'local' or 'ray'.")
    return kinds[backend](count, work, paces)


def finite(gradient: Gradient) -> bool:
    """Whether its vector and returns are all finite."""
    return bool(np.all(np.isfinite(gradient.vector)) and np.all(np.isfinite(gradient.returns)))

"""The event clock: when agents of unequal speed finish, and what follows exactly from their times (spec 2.6, 2.7)."""

import csv
import heapq
import io
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from numbers import Rational
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Int

from iclr_shared.errors import InputError

type Seconds = float | Fraction | np.number
type Duration = Seconds | Callable[[int, int, np.random.Generator], float]


@dataclass(frozen=True)
class Lognormal:
    """Iterations that take `mean` seconds on average; `sigma` is the standard deviation of their logarithm."""

    mean: float
    sigma: float

    def __call__(self, agent: int, n: int, rng: np.random.Generator) -> float:
        return self.mean * float(np.exp(self.sigma * rng.standard_normal() - self.sigma**2 / 2))


@dataclass(frozen=True)
class Exponential:
    """Memoryless iterations of `mean` seconds."""

    mean: float

    def __call__(self, agent: int, n: int, rng: np.random.Generator) -> float:
        return self.mean * float(rng.exponential())


@dataclass(frozen=True)
class Trace:
    """Measured seconds of one agent's iterations, repeated from the start when they run out."""

    seconds: tuple[float, ...]

    def __post_init__(self):
        if not self.seconds:
            raise InputError("A trace needs the seconds of at least one iteration.")

    def __call__(self, agent: int, n: int, rng: np.random.Generator) -> float:
        return self.seconds[n % len(self.seconds)]


@dataclass(frozen=True)
class Failure:
    """Agent `agent` dies at time `dies`, its job in flight is lost, and it joins again at `joins` (None: never)."""

    agent: int
    dies: float
    joins: float | None = None


@dataclass(frozen=True)
class EventClock:
    """How long each agent's local iterations take.

    Args:
        times: seconds of one iteration (sampling, gradient, communication), one for each agent: a number, or
            ``f(agent, n, rng)`` for its n-th iteration. Integers and fractions add exactly: ties stay ties.
        failures: agents that die and join.

    Raises:
        InputError: for a time that is not a positive number, and for a failure of an agent that does not exist or
            that joins before it dies.
    """

    times: tuple[Duration, ...]
    failures: tuple[Failure, ...] = ()

    def __init__(self, times: Sequence[Duration], failures: Sequence[Failure] = ()):
        object.__setattr__(
            self, "times", tuple(time.item() if isinstance(time, np.generic) else time for time in times)
        )
        object.__setattr__(self, "failures", tuple(failures))
        if not self.times:
            raise InputError("A clock needs the time of at least one agent.")
        for agent, time in enumerate(self.times):
            if not callable(time):
                _check(agent, time)
        for failure in self.failures:
            if not 0 <= failure.agent < len(self.times):
                raise InputError(f"A failure names agent {failure.agent}; agents are 0 to {len(self.times) - 1}.")
            if not (failure.dies >= 0 and (failure.joins is None or failure.joins > failure.dies)):
                raise InputError(f"Agent {failure.agent} must die at a time of at least 0 and join after it dies.")

    @property
    def agents(self) -> int:
        return len(self.times)

    @classmethod
    def from_trace(cls, path: str | Path) -> "EventClock":
        """A clock from a CSV with the columns ``agent,iteration,seconds``.

        Raises:
            InputError: if a column is missing or a row is no number.
        """
        rows: dict[int, list[tuple[int, float]]] = {}
        try:
            text = Path(path).read_text(encoding="utf-8-sig")
        except UnicodeDecodeError:
            raise InputError(f"{path} is no text, so no CSV of agent, iteration and seconds.") from None
        reader = csv.DictReader(io.StringIO(text, newline=""))
        if not {"agent", "iteration", "seconds"} <= set(reader.fieldnames or ()):
            raise InputError(f"{path} needs the columns agent, iteration and seconds; it has {reader.fieldnames}.")
        for number, row in enumerate(reader, 2):
            try:
                agent, iteration, seconds = int(row["agent"]), int(row["iteration"]), float(row["seconds"])
            except (TypeError, ValueError):
                raise InputError(f"{path}, line {number}: agent, iteration and seconds must be numbers.") from None
            _check(agent, seconds)
            rows.setdefault(agent, []).append((iteration, seconds))
        if sorted(rows) != list(range(len(rows))) or not rows:
            raise InputError(f"{path} must number its agents 0, 1, ... without a gap; it has {sorted(rows)}.")
        return cls([Trace(tuple(seconds for _, seconds in sorted(rows[agent]))) for agent in sorted(rows)])

    def duration(self, agent: int, n: int, seed: int = 0) -> Seconds:
        """Seconds of the n-th iteration of `agent`."""
        time = self.times[agent]
        if not callable(time):
            return time
        rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(agent, n, 1)))
        seconds = time(agent, n, rng)
        _check(agent, seconds)
        return seconds.item() if isinstance(seconds, np.generic) else seconds

    def joins(self, agent: int, dies: Seconds) -> Seconds | None:
        """When `agent` joins again after its death at `dies`."""
        hit = (failure.joins for failure in self.failures if (failure.agent, failure.dies) == (agent, dies))
        return next(hit, None)


def _check(agent: int, seconds: object) -> None:
    # Compared, not converted: a fraction may be too large for a float.
    if not isinstance(seconds, (int, float, Rational, np.number)) or not 0 < seconds < 1e300:
        raise InputError(f"The time of agent {agent} must be a positive number of seconds, got {seconds}.")


# --- exact consequences, for constant times ------------------------------------------------------------------------


def async_rate(times: Sequence[Seconds]) -> float:
    """Updates per second without a barrier: ``sum(1 / t_i)``."""
    return float(sum(1 / time for time in EventClock(times).times))


def sync_rate(times: Sequence[Seconds]) -> float:
    """Gradients per second with a barrier: ``N / max(t)``."""
    return len(times) / float(max(EventClock(times).times))


def speedup(times: Sequence[Seconds]) -> float:
    """``max(t) * mean(1 / t)``: largest over harmonic mean; 1 if and only if all are equal."""
    return async_rate(times) / sync_rate(times)


def largest_delay(times: Sequence[Seconds]) -> int:
    """Bound of any agent's delay: ``max_i sum_{j != i} ceil(t_i / t_j)``."""
    EventClock(times)
    return max(
        sum(math.ceil(Fraction(mine) / Fraction(other)) for j, other in enumerate(times) if j != i)
        for i, mine in enumerate(times)
    )


class Timeline(NamedTuple):
    """Applied updates in order, and what was in flight after the last one."""

    agent: Int[np.ndarray, " K"]
    time: np.ndarray
    """``(K,)`` seconds; floats."""
    delay: Int[np.ndarray, " K"]
    ages: Int[np.ndarray, " N"]
    """Updates applied since each agent read the model that it is working on."""


def timeline(clock: EventClock, updates: int, seed: int = 0) -> Timeline:
    """The order of `updates` asynchronous updates, without computing any gradient.

    The delays and the ages in flight at the end add up to ``updates * (N - 1)`` exactly, whatever the times, as long as
    no agent fails: the mean delay tends to N - 1.

    Raises:
        InputError: if the clock has failures; those need `AFedPG`.
    """
    if clock.failures:
        raise InputError("A timeline is for agents that do not fail; train with the clock to see failures.")
    N = clock.agents
    heap = [(clock.duration(agent, 0, seed), agent) for agent in range(N)]
    heapq.heapify(heap)
    read, done = [0] * N, [0] * N
    agents, times, delays = [], [], []
    for k in range(updates):
        time, agent = heap[0]
        agents.append(agent)
        times.append(float(time))
        delays.append(k - read[agent])
        read[agent] = k + 1
        done[agent] += 1
        heapq.heapreplace(heap, (time + clock.duration(agent, done[agent], seed), agent))
    ages = np.array([updates - k for k in read])
    return Timeline(np.array(agents, int), np.array(times, float), np.array(delays, int), ages)

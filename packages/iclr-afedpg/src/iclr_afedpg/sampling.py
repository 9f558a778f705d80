"""An agent's work between two messages: sample episodes at the parameters it was sent, and take their gradient."""

import math
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium.spaces import Box
from jaxtyping import Float

from iclr_afedpg.estimator import Episode, Estimator, ValueNet, policy_gradient
from iclr_afedpg.policies import SpaceError
from iclr_afedpg.updates import Read, momentum
from iclr_shared.adapters import torch_bytes, torch_restore
from iclr_shared.errors import InputError


class Gradient(NamedTuple):
    """What an agent sends: one vector and a few numbers, never trajectories."""

    vector: np.ndarray
    """``(*batch, d)``: gradient, or direction if momentum is kept at the agent."""
    returns: tuple[float, ...] = ()
    """Undiscounted return of each episode."""
    env_steps: int = 0
    seconds: float = 0.0


type Work = Callable[[int, int, Read], Gradient]
"""One local iteration, ``work(agent, n, read)``: `n` counts the agent's iterations, and the same ``(agent, n)`` must
give the same result."""


def make_environment(env: str | Callable[[], gymnasium.Env]) -> gymnasium.Env:
    """An environment from its registered id, or from a function that makes it.

    Raises:
        InputError: if no environment of that id is registered.
        SpaceError: if its observations are a dictionary or a tuple.
    """
    try:
        made = gymnasium.make(env, disable_env_checker=True) if isinstance(env, str) else env()
    except gymnasium.error.Error as error:
        raise InputError(f"The environment {env!r} cannot be made: {error}") from None
    if isinstance(made.observation_space, (gymnasium.spaces.Dict, gymnasium.spaces.Tuple)):
        raise SpaceError(
            f"The observations of {env} are a {type(made.observation_space).__name__}: "
            "wrap it in gymnasium.wrappers.FlattenObservation or FilterObservation."
        )
    return made


def rollout(env: gymnasium.Env, policy: Any, act: Callable, rng: np.random.Generator | None, horizon: int) -> Episode:
    """One episode, until it terminates, is truncated, or has `horizon` steps; without `rng` with the likeliest actions.

    The environment is seeded from `rng`, so that an episode depends on nothing before it.

    Raises:
        InputError: if an observation is not of its space's size, or a reward is no single number.
    """
    seed = None if rng is None else int(rng.integers(2**31))
    space = env.observation_space.shape

    def seen(observation: Any) -> np.ndarray:
        copied = np.array(observation)  # environments may write the next one into the same array
        if space is not None and copied.size != math.prod(space):
            raise InputError(f"The environment's observation has shape {copied.shape}, its space has {space}.")
        return copied

    observation = seen(env.reset(seed=seed)[0])
    observations, actions, rewards = [], [], []
    for _ in range(horizon):
        action = act(observation, rng)
        observations.append(observation)
        actions.append(action)
        observation, reward, terminated, truncated, _ = env.step(policy.to_env(action))
        if np.ndim(reward) or isinstance(reward, str):
            raise InputError(f"The environment's reward must be one number, got {reward!r}.")
        rewards.append(reward)
        if terminated or truncated:
            break
        observation = seen(observation)
    return Episode(np.array(observations), np.array(actions), np.array(rewards, float))


class Sampler:
    """The work of a policy-gradient agent on its own copy of the environment.

    Args:
        env: registered id, or a function that makes an environment.
        policy: see `policies`; bound to the environment's spaces.
        estimator: of the gradient.
        batch_steps: whole episodes are played until they have at least this many steps.
        horizon: cut of each episode.
        momentum_at_agent: send the direction instead of the gradient.
        seed: root of the episodes' randomness: iteration n of agent i has its own stream.
    """

    def __init__(
        self,
        env: str | Callable[[], gymnasium.Env],
        policy: Any,
        estimator: Estimator,
        batch_steps: int,
        horizon: int,
        momentum_at_agent: bool = False,
        seed: int = 0,
    ):
        self.env, self.policy, self.estimator = env, policy, estimator
        self.batch_steps, self.horizon, self.momentum_at_agent, self.seed = (
            batch_steps,
            horizon,
            momentum_at_agent,
            seed,
        )
        self._made: gymnasium.Env | None = None
        self._values: dict[int, ValueNet] = {}

    def __getstate__(self):
        return self.__dict__ | {"_made": None, "_values": {}}  # each process makes its own

    def episodes(self, theta: Float[np.ndarray, " d"], rng: np.random.Generator) -> list[Episode]:
        """Whole episodes with at least `batch_steps` steps in all."""
        self._made = self._made or make_environment(self.env)
        act, played, steps = self.policy.actor(theta), [], 0
        while steps < self.batch_steps:
            played.append(rollout(self._made, self.policy, act, rng, self.horizon))
            steps += len(played[-1].rewards)
        return played

    def __call__(self, agent: int, n: int, read: Read) -> Gradient:
        start = time.perf_counter()
        rng = np.random.default_rng(np.random.SeedSequence(self.seed, spawn_key=(agent, n)))
        episodes = self.episodes(read.theta, rng)
        values = None
        if self.estimator.baseline == "value-net":
            net = self._value_net(agent)
            values = net(episodes) if n > 0 else None
        with np.errstate(invalid="ignore", over="ignore"):  # the server drops and counts what is not finite
            vector = policy_gradient(self.policy, read.theta, episodes, self.estimator, values)
        if self.estimator.baseline == "value-net" and np.all(np.isfinite(vector)):
            net.fit(episodes, self.estimator.gamma)
        if self.momentum_at_agent:
            vector = momentum(read.direction, vector, read.alpha)
        returns = tuple(float(episode.rewards.sum()) for episode in episodes)
        steps = sum(len(episode.rewards) for episode in episodes)
        return Gradient(vector, returns, steps, time.perf_counter() - start)

    def state(self) -> dict[str, bytes]:
        """What the agents have learned besides the policy: their value networks, for a checkpoint."""
        return {f"agent-{agent}": torch_bytes(net.state()) for agent, net in self._values.items()}

    def restore(self, state: Mapping[str, bytes]) -> None:
        """Take up a `state`."""
        self._made = self._made or make_environment(self.env)
        for name, data in state.items():
            self._value_net(int(name.removeprefix("agent-"))).restore(torch_restore(data))

    def _value_net(self, agent: int) -> ValueNet:
        if agent not in self._values:
            if not isinstance(self._made.observation_space, Box):
                raise SpaceError("The baseline 'value-net' needs Box observations; take 'time-mean'.")
            width = int(np.prod(self._made.observation_space.shape))
            self._values[agent] = ValueNet(width, self.seed + agent)
        return self._values[agent]

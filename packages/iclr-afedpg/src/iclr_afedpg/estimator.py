"""The policy gradient of an agent's episodes: reward-to-go, baselines, GPOMDP (spec 2.2)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float
from scipy.signal import lfilter

from iclr_shared.errors import InputError


class Episode(NamedTuple):
    """One episode, cut at the horizon."""

    observations: np.ndarray
    """``(h, ...)``."""
    actions: np.ndarray
    """``(h, ...)``, before the environment's bounds."""
    rewards: np.ndarray
    """``(h,)``."""


@dataclass(frozen=True)
class Estimator:
    """How an agent turns episodes into a gradient.

    Args:
        gamma: discount factor in [0, 1].
        baseline: ``"time-mean"``: mean reward-to-go of the episodes still alive at that step; ``"value-net"``: a
            network fitted to the agent's earlier episodes; ``"none"``.
        discount_weighting: weight step h by ``gamma ** h``. Then this is the gradient of the discounted return; without
            it, as in practice, later steps count as much as early ones.
        normalize: divide the advantages by their standard deviation over the batch.
    """

    gamma: float = 0.99
    baseline: Literal["none", "time-mean", "value-net"] = "time-mean"
    discount_weighting: bool = False
    normalize: bool = True

    def __post_init__(self):
        if not 0 <= self.gamma <= 1:
            raise InputError(f"gamma must be in [0, 1], got {self.gamma}.")
        if self.baseline not in ("none", "time-mean", "value-net"):
            raise InputError(f"The baseline must be 'none', 'time-mean' or 'value-net', got {self.baseline!r}.")


def padded(episodes: Sequence[Episode]) -> tuple[Float[np.ndarray, "M H"], Bool[np.ndarray, "M H"]]:
    """Rewards of all episodes, 0 after their end, and where they are alive."""
    lengths = np.array([len(episode.rewards) for episode in episodes])
    alive = np.arange(lengths.max()) < lengths[:, None]
    rewards = np.zeros(alive.shape)
    rewards[alive] = np.concatenate([episode.rewards for episode in episodes])
    return rewards, alive


def reward_to_go(rewards: Float[np.ndarray, "M H"], gamma: float) -> Float[np.ndarray, "M H"]:
    """``sum_{j >= h} gamma^(j - h) r_j``; nothing is added at a time limit, where a critic would guess what comes."""
    return lfilter([1.0], [1.0, -gamma], rewards[:, ::-1], axis=1)[:, ::-1]


def time_mean(returns: Float[np.ndarray, "M H"], alive: Bool[np.ndarray, "M H"]) -> Float[np.ndarray, " H"]:
    """Mean reward-to-go at each step over the episodes still alive; a lone survivor's advantage is then 0."""
    return np.where(alive, returns, 0).sum(0) / np.maximum(alive.sum(0), 1)


def policy_gradient(
    policy: Any,
    theta: Float[np.ndarray, " d"],
    episodes: Sequence[Episode],
    estimator: Estimator,
    values: Float[np.ndarray, "M H"] | None = None,
) -> Float[np.ndarray, " d"]:
    """``1/M sum_m sum_h grad log pi(a_h | s_h) gamma^h (R_h - b_h)``, with ``gamma^h`` only if `discount_weighting`.

    Args:
        policy: see `policies`.
        theta: where the episodes were sampled.
        episodes: M of them.
        estimator: discount, baseline, weighting.
        values: of a value network, for the baseline ``"value-net"``.

    Returns:
        The ascent direction, of `theta`'s type.
    """
    rewards, alive = padded(episodes)
    advantages = reward_to_go(rewards, estimator.gamma)
    if estimator.baseline == "time-mean":
        advantages = advantages - time_mean(advantages, alive)
    elif estimator.baseline == "value-net" and values is not None:
        advantages = advantages - values
    if estimator.normalize:
        advantages = advantages / max(float(advantages[alive].std()), 1e-8)
    if estimator.discount_weighting:
        advantages = advantages * estimator.gamma ** np.arange(alive.shape[1])
    parameters = torch.tensor(theta, requires_grad=True)
    observations, actions = (
        torch.from_numpy(np.concatenate([getattr(episode, name) for episode in episodes]))
        for name in ("observations", "actions")
    )
    weights = torch.as_tensor(advantages[alive], dtype=parameters.dtype)
    if observations.is_floating_point():
        observations = observations.to(parameters.dtype)
    objective = (policy.log_prob(parameters, observations, actions) * weights).sum() / len(episodes)
    return torch.autograd.grad(objective, parameters)[0].numpy()


class ValueNet:
    """Fits rewards-to-go from observations; it stays at its agent, as only vectors of the policy's length travel.

    Args:
        width: of the flattened observations.
        seed: of the initial weights.
        epochs: passes over each batch, of Adam at rate `rate`.
    """

    def __init__(self, width: int, seed: int, epochs: int = 20, rate: float = 3e-3):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.net = torch.nn.Sequential(
                torch.nn.Linear(width, 64), torch.nn.Tanh(), torch.nn.Linear(64, 64), torch.nn.Tanh(),
                torch.nn.Linear(64, 1),
            )  # fmt: skip
        self.epochs = epochs
        self.optimizer = torch.optim.Adam(self.net.parameters(), rate)
        self.shift, self.scale = 0.0, 1.0

    def __call__(self, episodes: Sequence[Episode]) -> Float[np.ndarray, "M H"]:
        """Values at each step of each episode, 0 after their end."""
        _, alive = padded(episodes)
        values = np.zeros(alive.shape)
        with torch.no_grad():
            values[alive] = self.net(self._inputs(episodes))[:, 0].numpy() * self.scale + self.shift
        return values

    def fit(self, episodes: Sequence[Episode], gamma: float) -> None:
        """Learn from a batch, after its gradient was taken: the baseline must not have seen its own actions."""
        rewards, alive = padded(episodes)
        targets = reward_to_go(rewards, gamma)[alive]
        self.shift, self.scale = float(targets.mean()), max(float(targets.std()), 1e-8)
        wanted = torch.as_tensor((targets - self.shift) / self.scale, dtype=torch.float32)[:, None]
        inputs = self._inputs(episodes)
        for _ in range(self.epochs):
            self.optimizer.zero_grad()
            torch.nn.functional.mse_loss(self.net(inputs), wanted).backward()
            self.optimizer.step()

    def state(self) -> dict[str, Any]:
        """Weights, moments and scales, for a checkpoint."""
        return {
            "net": self.net.state_dict(), "optimizer": self.optimizer.state_dict(), "scales": [self.shift, self.scale]
        }  # fmt: skip

    def restore(self, state: dict[str, Any]) -> None:
        """Take up a `state`."""
        self.net.load_state_dict(state["net"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.shift, self.scale = state["scales"]

    def _inputs(self, episodes):
        whole = np.concatenate([episode.observations for episode in episodes])
        return torch.as_tensor(whole.reshape(len(whole), -1), dtype=torch.float32)

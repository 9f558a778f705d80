"""A small random MDP with exact values and gradients, on which rates can be measured (spec 2.9)."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from iclr_afedpg.agents import SimulatedAgents
from iclr_afedpg.clocks import EventClock
from iclr_afedpg.federation import Federation
from iclr_afedpg.sampling import Gradient
from iclr_afedpg.updates import Read, Rule, Server
from iclr_shared.errors import InputError


def softmax(logits: Float[np.ndarray, "... A"]) -> Float[np.ndarray, "... A"]:
    """Over the last axis."""
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


@dataclass(frozen=True)
class TabularMDP:
    """Finite MDP with discounted return and a softmax policy of one logit for each state and action.

    Args:
        transitions: ``(S, A, S)`` probabilities.
        rewards: ``(S, A)``.
        gamma: discount in [0, 1).
        start: ``(S,)`` distribution of the first state.
    """

    transitions: Float[np.ndarray, "S A S"]
    rewards: Float[np.ndarray, "S A"]
    gamma: float
    start: Float[np.ndarray, " S"]

    def __post_init__(self):
        if not 0 <= self.gamma < 1:
            raise InputError(f"gamma must be in [0, 1), got {self.gamma}.")
        for name, rows in (("transitions", self.transitions), ("start", self.start)):
            if np.any(rows < 0) or not np.allclose(rows.sum(-1), 1):
                raise InputError(f"The MDP's {name} must be probabilities that add up to 1 over the last axis.")

    @classmethod
    def random(cls, seed: int = 0, states: int = 10, actions: int = 3, gamma: float = 0.9) -> "TabularMDP":
        """Uniform Dirichlet transitions and uniform rewards, drawn in this order; uniform start."""
        rng = np.random.default_rng(seed)
        transitions = rng.dirichlet(np.ones(states), (states, actions))
        return cls(transitions, rng.uniform(size=(states, actions)), gamma, np.full(states, 1 / states))

    def value(self, theta: Float[np.ndarray, "*batch d"]) -> Float[np.ndarray, "*batch"]:
        """Expected discounted return ``J`` of the softmax policy."""
        return np.asarray(self._evaluate(theta)[1] @ self.start)

    def gradient(self, theta: Float[np.ndarray, "*batch d"]) -> Float[np.ndarray, "*batch d"]:
        """``dJ / d theta_sa = d_mu(s) pi(a|s) (Q(s, a) - V(s))``, `d_mu` the discounted occupancy, not normalised."""
        policy, V, Q, resolvent = self._evaluate(theta)
        occupancy = self.start @ resolvent
        return (occupancy[..., None] * policy * (Q - V[..., None])).reshape(theta.shape)

    def optimum(self, iterations: int = 2000) -> float:
        """``J*``, by value iteration."""
        V = np.zeros(len(self.start))
        for _ in range(iterations):
            V = (self.rewards + self.gamma * self.transitions @ V).max(1)
        return float(self.start @ V)

    def _evaluate(self, theta):
        policy = softmax(theta.reshape(*theta.shape[:-1], *self.rewards.shape))
        P = (policy[..., None, :] @ self.transitions)[..., 0, :]
        resolvent = np.linalg.inv(np.eye(len(self.start)) - self.gamma * P)
        V = (resolvent @ (policy * self.rewards).sum(-1)[..., None])[..., 0]
        Q = self.rewards + self.gamma * (V @ self.transitions.reshape(-1, len(self.start)).T).reshape(policy.shape)
        return policy, V, Q, resolvent


def noisy_run(
    mdp: TabularMDP,
    rule: Rule,
    clock: EventClock,
    seeds: int,
    at: Float[np.ndarray, " points"] | tuple[int, ...],
    sigma: float = 0.3,
    first_seed: int = 0,
) -> tuple[Float[np.ndarray, "points seeds"], Float[np.ndarray, " points"]]:
    """Train on exact gradients with Gaussian noise, all seeds at once.

    Args:
        mdp: where.
        rule: rates, lookahead, momentum.
        clock: times of the agents.
        seeds: how many independent noises, from ``default_rng(first_seed)`` on; one draw for each update.
        at: updates after which to measure, ascending.
        sigma: standard deviation of the noise of each coordinate.

    Returns:
        The gaps ``J* - J(theta)`` at the server's parameters, and the virtual times.
    """
    noises = [np.random.default_rng(first_seed + seed) for seed in range(seeds)]
    shape = mdp.rewards.size

    def work(agent: int, n: int, read: Read) -> Gradient:
        noise = np.stack([rng.normal(0.0, sigma, mdp.rewards.shape).ravel() for rng in noises])
        return Gradient(mdp.gradient(read.theta) + noise)

    federation = Federation(Server(np.zeros((seeds, shape)), rule), SimulatedAgents(clock, work))
    federation.start()
    best, gaps, times, wanted = mdp.optimum(), [], [], set(map(int, at))
    for k in range(1, int(max(at)) + 1):
        time = federation.step().time
        if k in wanted:
            gaps.append(best - mdp.value(federation.server.theta))
            times.append(time)
    return np.array(gaps), np.array(times)

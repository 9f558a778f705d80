"""The welfare dynamics as a Gymnasium environment, for those who learn whom to help (extra ``gym``)."""

from typing import Any

import numpy as np
from jaxtyping import Float, Real

from iclr_shared.errors import InputError, require
from iclr_welfare.dynamics import Noise, moved
from iclr_welfare.population import Population, whole

gymnasium = require("gymnasium", "iclr-welfare[gym]")


class WelfareEnv(gymnasium.Env):
    """Help M of N people at each of T steps (Wu et al., ICLR 2025); the return of an episode is T R(T).

    Observation: everyone's welfare U(t), shape (N,), float64. Action: a priority for each person, shape (N,); the M
    people with the highest are helped, ties go to the smallest index. Any finite priorities are taken, so that -U is
    the Rawlsian policy and f(U) + g(U) the utilitarian one; the action space is [-1, 1]^N, which is what learners
    like. Reward: change of mean welfare in this step. Episodes are truncated after T steps and never terminate.
    `info` holds the time ``t`` and, after a step, the people ``helped``.

    Args:
        population: the people; f and g are evaluated in float64.
        M: people helped per step, 1 <= M < N.
        T: steps per episode, at least 1.
        noise: shocks, drawn from the environment's own generator (`reset(seed=...)`); None for none.

    Raises:
        InputError: if M or T is out of range.
        MissingExtra: on import, if Gymnasium is not installed.

    References:
        Towers et al., Gymnasium: A Standard Interface for Reinforcement Learning Environments, 2024.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012 (as Gymnasium declares it)

    def __init__(self, population: Population, M: int, T: int, noise: Noise | None = None):
        population.check_budget(M)
        if whole(T, "The horizon T") < 1:
            raise InputError(f"An episode needs at least one step (T >= 1), not {T}.")
        self.population, self.M, self.T, self.noise = population, M, T, noise
        shape = (population.N,)
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, shape, np.float64)
        self.action_space = gymnasium.spaces.Box(-1.0, 1.0, shape, np.float64)
        self.t, self.welfare = 0, np.float64(population.U0)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Float[np.ndarray, " N"], dict[str, Any]]:
        """Back to U(0). `options` are not used."""
        super().reset(seed=seed)
        self.t, self.welfare = 0, np.float64(self.population.U0)
        return self.welfare.copy(), {"t": 0}

    def step(self, action: Real[np.ndarray, " N"]) -> tuple[Float[np.ndarray, " N"], float, bool, bool, dict[str, Any]]:
        """One step of the dynamics.

        Raises:
            InputError: if the priorities are not N finite numbers.
        """
        priority, N = np.asarray(action, np.float64), self.population.N
        if priority.shape != (N,) or not np.all(np.isfinite(priority)):
            raise InputError(f"An action is a finite priority for each of {N} people, not {action}.")
        people = np.argsort(-priority, kind="stable")[: self.M]
        helped = np.isin(np.arange(N), people)
        U = self.welfare
        self.welfare = moved(U, helped, self.population.f(U), self.population.g(U))
        if self.noise is not None:
            shocks = self.np_random.normal(0.0, np.sqrt(self.noise.variance), N)
            self.welfare = self.welfare + np.clip(shocks, -self.noise.bound, self.noise.bound)
        self.t += 1
        reward = float(np.mean(self.welfare - U))
        return self.welfare.copy(), reward, False, self.t >= self.T, {"t": self.t, "helped": np.sort(people)}

"""A tiny environment whose best policy is known, and faults to put into it."""

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete


class Bandit(gymnasium.Env):
    """Two steps; reward is minus the squared action, or 1 for action 1 where actions are discrete."""

    def __init__(self, discrete=False, reward=None):
        self.observation_space = Box(-1.0, 1.0, (2,), np.float32)
        self.action_space = Discrete(2) if discrete else Box(-1.0, 1.0, (1,), np.float32)
        self.reward = reward

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.left = 2
        return self.np_random.uniform(-1, 1, 2).astype(np.float32), {}

    def step(self, action):
        self.left -= 1
        gain = float(action) if isinstance(self.action_space, Discrete) else -float(np.sum(np.square(action)))
        reward = gain if self.reward is None else self.reward
        return self.np_random.uniform(-1, 1, 2).astype(np.float32), reward, self.left == 0, False, {}


@pytest.fixture
def bandit():
    return Bandit

import numpy as np
import pytest
import torch
from gymnasium.spaces import Discrete

from iclr_afedpg.estimator import Episode, Estimator, ValueNet, padded, policy_gradient, reward_to_go, time_mean
from iclr_afedpg.policies import TabularSoftmax
from iclr_afedpg.tabular import TabularMDP, softmax
from iclr_shared.adapters import torch_bytes, torch_restore
from iclr_shared.errors import InputError
from iclr_shared.testing import assert_unbiased

POLICY = TabularSoftmax().bind(Discrete(4), Discrete(2))
RNG = np.random.default_rng(0)
EPISODES = [Episode(RNG.integers(4, size=h), RNG.integers(2, size=h), RNG.normal(size=h)) for h in (3, 5, 1)]
THETA = RNG.normal(size=8)


def by_hand(estimator, values=None):
    """The definition, in loops, with the closed form of the score of a softmax."""
    gradient, policy = np.zeros((4, 2)), softmax(THETA.reshape(4, 2))
    togo = [
        [sum(estimator.gamma ** (j - h) * r[j] for j in range(h, len(r))) for h in range(len(r))]
        for r in (episode.rewards for episode in EPISODES)
    ]
    advantages = []
    for m, row in enumerate(togo):
        for h, value in enumerate(row):
            base = np.mean([other[h] for other in togo if len(other) > h]) if estimator.baseline == "time-mean" else 0
            advantages.append((m, h, value - base - (0 if values is None else values[m, h])))
    scale = np.std([value for *_, value in advantages]) if estimator.normalize else 1
    for m, h, value in advantages:
        s, a = EPISODES[m].observations[h], EPISODES[m].actions[h]
        weight = value / scale * (estimator.gamma**h if estimator.discount_weighting else 1)
        gradient[s] += weight * ((np.arange(2) == a) - policy[s]) / len(EPISODES)
    return gradient.ravel()


@pytest.mark.parametrize("baseline", ["none", "time-mean"])
@pytest.mark.parametrize("discount_weighting", [False, True])
@pytest.mark.parametrize("normalize", [False, True])
def test_against_the_definition(baseline, discount_weighting, normalize):
    estimator = Estimator(0.8, baseline, discount_weighting, normalize)
    np.testing.assert_allclose(policy_gradient(POLICY, THETA, EPISODES, estimator), by_hand(estimator), rtol=1e-9)


def test_values_are_subtracted():
    values = np.arange(15.0).reshape(3, 5)
    estimator = Estimator(0.8, "value-net", normalize=False)
    np.testing.assert_allclose(
        policy_gradient(POLICY, THETA, EPISODES, estimator, values), by_hand(estimator, values), rtol=1e-9
    )


def test_a_lone_survivor_has_no_advantage():
    rewards, alive = padded(EPISODES)
    returns = reward_to_go(rewards, 0.9)
    baseline = time_mean(returns, alive)
    np.testing.assert_allclose(baseline[3:], returns[1, 3:])
    np.testing.assert_allclose(baseline[0], returns[:, 0].mean())


def test_unbiased_for_the_discounted_return():
    """REINFORCE with the leading gamma^h is the exact gradient of J; episodes long enough for gamma = 0.5."""
    mdp = TabularMDP.random(1, states=3, actions=2, gamma=0.5)
    policy = TabularSoftmax().bind(Discrete(3), Discrete(2))
    rng, theta = np.random.default_rng(0), np.array([0.5, -0.5, 0.2, 0.0, -1.0, 1.0])
    table = softmax(theta.reshape(3, 2))
    estimator = Estimator(0.5, "none", discount_weighting=True, normalize=False)

    cumulative = mdp.transitions.cumsum(-1)

    def draw(_):
        s, states, actions = int(rng.integers(3)), [], []
        for u, v in rng.random((14, 2)):
            a = int(u < table[s, 1])
            states.append(s)
            actions.append(a)
            s = int(np.searchsorted(cumulative[s, a], v))
        episode = Episode(np.array(states), np.array(actions), mdp.rewards[states, actions])
        return policy_gradient(policy, theta, [episode], estimator)

    assert_unbiased(draw, mdp.gradient(theta), 1000)


def test_value_net_learns_and_comes_back():
    observations = np.linspace(-1, 1, 200)[:, None]
    episodes = [Episode(observations[i : i + 1], np.zeros(1), 3 * observations[i] + 5) for i in range(200)]
    net = ValueNet(1, seed=0)
    error = []
    for _ in range(15):
        error.append(np.abs(net(episodes)[:, 0] - (3 * observations[:, 0] + 5)).mean())
        net.fit(episodes, 0.9)
    assert error[-1] < 0.1 * error[0]
    twin = ValueNet(1, seed=1)
    twin.restore(torch_restore(torch_bytes(net.state())))
    for each in (net, twin):
        each.fit(episodes, 0.9)
    np.testing.assert_array_equal(net(episodes), twin(episodes))


def test_the_global_generator_is_left_alone():
    before = torch.random.get_rng_state()
    ValueNet(2, seed=3)
    assert torch.equal(before, torch.random.get_rng_state())


def test_bad_estimators():
    with pytest.raises(InputError, match="gamma must be in"):
        Estimator(1.5)

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary

from iclr_afedpg.policies import CategoricalMLP, GaussianMLP, SpaceError, TabularSoftmax, default_policy, mlp
from iclr_shared.errors import InputError

SEEN, FORCE = Box(-np.inf, np.inf, (3,)), Box(-2.0, 3.0, (2,))
RNG = np.random.default_rng(0)


def policies():
    yield GaussianMLP((8,)).bind(SEEN, FORCE), RNG.normal(size=(5, 3)).astype(np.float32)
    yield CategoricalMLP((8,)).bind(SEEN, Discrete(4)), RNG.normal(size=(5, 3)).astype(np.float32)
    yield TabularSoftmax().bind(Discrete(6), Discrete(4, start=1)), np.arange(5)


@pytest.mark.parametrize(("policy", "observations"), list(policies()))
def test_log_probability_is_that_of_the_draws(policy, observations):
    rng = np.random.default_rng(1)
    theta = policy.initial(rng) + 0.3 * rng.standard_normal(policy.size).astype(policy.dtype)
    act = policy.actor(theta)
    draws = np.array([act(observations[0], rng) for _ in range(4000)])
    log_prob = policy.log_prob(
        torch.tensor(theta), torch.tensor(np.repeat(observations[:1], len(draws), 0)), torch.tensor(draws)
    ).numpy()
    if draws.ndim == 1:  # frequencies
        for action in range(4):
            p = np.exp(log_prob[draws == action][0])
            assert np.mean(draws == action) == pytest.approx(p, abs=4 * float(p / 4000) ** 0.5)
    else:  # moments
        std = np.exp(theta[-2:])
        np.testing.assert_allclose(draws.std(0), std, rtol=0.06)
        np.testing.assert_allclose(draws.mean(0), act(observations[0]), atol=4 * std.max() / 4000**0.5)
        direct = -0.5 * ((draws - act(observations[0])) / std) ** 2 - np.log(std) - 0.5 * np.log(2 * np.pi)
        np.testing.assert_allclose(log_prob, direct.sum(1), rtol=1e-4, atol=1e-4)


def test_linear_policy_of_the_pendulum_has_six_parameters():
    policy = GaussianMLP((), log_std=np.log(0.5), last_scale=0.0).bind(Box(-1, 1, (4,)), Box(-3, 3, (1,)))
    theta = policy.initial(np.random.default_rng(0))
    assert policy.size == 6
    np.testing.assert_allclose(theta, [0, 0, 0, 0, 0, np.log(0.5)], rtol=1e-6)


def test_numpy_and_torch_share_the_network():
    theta, x = RNG.normal(size=4 * 5 + 6 * 2), RNG.normal(size=(7, 3))
    np.testing.assert_allclose(
        mlp(theta, (3, 5, 2), x, np.tanh), mlp(torch.tensor(theta), (3, 5, 2), torch.tensor(x), torch.tanh), rtol=1e-12
    )


def test_actions_stay_in_bounds():
    clip, squash = (GaussianMLP((), bounds=bounds).bind(SEEN, FORCE) for bounds in ("clip", "squash"))
    far = np.array([-99.0, 99.0])
    for policy in (clip, squash):
        action = policy.to_env(far)
        np.testing.assert_allclose(action, [-2, 3], atol=1e-5)
        assert FORCE.contains(action)
    np.testing.assert_allclose(clip.to_env(np.array([1.0, -1.0])), [1, -1])
    np.testing.assert_allclose(squash.to_env(np.zeros(2)), 0.5)
    free = GaussianMLP((), scale=10.0).bind(SEEN, Box(-np.inf, np.inf, (1,)))
    np.testing.assert_allclose(free.to_env(np.array([2.0])), 20)


def test_discrete_actions_start_where_the_space_does():
    policy = TabularSoftmax().bind(Discrete(2, start=5), Discrete(3, start=7))
    assert policy.to_env(np.array(2)) == 9
    theta = np.array([0.0, 0, 1, 0, 2, 0])
    assert policy.to_env(policy.actor(theta)(np.array(6))) == 8


@pytest.mark.parametrize(
    ("spec", "spaces", "message"),
    [
        (GaussianMLP(), (SEEN, Discrete(2)), "needs Box actions"),
        (GaussianMLP(), (SEEN, Box(-np.inf, np.inf, (1,))), "no finite bounds: wrap"),
        (GaussianMLP(scale=1.0, bounds="squash"), (SEEN, Box(-np.inf, np.inf, (1,))), "no finite bounds"),
        (GaussianMLP(), (Dict({"a": SEEN}), FORCE), "FlattenObservation"),
        (CategoricalMLP(), (SEEN, FORCE), "needs Discrete actions"),
        (CategoricalMLP(), (Discrete(3), Discrete(2)), "TabularSoftmax"),
        (TabularSoftmax(), (SEEN, Discrete(2)), "needs Discrete observations"),
    ],
)
def test_unsuited_spaces(spec, spaces, message):
    with pytest.raises(SpaceError, match=message) as caught:
        spec.bind(*spaces)
    assert isinstance(caught.value, TypeError)


def test_defaults():
    assert isinstance(default_policy(SEEN, FORCE), GaussianMLP)
    assert isinstance(default_policy(SEEN, Discrete(2)), CategoricalMLP)
    assert isinstance(default_policy(Discrete(3), Discrete(2)), TabularSoftmax)
    with pytest.raises(SpaceError, match="must be Box or Discrete"):
        default_policy(SEEN, MultiBinary(3))


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (lambda: GaussianMLP((0,)), "width of at least 1"),
        (lambda: CategoricalMLP((4, -1)), "width of at least 1"),
        (lambda: GaussianMLP(log_std=float("nan")), "log_std"),
        (lambda: GaussianMLP(last_scale=float("inf")), "last_scale"),
        (lambda: GaussianMLP(scale=-1.0), "scale must be a positive"),
    ],
)
def test_bad_specs(spec, message):
    with pytest.raises(InputError, match=message):
        spec()

import jax
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

import iclr_welfare as iw
from iclr_shared.errors import InputError
from iclr_welfare.environment import WelfareEnv


def episode(env, priority, seed=0):
    """Rewards and last welfare of one episode; `priority` maps welfare to an action."""
    U, _ = env.reset(seed=seed)
    rewards, over = [], False
    while not over:
        U, reward, terminated, over, info = env.step(priority(U))
        assert not terminated
        assert info["helped"].size == env.M
        rewards.append(reward)
    assert info["t"] == len(rewards) == env.T
    return np.array(rewards), U


# Welfare is any real number, so its space has no bounds; the checker recommends some.
@pytest.mark.filterwarnings("ignore:.*A Box observation space (min|max)imum value is -?infinity:UserWarning")
@pytest.mark.filterwarnings("ignore:.*not able to test alternative render modes:UserWarning")
def test_gymnasium_accepts_it(mixed):
    check_env(WelfareEnv(mixed, 3, 20, iw.Noise(100.0)))


@pytest.mark.parametrize("policy", ["rawlsian", "util_gain"])
def test_a_policys_key_as_priority_is_that_policys_simulation(mixed, policy):
    keys = {"rawlsian": lambda U: -U, "util_gain": lambda U: mixed.f(U) + mixed.g(U)}
    rewards, U = episode(WelfareEnv(mixed, 3, 40), keys[policy])
    result = iw.simulate(mixed, policy, 3, 40, key=jax.random.key(7))
    np.testing.assert_allclose(U, result.U_T, rtol=1e-12)
    assert rewards.mean() == pytest.approx(float(result.growth_at(40)), rel=1e-12)


def test_shocks_follow_the_seed_and_keep_the_bound(mixed):
    env, quiet = WelfareEnv(mixed, 3, 1, iw.Noise(9.0, clip=2.0)), WelfareEnv(mixed, 3, 1)
    ends = [episode(env, np.negative, seed)[1] for seed in (1, 1, 2)]
    np.testing.assert_array_equal(ends[0], ends[1])
    assert (ends[0] != ends[2]).any()
    shocks = ends[0] - episode(quiet, np.negative)[1]
    assert 0 < np.abs(shocks).max() <= 2.0 + 1e-9


@pytest.mark.parametrize(
    ("use", "message"),
    [
        (lambda people: WelfareEnv(people, 10, 5), "M = 10"),
        (lambda people: WelfareEnv(people, 1, 0), "T >= 1"),
        (lambda people: WelfareEnv(people, 1, 5).step(np.zeros(9)), "each of 10 people"),
        (lambda people: WelfareEnv(people, 1, 5).step(np.full(10, np.nan)), "finite priority"),
    ],
)
def test_bad_input(mixed, use, message):
    with pytest.raises(InputError, match=message):
        use(mixed)

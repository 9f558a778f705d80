import numpy as np
import pytest

from iclr_afedpg.clocks import EventClock
from iclr_afedpg.schedules import THEORY_ALPHA, THEORY_ETA, Constant
from iclr_afedpg.tabular import TabularMDP, noisy_run
from iclr_afedpg.updates import Rule
from iclr_shared.errors import InputError

THEORY = Rule(THEORY_ALPHA, THEORY_ETA)


@pytest.mark.parametrize(
    ("agents", "rule", "gaps"),
    [
        (1, THEORY, (0.823, 0.231, 0.0837)),
        (4, THEORY, (0.820, 0.229, 0.0833)),
        (8, THEORY, (0.815, 0.226, 0.0826)),
        (4, Rule(THEORY_ALPHA, THEORY_ETA, lookahead=False), (0.814, 0.226, 0.0821)),
        (1, Rule(Constant(1.0), THEORY_ETA), (1.355, 0.709, 0.383)),
    ],
)
def test_reference_gaps(agents, rule, gaps):
    found, times = noisy_run(TabularMDP.random(), rule, EventClock([1] * agents), 2, (100, 300, 1000))
    np.testing.assert_allclose(found.mean(1), gaps, atol=0.0007)
    np.testing.assert_allclose(times, np.ceil(np.array([100, 300, 1000]) / agents))


def test_gradient_against_finite_differences():
    mdp, rng = TabularMDP.random(), np.random.default_rng(0)
    theta = rng.normal(size=(2, 30))
    steps = 1e-6 * np.eye(30)
    numeric = (mdp.value(theta[:, None] + steps) - mdp.value(theta[:, None] - steps)) / 2e-6
    np.testing.assert_allclose(mdp.gradient(theta), numeric, atol=1e-7)


def test_value_against_simulated_expectation():
    mdp, theta = TabularMDP.random(3, 4, 2, 0.6), np.zeros(8)
    state, total = mdp.start, 0.0
    for h in range(80):
        total += 0.6**h * (state @ mdp.rewards).mean()
        state = np.einsum("s,sat->t", state, mdp.transitions) / 2
    assert mdp.value(theta) == pytest.approx(total)


def test_optimum_is_that_of_a_greedy_policy():
    mdp = TabularMDP.random()
    V = np.zeros(10)
    for _ in range(500):
        V = (mdp.rewards + 0.9 * mdp.transitions @ V).max(1)
    greedy = 50.0 * np.eye(3)[(mdp.rewards + 0.9 * mdp.transitions @ V).argmax(1)]
    assert mdp.optimum() == pytest.approx(float(mdp.value(greedy.ravel())), abs=1e-9)


def test_bad_mdps():
    with pytest.raises(InputError, match="gamma"):
        TabularMDP(np.ones((1, 1, 1)), np.ones((1, 1)), 1.0, np.ones(1))
    with pytest.raises(InputError, match="transitions must be probabilities"):
        TabularMDP(np.full((1, 1, 1), 0.5), np.ones((1, 1)), 0.5, np.ones(1))

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from iclr_afedpg.schedules import THEORY_ALPHA, THEORY_ETA, Constant, LinearDecay, PowerDecay, as_schedule
from iclr_afedpg.updates import Rule, Server, lookahead, momentum, normalized_step
from iclr_shared.errors import InputError

HALF = Rule(Constant(0.5), Constant(1.0))


def test_two_steps_by_hand():
    server = Server(np.zeros(2), HALF)
    read = server.pull()
    np.testing.assert_array_equal(read.theta, [0, 0])
    server.push(read, np.array([3.0, 4.0]))
    np.testing.assert_allclose(server.direction, [1.5, 2.0])
    np.testing.assert_allclose(server.theta, [0.6, 0.8])
    read = server.pull()
    np.testing.assert_allclose(read.theta, [1.2, 1.6])
    applied = server.push(read, np.array([0.0, 1.0]))
    np.testing.assert_allclose(server.direction, [0.75, 1.5])
    assert applied.direction_norm == pytest.approx(1.6770510, abs=5e-8)
    np.testing.assert_allclose(server.theta, [1.0472136, 1.6944272], atol=5e-8)
    assert (applied.k, applied.delay, server.k) == (1, 0, 2)


def test_both_readings_agree_for_one_agent():
    thetas = []
    for at in ("server", "agent"):
        rule = Rule(Constant(0.3), Constant(0.1), momentum_at=at)
        server, rng = Server(rule=rule, theta=np.zeros(4)), np.random.default_rng(0)
        for _ in range(20):
            read, g = server.pull(), rng.normal(size=4)
            server.push(read, g if at == "server" else momentum(read.direction, g, read.alpha))
        thetas.append(server.theta)
    np.testing.assert_allclose(*thetas, rtol=1e-12)


def test_the_two_readings_differ_under_delay():
    directions = []
    for at in ("server", "agent"):
        server = Server(np.zeros(2), Rule(Constant(0.5), Constant(1.0), momentum_at=at))
        early = server.pull()
        for read, g in ((server.pull(), [1.0, 0.0]), (early, [0.0, 1.0])):
            vector = np.array(g)
            server.push(read, vector if at == "server" else momentum(read.direction, vector, read.alpha))
        directions.append(server.direction)
    np.testing.assert_allclose(directions[0], [0.25, 0.5])  # mixed with the direction of now
    np.testing.assert_allclose(directions[1], [0.0, 0.5])  # mixed with the direction that was read, 0


def test_lookahead_is_of_the_servers_sequence():
    server = Server(np.zeros(2), HALF)
    early = server.pull()
    for g in ([1.0, 0.0], [0.0, 1.0]):
        server.push(server.pull(), np.array(g))
    before = server.theta.copy()
    server.push(early, np.array([5.0, 0.0]))  # an agent that read long ago
    read = server.pull()
    np.testing.assert_allclose(read.theta, server.theta + (server.theta - before))


def test_rates_of_the_read_or_the_apply_index():
    for index, eta in (("read", 1.0), ("apply", 1 / 2)):
        server = Server(np.zeros(1), Rule(Constant(1.0), PowerDecay(1.0, 1.0, 1.0), alpha_index=index, lookahead=False))
        early = server.pull()
        server.push(server.pull(), np.ones(1))
        start = server.theta.copy()
        server.push(early, np.ones(1))
        np.testing.assert_allclose(server.theta - start, eta)


def test_delay_shortens_the_step_only_when_asked():
    for power, step in ((0.0, 1.0), (1.0, 0.5)):
        server = Server(np.zeros(1), Rule(Constant(1.0), Constant(1.0), lookahead=False, eta_delay_power=power))
        early = server.pull()
        server.push(server.pull(), np.ones(1))
        server.push(early, np.ones(1))
        np.testing.assert_allclose(server.theta, 1 + step)


def test_no_direction_no_step():
    server = Server(np.ones(3), HALF)
    assert server.push(server.pull(), np.zeros(3)).skipped
    np.testing.assert_array_equal(server.theta, np.ones(3))
    assert (server.skipped, server.k) == (1, 1)


def test_plain_steps():
    server = Server(np.zeros(2), Rule(Constant(1.0), Constant(0.1), normalize=False))
    server.push(server.pull(), np.array([3.0, 4.0]))
    np.testing.assert_allclose(server.theta, [0.3, 0.4])


@given(st.floats(0.01, 1.0), st.floats(0.001, 10.0), st.integers(0, 2**32 - 1))
def test_a_step_has_its_length(alpha, eta, seed):
    rng = np.random.default_rng(seed)
    theta, direction = rng.normal(size=(2, 3, 5))
    after = normalized_step(theta, momentum(direction, direction, alpha), eta)
    np.testing.assert_allclose(np.linalg.norm(after - theta, axis=-1), eta, rtol=1e-9)
    np.testing.assert_allclose(lookahead(theta, theta, alpha), theta)


@given(st.integers(0, 2**32 - 1), st.floats(0.05, 1.0))
def test_lookahead_makes_momentum_exact_for_affine_gradients(seed, alpha):
    rng = np.random.default_rng(seed)
    A, b = rng.normal(size=(4, 4)), rng.normal(size=4)
    theta, previous = rng.normal(size=(2, 4))
    exact = momentum(A @ previous + b, A @ lookahead(theta, previous, alpha) + b, alpha)
    np.testing.assert_allclose(exact, A @ theta + b, atol=1e-9)


def test_theory_schedules():
    assert THEORY_ALPHA(0, 0) == 1
    assert THEORY_ALPHA(20, 0) == pytest.approx(0.5**0.8)
    assert THEORY_ETA(0, 0) == pytest.approx(0.2)
    assert THEORY_ETA(900, 0) == pytest.approx(20 / 1000)
    assert LinearDecay(0.2)(0, 0.5) == pytest.approx(0.1)
    assert LinearDecay(0.2)(0, 1.0) == pytest.approx(0.01)
    assert as_schedule(0.3)(7, 0.9) == 0.3


@pytest.mark.parametrize("alpha", [0.0, -0.1, 1.5, float("nan")])
def test_alpha_out_of_range(alpha):
    with pytest.raises(InputError, match=r"alpha must be in|positive"):
        Server(np.zeros(1), Rule(as_schedule(alpha))).pull()


def test_other_bad_rules():
    with pytest.raises(InputError, match="schedule's value must be a positive"):
        Constant(-1.0)
    with pytest.raises(InputError, match="eta_delay_power"):
        Rule(eta_delay_power=-1.0)
    with pytest.raises(InputError, match="eta must be a positive number"):
        Server(np.zeros(1), Rule(eta=lambda k, progress: -1.0)).pull()


def test_a_vector_of_another_policy_is_refused():
    server = Server(np.zeros(3))
    with pytest.raises(InputError, match=r"shape \(4,\), the policy has \(3,\)"):
        server.push(server.pull(), np.zeros(4))

"""The function-space flow against an adaptive ODE solver, its conservation laws, and every degenerate corner."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import solve_ivp

from iclr_dynamics.function_space import gap, layer_scale, limit, rate, riccati, step, time_to_gap

norms = st.one_of(st.just(0.0), st.floats(1e-12, 1e3))
# XLA flushes subnormal numbers to zero.
targets = st.one_of(st.just(0.0), st.floats(-50.0, 50.0, allow_subnormal=False))
gains = st.floats(1e-3, 10.0)


def compiled(function):
    """Whole, and for double-precision arguments, so that the tests share one program for each shape."""
    fast = jax.jit(function)
    return lambda *arguments: fast(*(np.asarray(argument, np.float64) for argument in arguments))


flow, residual, reach, scale = (compiled(function) for function in (riccati, gap, time_to_gap, layer_scale))
vector = jax.jit(lambda x: jnp.stack(riccati(*x, 0.8)))
jacobian = jax.jit(jax.jacrev(vector))


@pytest.fixture(autouse=True)
def _float64(x64):
    """Everything here is in double precision, where it does not say otherwise."""


def integrate(P0, M0, gain, target, t):
    """The same flow in log-free form by DOP853: two equations, P and M on their own."""

    def slope(_, state):
        P, M = state
        d = P - M - 2 * target
        return [-gain * P * d, gain * M * d]

    return solve_ivp(slope, (0, t), [P0, M0], method="DOP853", rtol=1e-12, atol=1e-14).y[:, -1]


@pytest.mark.parametrize("target", [2.0, -2.0, 0.0])
@pytest.mark.parametrize(
    ("P0", "M0"), [(0.9, 0.4), (0.4, 0.9), (1.0, 0.0), (0.0, 1.0), (1e-8, 3.0), (3.0, 1e-8), (0, 0)]
)
def test_flow_is_that_of_an_adaptive_solver(P0, M0, target):
    for t in (0.0, 0.1, 1.0, 4.0):
        np.testing.assert_allclose(
            flow(P0, M0, 0.7, target, t), integrate(P0, M0, 0.7, target, t), rtol=1e-9, atol=1e-12
        )


def test_the_logistic_case_by_hand():
    # Aligned and balanced, d = 1: P(t) = 4 / (1 + 99 exp(-2 t)), half-way at ln(99) / 2.
    t = np.linspace(0, 8, 25)
    np.testing.assert_allclose(flow(0.04, 0.0, 0.5, 2.0, t).P, 4 / (1 + 99 * np.exp(-2 * t)), rtol=1e-14)
    assert math.isclose(reach(0.04, 0.0, 0.5, 2.0, 2.0), math.log(99) / 2, rel_tol=1e-14)


def test_the_algebraic_case_by_hand():
    # target = 0 and M0 = 0: P = P0 / (1 + gain P0 t), without any exponential.
    t = np.geomspace(1e-6, 1e6, 25)
    np.testing.assert_allclose(flow(0.3, 0.0, 2.0, 0.0, t).P, 0.3 / (1 + 0.6 * t), rtol=1e-14)
    assert rate(0.3, 0.0, 2.0, 0.0) == 0
    assert math.isclose(reach(0.3, 0.0, 2.0, 0.0, 0.01), (100 - 1 / 0.3) / 2, rel_tol=1e-14)


@given(norms, norms, gains, targets, st.floats(0, 30))
@settings(deadline=None, max_examples=150)
def test_invariants(P0, M0, gain, target, t):
    P, M = flow(P0, M0, gain, target, t)
    assert P >= 0
    assert M >= 0
    assert math.isclose(P * M, P0 * M0, rel_tol=1e-12, abs_tol=1e-300)
    start, now = P0 - M0 - 2 * target, residual(P0, M0, gain, target, t)
    assert abs(now) <= abs(start) * (1 + 1e-12)
    assert now * start >= 0
    # The gap is what P and M say, up to the rounding of their difference.
    assert abs(now - (P - M - 2 * target)) <= 1e-12 * (P + M + P0 + M0 + abs(target))


@given(norms, norms, gains, targets, st.floats(0, 3), st.floats(0, 3))
@settings(deadline=None, max_examples=100)
def test_flow_is_a_semigroup_and_symmetric_in_the_two_roles(P0, M0, gain, target, t1, t2):
    once = flow(P0, M0, gain, target, t1 + t2)
    twice = flow(*flow(P0, M0, gain, target, t1), gain, target, t2)
    swapped = flow(M0, P0, gain, -target, t1 + t2)
    np.testing.assert_allclose(twice, once, rtol=1e-9, atol=1e-200)
    np.testing.assert_allclose(swapped, once[::-1], rtol=1e-12)


@given(st.floats(1e-12, 1e3), norms, gains, targets, st.floats(1e-6, 0.999))
@settings(deadline=None, max_examples=150)
def test_time_to_gap_inverts_gap(P0, M0, gain, target, fraction):
    start = P0 - M0 - 2 * target
    size = fraction * abs(start)
    t = reach(P0, M0, gain, target, size)
    if size < np.finfo(float).tiny:
        return
    if np.isinf(t):
        end = limit(P0, M0, target)
        assert abs(end.P - end.M - 2 * target) >= size * (1 - 1e-9)
    else:
        assert math.isclose(abs(residual(P0, M0, gain, target, t)), size, rel_tol=1e-6)


def test_time_to_gap_at_its_edges():
    assert reach(2.0, 1.0, 1.0, 0.5, 0.1) == 0  # already there
    assert np.isinf(reach(0.0, 0.0, 1.0, 0.5, 0.1))  # the saddle
    assert np.isinf(reach(1.0, 0.0, 1.0, -0.5, 0.9))  # aligned, of the wrong sign: stops at a gap of 1
    assert np.isfinite(reach(1.0, 0.0, 1.0, -0.5, 1.1))


@pytest.mark.parametrize(
    ("P0", "M0", "target", "end"),
    [
        (1, 2, 3.0, None),
        (1, 0, 3.0, (6, 0)),
        (1, 0, -3.0, (0, 0)),
        (0, 1, -3.0, (0, 6)),
        (0, 1, 3.0, (0, 0)),
        (0, 0, 3.0, (0, 0)),
    ],
)
def test_limit_is_where_the_flow_ends(P0, M0, target, end):
    reached = limit(P0, M0, target)
    np.testing.assert_allclose(flow(P0, M0, 1.0, target, 200.0), reached, rtol=1e-13, atol=1e-100)
    if end is not None:
        np.testing.assert_allclose(reached, end, rtol=1e-15)


def test_nothing_cancels_far_from_balance_or_after_a_long_time():
    # P0 << M0: the textbook formula loses P altogether; here P M is conserved to rounding. The gap decays to 1e-300.
    P, M = flow(1e-30, 1e6, 1.0, 5.0, np.linspace(1e-4, 3.0, 25))
    np.testing.assert_allclose(P * M, 1e-24, rtol=1e-13)
    s = float(rate(0.9, 0.4, 1.0, 2.0))
    late = [residual(0.9, 0.4, 1.0, 2.0, t) for t in (100.0, 150.0)]
    assert math.isclose(float(late[1] / late[0]), math.exp(-50 * s), rel_tol=1e-11)
    assert 0 < -late[1] < 1e-250


def test_one_factor_scales_all_neurons():
    t = np.linspace(0, 3, 25)
    P, M = flow(0.9, 0.4, 0.7, -2.0, t)
    c = np.asarray(scale(0.9, 0.4, 0.7, -2.0, t))
    np.testing.assert_allclose(0.9 * c**2, P, rtol=1e-14)
    np.testing.assert_allclose(0.4 / c**2, M, rtol=1e-14)
    # From the exact saddle, for longer than exp(-s t) can express.
    assert np.isfinite(scale(0.0, 0.0, 1.0, 5.0, np.full(25, 1e3))).all()


@pytest.mark.parametrize("P0", [1e-160, 1e-200, 1e160])
def test_products_neither_underflow_nor_overflow(P0):
    assert math.isclose(rate(P0, P0, 1.0, 0.0), 2 * P0, rel_tol=1e-14)


def test_float32_stays_float32_and_accurate():
    arguments = (np.float32(0.9), np.float32(0.4), np.float32(0.7), np.float32(-2.0), np.float32([0.1, 1, 30]))
    single, double = jax.jit(riccati)(*arguments), [flow(*arguments[:4], t) for t in arguments[4]]
    assert single.P.dtype == np.float32
    np.testing.assert_allclose(single, np.transpose(double), rtol=3e-6)


def test_batches_broadcast_and_vmap_agrees():
    P0, target, t = np.array([[0.1], [2.0]]), np.array([1.0, -1.0, 0.0]), 0.7
    P, M = flow(P0, 0.5, 1.3, target, t)
    assert P.shape == M.shape == (2, 3)
    mapped = jax.jit(jax.vmap(lambda p: riccati(p, 0.5, 1.3, target, t).P))(P0[:, 0])
    np.testing.assert_allclose(mapped, P, rtol=1e-14)


@pytest.mark.parametrize(
    "point", [(0.9, 0.4, 0.7, 2.0), (0.9, 0.0, 0.7, -2.0), (0.0, 0.4, 0.7, 2.0), (0.3, 0.0, 0.7, 0.0), (0, 0, 0.7, 1)]
)
def test_gradients_also_at_the_degenerate_points(point):
    h = 1e-6
    point = np.array(point, float)
    exact, value = np.asarray(jacobian(point)), np.asarray(vector(point))
    for argument, ahead in enumerate(h * np.eye(4)):
        # One-sided (norms cannot be negative), second order.
        numeric = (4 * vector(point + ahead) - vector(point + 2 * ahead) - 3 * value) / (2 * h)
        np.testing.assert_allclose(exact[:, argument], numeric, rtol=1e-5, atol=1e-8, err_msg=f"argument {argument}")


def test_small_steps_of_descent_become_the_flow():
    gain, target, T = 1.0, 1.5, 1.0
    errors = []
    for steps in (100, 200, 400):
        P, M = 0.2, 0.7
        for _ in range(steps):
            # delta = eta k residual; with dP/dt = -gain P (P - M - 2 target), 2 delta = gain dt (P - M - 2 target).
            P, M = step(P, M, gain * (T / steps) * (P - M - 2 * target) / 2)
        errors.append(abs(float(P) - float(flow(0.2, 0.7, gain, target, T).P)))
    slopes = np.diff(np.log(errors)) / np.log(0.5)
    np.testing.assert_allclose(slopes, 1, atol=0.05)


def test_one_step_by_hand():
    assert step(2.0, 1.0, -0.25) == (3.125, 0.5625)

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from iclr_dynamics.linear_network import LinearNet, LineData, function_space, gd_map, integrate_flow, simulate_gd, solve
from iclr_shared.errors import InputError


@pytest.fixture(autouse=True)
def _double(x64):
    """Everything here is in double precision."""


U0, W0 = np.array([1.0, 0.5, -0.3]), np.array([[0.2, 1.0], [-0.4, 0.3], [0.8, -0.2]])
norms = jax.jit(function_space)
DATA = LineData(np.array([0.6, 0.8]), 1.5, -1.0, 1.0)


@given(st.floats(0.01, 0.6), st.floats(0.1, 10))
@settings(deadline=None, max_examples=15)
def test_descent_is_a_map_of_two_numbers_at_any_step_size(step, ratio):
    net = LinearNet(0.5, step * ratio, step / ratio)
    u, w = simulate_gd(net, DATA, U0, W0, 20)
    P, M = gd_map(net, DATA, *norms(net, U0, W0 @ DATA.nhat), 20)
    exact = norms(net, np.asarray(u), w @ DATA.nhat)
    np.testing.assert_allclose(P, exact.P, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(M, exact.M, rtol=1e-9, atol=1e-9)


def test_records_and_the_loss_factor():
    net, double = LinearNet(0.5, 0.1, 0.2), LinearNet(0.5, 0.05, 0.1, loss_factor=1.0)
    every = simulate_gd(net, DATA, U0, W0, 20)
    some = simulate_gd(double, DATA, U0, W0, 20, every=10)
    np.testing.assert_allclose(every[0][::10], some[0], rtol=1e-13)
    np.testing.assert_allclose(every[1][::10], some[1], rtol=1e-13)


def test_integrated_flow_is_the_closed_form():
    net, t = LinearNet(0.5, 2.0, 0.5), np.array([0.5, 4.0, 0.0, 3.0, 0.5])
    u, w = integrate_flow(net, DATA, U0, W0, t)
    path = solve(net, DATA, U0, W0, t)
    np.testing.assert_allclose(path.u, u, atol=1e-9)
    np.testing.assert_allclose(path.w, w, atol=1e-9)


def test_bad_counts():
    with pytest.raises(InputError, match="at least one step"):
        gd_map(LinearNet(1.0), DATA, 1.0, 1.0, 0)
    with pytest.raises(InputError, match="every=3 must divide steps=10"):
        simulate_gd(LinearNet(1.0), DATA, U0, W0, 10, every=3)

"""The closed form against the spec's reference values, an adaptive solver, and its own limits."""

import math
import warnings

import jax
import numpy as np
import pytest

from iclr_dynamics.linear_network import (
    LinearNet,
    LineData,
    default_times,
    init_layers,
    integrate_flow,
    rate,
    solve,
    solve_lazy,
    time_to,
    unit_data,
)
from iclr_shared.errors import InputError


@pytest.fixture(autouse=True)
def _double(x64):
    """Everything here is in double precision, where it does not say otherwise."""


U0, A0 = np.array([1.0, 0.5, -0.3]), np.array([[0.2], [-0.4], [0.8]])
ONE = np.array([1.0])

# Case 1: eta_u = eta_w = 1, A = 1, B = 2.
T = (0, 0.5, 1, 2, 5)
U = (
    (1, 0.5, -0.3),
    (1.20549679, 0.36254076, 0.0515081),
    (1.50662581, 0.31415, 0.30337246),
    (1.89134055, 0.3000981, 0.54298198),
    (1.98568602, 0.30014281, 0.59573854),
)
A = (
    (0.2, -0.4, 0.8),
    (0.70229802, -0.20355786, 0.74340641),
    (1.14451795, -0.09322135, 0.80127077),
    (1.61776669, -0.00767249, 0.91914604),
    (1.72712158, 0.00925782, 0.95126463),
)
F = (-0.12, 0.4055557178, 0.9690791414, 1.7782624943, 1.9995024254)
K = (0.545, 0.6686556963, 1.1053232026, 1.8560286902, 2.068969538)
ZETA = (-0.2262138543, 0.6174083354, 0.8823989806, 0.9602810379, 0.9681929389)


def test_reference_case_1():
    net, data = LinearNet(0.5), LineData(ONE, 1.0, 2.0, 4.0)
    np.testing.assert_allclose(rate(net, data, U0, A0), 2.0694504101, atol=5e-11)
    path = solve(net, data, U0, A0, T)
    np.testing.assert_allclose(path.u, U, atol=6e-9)
    np.testing.assert_allclose(path.w[:, :, 0], A, atol=6e-9)
    for ours, theirs in ((path.F, F), (path.K, K), (path.zeta, ZETA), (path.zeta_w, ZETA)):
        np.testing.assert_allclose(ours, theirs, atol=6e-11)
    np.testing.assert_allclose(path.u_norm, np.linalg.norm(path.u, axis=1), rtol=1e-14)
    np.testing.assert_allclose(path.a_norm, np.linalg.norm(path.w, axis=(1, 2)), rtol=1e-14)
    np.testing.assert_allclose(path.loss, (np.array(F) - 2) ** 2 / 2, atol=1e-9)


def test_reference_case_2_with_unequal_rates():
    net, data = LinearNet(0.5, 2.0, 0.5), LineData(ONE, 1.5, -1.0, 1.0)
    np.testing.assert_allclose(rate(net, data, U0, A0), 1.3206822337, atol=5e-11)
    path = solve(net, data, U0, A0, np.full(5, 2.0))
    np.testing.assert_allclose(
        (path.F[0], path.K[0], path.zeta[0]), (-0.6049979262, 0.8347327361, -0.7604038653), atol=6e-11
    )
    np.testing.assert_allclose(path.u[0], (0.91866072, 0.82208591, -0.89953776), atol=6e-9)
    np.testing.assert_allclose(path.w[0, :, 0], (0.03137481, -0.51619406, 0.90542368), atol=6e-9)
    np.testing.assert_allclose(path.loss[0] - path.excess[0], (1 - 1 / 1.5) / 2, rtol=1e-12)


def test_one_aligned_neuron_is_logistic():
    net, data, start = LinearNet(1.0), unit_data(), (np.array([0.1]), np.array([[0.1]]))
    t = np.linspace(0, 8, 5)
    np.testing.assert_allclose(solve(net, data, *start, t).F, 1 / (1 + 99 * np.exp(-2 * t)), rtol=1e-13)
    np.testing.assert_allclose(time_to(net, data, *start, 0.5), 2.2975599, atol=5e-8)


@pytest.mark.parametrize("name", ["Q0", "P0"])
@pytest.mark.parametrize("target", [1.0, -1.0, 0.0])
def test_degenerate_starts_are_those_of_an_adaptive_solver(name, target):
    sign = 1 if name == "Q0" else -1
    net, data = LinearNet(0.7, 2.0, 0.5), unit_data(2, target)
    u = np.array([0.3, -0.2, 0.1])
    w = np.column_stack([sign * u / 2, [0.5, 0.1, 0.0]])  # a / sqrt(eta_w) = ± u / sqrt(eta_u)
    t = np.array([0.5, 1.0, 3.0, 5.0, 8.0])
    us, ws = integrate_flow(net, data, u, w, t)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        path = solve(net, data, u, w, t)
    np.testing.assert_allclose(path.u, us, atol=1e-8)
    np.testing.assert_allclose(path.w, ws, atol=1e-8)


def test_warnings_of_a_flow_that_cannot_arrive():
    net = LinearNet(1.0)
    with pytest.warns(RuntimeWarning, match="stays at zero for ever"):
        path = solve(net, unit_data(), np.zeros(3), np.zeros((3, 1)), [0.0, 1, 10, 100, 1e3])
    assert np.all(np.asarray(path.F) == 0)
    lazy = solve_lazy(net, unit_data(), np.zeros(3), np.zeros((3, 1)), T)
    assert np.all(np.array([lazy.zeta, lazy.zeta_w]) == 0)
    aligned = U0, U0[:, None]
    with pytest.warns(RuntimeWarning, match="it stops at F=0"):
        path = solve(net, unit_data(1, -1.0), *aligned, [0, 1, 10, 100, 200])
    assert abs(path.F[-1]) < 1e-20
    assert time_to(net, unit_data(1, -1.0), *aligned, 0.5) == math.inf
    solve(net, unit_data(), *aligned, T)  # the right sign: no warning, which would be an error here


def test_directions_without_data_never_move_and_dilute_alignment():
    nhat = np.array([0.6, 0.8])
    rng = np.random.default_rng(0)
    u, w = rng.standard_normal(3), rng.standard_normal((3, 2))
    path = solve(LinearNet(0.5), LineData(nhat, 1.0, 1.0, 1.0), u, w, [0.0, 0.4, 1, 3, 9.0])
    across = np.array([-0.8, 0.6])
    np.testing.assert_allclose(path.w @ across, np.broadcast_to(w @ across, (5, 3)), atol=1e-14)
    whole = np.linalg.norm(np.einsum("td,tdk->tk", path.u, path.w), axis=1)
    whole /= np.linalg.norm(path.u, axis=1) * np.linalg.norm(path.w, axis=(1, 2))
    np.testing.assert_allclose(np.abs(path.zeta_w), whole, rtol=1e-12)


def test_scalars_alone_are_the_same_and_times_may_come_in_any_order():
    net, data = LinearNet(0.5), LineData(ONE, 1.0, 2.0, 4.0)
    full, scalars = (solve(net, data, U0, A0, T[::-1], weights=w) for w in (True, False))
    assert scalars.u is None
    assert scalars.w is None
    np.testing.assert_array_equal(full.F, scalars.F)
    np.testing.assert_allclose(scalars.F, F[::-1], atol=6e-11)


@pytest.mark.parametrize("eps", [1.0, 0.1, 1e-6])
def test_time_to_is_when_the_slope_is_that_close(eps):
    net, data = LinearNet(0.5), LineData(ONE, 1.0, 2.0, 4.0)
    path = solve(net, data, U0, A0, np.full(5, time_to(net, data, U0, A0, eps)))
    np.testing.assert_allclose(abs(path.F[0] - 2), eps, rtol=1e-8)


def test_the_loss_decays_to_its_last_digit():
    net, data = LinearNet(0.5), LineData(ONE, 1.0, 2.0, 4.0)
    s = rate(net, data, U0, A0)
    late = solve(net, data, U0, A0, np.array([40, 50, 60, 70, 90]) / s).excess
    np.testing.assert_allclose(late[-1] / late[0], math.exp(-100), rtol=1e-10)


def test_a_tiny_start_keeps_its_digits():
    # Alignment is a ratio of tiny numbers here; it does not depend on the scale of the start.
    net, data = LinearNet(0.5), LineData(ONE, 1.0, 2.0, 4.0)
    path = solve(net, data, 1e-9 * U0, 1e-9 * A0, T)
    np.testing.assert_allclose(path.zeta[0], -0.2262138543, atol=6e-11)


def test_wide_networks_are_lazy_and_keep_the_digits_of_the_residual():
    t, data = np.array([0.0, 0.3, 3.0]), unit_data()
    errors = []
    for d in (100, 10_000):
        start = init_layers(jax.random.key(0), d, 1, antisymmetric=True)
        net = LinearNet(d**-0.5)
        exact, lazy = solve(net, data, *start, t), solve_lazy(net, data, *start, t)
        errors.append(float(np.abs(exact.F - lazy.F).max()))
        np.testing.assert_allclose(lazy.zeta, exact.zeta, atol=2 / d**0.5)
        assert abs(exact.F[0]) < 1e-15
        np.testing.assert_allclose(1 - exact.F[1:], np.sqrt(2 * exact.excess[1:]), rtol=1e-12)
    assert errors[1] < errors[0] / 30


def test_the_frozen_kernel_is_right_at_first():
    net, data = LinearNet(0.5), LineData(ONE, 1.0, 2.0, 4.0)
    exact, lazy = (f(net, data, U0, A0, np.full(5, 1e-4)) for f in (solve, solve_lazy))
    np.testing.assert_allclose(exact.u - U0, lazy.u - U0, rtol=1e-3)
    np.testing.assert_allclose(exact.w - A0, lazy.w - A0, rtol=1e-3)


def test_default_times_follow_the_rate():
    net, data = LinearNet(0.5), LineData(ONE, 1.0, 2.0, 4.0)
    t = default_times(net, data, U0, A0)
    assert len(t) == 200
    np.testing.assert_allclose(t[[0, -1]] * 2.0694504101, (0.01, 20), rtol=1e-9)
    with pytest.raises(InputError, match="The rate is 0"):
        default_times(net, LineData(ONE, 1.0, 0.0, 1.0), U0, U0[:, None])


def test_single_precision_stays_single():
    with jax.enable_x64(False):
        path = solve(LinearNet(0.5), LineData(ONE, 1.0, 2.0, 4.0), U0.astype(np.float32), A0.astype(np.float32), T)
    assert path.u.dtype == np.float32
    for ours, theirs in ((path.F, F), (path.K, K), (path.zeta, ZETA)):
        np.testing.assert_allclose(ours, theirs, rtol=1e-6)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((U0[:2], A0, 1.0), r"u0 must have shape \(d,\) and w0 \(d, D\) with the same d >= 1; got \(2,\) and \(3, 1\)"),
        ((U0[:0], A0[:0], 1.0), r"got \(0,\) and \(0, 1\)"),
        ((U0, np.ones((3, 2)), 1.0), "w0 takes inputs of dimension 2, the data has dimension 1"),
        ((U0 * np.nan, A0, 1.0), "u0 is not finite"),
        ((U0, A0 * np.inf, 1.0), "w0 is not finite"),
        ((U0 * 1e200, A0, 1.0), "too large to be squared in float64"),
        ((U0, A0, [-1.0, 1.0]), "finite numbers >= 0"),
        ((U0, A0, [np.nan]), "finite numbers >= 0"),
        ((U0, A0, np.zeros((2, 2))), "Times must be a list"),
        ((U0, A0, []), "at least one"),
        ((np.zeros(100_000), np.zeros((100_000, 1)), np.zeros(2_000)), r"take 3.2 GB, the limit is 2 GB"),
    ],
)
def test_bad_input(arguments, message):
    with pytest.raises(InputError, match=message):
        solve(LinearNet(0.5), unit_data(), *arguments)


def test_whole_numbers_are_no_integers():
    nhat, u, w = np.array([0.6, 0.8]), np.array([1, 2, 0]), np.array([[1, 0], [2, 1], [0, 1]])
    net, data = LinearNet(0.5), LineData(nhat, 1.0, 1.0, 1.0)
    np.testing.assert_array_equal(solve(net, data, u, w, T).w, solve(net, data, 1.0 * u, 1.0 * w, T).w)


def test_bad_eps():
    with pytest.raises(InputError, match="eps must be positive"):
        time_to(LinearNet(0.5), unit_data(), U0, A0, 0.0)

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import solve_ivp

from iclr_dynamics.uv_model import maps
from iclr_shared.errors import InputError

pytestmark = pytest.mark.usefixtures("x64")

positive = st.floats(1e-3, 3.0)


def test_one_step_by_hand():
    ran = maps.simulate(2.0, 1.0, 1.0, 1.0, 0.5, 1)
    np.testing.assert_allclose(ran.ntk, [3.0, 3.6875])
    np.testing.assert_allclose(ran.residual + 1, [0.5, 1.28125])
    np.testing.assert_allclose(ran.delta[0], -0.25)
    np.testing.assert_allclose((ran.P[1], ran.M[1]), (3.125, 0.5625))
    np.testing.assert_allclose(ran.sharpness[0], 2.9142136, atol=1e-7)


def test_reference_point_and_its_limit():
    residual, ntk = maps.observables(0.9, 0.4, 0.7, 1.5)
    np.testing.assert_allclose((residual + 1.5, ntk), (0.175, 0.637))
    np.testing.assert_allclose(maps.limiting_ntk(ntk, residual + 1.5, 0.7, 1.5), 2.1807668376, atol=1e-10)
    _, end = maps.observables(*maps.gradient_flow_limit(0.9, 0.4, 0.7, 1.5), 0.7, 1.5)
    np.testing.assert_allclose(end, 2.1807668376, atol=1e-10)


def test_eos_map_reference_values():
    np.testing.assert_allclose(maps.eos_map(0.37, 2.0), 1.889812)
    # c = 2 is the Chebyshev map of degree 3: z = 2 sin^2 t, t -> 3 t.
    angle = jnp.linspace(0.1, 1.4, 7)
    np.testing.assert_allclose(maps.eos_map(2 * jnp.sin(angle) ** 2, 2.0), 2 * jnp.sin(3 * angle) ** 2, atol=1e-14)


@settings(max_examples=40, deadline=None)
@given(positive, positive, st.floats(0.1, 2.0), st.floats(-2.0, 2.0), st.floats(0.01, 1.0))
def test_both_forms_of_the_map_agree_and_stay_feasible(P, M, k, y, eta):
    residual, ntk = maps.observables(P, M, k, y)
    after = maps.observables(*maps.advance(P, M, eta, k, y), k, y)
    np.testing.assert_allclose(maps.function_space_map(residual, ntk, eta, k, y), after, rtol=1e-9, atol=1e-9)
    assert float(after[1]) >= 2 * k * abs(float(after[0]) + y) * (1 - 1e-12)
    # Mirroring (y, f) -> (-y, -f) exchanges P and M and nothing else.
    mirrored = maps.advance(M, P, eta, k, -y)
    np.testing.assert_allclose(mirrored[::-1], maps.advance(P, M, eta, k, y), rtol=1e-12)
    # D = lambda^2 - 4 k^2 f^2 shrinks by (1 - delta^2)^2.
    delta = eta * k * float(residual)
    before = float(maps.unbalancedness(P, M, k))
    now = float(maps.unbalancedness(*maps.advance(P, M, eta, k, y), k))
    assert now == pytest.approx(before * (1 - delta**2) ** 2, rel=1e-9, abs=1e-12)
    np.testing.assert_allclose(before, float(ntk) ** 2 - 4 * k**2 * (float(residual) + y) ** 2, rtol=1e-6, atol=1e-8)


@settings(max_examples=25, deadline=None)
@given(positive, positive, st.floats(0.1, 2.0), st.floats(-2.0, 2.0))
def test_coordinates_invert_observables(P, M, k, y):
    residual, ntk = maps.observables(P, M, k, y)
    np.testing.assert_allclose(maps.coordinates(float(residual) + y, float(ntk), k), (P, M), rtol=1e-9, atol=1e-12)


def test_gradient_flow_is_that_of_an_adaptive_solver():
    P0, M0, k, y = 0.9, 0.4, 0.7, 1.5

    def slope(_, point):
        rate = 2 * k * (k / 2 * (point[0] - point[1]) - y)
        return [-rate * point[0], rate * point[1]]

    times = np.array([0.0, 0.3, 1.0, 4.0])
    solved = solve_ivp(slope, (0, 4), [P0, M0], t_eval=times, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(maps.gradient_flow(P0, M0, k, y, times), solved.y, rtol=1e-9)


def test_small_steps_tend_to_the_flow_at_first_order():
    errors = []
    for steps in (200, 400, 800):
        ran = maps.simulate(0.9, 0.4, 0.7, 1.5, 2.0 / steps, steps, stride=steps)
        errors.append(abs(float(ran.P[-1] - maps.gradient_flow(0.9, 0.4, 0.7, 1.5, 2.0).P)))
    np.testing.assert_allclose(np.log2(np.divide(errors[:-1], errors[1:])), 1, atol=0.05)


def test_stride_broadcasting_and_the_end_agree():
    eta = jnp.array([[0.1], [0.4]])
    whole = maps.simulate(jnp.array([0.3, 0.5, 0.7]), 0.2, 1.0, 2.0, eta, 12)
    strided = maps.simulate(jnp.array([0.3, 0.5, 0.7]), 0.2, 1.0, 2.0, eta, 12, stride=4)
    assert whole.ntk.shape == (13, 2, 3)
    np.testing.assert_array_equal(whole.ntk[::4], strided.ntk)
    end, diverged = maps.final_state(jnp.array([0.3, 0.5, 0.7]), 0.2, 1.0, 2.0, eta, 12)
    np.testing.assert_array_equal(end.P, whole.P[-1])
    assert (diverged == -1).all()


def test_divergence_is_a_step_number_and_the_records_stay_finite():
    ran = maps.simulate(1.0, 1.0, 1.0, 2.0, jnp.array([0.3, 5.0]), 50)
    assert int(ran.diverged[0]) == -1
    step = int(ran.diverged[1])
    assert 0 < step < 10
    assert jnp.isfinite(ran.ntk).all()
    np.testing.assert_array_equal(ran.P[step:, 1], ran.P[step, 1])


def test_single_precision_follows():
    args = [jnp.float32(v) for v in (0.9, 0.4, 0.7, 1.5, 0.2)]
    with jax.enable_x64(False):
        ran = maps.simulate(*args, 20)
    assert ran.ntk.dtype == jnp.float32
    np.testing.assert_allclose(ran.ntk[-1], maps.simulate(0.9, 0.4, 0.7, 1.5, 0.2, 20).ntk[-1], rtol=1e-5)


def test_vector_field_rests_on_the_two_cycle_and_is_empty_outside():
    z, k, y, c = 0.6634944, 1.0, 2.0, 1.1
    field = maps.vector_field(
        np.array([(z - 1) * y, -3.9]), np.array([2 * k * z * y * (1 + 1e-12), 7.0]), c / (k * y), k, y
    )
    assert float(jnp.abs(field.two_step[:, 0, 0]).max()) < 1e-5
    assert float(jnp.abs(field.one_step[:, 0, 0]).max()) > 0.5
    assert jnp.isnan(field.one_step[:, 0, 1]).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"eta": 0.0}, "eta=0 must be positive"),
        ({"eta": np.nan}, "eta must be finite"),
        ({"k": 0.0}, "zero norm"),
        ({"P0": -1.0}, "P0=-1 must not be negative"),
        ({"M0": np.inf}, "M0 must be finite"),
        ({"stride": 3}, "multiple of stride=3"),
    ],
)
def test_bad_input_of_simulate(options, message):
    given_ = {"P0": 1.0, "M0": 1.0, "k": 1.0, "y": 1.0, "eta": 0.1, "steps": 10, **options}
    with pytest.raises(InputError, match=message):
        maps.simulate(**given_)


def test_an_infeasible_start_names_both_numbers():
    with pytest.raises(InputError, match=r"f=2 with tangent kernel lambda=3.*2 k \|f\| = 4"):
        maps.coordinates(2.0, 3.0, 1.0)

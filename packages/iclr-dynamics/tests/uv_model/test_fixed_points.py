import jax.numpy as jnp
import numpy as np
import pytest

from iclr_dynamics.uv_model.fixed_points import PHASES, critical_lr, fixed_points, nullclines, phase
from iclr_dynamics.uv_model.maps import function_space_map
from iclr_shared.errors import InputError

pytestmark = pytest.mark.usefixtures("x64")


@pytest.mark.parametrize("c", [0.4, 1.1, 1.9, 2.5])
def test_fixed_points_rest_and_have_the_multipliers_of_the_theory(c):
    k, y = 0.7, 1.5
    eta = c / (k * y)
    found = {point.kind: point for point in fixed_points(eta, k, y)}
    assert ("lower boundary" in found) == (c <= 2)
    for point in found.values():
        np.testing.assert_allclose(
            function_space_map(point.residual, point.ntk, eta, k, y), (point.residual, point.ntk), atol=1e-12
        )
    expected = {
        "zero loss": (1, 1 - 2 * c),
        "origin": ((1 + c) ** 2, (1 - c) ** 2),
        "upper boundary": (9, 5 + 2 * c),
        "lower boundary": (9, 5 - 2 * c),
    }
    for kind, point in found.items():
        np.testing.assert_allclose(np.sort(point.multipliers), np.sort(expected[kind]), atol=1e-12)
    assert found["origin"].stability == ("saddle" if c < 2 else "repeller")
    assert found["zero loss"].stability == ("stable" if c < 1 else "unstable")


def test_critical_rate_and_mirrored_target():
    assert critical_lr(0.5, 4.0) == critical_lr(0.5, -4.0) == 0.5
    assert fixed_points(0.3, 1.0, -2.0) == fixed_points(0.3, 1.0, 2.0)
    with pytest.raises(InputError, match="y=0: the critical learning rate is infinite"):
        critical_lr(1.0, 0.0)


def test_bad_input_of_fixed_points():
    with pytest.raises(InputError, match="beyond the range"):
        fixed_points(1e300, 1.0, 2.0)
    for function in (lambda: fixed_points(1.0, 1.0, np.nan), lambda: critical_lr(1.0, np.inf)):
        with pytest.raises(InputError, match="must be finite"):
            function()


def test_nullclines_are_where_a_step_changes_nothing():
    eta, k, y = 0.4, 1.0, 2.0
    residual = jnp.linspace(-1.5, 1.5, 8)
    lines = nullclines(residual, eta, k, y)
    np.testing.assert_allclose(function_space_map(residual, lines.still_residual, eta, k, y)[0], residual)
    np.testing.assert_allclose(function_space_map(residual, lines.still_ntk, eta, k, y)[1], lines.still_ntk)
    np.testing.assert_allclose(function_space_map(residual, lines.flip, eta, k, y)[0], 0, atol=1e-14)
    np.testing.assert_allclose(function_space_map(residual, lines.grow, eta, k, y)[0], -residual)


@pytest.mark.parametrize(
    ("label", "settings"),
    [
        ("at-origin", (0.1, 1.0, 1.0, 0.0, 0.0)),
        ("lazy", (0.5, 0.001, 1.0, 2.0, 0.1)),
        ("flow-like", (0.1, 1.0, 2.0, 1.0, 0.1)),
        ("oscillating", (0.3, 1.0, 2.0, 4.0, 0.1)),
        ("catapult", (0.25, 1.0, 2.0, 13.5, 0.3)),
        ("sharpen-then-EoS-approach", (0.49, 1.0, 2.0, 1.0, 0.0)),
        ("EoS", (0.55, 1.0, 2.0, 0.5, 0.0)),
        ("diverges-likely", (1.2, 1.0, 2.0, 0.5, 0.0)),
        ("diverges-certain", (1.2, 1.0, 2.0, 1.0, 0.5)),
    ],
)
def test_each_phase(label, settings):
    found = phase(*settings)
    assert found.label == label
    assert found.meaning == PHASES[label]
    assert set(found.numbers()) == {"c", "eta_ntk", "eta_limit", "laziness", "on_manifold", "mirrored"}


def test_a_negative_target_is_mirrored_and_said():
    ours, mirror = phase(0.3, 1.0, -2.0, 4.0, -0.5), phase(0.3, 1.0, 2.0, 4.0, 0.5)
    assert (ours.mirrored, mirror.mirrored) == (True, False)
    assert ours.label == mirror.label
    assert ours.eta_limit == mirror.eta_limit


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ((0.0, 1.0, 1.0, 1.0, 0.0), "eta=0 must be positive"),
        ((0.1, -1.0, 1.0, 1.0, 0.0), "k=-1 must be positive"),
        ((0.1, 1.0, np.nan, 1.0, 0.0), "y=nan must be finite"),
        ((0.1, 1.0, 1.0, np.nan, 0.0), "lambda must be finite"),
        ((0.1, 1.0, 1.0, 1.0, 3.0), "f=3 with tangent kernel lambda=1"),
    ],
)
def test_bad_settings(settings, message):
    with pytest.raises(InputError, match=message):
        phase(*settings)

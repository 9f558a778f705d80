import jax.numpy as jnp
import numpy as np
import optax
import pytest

from iclr_dynamics.late_sam.escape import EscapeCurve, before_limit, escape_curve, exponential_growth
from iclr_dynamics.late_sam.stability import usam_factor
from iclr_shared.errors import InputError


def quadratic(w, h):
    return jnp.sum(h * w**2) / 2


def test_factor_on_a_quadratic(x64):
    start, h = jnp.array([1e-3, 1e-3]), jnp.array([19.0, 3.0])
    curve = escape_curve(quadratic, start, h, eta=0.1, rho=0.01, steps=12, direction=jnp.array([1.0, 0.0]))
    growth = exponential_growth(np.diff(curve.projections))
    assert growth.rate == pytest.approx(np.log(usam_factor(0.1, 0.01, 19)) / 2, rel=1e-10)
    assert (growth.first, growth.last) == (0, 11)
    assert len(curve.losses) == 13
    assert curve.losses[-1] == pytest.approx(float(quadratic(curve.params, h)))


def test_without_radius_it_is_gradient_descent(x64):
    start, h = jnp.array([1e-3, 1e-3]), jnp.array([5.0, 3.0])
    curve = escape_curve(quadratic, start, h, eta=0.1, rho=0.0, steps=4)
    np.testing.assert_allclose(curve.params, start * (1 - 0.1 * h) ** 4)
    np.testing.assert_array_equal(curve.projections, np.zeros(5))


def test_complete_steps_not_only_ascent():
    """Below the threshold the loss falls; a loop that only climbs would raise it."""
    curve = escape_curve(quadratic, jnp.array([1.0]), jnp.array([2.0]), eta=0.1, rho=0.1, steps=20)
    assert curve.losses[-1] < 1e-2 * curve.losses[0]
    normal = escape_curve(quadratic, jnp.array([1.0]), jnp.array([2.0]), eta=0.1, rho=0.1, steps=1, normalize=True)
    assert float(optax.tree.norm(normal.params)) == pytest.approx(1 - 0.1 * 2 * 1.1, rel=1e-6)


def test_growth_takes_the_longest_window():
    values = np.concatenate([np.exp(0.3 * np.arange(12)), np.full(4, 40.0) * (1 + 0.5 * (-1.0) ** np.arange(4))])
    growth = exponential_growth(values, r2=0.999)
    assert growth.rate == pytest.approx(0.3, rel=1e-3)
    assert growth.first == 0
    assert growth.last >= 10
    none = exponential_growth(np.array([1.0, -1, 9, 0.2, 30, 0.1, 7, 0.3]))
    assert np.isnan(none.rate)
    assert none.r2 == 0


def test_limit_of_the_exponential_phase():
    assert before_limit(np.array([1.0, 10, 99, 101, 5])) == 3
    assert before_limit(np.array([1.0, 10, 99, 101, 5]), initial=2000.0) == 5
    assert before_limit(np.array([1.0, np.nan])) == 1
    # With both: the loss of a quadratic, which grows for ever, is followed up to a hundred times its start.
    growing = EscapeCurve(1.6 ** np.arange(20), np.zeros(20), None).rate()
    assert growing.rate == pytest.approx(np.log(1.6))
    assert growing.last == 9
    with pytest.raises(InputError, match="at least one step"):
        escape_curve(quadratic, jnp.array([1.0]), jnp.array([2.0]), eta=0.1, rho=0.1, steps=0)

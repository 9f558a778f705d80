import jax.numpy as jnp
import numpy as np
import pytest

from iclr_dynamics.uv_model.bifurcations import bifurcation, period
from iclr_dynamics.uv_model.period_doubling import two_cycle
from iclr_shared.errors import InputError

pytestmark = pytest.mark.usefixtures("x64")


def test_manifold_and_real_starts_meet_on_the_exact_cycle():
    c = np.array([1.1, 1.2])
    on, off = bifurcation(c, record=2), bifurcation(c, record=2, start=(0.3, 0.25))
    for diagram in (on, off):
        np.testing.assert_allclose(np.sort(diagram.z), [two_cycle(at) for at in c], atol=1e-8)
        np.testing.assert_allclose(diagram.ntk.mean(1), 1 + c)
        np.testing.assert_allclose(diagram.ntk.prod(1), 4)
        np.testing.assert_allclose(np.sort(diagram.ntk[1]), (1.2834849, 3.1165151), atol=1e-7)
    z = on.z
    np.testing.assert_allclose(on.ntk, 2 * c[:, None] * z)
    np.testing.assert_allclose(on.sharpness, c[:, None] * (z + jnp.abs(2 * z - 1)))
    mirrored = bifurcation(c, record=2, y=-2.0, start=(0.25, 0.3))
    np.testing.assert_array_equal(mirrored.z, off.z)


def test_divergent_rates_are_marked_and_empty():
    diagram = bifurcation(jnp.array([0.9, 2.3]), record=4, burn_in=2)
    late = bifurcation(jnp.array([0.9, 2.3]), record=200, burn_in=0)
    for ran in (diagram, late):
        assert int(ran.diverged[0]) == -1
        np.testing.assert_array_equal(jnp.isnan(ran.z).all(1), ran.diverged >= 0)
    assert int(late.diverged[1]) > 0


def test_periods():
    c = jnp.array([[0.9, 1.1, 1.25, 1.295], [1.3, 1.35, 1.9, 2.05]])
    np.testing.assert_array_equal(period(c), [[1, 2, 4, 8], [16, 0, 0, -1]])


def test_bad_input():
    with pytest.raises(InputError, match="y=0: the critical learning rate is infinite"):
        bifurcation(jnp.array([1.0]), y=0.0)
    with pytest.raises(InputError, match="record=0"):
        bifurcation(jnp.array([1.0]), record=0)
    with pytest.raises(InputError, match=r"eta=-0\.5 must be positive"):
        bifurcation(jnp.array([-1.0]))

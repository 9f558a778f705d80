import jax.numpy as jnp
import numpy as np
import pytest

from iclr_dynamics.late_sam import valley
from iclr_dynamics.late_sam.stability import usam_factor
from iclr_dynamics.sharpness import sharpness
from iclr_shared.errors import InputError

# rho, factor, final h, peak loss: eta = 0.1 from h = 19, displaced by 1e-6 relative on b.
TABLE = [
    (0.0, 0.81, 19.000, 4e-13),
    (0.002, 0.94517, 19.000, 5e-13),
    (0.005, 1.16748, 17.6034, 0.123),
    (0.01, 1.59012, 14.7404, 1.07),
    (0.02, 2.63088, 9.2112, 4.70),
]


@pytest.mark.parametrize(("rho", "factor", "final", "peak"), TABLE)
def test_reference_table(rho, factor, final, peak, x64):
    run = valley.descend(valley.minimum(19.0) * jnp.array([1, 1 + 1e-6]), 0.1, rho, 2000)
    assert usam_factor(0.1, rho, 19) == pytest.approx(factor, abs=1e-5)
    assert float(run.losses[3] / run.losses[2]) == pytest.approx(factor, rel=1e-3)
    assert float(run.final_curvature) == pytest.approx(final, abs=1e-3)
    assert float(run.losses.max()) == pytest.approx(peak, rel=0.15)
    assert float(valley.loss(run.point)) < 2e-29  # one rounding of a b


def test_large_radius_diverges(x64):
    run = valley.descend(valley.minimum(19.0) * jnp.array([1, 1 + 1e-6]), 0.1, 0.1, 200)
    assert not np.isfinite(float(run.losses[-1]))


def test_minimum_has_its_curvature(x64):
    for h in (2.0, 5.0, 19.0):
        point = valley.minimum(h)
        assert float(valley.loss(point)) < 1e-30
        assert sharpness(valley.loss, point) == pytest.approx(h)
    with pytest.raises(InputError, match="h >= 2"):
        valley.minimum(1.9)

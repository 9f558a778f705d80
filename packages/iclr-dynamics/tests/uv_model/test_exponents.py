import math

import jax.numpy as jnp
import numpy as np
import pytest

from iclr_dynamics.uv_model.exponents import lyapunov, lyapunov_spectrum
from iclr_shared.errors import InputError

pytestmark = pytest.mark.usefixtures("x64")


def test_reference_values_along_and_across_the_manifold():
    found = lyapunov(jnp.array([1.3, 1.5, 1.9, 2 - 1e-9, 2.2]))
    np.testing.assert_allclose(found.along[:4], (-0.0588, 0.490, 0.877, math.log(3)), atol=4e-3)
    np.testing.assert_allclose(found.across[:3] / 2, (-0.445, -0.744, -0.213), atol=4e-3)
    np.testing.assert_allclose(found.drift[:3], 0, atol=1e-4)
    assert jnp.isnan(found.along[4])


def test_bad_input():
    with pytest.raises(InputError, match="must be positive"):
        lyapunov(-1.0)
    with pytest.raises(InputError, match="steps=0"):
        lyapunov(1.0, steps=0)


@pytest.mark.parametrize("c", [1.1, 1.2])
def test_both_exponents_of_the_two_cycle(c):
    along, across = math.log(abs(9 - 2 * (1 + c) ** 2)) / 2, math.log((3 - 2 * c) ** 2) / 2
    found = lyapunov(c, steps=2000)
    np.testing.assert_allclose((found.along, found.across), (along, across), atol=1e-9)
    spectrum = lyapunov_spectrum(0.3, 0.25, 1.0, 2.0, c / 2, steps=2000)
    np.testing.assert_allclose(np.sort(spectrum), np.sort((along, across)), atol=1e-3)


def test_chaos_off_the_manifold_is_that_on_it_and_divergence_is_nan():
    spectrum = lyapunov_spectrum(0.1, 0.09, 1.0, 2.0, jnp.array([0.75, 3.0]), steps=20_000)
    np.testing.assert_allclose(np.sort(spectrum[0]), (-1.488, 0.490), atol=0.03)
    assert jnp.isnan(spectrum[1]).all()

import jax
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

from iclr_dynamics.uv_model.hessian import hessian_spectrum, sharpness
from iclr_dynamics.uv_model.maps import observables
from iclr_dynamics.uv_model.weights import UVParams, init, loss, to_function_space

pytestmark = pytest.mark.usefixtures("x64")


@pytest.mark.parametrize(("p", "y", "n", "d"), [(0.0, 1.5, 4, 2), (0.5, -2.0, 1, 3)])
def test_spectrum_is_that_of_the_dense_hessian(p, y, n, d):
    params = UVParams(x=np.random.default_rng(0).standard_normal(d), y=y, n=n, p=p, sigma_w=1.3)
    state = init(jax.random.key(3), params)
    flat, unravel = ravel_pytree(state)
    dense = np.linalg.eigvalsh(jax.jit(jax.hessian(lambda w: loss(unravel(w), params)))(flat))
    P, M, k = to_function_space(state, params)
    residual, ntk = (float(value) for value in observables(P, M, k, y))
    spectrum = hessian_spectrum(residual, ntk, k, y, n, d)
    assert int(spectrum.multiplicities.sum()) == n * (d + 1)
    ours = np.sort(np.repeat(spectrum.values, spectrum.multiplicities))
    np.testing.assert_allclose(ours, dense, atol=1e-12)
    np.testing.assert_allclose(sharpness(residual, ntk, k, y), dense[-1], rtol=1e-12)


def test_equal_to_the_kernel_at_zero_loss_only():
    assert float(sharpness(0.0, 3.0, 1.0, 1.0)) == 3.0
    assert float(sharpness(-0.5, 3.0, 1.0, 1.0)) == pytest.approx((3 + 8**0.5) / 2)

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

from iclr_dynamics.uv_model.maps import observables, simulate
from iclr_dynamics.uv_model.weights import (
    UVParams,
    gradient_step,
    init,
    initial_coordinates,
    loss,
    output,
    reconstruct,
    to_function_space,
)
from iclr_shared.errors import InputError

pytestmark = pytest.mark.usefixtures("x64")


def a_model(p=0.5, n=6, d=3, y=1.5):
    return UVParams(x=np.random.default_rng(1).standard_normal(d), y=y, n=n, p=p)


def train(state, params, eta, steps):
    return jax.lax.scan(lambda s, _: (gradient_step(s, params, eta), None), state, length=steps)[0]


@pytest.mark.parametrize(("p", "y"), [(0.0, 1.5), (0.5, -1.5), (1.0, 1.5)])
def test_two_numbers_and_the_rebuilt_weights_follow_gradient_descent(p, y):
    params, steps = a_model(p, y=y), 40
    eta = 0.9 / (params.k * abs(y))
    state = init(jax.random.key(0), params)
    P, M, k = to_function_space(state, params)
    ran = simulate(P, M, k, y, eta, steps)
    end = train(state, params, eta, steps)
    residual, ntk = observables(*to_function_space(end, params)[:2], k, y)
    np.testing.assert_allclose(ran.residual[-1], residual, atol=1e-13)
    np.testing.assert_allclose(ran.ntk[-1], ntk, rtol=1e-13)
    np.testing.assert_allclose(residual + y, output(end, params), atol=1e-13)
    rebuilt = reconstruct(state, params, ran.delta[:-1])
    for ours, theirs in zip(rebuilt, end, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-13)


def test_the_kernel_is_the_trace_of_the_hessian_and_the_gradient_kernel():
    params = a_model()
    state = init(jax.random.key(0), params)
    flat, unravel = ravel_pytree(state)
    _, ntk = observables(*to_function_space(state, params), params.y)
    gradient = jax.grad(lambda w: output(unravel(w), params))(flat)
    np.testing.assert_allclose(ntk, gradient @ gradient, rtol=1e-13)
    np.testing.assert_allclose(
        ntk, jnp.trace(jax.jit(jax.hessian(lambda w: loss(unravel(w), params)))(flat)), rtol=1e-12
    )


@pytest.mark.parametrize("p", [0.0, 1.0])
def test_moments_of_the_initialisation(p):
    params = UVParams(n=64, p=p, sigma_w=0.7)
    P, M = initial_coordinates(jax.random.key(0), params, 4000)
    residual, ntk = observables(P, M, params.k, params.y)
    assert float(ntk.mean()) == pytest.approx(params.mean_ntk, rel=0.02)
    assert float((residual + params.y).std()) == pytest.approx(params.output_std, rel=0.05)
    state = init(jax.random.key(1), params)
    assert float(jnp.var(state.U)) == pytest.approx(params.sigma_w**2 / params.n**p, rel=0.15)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"x": np.zeros(3)}, "zero norm: k=0, nothing can be learned"),
        ({"x": np.ones((2, 2))}, "one finite vector"),
        ({"x": np.array([np.nan])}, "one finite vector"),
        ({"n": 0}, "n=0"),
        ({"p": 1.5}, "p=1.5"),
        ({"p": -0.1}, "p=-0.1"),
        ({"y": float("inf")}, "y=inf"),
        ({"sigma_w": -1.0}, "sigma_w=-1"),
    ],
)
def test_bad_models_name_the_argument(options, message):
    with pytest.raises(InputError, match=message):
        UVParams(**options)

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from iclr_dynamics.linear_network import (
    LinearNet,
    Setting,
    alignment,
    draw,
    function_space,
    init_layers,
    invariants,
    kernel,
    layer_norms,
    log_ntk_ratio,
    ntk_ratio,
    output_slope,
    prototypes,
)
from iclr_shared.errors import InputError


@pytest.fixture(autouse=True)
def _double(x64):
    """Everything here is in double precision."""


NET = LinearNet(0.5, 2.0, 0.5)
vectors = st.lists(st.floats(-3, 3), min_size=6, max_size=6)


@given(vectors)
@settings(deadline=None, max_examples=50)
def test_every_quantity_is_a_function_of_the_slope_and_invariants(values):
    u, a = np.array(values[:3]), np.array(values[3:])
    inv, F = invariants(NET, u, a), output_slope(NET, u, a)
    uu, aa = u @ u, a @ a
    np.testing.assert_allclose(kernel(F, inv.theta, NET.kappa), 0.25 * (0.5 * uu + 2 * aa), rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(layer_norms(NET, F, inv.Pi, inv.Delta), (uu**0.5, aa**0.5), rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(inv.S, (inv.Pi - inv.Delta**2) / 4, rtol=1e-6, atol=1e-9)
    P, M = function_space(NET, u, a)
    np.testing.assert_allclose(NET.kappa * (P - M) / 4, F, rtol=1e-9, atol=1e-9)
    if uu * aa > 1e-6:
        np.testing.assert_allclose(alignment(F, inv.S, NET.kappa), u @ a / (uu * aa) ** 0.5, atol=1e-6)


def test_the_area_keeps_its_digits_where_the_layers_are_nearly_aligned():
    u = np.array([1.0, 2.0, 3.0])
    a = u / 4 + 1e-9 * np.array([3.0, 0.0, -1.0])  # the second part is orthogonal to u
    S = invariants(LinearNet(1.0), u, a).S
    np.testing.assert_allclose(S, 14 * 1e-17, rtol=1e-6)  # |u|² times the squared distance 10e-18
    assert invariants(LinearNet(1.0), np.array([2.0]), np.array([5.0])).S == 0  # d = 1 has no area


def test_a_zero_layer_has_no_alignment():
    inv = invariants(NET, np.zeros(3), np.ones(3))
    assert alignment(0.0, inv.S, NET.kappa) == 0
    assert inv.S == 0


def test_kernel_ratio_and_its_logarithm():
    np.testing.assert_allclose(ntk_ratio(0.0, 1.0, 2.0), 2**0.5, rtol=1e-15)
    np.testing.assert_allclose(ntk_ratio(3.0, 1.0, 2.0), (8 / 40) ** 0.5, rtol=1e-14)
    # Deep in the kernel phase the ratio is 1 to rounding; its logarithm is not.
    np.testing.assert_allclose(log_ntk_ratio(0.0, 1.0, 1e12), 2e-24, rtol=1e-12)
    # From the saddle K0 = 0: an infinite ratio, or none at all for a network that stays.
    np.testing.assert_array_equal(ntk_ratio(0.0, np.array([1.0, 0.0]), 0.0), (np.inf, 1))


def test_a_doubled_loss_is_a_doubled_rate():
    assert LinearNet(1.0, 2.0, 3.0, loss_factor=1.0).rates == (4.0, 6.0)
    assert LinearNet(1.0, 2.0, 3.0, loss_factor=1.0).kappa == LinearNet(1.0, 4.0, 6.0).kappa


def test_networks_are_pytrees():
    gammas = jnp.array([0.5, 1.0])
    nets = jax.vmap(lambda g: jax.tree.unflatten(jax.tree.structure(NET), (g, 2.0, 0.5, 0.5)))(gammas)
    slopes = jax.vmap(lambda net: output_slope(net, jnp.ones(2), jnp.ones(2)))(nets)
    np.testing.assert_allclose(slopes, [1, 2])


@pytest.mark.parametrize("name", ["gamma", "eta_u", "eta_w", "loss_factor"])
@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
def test_bad_networks(name, value):
    with pytest.raises(InputError, match=f"{name} must be a positive number"):
        LinearNet(**{"gamma": 1.0, name: value})


def test_bad_settings():
    with pytest.raises(InputError, match="width must be at least 1"):
        Setting(width=0)
    with pytest.raises(InputError, match="sigma_u must be a number >= 0"):
        Setting(sigma_u=-1.0)
    with pytest.raises(InputError, match="gamma"):
        Setting(gamma=0.0)


def test_random_starts_have_the_stated_scales():
    setting = Setting(20_000, sigma_u=0.5, sigma_w=2.0)
    layers = draw(jax.random.key(0), setting, D=2)
    np.testing.assert_allclose((np.std(layers.u), np.std(layers.w)), (0.5, 2.0), rtol=0.02)
    theta = jax.jit(invariants)(setting.net, layers.u, np.asarray(layers.w)[:, 0]).theta
    np.testing.assert_allclose(theta, setting.theta, rtol=0.05)


def test_antisymmetric_starts_are_silent():
    u, w = init_layers(jax.random.key(0), 100, antisymmetric=True)
    np.testing.assert_allclose(u @ w, 0, atol=1e-15)
    with pytest.raises(InputError, match="even width, got 3"):
        init_layers(jax.random.key(0), 3, antisymmetric=True)


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ((0, 1), "at least one neuron"),
        ((3, 0), "one input, got d=3 and D=0"),
        ((10**9, 1), r"take 16\.0 GB at width 1000"),
    ],
)
def test_bad_sizes(sizes, message):
    with pytest.raises(InputError, match=message):
        init_layers(jax.random.key(0), *sizes)


def test_prototypes_start_as_described():
    starts = {k: (net, *layers) for k, (net, _, layers) in prototypes(np.random.default_rng(0), 40, 2).items()}
    slopes = {name: float(output_slope(net, u, w[:, 0])) for name, (net, u, w) in starts.items()}
    np.testing.assert_allclose(slopes["disalignment"], 10, rtol=1e-12)
    assert abs(slopes["alignment"]) < 1e-3
    net, u, w = starts["rescaling"]
    assert invariants(net, u, w[:, 0]).Pi == 0

"""Where training starts: random layers, and one prototype for each mechanism."""

import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray

from iclr_dynamics.linear_network.data import LineData, unit_data
from iclr_dynamics.linear_network.network import MEMORY_LIMIT, Layers, LinearNet, Setting
from iclr_shared.errors import InputError


def init_layers(
    key: PRNGKeyArray, d: int, D: int = 1, sigma_u: float = 1.0, sigma_w: float = 1.0, antisymmetric: bool = False
) -> Layers:
    """Independent Gaussian weights, ``u ~ N(0, sigma_u²)`` and ``w ~ N(0, sigma_w²)`` in each entry.

    Args:
        key: of the draw.
        d: width.
        D: input dimension.
        sigma_u: standard deviation of u.
        sigma_w: standard deviation of w.
        antisymmetric: draw half of the neurons, and copy them with the sign of w turned, so that the network's output
            is exactly zero at the start. Needs an even width.

    Raises:
        InputError: if an antisymmetric network has odd width, or the layers would take more than 2 GB.
    """
    if d < 1 or D < 1:
        raise InputError(f"A network needs at least one neuron and one input, got d={d} and D={D}.")
    size = d * (1 + D) * jnp.dtype(float).itemsize
    if size > MEMORY_LIMIT:
        raise InputError(f"The layers take {size / 1e9:.1f} GB at width {d}, the limit is {MEMORY_LIMIT / 1e9:g} GB.")
    if antisymmetric and d % 2:
        raise InputError(f"An antisymmetric start needs an even width, got {d}.")
    return _gaussian(d, D, antisymmetric, key, sigma_u, sigma_w)


@partial(jax.jit, static_argnums=(0, 1, 2))
def _gaussian(d, D, antisymmetric, key, sigma_u, sigma_w):
    key_u, key_w = jax.random.split(key)
    rows = d // 2 if antisymmetric else d
    u, w = sigma_u * jax.random.normal(key_u, (rows,)), sigma_w * jax.random.normal(key_w, (rows, D))
    return Layers(jnp.concatenate([u, u]), jnp.concatenate([w, -w])) if antisymmetric else Layers(u, w)


def draw(key: PRNGKeyArray, setting: Setting, D: int = 1, antisymmetric: bool = False) -> Layers:
    """The random start of a setting; see `init_layers`."""
    return init_layers(key, setting.width, D, setting.sigma_u, setting.sigma_w, antisymmetric)


def prototypes(rng: np.random.Generator, d: int, D: int = 1) -> dict[str, tuple[LinearNet, LineData, Layers]]:
    """One start for each mechanism, by its name, in the mean-field parameterisation with ``F* = 1``.

    ``alignment``: small random layers. ``disalignment``: large layers that are the same up to 30 % of noise, with
    ``F0 = 10 F*``. ``rescaling``: small layers that are exactly aligned and balanced.

    Args:
        rng: of the draws.
        d: width.
        D: input dimension; the directions without data get weights of 30 % of the layers' size.

    Returns:
        Network, data and layers.
    """
    net, data = LinearNet(1 / d, d, d), unit_data(D)
    one, two, three, noise = rng.standard_normal((4, d))
    outside = 0.3 * rng.standard_normal((d, D - 1))
    correlated = three + 0.3 * noise
    large = math.sqrt(10 / (net.gamma * three @ correlated))

    def layers(u, a):
        size = math.sqrt(np.linalg.norm(u) * np.linalg.norm(a) / d)
        return Layers(jnp.array(u), jnp.array(np.column_stack([a, size * outside])))

    return {
        "alignment": (net, data, layers(0.01 * one, 0.01 * two)),
        "disalignment": (net, data, layers(large * three, large * correlated)),
        "rescaling": (net, data, layers(0.3 * one, 0.3 * one)),
    }


def random_problem(rng: np.random.Generator, d: int, D: int) -> tuple[LinearNet, LineData, Layers]:
    """A random network, data and start: scales, rates and layers over one to two decades, a target of either sign."""
    gamma, eta_u, eta_w, A = (float(x) for x in 10 ** rng.uniform(-1, 1, 4))
    nhat = rng.standard_normal(D)
    nhat /= np.linalg.norm(nhat)
    target = float(rng.choice([-1, 1]) * rng.uniform(0.3, 3))
    sizes = 10 ** rng.uniform(-1, 0.5, 2)
    layers = Layers(jnp.array(sizes[0] * rng.standard_normal(d)), jnp.array(sizes[1] * rng.standard_normal((d, D))))
    return LinearNet(gamma / d, eta_u, eta_w), LineData(nhat, A, A * target, A * target**2 + 0.1), layers

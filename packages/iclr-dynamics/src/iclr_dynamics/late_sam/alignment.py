"""How well the noise of minibatch gradients aligns with the curvature: the factor gamma of the stability bounds.

For the squared loss ``L = mean |f - y|^2 / 2`` with Gauss-Newton matrix ``G = mean J_i^T J_i`` and noise covariance
``Sigma = mean g_i g_i^T - g g^T`` of the samples' gradients ``g_i = J_i^T (f_i - y_i)``:
``gamma = tr(Sigma G) / (2 L |G|_F^2)``. The theory asks that it stays above a positive constant.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PyTree

from iclr_dynamics.networks import mse_loss


class Alignment(NamedTuple):
    """Args: `gamma` (the ratio), `noise` = tr(Sigma G), `frobenius` = |G|_F, `loss` = L."""

    gamma: float
    noise: float
    frobenius: float
    loss: float


def noise_alignment(
    apply: Callable[[PyTree, Array], Array],
    params: PyTree,
    x: Float[Array, "samples ..."],
    y: Float[Array, "samples classes"],
) -> Alignment:
    """The alignment on some samples, exactly: everything from the Gram matrix of the outputs' gradients.

    Args:
        apply: ``apply(params, x) -> outputs (samples, classes)``.
        params: pytree of weights.
        x, y: a few hundred samples; memory grows as samples x classes x weights.

    Returns:
        An `Alignment`; gamma is NaN at zero loss.
    """
    return Alignment(*map(float, _alignment(apply, params, x, y)))


@partial(jax.jit, static_argnums=0)
def _alignment(apply, params, x, y):
    flat, unravel = ravel_pytree(params)
    samples, classes = y.shape

    def outputs(flat, one):
        return apply(unravel(flat), one[None])[0]

    jacobian = jax.vmap(jax.jacrev(outputs), (None, 0))(flat, x).reshape(samples * classes, -1)
    gram = jacobian @ jacobian.T / samples  # (samples classes)^2, |gram|_F = |G|_F
    residuals = apply(params, x) - y
    # Column i of `parts` is J g_i / samples; g_i^T G g_i is samples times its squared norm.
    parts = jnp.einsum("msc,sc->ms", gram.reshape(-1, samples, classes), residuals)
    mean = parts.mean(1)
    noise = samples * (jnp.sum(parts**2) / samples - jnp.sum(mean**2))
    loss = mse_loss(apply(params, x), y)
    square = jnp.sum(gram**2)
    return noise / (2 * loss * square), noise, jnp.sqrt(square), loss

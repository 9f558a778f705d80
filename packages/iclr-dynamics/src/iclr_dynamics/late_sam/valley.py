"""The smallest valley of minima with different sharpness, where late SAM can be followed exactly.

``L(a, b) = (a b - 1)^2 / 2``: its minima ``a b = 1`` are one connected valley, and the Hessian's top eigenvalue there
is ``h = a^2 + b^2 >= 2``. Gradient descent holds every minimum with h < 2/eta. USAM leaves those with h above
`stability.sam_stability_threshold` at the rate `stability.usam_factor`, and comes back to a flatter one: the two phases
of the paper's theory.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from iclr_dynamics.late_sam.sam import usam_perturbation
from iclr_shared.errors import InputError


class Descent(NamedTuple):
    """A descent in the valley: losses before each step, with ``h = a^2 + b^2`` beside them, and the last point."""

    losses: Float[Array, " steps"]
    curvature: Float[Array, " steps"]
    point: Float[Array, "2"]

    @property
    def final_curvature(self) -> Float[Array, ""]:
        """``a^2 + b^2`` of the last point: its sharpness, if the loss there is 0."""
        return jnp.sum(self.point**2)


def loss(point: Float[Array, "2"]) -> Float[Array, ""]:
    """``(a b - 1)^2 / 2``."""
    return (point[0] * point[1] - 1) ** 2 / 2


def minimum(h: float) -> Float[Array, "2"]:
    """The minimum with ``a b = 1``, ``a^2 + b^2 = h`` and a >= b."""
    if not h >= 2:
        raise InputError(f"No minimum of the valley has h={h}; take h >= 2.")
    total, difference = (h + 2) ** 0.5, (h - 2) ** 0.5
    return jnp.asarray([(total + difference) / 2, (total - difference) / 2])


def descend(start: Float[Array, "2"], eta: float, rho: float, steps: int) -> Descent:
    """`steps` steps of USAM, ``w -= eta grad L(w + rho grad L(w))``; ``rho=0`` is gradient descent.

    Args:
        start: (a, b); precision follows it. Escapes from 1e-12 need float64.
        eta: learning rate.
        rho: radius.
        steps: how many.
    """
    return _descend(start, eta, rho, steps)


@partial(jax.jit, static_argnums=3)
def _descend(start, eta, rho, steps):
    gradient = jax.grad(loss)

    def step(point, _):
        climb = usam_perturbation(gradient(point), point, rho)
        return point - eta * gradient(point + climb), (loss(point), jnp.sum(point**2))

    point, (losses, curvature) = jax.lax.scan(step, start, length=steps)
    return Descent(losses, curvature, point)

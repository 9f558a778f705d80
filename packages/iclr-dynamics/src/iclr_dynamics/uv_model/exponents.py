"""Lyapunov exponents: how fast neighbouring training runs part, per step."""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Num

from iclr_dynamics.uv_model.maps import advance, checked, eos_map, function_space_map, observables
from iclr_shared.errors import InputError

Scalars = Num[ArrayLike, "..."]


class Exponents(NamedTuple):
    """Of an orbit on the manifold M = 0, in units of 1 / step.

    Args:
        along: within the manifold, average of ``ln |(1 - c (z-1)) (1 - c (z-1) - 2 c z)|``; positive means chaos.
        across: towards it, ``2 * average of ln |1 + delta|``; negative means that the manifold attracts.
        drift: average of ``ln |1 - delta|``, 0 on every bounded orbit that stays away from z = 0.
    """

    along: Float[Array, "..."]
    across: Float[Array, "..."]
    drift: Float[Array, "..."]


def lyapunov(c: Scalars, *, z0: Scalars = 0.37, steps: int = 200_000, burn_in: int = 2000) -> Exponents:
    """Exponents on the edge-of-stability manifold for each learning rate c (over the critical one).

    At c = 2, the Chebyshev map, ``along`` is ln 3; take ``c = 2 - 1e-9`` there, since rounding can put the orbit of the
    exact value on z = 0 for ever. NaN where the orbit diverges.

    Args:
        c: learning rates, > 0.
        z0: starts, ``f_0 / y`` > 0; broadcast against c.
        steps: of the average.
        burn_in: steps before it.

    Raises:
        InputError: for a rate or start that is not positive, or too few steps.
    """
    if not ((np.asarray(c) > 0).all() and (np.asarray(z0) > 0).all()):
        raise InputError("c and z0 must be positive.")
    _enough(steps, burn_in)
    c, z0 = jnp.broadcast_arrays(jnp.asarray(c, float), jnp.asarray(z0, float))
    sums = _manifold_sums(c, z0, steps, burn_in)
    finite = jnp.isfinite(sums[3])
    along, across, drift = (jnp.where(finite, value / steps, jnp.nan) for value in sums[:3])
    return Exponents(along, across, drift)


def lyapunov_spectrum(
    P0: Scalars, M0: Scalars, k: Scalars, y: Scalars, eta: Scalars, *, steps: int = 20_000, burn_in: int = 2000
) -> Float[Array, "... 2"]:
    """Both exponents of the map in (Df, lambda) from any start, by QR of its automatic Jacobian.

    Args:
        P0, M0: start, >= 0; all arguments broadcast.
        k: coupling, > 0.
        y: target.
        eta: learning rate, > 0.
        steps: of the average.
        burn_in: steps before it.

    Returns:
        (..., 2); NaN where the run diverges.

    Raises:
        InputError: naming the argument that is out of its range.
    """
    _enough(steps, burn_in)
    values = checked(P0=P0, M0=M0, k=k, y=y, eta=eta)
    flat = _spectra(*(value.ravel() for value in values), steps, burn_in)
    return flat.reshape(*values[0].shape, 2)


def _enough(steps, burn_in):
    if steps < 1 or burn_in < 0:
        raise InputError(f"steps={steps} must be at least 1 and burn_in={burn_in} not negative.")


@jax.jit
def _manifold_sums(c, z, steps, burn_in):
    z = jax.lax.fori_loop(0, burn_in, lambda _, z: eos_map(z, c), z)

    def add(_, carry):
        along, across, drift, z = carry
        delta = c * (z - 1)
        along += jnp.log(jnp.abs((1 - delta) * (1 - delta - 2 * c * z)))
        across += 2 * jnp.log(jnp.abs(1 + delta))
        drift += jnp.log(jnp.abs(1 - delta))
        return along, across, drift, eos_map(z, c)

    zero = jnp.zeros_like(z)
    return jax.lax.fori_loop(0, steps, add, (zero, zero, zero, z))


@jax.jit
@partial(jax.vmap, in_axes=(0, 0, 0, 0, 0, None, None))
def _spectra(P, M, k, y, eta, steps, burn_in):
    P, M = jax.lax.fori_loop(0, burn_in, lambda _, at: tuple(advance(*at, eta, k, y)), (P, M))
    jacobian = jax.jacfwd(lambda at: jnp.stack(function_space_map(at[0], at[1], eta, k, y)))

    def add(_, carry):
        P, M, frame, sums = carry
        frame, stretch = jnp.linalg.qr(jacobian(jnp.stack(observables(P, M, k, y))) @ frame)
        return *advance(P, M, eta, k, y), frame, sums + jnp.log(jnp.abs(jnp.diag(stretch)))

    P, M, _, sums = jax.lax.fori_loop(0, steps, add, (P, M, jnp.eye(2, dtype=P.dtype), jnp.zeros(2, P.dtype)))
    return jnp.where(jnp.isfinite(P + M), sums / steps, jnp.nan)

"""The bifurcation diagram of the edge of stability: which values eta * sharpness keeps visiting, for each rate."""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int, Num

from iclr_dynamics.uv_model.maps import checked, final_state, manifold_start, simulate_checked
from iclr_shared.errors import InputError

Scalars = Num[ArrayLike, "..."]


class Bifurcation(NamedTuple):
    """Late values of runs at many learning rates.

    Args:
        c: ``eta k y``, the learning rate over the critical one.
        z: ``f / y``.
        ntk: ``eta lambda``.
        sharpness: ``eta lambda_H``.
        diverged: step of divergence, -1 where there is none; the values of a divergent run are NaN.
    """

    c: Float[Array, " rates"]
    z: Float[Array, "rates record"]
    ntk: Float[Array, "rates record"]
    sharpness: Float[Array, "rates record"]
    diverged: Int[Array, " rates"]


def bifurcation(
    c: Num[ArrayLike, " rates"],
    *,
    z0: float = 0.37,
    k: float = 1.0,
    y: float = 2.0,
    start: tuple[Scalars, Scalars] | None = None,
    burn_in: int = 4000,
    record: int = 256,
) -> Bifurcation:
    """Run every rate of a grid together, compiled, and keep the last `record` states of each.

    On the manifold M = 0 the diagram depends on c alone; k and y matter only together with `start`.

    Args:
        c: learning rates over the critical one, > 0.
        z0: start on the manifold, ``f_0 / y`` > 0.
        k: coupling, > 0.
        y: target, not 0; a negative one is mirrored, (y, f) -> (-y, -f), which leaves all results as they are.
        start: (P0, M0) of a real initialisation (scalars or one for each rate) instead of `z0`; for 1 < c < 1.236 both
            give the same 2-cycle up to its phase.
        burn_in: steps before the record; near an onset convergence is slow.
        record: steps kept.

    Raises:
        InputError: for y = 0 or a rate, start or k out of range.
    """
    if y == 0:
        raise InputError("y=0: the critical learning rate is infinite, there is no edge of stability to draw.")
    if record < 1 or burn_in < 0:
        raise InputError(f"burn_in={burn_in} and record={record} must be positive.")
    if y < 0:
        y, start = -y, start and start[::-1]
    c = jnp.atleast_1d(jnp.asarray(c, float))
    P0, M0 = manifold_start(z0, k, y) if start is None else start
    P0, M0, k_, y_, eta = checked(P0=P0, M0=M0, k=k, y=y, eta=c / (k * y))
    settled, early = final_state(P0, M0, k_, y_, eta, burn_in)
    return Bifurcation(c, *_record(*settled, k_, y_, eta, early, burn_in, record))


def period(
    c: Num[ArrayLike, "..."], *, z0: float = 0.37, tol: float = 1e-8, longest: int = 64, burn_in: int = 20_000
) -> Int[np.ndarray, "..."]:
    """The period of the attractor on the manifold: the first m with ``|z_{t+m} - z_t| < tol`` 3 m + 1 times running.

    Args:
        c: learning rates over the critical one.
        z0: start, ``f_0 / y``.
        tol: of a recurrence; float64 is needed.
        longest: largest period looked for.
        burn_in: steps first; near an onset 2e5.

    Returns:
        Periods in the shape of c; 0 where there is none (chaos, or a longer one), -1 where the run diverges.
    """
    shape = np.shape(c)
    diagram = bifurcation(jnp.ravel(jnp.asarray(c)), z0=z0, burn_in=burn_in, record=4 * longest + 1)
    z = np.asarray(diagram.z)
    found = recurrence(z, tol, longest)
    found[np.asarray(diagram.diverged) >= 0] = -1
    return found.reshape(shape)


def recurrence(z: Float[np.ndarray, "rates record"], tol: float = 1e-8, longest: int = 64) -> Int[np.ndarray, " rates"]:
    """The first m with ``|z_{t+m} - z_t| < tol`` 3 m + 1 times running from each record's start; 0 where there is none.

    Args:
        z: recorded orbits, of which periods up to (record - 1) / 4 can be seen.
        tol: of a recurrence.
        longest: largest period looked for.
    """
    found = np.zeros(len(z), int)
    for m in range(min(longest, (z.shape[1] - 1) // 4), 0, -1):
        found[np.abs(z[:, m : 4 * m + 1] - z[:, : 3 * m + 1]).max(axis=1) < tol] = m
    return found


@partial(jax.jit, static_argnums=7)
def _record(P, M, k, y, eta, early, burn_in, record):
    late = simulate_checked(P, M, k, y, eta, record - 1)
    diverged = jnp.where(early >= 0, early, jnp.where(late.diverged >= 0, late.diverged + burn_in, -1))
    values = late.residual / y + 1, eta * late.ntk, eta * late.sharpness
    return *(jnp.where(diverged[:, None] < 0, value.T, jnp.nan) for value in values), diverged

"""Gradient descent of the UV model in function space: exact, two numbers per step.

Symbols: ``Df = f - y`` residual, ``lambda`` tangent kernel (and trace of the Hessian), ``k`` coupling, ``eta`` learning
rate, ``c = eta k |y|`` the learning rate in units of the critical one. In the weights' own coordinates
``f = (k/2)(P - M)`` and ``lambda = k^2 (P + M)``, which stay non-negative and lose no digits, so P and M are iterated.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int, Num

from iclr_dynamics.function_space import FunctionSpace, limit, riccati, step
from iclr_dynamics.uv_model.hessian import sharpness
from iclr_shared.errors import InputError

Scalars = Num[ArrayLike, "..."]
"""A number or an array; the arguments of one call broadcast against each other."""

BOUND = 1e12
"""A run stops where P + M would pass this: it has diverged."""


class Trajectory(NamedTuple):
    """Gradient descent at times 0, stride, 2 stride, ..., time on the first axis.

    Args:
        residual: ``Df = f - y``.
        ntk: ``lambda``, which is also the trace of the Hessian.
        sharpness: largest Hessian eigenvalue.
        delta: ``eta k Df``, the relative change of v + a in the step to come.
        P, M: the coordinates themselves.
        diverged: step at which P + M would have passed `BOUND`, -1 if it never did; from there on the records repeat
            the last state before it.
    """

    residual: Float[Array, "times *batch"]
    ntk: Float[Array, "times *batch"]
    sharpness: Float[Array, "times *batch"]
    delta: Float[Array, "times *batch"]
    P: Float[Array, "times *batch"]
    M: Float[Array, "times *batch"]
    diverged: Int[Array, "*batch"]


def observables(P: Scalars, M: Scalars, k: Scalars, y: Scalars) -> tuple[Array, Array]:
    """``(Df, lambda) = ((k/2)(P - M) - y, k^2 (P + M))``."""
    P, M = jnp.asarray(P), jnp.asarray(M)
    return k / 2 * (P - M) - y, k**2 * (P + M)


def coordinates(f: Scalars, ntk: Scalars, k: Scalars) -> FunctionSpace:
    """(P, M) of an output and a tangent kernel; the inverse of `observables`.

    Raises:
        InputError: outside the feasible region ``lambda >= 2 k |f|`` (by more than rounding), or not finite.
    """
    for name, value in {"f": f, "lambda": ntk}.items():
        if not np.isfinite(np.asarray(value)).all():
            raise InputError(f"{name} must be finite.")
    total, difference = np.asarray(ntk) / k**2, 2 * np.asarray(f) / k
    slack = total - np.abs(difference)
    if (slack < -1e-9 * np.abs(difference)).any():
        where = np.unravel_index(np.argmin(slack), slack.shape)
        bad_f, bad_ntk = (float(np.broadcast_to(value, slack.shape)[where]) for value in (f, ntk))
        raise InputError(
            f"No weights have output f={bad_f:g} with tangent kernel lambda={bad_ntk:g}: "
            f"lambda >= 2 k |f| = {2 * float(np.max(k)) * abs(bad_f):g} is needed."
        )
    # Written so that on the boundary the smaller of the two is exactly 0.
    P, M = np.maximum(total + difference, 0) / 2, np.maximum(total - difference, 0) / 2
    return FunctionSpace(jnp.asarray(P), jnp.asarray(M))


def advance(P: Scalars, M: Scalars, eta: Scalars, k: Scalars, y: Scalars) -> FunctionSpace:
    """One step of gradient descent: ``P' = P (1-delta)^2, M' = M (1+delta)^2`` with ``delta = eta k Df``."""
    residual, _ = observables(P, M, k, y)
    return step(P, M, eta * k * residual)


def function_space_map(
    residual: Scalars, ntk: Scalars, eta: Scalars, k: Scalars, y: Scalars
) -> tuple[Float[Array, "..."], Float[Array, "..."]]:
    """The same step in the observables themselves.

    ``Df' = Df (1 - eta lambda + eta^2 k^2 Df f)``, ``lambda' = lambda + eta k^2 Df (eta lambda Df - 4 f)``.
    """
    residual, ntk = jnp.asarray(residual), jnp.asarray(ntk)
    f = residual + y
    return (
        residual * (1 - eta * ntk + eta**2 * k**2 * residual * f),
        ntk + eta * k**2 * residual * (eta * ntk * residual - 4 * f),
    )


def eos_map(z: Scalars, c: Scalars) -> Float[Array, "..."]:
    """The edge-of-stability manifold M = 0, where ``z = f / y`` obeys ``z' = z (1 - c (z - 1))^2``.

    There ``eta lambda = 2 c z`` and ``eta lambda_H = c (z + |2 z - 1|)``.
    """
    z = jnp.asarray(z)
    return z * (1 - c * (z - 1)) ** 2


def manifold_start(z: Scalars, k: Scalars, y: Scalars) -> FunctionSpace:
    """The point with ``f = z y`` on the manifold M = 0 (for y > 0)."""
    P = 2 * jnp.asarray(y) * z / k
    return FunctionSpace(P, jnp.zeros_like(P))


def simulate(
    P0: Scalars, M0: Scalars, k: Scalars, y: Scalars, eta: Scalars, steps: int, *, stride: int = 1
) -> Trajectory:
    """Gradient descent for `steps` steps; all arguments broadcast, so one call trains a whole grid.

    Args:
        P0, M0: start, >= 0.
        k: coupling, > 0.
        y: target, any sign.
        eta: learning rate, > 0.
        steps: a multiple of `stride`.
        stride: record every so many steps (memory is ``steps / stride`` times the batch).

    Returns:
        A `Trajectory` of ``steps / stride + 1`` records, in the widest float type of the arguments.

    Raises:
        InputError: if an argument is out of its range.
    """
    if stride < 1 or steps < 0 or steps % stride:
        raise InputError(f"steps={steps} must be a multiple of stride={stride}, both positive.")
    values = checked(P0=P0, M0=M0, k=k, y=y, eta=eta)
    return simulate_checked(*values, steps // stride, stride)


def final_state(
    P0: Scalars, M0: Scalars, k: Scalars, y: Scalars, eta: Scalars, steps: int
) -> tuple[FunctionSpace, Int[Array, "*batch"]]:
    """Where `simulate` ends and the step of divergence (-1: none), for runs of which only the end is wanted.

    Raises:
        InputError: if an argument is out of its range.
    """
    if steps < 0:
        raise InputError(f"steps={steps} must not be negative.")
    P, M, k, y, eta = checked(P0=P0, M0=M0, k=k, y=y, eta=eta)
    return _advance_many(P, M, k, y, eta, steps)


def gradient_flow(P0: Scalars, M0: Scalars, k: Scalars, y: Scalars, t: Scalars) -> FunctionSpace:
    """The limit of small learning rates at time ``t = eta * steps``, in closed form.

    ``dP/dt = -k^2 (P^2 - (2 y / k) P - P_0 M_0)``, P M conserved.

    Args:
        P0, M0: start, >= 0; all arguments broadcast.
        k: coupling, > 0.
        y: target.
        t: time, >= 0.
    """
    return riccati(P0, M0, jnp.square(jnp.asarray(k, float)), jnp.asarray(y) / k, t)


def gradient_flow_limit(P0: Scalars, M0: Scalars, k: Scalars, y: Scalars) -> FunctionSpace:
    """Where gradient flow ends; its kernel is ``lambda_inf = sqrt(lambda_0^2 + 4 k^2 (y^2 - f_0^2))``."""
    return limit(P0, M0, jnp.asarray(y) / k)


def limiting_ntk(ntk: Scalars, f: Scalars, k: Scalars, y: Scalars) -> Float[Array, "..."]:
    """``lambda_inf = sqrt(lambda_0^2 + 4 k^2 (y^2 - f_0^2))`` of gradient flow.

    The kernel, and with it the sharpness, ends above its start iff ``|f_0| < |y|`` (progressive sharpening) and below
    it iff ``|f_0| > |y|`` (sharpness reduction).
    """
    return jnp.sqrt(jnp.asarray(ntk) ** 2 + 4 * k**2 * (jnp.asarray(y) ** 2 - jnp.asarray(f) ** 2))


def unbalancedness(P: Scalars, M: Scalars, k: Scalars) -> Float[Array, "..."]:
    """``D = lambda^2 - 4 k^2 f^2 = 4 k^4 P M``: conserved by the flow, times ``(1 - delta^2)^2`` in a step."""
    return 4 * jnp.asarray(k) ** 4 * P * M


class VectorField(NamedTuple):
    """Arrows over the plane (Df, lambda), NaN where lambda < 2 k |f|.

    Args:
        residual, ntk: the grid.
        one_step: ``(Df' - Df, lambda' - lambda)``.
        two_step: the same for two steps: near the edge of stability Df flips sign at each step, and only this field
            shows the 2-cycle as points at rest.
    """

    residual: Float[Array, "rows columns"]
    ntk: Float[Array, "rows columns"]
    one_step: Float[Array, "2 rows columns"]
    two_step: Float[Array, "2 rows columns"]


def vector_field(
    residual: Float[ArrayLike, " columns"], ntk: Float[ArrayLike, " rows"], eta: float, k: float, y: float
) -> VectorField:
    """How one and two steps move each point of a grid over (Df, lambda); its zeros: `fixed_points.nullclines`."""
    here = jnp.stack(jnp.meshgrid(jnp.asarray(residual, float), jnp.asarray(ntk, float)))
    once = jnp.stack(function_space_map(*here, eta, k, y))
    twice = jnp.stack(function_space_map(*once, eta, k, y))
    feasible = here[1] >= 2 * k * jnp.abs(here[0] + y)
    one_step, two_step = (jnp.where(feasible, there - here, jnp.nan) for there in (once, twice))
    return VectorField(here[0], here[1], one_step, two_step)


def checked(**values: Scalars) -> list[Array]:
    """The named quantities as arrays of one float type and shape.

    Raises:
        InputError: naming the one that is out of its range.
    """
    for name, value in values.items():
        value = np.asarray(value)
        if not np.isfinite(value).all():
            raise InputError(f"{name} must be finite.")
        if name in ("eta", "k") and (value <= 0).any():
            zero = " k=0 means an input of zero norm: nothing can be learned." if name == "k" else ""
            raise InputError(f"{name}={float(value.min()):g} must be positive.{zero}")
        if name in ("P0", "M0") and (value < 0).any():
            raise InputError(f"{name}={float(value.min()):g} must not be negative: it is half a squared norm.")
    dtype = jnp.result_type(float, *values.values())
    return [jnp.asarray(value) for value in jnp.broadcast_arrays(*(jnp.asarray(v, dtype) for v in values.values()))]


def _stretch(carry, k, y, eta, steps):
    def one(_, carry):
        P, M, diverged, time = carry
        ahead = advance(P, M, eta, k, y)
        total = ahead.P + ahead.M
        fine = (total <= BOUND) & (diverged < 0)
        diverged = jnp.where(fine | (diverged >= 0), diverged, time)
        return jnp.where(fine, ahead.P, P), jnp.where(fine, ahead.M, M), diverged, time + 1

    return jax.lax.fori_loop(0, steps, one, carry)


def _begin(P):
    return jnp.full(P.shape, -1), jnp.zeros((), int)


@partial(jax.jit, static_argnums=(5, 6))
def simulate_checked(
    P: Float[Array, "*batch"],
    M: Float[Array, "*batch"],
    k: Float[Array, "*batch"],
    y: Float[Array, "*batch"],
    eta: Float[Array, "*batch"],
    records: int,
    stride: int = 1,
) -> Trajectory:
    """`simulate` on arrays that `checked` has passed, for use inside compiled functions."""

    def record(carry, _):
        return _stretch(carry, k, y, eta, stride), carry[:2]

    end, (Ps, Ms) = jax.lax.scan(record, (P, M, *_begin(P)), length=records)
    Ps, Ms = jnp.concatenate([Ps, end[0][None]]), jnp.concatenate([Ms, end[1][None]])
    residual, ntk = observables(Ps, Ms, k, y)
    return Trajectory(residual, ntk, sharpness(residual, ntk, k, y), eta * k * residual, Ps, Ms, end[2])


@jax.jit
def _advance_many(P, M, k, y, eta, steps):
    P, M, diverged, _ = _stretch((P, M, *_begin(P)), k, y, eta, steps)
    return FunctionSpace(P, M), diverged

"""Two-layer linear learning in function space: two non-negative numbers carry the whole dynamics.

A network of two linear layers, fitted to data on one line, is fully described by the squared norms of the sum and of
the difference of its two (rate-weighted) layers,

    P = |first + second|²,   M = |first - second|²,

up to a common factor that each model chooses. The network's output is proportional to ``P - M``, its tangent kernel to
``P + M``. Both the UV model and the linear network on one-dimensional data are this system with their own constants:
`step` is one step of gradient descent, `riccati` is gradient flow.

Every formula here is a ratio of sums of non-negative terms. No case needs an exchange of roles, and nothing cancels:
not for aligned layers (``M0 = 0``), not from a saddle (``P0`` tiny or 0), not after an arbitrarily long time.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Num

Scalars = Num[ArrayLike, "..."]
"""A number or an array of numbers; the arguments of one call broadcast against each other."""


class FunctionSpace(NamedTuple):
    """A point of function space: the two numbers, or arrays of them.

    Args:
        P: squared norm of the sum of the layers, >= 0.
        M: squared norm of their difference, >= 0.
    """

    P: Float[Array, "..."]
    M: Float[Array, "..."]


def step(P: Scalars, M: Scalars, delta: Scalars) -> FunctionSpace:
    """One step of gradient descent, exact for any step size: ``P' = P (1 - delta)²``, ``M' = M (1 + delta)²``.

    Args:
        P: squared norm of the sum of the layers.
        M: squared norm of their difference.
        delta: step size times coupling times residual, the relative change of the sum of the layers.

    Returns:
        The next point.
    """
    P, M, delta = floating(P, M, delta)
    return FunctionSpace(P * (1 - delta) ** 2, M * (1 + delta) ** 2)


def riccati(P0: Scalars, M0: Scalars, gain: Scalars, target: Scalars, t: Scalars) -> FunctionSpace:
    """Gradient flow ``dP/dt = -gain (P² - 2 target P - P0 M0)`` with ``M = P0 M0 / P``, in closed form.

    With ``R = sqrt(target² + P0 M0)``, ``s = 2 gain R`` and ``e = exp(-s t)``::

        P = P0 (c₊ + M0 φ) / (c₋ + P0 φ),    c± = ((R ± target) + (R ∓ target) e) / 2R,    φ = (1 - e) / 2R

    and ``M`` is the same with the fraction turned over. As R → 0 the flow becomes algebraic and ``φ → gain t``.

    Args:
        P0: at time 0, >= 0.
        M0: at time 0, >= 0.
        gain: > 0, in 1 / (time × unit of P).
        target: half the value of ``P - M`` at which the residual vanishes; any sign.
        t: time, >= 0 and finite.

    Returns:
        ``P`` and ``M`` at time t. Where ``P0 = 0`` P stays 0, where ``M0 = 0`` M stays 0.
    """
    P0, M0, gain, target, t = floating(P0, M0, gain, target, t)
    _, upper, lower = _fractions(P0, M0, gain, target, t)
    return FunctionSpace((P0 / lower) * upper, (M0 / upper) * lower)


def layer_scale(P0: Scalars, M0: Scalars, gain: Scalars, target: Scalars, t: Scalars) -> Float[Array, "..."]:
    """The factor ``sqrt(P / P0) = sqrt(M0 / M)`` of `riccati` that all neurons share.

    The sum of the layers is the initial one times this factor, the difference is the initial one divided by it, so
    that the whole weight trajectory follows from one number for each time.
    """
    P0, M0, gain, target, t = floating(P0, M0, gain, target, t)
    _, upper, lower = _fractions(P0, M0, gain, target, t)
    return jnp.sqrt(upper) / jnp.sqrt(lower)


def decay(P0: Scalars, M0: Scalars, gain: Scalars, target: Scalars, t: Scalars) -> Float[Array, "..."]:
    """What is left of the residual: ``gap(t) / gap(0) = e / ((c₊ + M0 φ)(c₋ + P0 φ))`` in the terms of `riccati`.

    The residual obeys ``d gap/dt = -gain (P + M) gap``: this falls from 1, never changes sign, and is accurate relative
    to itself however small it becomes. Multiply it by a residual that is known accurately.
    """
    P0, M0, gain, target, t = floating(P0, M0, gain, target, t)
    e, upper, lower = _fractions(P0, M0, gain, target, t)
    return e / upper / lower


def gap(P0: Scalars, M0: Scalars, gain: Scalars, target: Scalars, t: Scalars) -> Float[Array, "..."]:
    """The residual ``P - M - 2 target`` along `riccati`, accurate relative to itself; see `decay`.

    Args:
        P0: at time 0, >= 0.
        M0: at time 0, >= 0.
        gain: > 0.
        target: half the value of ``P - M`` at which the gap vanishes.
        t: time, >= 0 and finite.

    Returns:
        The gap at time t.
    """
    P0, M0, gain, target, t = floating(P0, M0, gain, target, t)
    return (P0 - M0 - 2 * target) * decay(P0, M0, gain, target, t)


def rate(P0: Scalars, M0: Scalars, gain: Scalars, target: Scalars) -> Float[Array, "..."]:
    """The exponential rate of `riccati`: ``s = 2 gain sqrt(target² + P0 M0)``, 0 where the flow is algebraic."""
    P0, M0, gain, target = floating(P0, M0, gain, target)
    return 2 * gain * _radius(P0, M0, target)


def limit(P0: Scalars, M0: Scalars, target: Scalars) -> FunctionSpace:
    """Where `riccati` ends: ``P∞ = R + target``, ``M∞ = R - target`` with ``R = sqrt(target² + P0 M0)``.

    What starts at exactly zero stays there, so that an aligned network (``M0 = 0``) of the wrong sign ends at (0, 0).
    """
    P0, M0, target = floating(P0, M0, target)
    _, plus, minus = _roots(P0, M0, target)
    return FunctionSpace(jnp.where(P0 > 0, plus, 0), jnp.where(M0 > 0, minus, 0))


def time_to_gap(P0: Scalars, M0: Scalars, gain: Scalars, target: Scalars, size: Scalars) -> Float[Array, "..."]:
    """When `gap` has shrunk to a given size, in closed form.

    The point at that moment follows from the gap and the conserved ``P M``; its time from the cross-ratio
    ``exp(-s t) = (P gap / P0 gap0) ((P0 + R - target) / (P + R - target))²``, or, for short times and large P, from
    ``tanh(s t / 2) = R (P0 - P) / (P P0 - target (P + P0) - P0 M0)``, either of them for the larger of P and M.

    Args:
        P0: at time 0, >= 0.
        M0: at time 0, >= 0.
        gain: > 0.
        target: half the value of ``P - M`` at which the gap vanishes.
        size: of the gap, > 0.

    Returns:
        The time; 0 where the gap is as small from the start, inf where it never becomes so.
    """
    P0, M0, gain, target, size = floating(P0, M0, gain, target, size)
    swap = M0 > P0
    P0, M0, target = jnp.where(swap, M0, P0), jnp.where(swap, P0, M0), jnp.where(swap, -target, target)

    gap0 = P0 - M0 - 2 * target
    already = jnp.abs(gap0) <= size
    still = P0 <= 0
    P0, gap0 = jnp.where(still, 1, P0), jnp.where(already, 1, gap0)
    end = jnp.sign(gap0) * size
    output = 2 * target + end  # P - M at that moment
    larger = (jnp.abs(output) + _hypotenuse(output, P0, M0)) / 2
    P = jnp.where(output >= 0, larger, P0 * (M0 / jnp.where(larger > 0, larger, 1)))

    R, _, minus = _roots(P0, M0, target)
    algebraic = R <= 0
    ratio = (P / P0) * (end / gap0) * ((P0 + minus) / jnp.where(P + minus > 0, P + minus, 1)) ** 2
    mixed = P * P0 - target * (P + P0) - P0 * M0
    slowness = (P0 - P) / jnp.where(mixed == 0, 1, mixed)
    half = R * slowness
    short = algebraic | ((ratio > 0.3) & (P0 > 4 * R))
    near = slowness * _ratio_to_argument(jnp.arctanh, jnp.where(short & (jnp.abs(half) < 1), half, 0))
    far = -jnp.log(jnp.where(short, 1, ratio)) / (2 * jnp.where(algebraic, 1, R))
    return jnp.where(already, 0, jnp.where(still | (P <= 0), jnp.inf, jnp.where(short, near, far) / gain))


def floating(*values: Scalars) -> list[Float[Array, "..."]]:
    """Arrays of the one floating type that all of them promote to."""
    dtype = jnp.result_type(*values)
    if not jnp.issubdtype(dtype, jnp.floating):
        dtype = jnp.result_type(float)
    return [jnp.asarray(value, dtype) for value in values]


def _hypotenuse(a: Array, P: Array, M: Array) -> Array:
    """``sqrt(a² + 4 P M)`` without overflow or underflow of the products, with the right gradient where it is 0."""
    scale = jax.lax.stop_gradient(jnp.maximum(jnp.abs(a), 2 * jnp.sqrt(P) * jnp.sqrt(M)))
    positive = scale > 0
    scale = jnp.where(positive, scale, 1)
    square = (a / scale) ** 2 + 4 * (P * (M / scale) / scale)
    return jnp.where(positive, scale * jnp.sqrt(jnp.where(positive, square, 1)), 0)


def _radius(P0: Array, M0: Array, target: Array) -> Array:
    """``R = sqrt(target² + P0 M0)``."""
    return _hypotenuse(2 * target, P0, M0) / 2


def _roots(P0: Array, M0: Array, target: Array) -> tuple[Array, Array, Array]:
    """``R``, ``R + target`` and ``R - target``; the smaller of the two as ``P0 M0`` over the larger."""
    R = _radius(P0, M0, target)
    large = R + jnp.abs(target)
    small = P0 * (M0 / jnp.where(large > 0, large, 1))
    return R, jnp.where(target >= 0, large, small), jnp.where(target >= 0, small, large)


def _fractions(P0: Array, M0: Array, gain: Array, target: Array, t: Array) -> tuple[Array, Array, Array]:
    """``e``, ``c₊ + M0 φ`` and ``c₋ + P0 φ`` of `riccati`."""
    R, plus, minus = _roots(P0, M0, target)
    x = gain * t
    algebraic = R <= 0
    twice = 2 * jnp.where(algebraic, 1, R)
    # Kept above 0: at the exact saddle, e / (c₊ c₋) = 1 however long one waits.
    e = jnp.maximum(jnp.exp(-2 * x * R), 4 * jnp.finfo(x.dtype).tiny)
    # At R = 0 the values are 1, 1 and gain t; the further terms carry the gradients there.
    turn = x * x * P0 * M0 / 2
    bend = jnp.where(algebraic, 1 + turn / 3, _ratio_to_argument(jnp.expm1, -2 * x * R))
    phi = x * bend
    upper = jnp.where(algebraic, 1 + x * target + turn, plus / twice + minus / twice * e)
    lower = jnp.where(algebraic, 1 - x * target + turn, minus / twice + plus / twice * e)
    return e, upper + M0 * phi, lower + P0 * phi


def _ratio_to_argument(function, x: Array) -> Array:
    """``function(x) / x`` for a function that is 0 with slope 1 at 0; exact where x is too small for a quotient."""
    nonzero = x != 0
    safe = jnp.where(nonzero, x, 0.5)
    return jnp.where(nonzero, function(safe) / safe, 1)

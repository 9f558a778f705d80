"""Mirror steps ``argmin_w <g, w> + D_h(w, w_t) / eta`` on the two feasible sets, each with its dual variable.

Formulation A lives on ``{sum w = 1, w >= c}``, formulation B on ``{sum w = k, c <= w <= 1 - c}``. All functions take
NumPy or JAX arrays and return the like.
"""

from typing import Any, NamedTuple

import numpy as np
from array_api_compat import array_namespace, is_jax_array
from jaxtyping import Array, Float

from iclr_shared.errors import InputError

type Real = Array | np.ndarray
GEOMETRIES = ("kl", "fermi_dirac", "entropy", "euclidean")
ROUNDS = 40  # of bisection plus Newton; each at least halves the bracket


class MirrorStep(NamedTuple):
    """The next weights (n,), and the scalar dual variable of the sum constraint."""

    w: Any
    dual: Any


def mirror_step(
    w: Float[Real, " n"], g: Float[Real, " n"], eta: Any, geometry: str = "kl", c: float = 0.0, k: float | None = None
) -> MirrorStep:
    """One step of stochastic mirror descent.

    Args:
        w: current weights, shape (n,).
        g: gradient of the expected cost; a positive entry lowers its weight.
        eta: step length, a number or scalar array.
        geometry: ``"kl"`` on A's set; ``"fermi_dirac"`` (h = w log w + (1 - w) log(1 - w)) or ``"entropy"`` (h = w log
            w) on B's; ``"euclidean"`` on A's, or on B's where k is given: the control.
        c: floor, and distance from 1 on B's set.
        k: the sum on B's set.

    Raises:
        InputError: if c leaves the set without interior, or the geometry is unknown or lacks k.
    """
    n = w.shape[0]
    if geometry not in GEOMETRIES:
        raise InputError(f"A geometry is one of {', '.join(GEOMETRIES)}, got {geometry!r}.")
    check_floor(c, n, None if geometry == "kl" else k)
    if geometry == "kl":
        return kl_step(w, g, eta, c)
    if geometry == "euclidean":
        return euclidean_projection(w - eta * g, c, *((1.0, 1.0) if k is None else (1 - c, k)))
    if k is None:
        raise InputError(f"The geometry {geometry} needs k, the sum of the weights.")
    return (fermi_dirac_step if geometry == "fermi_dirac" else entropy_step)(w, g, eta, c, k)


def check_floor(c: float, n: int, k: float | None = None) -> None:
    """Raise InputError unless the set with floor c has an interior: A's where k is None, else B's."""
    if k is None:
        if not 0 <= c <= 1 / n:
            raise InputError(f"The floor c must be in [0, 1/n] = [0, {1 / n:.4g}], got {c}.")
    elif not 0 <= c <= min(k / n, 1 - k / n):
        raise InputError(f"The floor c must be in [0, min(k/n, 1 - k/n)] = [0, {min(k / n, 1 - k / n):.4g}], got {c}.")


def kl_step(w: Float[Real, " n"], g: Float[Real, " n"], eta: Any, c: float) -> MirrorStep:
    """Exponentiated gradient and its Bregman projection, h = sum w log w."""
    xp = array_namespace(w)
    return kl_projection(xp.log(w) - eta * g, c)


def kl_projection(log_y: Float[Real, " n"], c: float) -> MirrorStep:
    """``w_i = max(c, y_i / t)`` with sum 1, exactly, in O(n log n).

    With y ascending, j items are floored for the smallest j such that ``y_(j) / t_j >= c``,
    ``t_j = sum_(r >= j) y_(r) / (1 - c j)``.

    Args:
        log_y: logarithms of the point, any scale.
        c: floor, at most 1/n.

    Returns:
        The projection and log t.
    """
    xp = array_namespace(log_y)
    n = log_y.shape[0]
    top = xp.max(log_y)
    y = xp.exp(log_y - top)
    ordered = xp.sort(y)
    tail = xp.flip(xp.cumulative_sum(xp.flip(ordered, axis=0), axis=0), axis=0)
    j = xp.arange(n, dtype=y.dtype)
    t = tail / (1 - c * j)
    fits = (ordered >= c * t) | (j == n - 1)
    t = t[xp.argmax(xp.astype(fits, xp.int32))]
    return MirrorStep(xp.maximum(y / t, xp.asarray(c, dtype=y.dtype)), xp.log(t) + top)


def fermi_dirac_step(w: Float[Real, " n"], g: Float[Real, " n"], eta: Any, c: float, k: float) -> MirrorStep:
    """``w_i = clip(sigmoid(logit(w_i) - eta g_i - nu), c, 1 - c)`` with sum k."""
    xp = array_namespace(w)

    def link(s):
        p = 1 / (1 + xp.exp(-xp.clip(s, -500.0, 500.0)))
        return p, p * (1 - p)

    edges = (np.log(c / (1 - c)), np.log((1 - c) / c)) if c > 0 else (-700.0, 700.0)
    return _solve(xp.log(w) - xp.log1p(-w) - eta * g, link, edges, c, k)


def entropy_step(w: Float[Real, " n"], g: Float[Real, " n"], eta: Any, c: float, k: float) -> MirrorStep:
    """``w_i = min(1 - c, max(c, y_i / t))`` with sum k, h = sum w log w."""
    xp = array_namespace(w)

    def link(s):
        p = xp.exp(xp.clip(s, -700.0, 1.0))
        return p, p

    edges = (np.log(c) if c > 0 else -700.0, np.log(1 - c) if c < 1 else 0.0)
    return _solve(xp.log(w) - eta * g, link, edges, c, k)


def _solve(s, link, edges, c, k) -> MirrorStep:
    """nu with ``sum clip(link(s - nu), c, 1 - c) = k``: bisection with a Newton step in each round, clipping inside."""
    xp = array_namespace(s)

    def total(nu):
        p, slope = link(s - nu)
        free = (p > c) & (p < 1 - c)
        return xp.sum(xp.clip(p, c, 1 - c)) - k, xp.sum(xp.where(free, slope, 0.0))

    def narrow(state, nu):
        low, high, _, _ = state
        over, slope = total(nu)
        return xp.where(over > 0, nu, low), xp.where(over > 0, high, nu), over, slope

    def round_(state):
        nu, low, high, _, _ = state
        inside = (low < nu) & (nu < high)
        nu = xp.where(inside, nu, (low + high) / 2)
        low, high, over, slope = narrow((low, high, 0, 0), nu)
        newton = nu + over / xp.where(slope > 0, slope, 1.0)
        usable = (slope > 0) & (low < newton) & (newton < high)
        middle = (low + high) / 2
        low, high, _, _ = narrow((low, high, 0, 0), middle)
        return xp.where(usable, newton, (low + high) / 2), low, high, over, nu

    low, high = xp.min(s) - edges[1] - 1.0, xp.max(s) - edges[0] + 1.0
    start = xp.zeros((), dtype=s.dtype)
    state = (start, low, high, start + 1e9, start)
    enough = 4 * float(xp.finfo(s.dtype).eps) * float(k)
    if is_jax_array(s):
        import jax

        state = jax.lax.while_loop(
            lambda x: (x[1] < ROUNDS) & (abs(x[0][3]) > enough), lambda x: (round_(x[0]), x[1] + 1), (state, 0)
        )[0]
    else:
        for _ in range(ROUNDS):
            state = round_(state)
            if abs(state[3]) <= enough:
                break
    nu = xp.where(xp.abs(state[3]) <= enough, state[4], state[0])
    return MirrorStep(xp.clip(link(s - nu)[0], c, 1 - c), nu)


def euclidean_projection(v: Float[Real, " n"], low: float, high: float, total: float) -> MirrorStep:
    """Nearest point of the capped simplex ``{sum w = total, low <= w <= high}``: ``w = clip(v - nu, low, high)``.

    The sum is piecewise linear in nu; its values at the sorted 2n kinks are one cumulative sum.
    """
    xp = array_namespace(v)
    n = v.shape[0]
    kinks = xp.concat([v - high, v - low])
    place = xp.argsort(kinks)
    kinks = kinks[place]
    slope = xp.cumulative_sum(xp.where(place < n, -1.0, 1.0), axis=0)
    fall = xp.cumulative_sum(slope[:-1] * (kinks[1:] - kinks[:-1]), axis=0)
    at_kink = n * high + xp.concat([xp.zeros(1, dtype=v.dtype), fall])
    reached = (at_kink[1:] <= total) | (xp.arange(2 * n - 1) == 2 * n - 2)
    i = xp.argmax(xp.astype(reached, xp.int32))
    nu = kinks[i] + (at_kink[i] - total) / xp.where(slope[i] < 0, -slope[i], 1.0)
    # one Newton step on the free entries removes what the cumulative sum has lost
    w = xp.clip(v - nu, low, high)
    free = xp.sum(xp.astype((w > low) & (w < high), v.dtype))
    nu = nu + xp.where(free > 0, (xp.sum(w) - total) / xp.where(free > 0, free, 1.0), 0.0)
    return MirrorStep(xp.clip(v - nu, low, high), nu)

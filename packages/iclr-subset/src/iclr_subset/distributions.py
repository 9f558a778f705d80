"""Laws of a random subset and their scores: k draws without replacement, and independent Bernoulli choices.

Every function is written over one array namespace: NumPy arrays in, NumPy arrays out; JAX arrays (also traced ones) in,
JAX arrays out, with the input's floating type. Score means the gradient of the log-probability in the weights, each
weight being free; on the simplex only its tangential part matters.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations
from typing import Any

import numpy as np
from array_api_compat import array_namespace, is_jax_array
from jaxtyping import Array, Bool, Float, Int

from iclr_shared.errors import InputError

type Real = Array | np.ndarray
DP_LARGEST = 4  # members up to which set probabilities come from the dynamic program; above, the integral is faster
REDRAW_FROM = 20  # items for each draw from which drawing with replacement and dropping repeats is faster than clocks
SCORES = ("auto", "set", "sequence")


# --- k draws without replacement (Plackett-Luce) -------------------------------------------------------------------


@dataclass(frozen=True)
class ExactK:
    """Formulation A: k weighted draws without replacement, so that every subset has exactly k members.

    ``p_w(sigma) = prod_j w[i_j] / W_j`` with ``W_j`` the weight not yet drawn before step j; ``P_w(C)`` is its sum over
    the k! orders of C. Homogeneous of degree zero in w.

    Args:
        w: positive weights, shape (n,); they need not sum to 1.
        k: draws, 1 <= k < n.

    Raises:
        InputError: if k is not in [1, n), or w is not a positive vector.
    """

    w: Any
    k: float

    def __post_init__(self):
        n = _positive_vector(self.w)
        if isinstance(self.k, bool) or not isinstance(self.k, int | np.integer):
            raise InputError(
                f"Formulation A draws a whole number of items, got k = {self.k!r}. Take method='expected'."
            )
        if not 1 <= self.k < n:
            raise InputError(f"k must be at least 1 and below n = {n}, got {self.k}.")

    def sample(self, rng: Any, size: int = 1) -> Int[Real, "size k"]:
        """Draws in their order. Exponential clocks of rate w: the first k to ring (the Gumbel top-k trick); of many
        items, draws with replacement whose repeats are dropped, which is the same law.

        Args:
            rng: a NumPy generator for NumPy weights, a key for JAX weights.
            size: how many subsets.
        """
        if is_jax_array(self.w):
            import jax

            logits = jax.numpy.log(self.w) + jax.random.gumbel(rng, (size, self.w.shape[0]), self.w.dtype)
            return jax.lax.top_k(logits, self.k)[1]
        w = np.asarray(self.w, dtype=np.float64)
        return (
            _redrawn(w, self.k, rng, size) if len(w) >= REDRAW_FROM * self.k else _first_to_ring(w, self.k, rng, size)
        )

    def sequence_log_prob(self, order: Int[Real, "*batch k"]) -> Float[Real, "*batch"] | np.floating:
        """log p_w of draws in their order."""
        xp = array_namespace(self.w)
        return xp.sum(xp.log(self.w[order]) - xp.log(remaining(self.w, order)), axis=-1)

    def log_prob(self, subset: Int[Real, "*batch k"]) -> Float[Real, "*batch"] | np.floating:
        """log P_w of subsets, whatever the order of their indices."""
        return set_log_prob(self.w, subset)

    def score(self, order: Int[Real, "*batch k"], kind: str = "sequence") -> Float[Real, "*batch n"]:
        """Gradient of log p_w (``"sequence"``) or log P_w (``"set"``); ``"auto"`` is the set's up to k = 8.

        The sequence score needs the DRAW ORDER: that of sorted indices is biased.
        """
        if kind not in SCORES:
            raise InputError(f"A score is one of {', '.join(SCORES)}, got {kind!r}.")
        by_set = kind == "set" or (kind == "auto" and self.k <= 8)
        return set_score(self.w, order) if by_set else sequence_score(self.w, order)

    def inclusion(self) -> Float[Real, " n"]:
        """Probability of each item to be among the k draws. It is not w: see `inclusion_probabilities`."""
        return inclusion_probabilities(np.asarray(self.w), self.k)


def _first_to_ring(w, k, rng, size) -> np.ndarray:
    """The k clocks that ring first, in order; weights (n,) or (size, n), of which zeros never ring."""
    with np.errstate(divide="ignore"):
        times = rng.standard_exponential((size, w.shape[-1])) / w
    first = np.argpartition(times, k - 1, axis=1)[:, :k]
    return np.take_along_axis(first, np.argsort(np.take_along_axis(times, first, 1), axis=1), 1)


def _redrawn(w, k, rng, size) -> np.ndarray:
    """Draws with replacement, 2 k + 4 of each, repeats dropped: without them the next item has the law of the weights
    that are left. Where fewer than k differ, clocks of the items left go on."""
    law = np.cumsum(w)
    drawn = np.searchsorted(law, rng.random((size, 2 * k + 4)) * law[-1], side="right").clip(max=len(w) - 1)
    by_item = np.argsort(drawn, axis=1, kind="stable")
    items = np.take_along_axis(drawn, by_item, 1)
    repeat = np.zeros(drawn.shape, dtype=bool)
    np.put_along_axis(repeat, by_item[:, 1:], items[:, 1:] == items[:, :-1], 1)
    different = np.argsort(repeat, axis=1, kind="stable")[:, :k]  # first occurrences first, in their order
    found = np.take_along_axis(drawn, different, 1)
    counts = drawn.shape[1] - repeat.sum(1)
    for have in np.unique(counts[counts < k]):
        rows = np.flatnonzero(counts == have)
        left = np.tile(w, (len(rows), 1))
        np.put_along_axis(left, found[rows, :have], 0.0, 1)
        found[rows, have:] = _first_to_ring(left, k - have, rng, len(rows))
    return found


def remaining(w: Float[Real, " n"], order: Int[Real, "*batch k"]) -> Float[Real, "*batch k"]:
    """W_j, the weight left before draw j, summed from what is left so that nothing cancels."""
    xp = array_namespace(w)
    rest = xp.sum(xp.where(membership(w, order), 0.0, w), axis=-1)
    return rest[..., None] + xp.flip(xp.cumulative_sum(xp.flip(w[order], axis=-1), axis=-1), axis=-1)


def membership(w: Float[Real, " n"], subset: Int[Real, "*batch k"]) -> Bool[Real, "*batch n"]:
    """Whether each item is in each subset."""
    xp = array_namespace(w)
    ones = xp.ones(subset.shape, dtype=xp.bool)
    return _put(xp.zeros((*subset.shape[:-1], w.shape[0]), dtype=xp.bool), subset, ones)


def sequence_score(w: Float[Real, " n"], order: Int[Real, "*batch k"]) -> Float[Real, "*batch n"]:
    """Closed form in O(n + k): ``1[i drawn] / w_i - sum over the steps at which i was still there of 1 / W_j``."""
    xp = array_namespace(w)
    passed = xp.cumulative_sum(1 / remaining(w, order), axis=-1)
    undrawn = xp.broadcast_to(-passed[..., -1:], (*order.shape[:-1], w.shape[0]))
    return _put(undrawn, order, 1 / w[order] - passed)


def set_log_prob(w: Float[Real, " n"], subset: Int[Real, "*batch k"]) -> Float[Real, "*batch"] | np.floating:
    """log P_w(C): the dynamic program over C's subsets up to k = 4, the integral over clocks above."""
    return _by_orders(w, subset)[0] if subset.shape[-1] <= DP_LARGEST else _by_clocks(w, subset)[0]


def set_score(w: Float[Real, " n"], subset: Int[Real, "*batch k"]) -> Float[Real, "*batch n"]:
    """Gradient of log P_w(C), the mean of the sequence score over the order given the set (Rao-Blackwell)."""
    exact = subset.shape[-1] <= DP_LARGEST
    _, inside, outside = _by_orders(w, subset) if exact else _by_clocks(w, subset)
    xp = array_namespace(w)
    everywhere = xp.broadcast_to(outside[..., None], (*subset.shape[:-1], w.shape[0]))
    return _put(everywhere, subset, inside)


def _by_orders(w, subset) -> tuple[Any, Any, Any]:
    """log P_w(C) and its gradient for members (..., k) and for all others (...).

    With A(M) = probability that the first draws are the set M: ``A(M + j) += A(M) w_j / (W - w(M))``, in logarithms,
    layer by layer of |M|. B(M) is the same from behind: probability that the rest of C follows M. An order passes
    through M with probability A(M) B(M) / P(C), which is what the derivative of each ``1 / (W - w(M))`` is weighted by.
    """
    xp = array_namespace(w)
    k = subset.shape[-1]
    layers = _layers(k)
    v = w[subset]
    rest = xp.sum(xp.where(membership(w, subset), 0.0, w), axis=-1)
    log_v = xp.log(v)
    # weight left before the next draw, from what is left
    left = [rest[..., None] + v @ xp.asarray(layer.absent.T, dtype=v.dtype) for layer in layers]
    log_left = [xp.log(x) for x in left]
    ahead = [xp.zeros((*rest.shape, 1), dtype=v.dtype)]
    for r in range(1, k + 1):
        step = (ahead[-1] - log_left[r - 1])[..., layers[r].before] + log_v[..., layers[r].last]
        ahead.append(_logsumexp(xp, step))
    behind = [xp.zeros((*rest.shape, 1), dtype=v.dtype)]
    for r in range(k - 1, -1, -1):
        step = behind[0][..., layers[r].after] + log_v[..., layers[r].next] - log_left[r][..., None]
        behind.insert(0, _logsumexp(xp, step))
    log_p = ahead[k][..., 0]
    inside, outside = 1 / v, xp.zeros(rest.shape, dtype=v.dtype)
    for r in range(k):
        through = xp.exp(ahead[r] + behind[r] - log_p[..., None]) / left[r]
        inside = inside - through @ xp.asarray(layers[r].absent, dtype=v.dtype)
        outside = outside - xp.sum(through, axis=-1)
    return log_p, inside, outside


@dataclass(frozen=True)
class _Layer:
    """Subsets M of {0..k-1} of one size: who is absent; M without one and which one; M with one more and which one."""

    absent: np.ndarray
    before: np.ndarray
    last: np.ndarray
    after: np.ndarray
    next: np.ndarray


@cache
def _layers(k: int) -> tuple[_Layer, ...]:
    sets = [list(combinations(range(k), r)) for r in range(k + 1)]
    place = [{members: i for i, members in enumerate(layer)} for layer in sets]
    found = []
    for r, layer in enumerate(sets):
        out = [[j for j in range(k) if j not in members] for members in layer]
        before = [[place[r - 1][tuple(x for x in members if x != j)] for j in members] for members in layer]
        after = [
            [place[r + 1][tuple(sorted((*members, j)))] for j in missing]
            for members, missing in zip(layer, out, strict=True)
        ]
        absent = np.array([[j not in members for j in range(k)] for members in layer])
        arrays = (np.array(x, dtype=np.int64).reshape(len(layer), -1) for x in (before, layer, after, out))
        found.append(_Layer(absent, *arrays))
    return tuple(found)


def _by_clocks(w, subset) -> tuple[Any, Any, Any]:
    """As `_by_orders` for any k: give each item an exponential clock of rate w_i; C comes first if all of it rings
    before the first T of the others. ``P(C) = int W' exp(-W' t) prod_C (1 - exp(-w_i t)) dt``, W' their weight. In
    log t the integrand is analytic in a strip of half-width pi/2, so the trapezoid rule converges geometrically.
    """
    k = subset.shape[-1]
    h = _spacing(k)
    xp = array_namespace(w)
    v = w[subset]
    rest = xp.sum(xp.where(membership(w, subset), 0.0, w), axis=-1)[..., None]
    total = rest + xp.sum(v, axis=-1, keepdims=True)
    # as t^(k+1) below 1 / total; all is over once the slowest clock has rung, which traced weights do not tell
    slowest = (
        60.0 if is_jax_array(w) else 4 + float(np.log(np.max(total / np.minimum(rest[..., 0], v.min(-1))[..., None])))
    )
    steps = xp.asarray(h * np.arange(np.floor(-40 / (k + 1) / h), slowest / h), dtype=v.dtype)
    t = xp.exp(steps) / total  # (..., grid)
    x = v[..., None, :] * t[..., None]
    log_f = xp.log(rest * t) - rest * t + xp.sum(xp.log(-xp.expm1(-x)), axis=-1)
    log_p = _logsumexp(xp, log_f) + float(np.log(h))
    q = xp.exp(log_f - log_p[..., None]) * h
    hazard = t[..., None] / xp.expm1(xp.where(x > 80, 80.0, x))  # beyond, nothing
    inside = xp.sum(q[..., None] * hazard, axis=-2)
    return log_p, inside, -xp.sum(v * inside, axis=-1) / rest[..., 0]  # scaling all weights changes nothing


def _spacing(k: int) -> float:
    """Of the trapezoid rule in log time, where the integrand is about 1 / sqrt(k) wide."""
    return min(0.2, 0.5 / k**0.5)


def inclusion_probabilities(w: Float[np.ndarray, " n"], k: int) -> Float[np.ndarray, " n"]:
    """P(i among the first k draws), exactly, for any n: an integral over the clock of i of the chance that fewer than k
    others rang before it, a Poisson-binomial probability from prefix and suffix sums. O(n k) for each of some hundred
    times.

    Args:
        w: positive weights, shape (n,).
        k: draws.
    """
    w = np.asarray(w, dtype=np.float64)
    n = len(w)
    found = np.zeros(n)
    h = _spacing(k)
    grid = np.exp(h * np.arange(-45 / h, np.log(800 * w.sum() / w.min()) / h)) / w.sum()
    for t in np.array_split(grid, max(1, len(grid) * n * k // 4_000_000)):
        rung = -np.expm1(-w[:, None] * t)  # (n, times)
        suffix = np.zeros((n + 1, len(t), k))
        suffix[n, :, 0] = 1
        for i in range(n - 1, -1, -1):
            suffix[i] = suffix[i + 1] * (1 - rung[i, :, None])
            suffix[i, :, 1:] += suffix[i + 1, :, :-1] * rung[i, :, None]
        fewer = np.cumsum(suffix, axis=-1)[..., ::-1]  # entry a: at most k - 1 - a of the suffix
        prefix = np.zeros((len(t), k))
        prefix[:, 0] = 1
        for i in range(n):
            density = w[i] * t * np.exp(-w[i] * t) * h
            found[i] += np.sum(density * np.sum(prefix * fewer[i + 1], axis=-1))
            following = prefix * (1 - rung[i, :, None])
            following[:, 1:] += prefix[:, :-1] * rung[i, :, None]
            prefix = following
    return found


# --- independent choices -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ExpectedK:
    """Formulation B: each item is chosen by itself with probability w_i, so that the size has mean k = sum(w).

    ``log phi_w(C) = sum_C log w_i + sum_rest log(1 - w_i)``; the size has variance ``sum w_i (1 - w_i)``.

    Args:
        w: probabilities strictly between 0 and 1, shape (n,).

    Raises:
        InputError: if one is not.
    """

    w: Any

    def __post_init__(self):
        _positive_vector(self.w)
        if _concrete(self.w) and not np.all(np.asarray(self.w) < 1):
            raise InputError("Formulation B needs probabilities strictly between 0 and 1.")

    def sample(self, rng: Any, size: int = 1) -> Bool[Real, "size n"]:
        """Membership of each item in each subset. `rng`: a NumPy generator, or a key for JAX weights."""
        shape = (size, self.w.shape[0])
        if is_jax_array(self.w):
            import jax

            return jax.random.uniform(rng, shape, self.w.dtype) < self.w
        return rng.random(shape) < self.w

    def log_prob(self, chosen: Bool[Real, "*batch n"]) -> Float[Real, "*batch"] | np.floating:
        """log phi_w of memberships."""
        xp = array_namespace(self.w)
        return xp.sum(xp.where(chosen, xp.log(self.w), xp.log1p(-self.w)), axis=-1)

    def score(self, chosen: Bool[Real, "*batch n"], kind: str = "auto") -> Float[Real, "*batch n"]:
        """``1 / w_i`` for members, ``-1 / (1 - w_i)`` for others; a product law has no order, so `kind` says
        nothing."""
        xp = array_namespace(self.w)
        return xp.where(chosen, 1 / self.w, -1 / (1 - self.w))

    def inclusion(self) -> Float[Real, " n"]:
        """w itself."""
        return self.w


def as_membership(subsets: Sequence[Sequence[int]], n: int) -> Bool[np.ndarray, "size n"]:
    """Memberships of subsets given by indices."""
    chosen = np.zeros((len(subsets), n), dtype=bool)
    for row, subset in zip(chosen, subsets, strict=True):
        row[list(subset)] = True
    return chosen


def two_sided_gradient(w: Float[np.ndarray, " n"], item: int, rng: np.random.Generator, cost: Any) -> float:
    """One coordinate of formulation B's gradient from two costs: ``l(C + i) - l(C - i)``, the others drawn from w.

    f is multilinear, so that this is unbiased for df/dw_i, and free of the 1 / w_i of the score.

    Args:
        w: probabilities, shape (n,).
        item: i.
        rng: draws the others.
        cost: ``cost(indices)``, defined for every size.
    """
    chosen = rng.random(len(w)) < w
    values = []
    for member in (True, False):
        chosen[item] = member
        values.append(float(cost(np.flatnonzero(chosen))))
    return values[0] - values[1]


# --- what both need ------------------------------------------------------------------------------------------------


def _put(where, index, values):
    """A copy of `where` (..., n) with `values` (..., k) at `index` (..., k) of the last axis."""
    if is_jax_array(where):
        import jax.numpy as jnp

        return jnp.put_along_axis(where, index, values, axis=-1, inplace=False)
    where = np.array(where)
    np.put_along_axis(where, index, values, axis=-1)
    return where


def _logsumexp(xp, x):
    """Over the last axis; all entries are finite."""
    top = xp.max(x, axis=-1, keepdims=True)
    return top[..., 0] + xp.log(xp.sum(xp.exp(x - top), axis=-1))


def _concrete(w) -> bool:
    """Whether values can be looked at: not inside a JAX transformation."""
    if not is_jax_array(w):
        return True
    import jax

    return not isinstance(w, jax.core.Tracer)


def _positive_vector(w) -> int:
    if getattr(w, "ndim", None) != 1 or w.shape[0] < 2:
        raise InputError("Weights must be a vector of at least two numbers.")
    if _concrete(w) and not (np.all(np.isfinite(np.asarray(w))) and np.all(np.asarray(w) > 0)):
        raise InputError("Weights must be positive and finite.")
    return w.shape[0]

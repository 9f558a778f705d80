"""One step of the welfare dynamics, and many of them as one compiled scan under ``vmap`` over seeds and populations.

At each step a policy chooses S from U(t), and everyone moves at once:
U_i(t+1) = U_i(t) + f_i(U_i(t)) + ξ_i(t) for i in S, and U_i(t) - g_i(U_i(t)) + ξ_i(t) otherwise.
Random numbers depend on the key, the seed's number and t alone, so results do not depend on how the work is divided.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from iclr_shared.errors import InputError
from iclr_welfare.policies import select
from iclr_welfare.population import Population
from iclr_welfare.response import Response, Values

RECORDS = ("mean", "average", "min", "gini", "welfare")
"""What can be recorded along a trajectory. All are one number per time, except welfare, which is N numbers."""


@dataclasses.dataclass(frozen=True)
class Noise:
    """Independent normal shocks ξ_i(t) of mean zero, clipped symmetrically so that they are bounded.

    Args:
        variance: of one shock before clipping, welfare squared per step, not negative; 0 for none.
        clip: bound on |ξ|, welfare; None for the official ±2 variance, which practically never binds since it compares
            a variance with a standard deviation.
    """

    variance: float
    clip: float | None = None

    def __post_init__(self):
        if not (np.isfinite(self.variance) and self.variance >= 0):
            raise InputError(f"The noise variance must be a number >= 0, not {self.variance}.")
        if self.clip is not None and not self.clip > 0:
            raise InputError(f"The bound on the noise must be positive, not {self.clip}.")

    @classmethod
    def official(cls, population: Population, M: int, scale_with_budget: bool = True) -> "Noise":
        """The official experiments' noise: variance V = M (max f^+ + max g^+), clipped to ±2 V.

        Args:
            population: the people.
            M: interventions per step.
            scale_with_budget: False leaves out the factor M, as one official script does.
        """
        variance = max(population.f_plus.max(), population.f_minus.max()) + max(
            population.g_plus.max(), population.g_minus.max()
        )
        return cls(float(variance) * (M if scale_with_budget else 1))

    @property
    def bound(self) -> float:
        """Largest possible |ξ|."""
        return 2 * self.variance if self.clip is None else self.clip


class State(NamedTuple):
    """Where a trajectory stands.

    Args:
        t: steps made.
        welfare: U(t), shape (N,).
        middle: U at half the horizon, or U(0) before, shape (N,).
        counts: how often each person was helped, shape (N,).
        late_counts: the same, in the second half of the horizon.
        total: Σ_{s=1..t} of mean welfare.
    """

    t: Int[Array | np.ndarray, "*batch"]
    welfare: Float[Array | np.ndarray, "*batch N"]
    middle: Float[Array | np.ndarray, "*batch N"]
    counts: Int[Array | np.ndarray, "*batch N"]
    late_counts: Int[Array | np.ndarray, "*batch N"]
    total: Float[Array | np.ndarray, "*batch"]


class Shocks(NamedTuple):
    """Noise and horizon as traced numbers, so that changing them compiles nothing anew."""

    deviation: Float[Array | np.ndarray, "*populations"]
    bound: Float[Array | np.ndarray, "*populations"]
    half: Int[Array | np.ndarray, "*populations"]


def moved(U: Values, helped: Bool[Array | np.ndarray, " N"], fU: Values, gU: Values) -> Values:
    """U_i + f_i(U_i) for those helped, U_i - g_i(U_i) for the others; numpy in, numpy out; JAX in, JAX out."""
    return U + U.__array_namespace__().where(helped, fU, -gU)


def step(
    state: State,
    f: Response,
    g: Response,
    noise_key: jax.Array,
    choice_key: jax.Array,
    shocks: Shocks,
    *,
    policy: str,
    M: int,
    noisy: bool,
    rounded: bool,
) -> State:
    """One step of the dynamics, simultaneous for all people; pure, for use in the user's own scans.

    Args:
        state: before the step, unbatched.
        f: returns.
        g: decays.
        noise_key: JAX key of the shocks.
        choice_key: JAX key of the policy's own randomness.
        shocks: size of the noise and half the horizon.
        policy: name in `POLICIES`.
        M: number of people helped.
        noisy: whether shocks are drawn at all.
        rounded: whether f, g and the shocks are rounded to integers, as in the official code.

    Returns:
        The state after the step.
    """
    U, t = state.welfare, state.t
    fU, gU = f(U), g(U)
    if rounded:
        fU, gU = jnp.round(fU), jnp.round(gU)
    helped = select(policy, U, fU, gU, M, jax.random.fold_in(choice_key, t))
    after = moved(U, helped, fU, gU)
    if noisy:
        xi = shocks.deviation * jax.random.normal(jax.random.fold_in(noise_key, t), U.shape, U.dtype)
        xi = jnp.clip(xi, -shocks.bound, shocks.bound)
        after = after + (jnp.round(xi) if rounded else xi)
    return State(
        t=t + 1,
        welfare=after,
        middle=jnp.where(t == shocks.half, U, state.middle),
        counts=state.counts + helped,
        late_counts=state.late_counts + (helped & (t >= shocks.half)),
        total=state.total + after.mean(),
    )


def gini(U: Float[np.ndarray, "*batch N"], shift: float = 0.0) -> Float[np.ndarray, "*batch"]:
    """Gini coefficient Σ_i (2 i - N - 1) u_(i) / (N Σ_i u_i) of sorted welfare plus `shift`.

    Args:
        U: welfare, shape (..., N).
        shift: added to everyone first; the coefficient depends on it, so it is never chosen silently.

    Returns:
        Shape (...,), from 0 (all equal) to 1 - 1/N (one has all).

    Raises:
        InputError: if some welfare is negative or no number after the shift, or all of it is zero.
    """
    if not (U.size and np.all(U + shift >= 0) and np.all((U + shift).sum(axis=-1) > 0)):
        least = f"the least is {U.min():g}" if U.size else "there is none"
        raise InputError(
            f"The Gini coefficient needs non-negative welfare that is not all zero, but {least}. "
            "Give a shift of at least its opposite, and report it: the coefficient depends on it."
        )
    return np.asarray(ranked_differences(np, U + shift))


def ranked_differences(xp: Any, U: Any) -> Any:
    """The Gini coefficient of non-negative welfare, by sorting; xp is numpy or jax.numpy."""
    N = U.shape[-1]
    rank = 2 * xp.arange(1, N + 1) - N - 1
    return (rank * xp.sort(U, axis=-1)).sum(axis=-1) / (N * U.sum(axis=-1))


def observe(state: State, record: tuple[str, ...], shift: float) -> dict[str, Array]:
    """What `record` names, of one state; Gini is NaN where someone's welfare plus `shift` is negative."""
    U = state.welfare
    shifted = U + shift
    table: dict[str, Callable[[], Array]] = {
        "mean": lambda: U.mean(),
        "average": lambda: state.total / jnp.maximum(state.t, 1),
        "min": lambda: U.min(),
        "gini": lambda: jnp.where(shifted.min() < 0, jnp.nan, ranked_differences(jnp, shifted)),
        "welfare": lambda: U,
    }
    return {name: table[name]() for name in record}


def _advance(f, g, state, keys, shocks, *, steps, every, policy, M, noisy, rounded, record, shift):
    """`steps` steps of one trajectory, observed after every `every` of them. keys: the shocks' and the policy's."""

    def one(_, s):
        return step(s, f, g, keys[0], keys[1], shocks, policy=policy, M=M, noisy=noisy, rounded=rounded)

    def stretch(s, _):
        s = one(0, s) if every == 1 else jax.lax.fori_loop(0, every, one, s)
        return s, observe(s, record, shift)

    return jax.lax.scan(stretch, state, length=steps // every)


_OPTIONS = ("steps", "every", "policy", "M", "noisy", "rounded", "record", "shift")


@functools.partial(jax.jit, static_argnames=_OPTIONS)
def advance_many(f, g, state, keys, shocks, **options):
    """`_advance` over populations (all arguments but keys) and seeds (state and keys)."""
    one = functools.partial(_advance, **options)
    over_seeds = jax.vmap(one, in_axes=(None, None, 0, 0, None))
    return jax.vmap(over_seeds, in_axes=(0, 0, 0, None, 0))(f, g, state, keys, shocks)

"""Whom to help: each policy ranks people by a key, and the M with the largest key are helped.

Ties go to the smallest index, as in the official code. `util_need` breaks ties of g by the lower welfare instead: the
official code reaches the same by re-sorting the whole welfare vector at each step, which exchanges people's identities.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, UInt

from iclr_shared.errors import InputError

Keys = tuple[Float[Array, " N"], ...]
Policy = Callable[[Float[Array, " N"], Float[Array, " N"], Float[Array, " N"], jax.Array], Keys]
"""(U, f(U), g(U), random key) → sort keys, the first one decisive, largest first."""

POLICIES: dict[str, Policy] = {
    "rawlsian": lambda U, f, g, key: (-U,),
    "util_gain": lambda U, f, g, key: (f + g,),
    "util_return": lambda U, f, g, key: (f,),
    "util_need": lambda U, f, g, key: (g, -U),
    "max_welfare": lambda U, f, g, key: (U,),
    "random": lambda U, f, g, key: (jax.random.uniform(key, U.shape, U.dtype),),
}
"""Policies of the paper by name. `rawlsian` helps the worst-off; `util_gain` is the utilitarian policy proper: helping
S changes next step's expected total welfare by -Σ_i g_i + Σ_{i in S} (f_i + g_i), so the M largest f + g
maximise it; `util_return` and `util_need` rank by f and by g alone; `max_welfare` helps the best-off; `random`
draws without replacement."""

LOCKING = ("util_gain", "util_return", "max_welfare")
"""Policies that come to help the same M people for ever under the Matthew effect."""


def find(name: str) -> Policy:
    """The policy of that name.

    Raises:
        InputError: if there is none, with the names that there are.
    """
    if name not in POLICIES:
        raise InputError(f"There is no policy {name!r}; choose among {', '.join(POLICIES)}.")
    return POLICIES[name]


def select(
    policy: str, U: Float[Array, " N"], f: Float[Array, " N"], g: Float[Array, " N"], M: int, key: jax.Array
) -> Bool[Array, " N"]:
    """Whom `policy` helps at welfare U.

    Args:
        policy: name in `POLICIES`.
        U: welfare, shape (N,).
        f: returns f_i(U_i), shape (N,).
        g: decays g_i(U_i), shape (N,).
        M: number of people helped, 1 <= M < N.
        key: JAX random key; only `random` draws from it.

    Returns:
        Mask, shape (N,), true for M people.
    """
    keys = find(policy)(U, f, g, key)
    if M > 1:
        return _largest(keys, M)
    first, *second = keys
    if second:
        first = jnp.where(first == first.max(), second[0], -jnp.inf)
    return jnp.arange(U.shape[0]) == jnp.argmax(first)


def _largest(keys: Keys, M: int) -> Bool[Array, " N"]:
    """The M people with the largest keys, ties by the next key and at last by the smallest index.

    By bisection on the bits of the M-th largest key, O(N) whatever M: on a CPU `lax.top_k` sorts in float64, which took
    three to four times as long (N = 340 to 3400, M = 10 to 300).
    """
    N = keys[0].shape[0]
    chosen, tied = jnp.zeros(N, bool), jnp.ones(N, bool)
    for order in (*map(_ordered_bits, keys), jnp.arange(N, dtype=jnp.uint32)[::-1]):
        last = _nth_largest(order, tied, M - chosen.sum())
        chosen, tied = chosen | (tied & (order > last)), tied & (order == last)
    return chosen | tied


def _ordered_bits(key: Float[Array, " N"]) -> UInt[Array, " N"]:
    """Unsigned integers in the same order as the floating-point numbers (IEEE 754), both zeros alike."""
    unsigned = jnp.dtype(f"uint{8 * key.dtype.itemsize}")
    bits = jax.lax.bitcast_convert_type(jnp.where(key == 0, 0.0, key).astype(key.dtype), unsigned)
    sign = unsigned.type(1 << (8 * key.dtype.itemsize - 1))
    return jnp.where(bits >= sign, ~bits, bits | sign)


def _nth_largest(order: UInt[Array, " N"], among: Bool[Array, " N"], n: Int[Array, ""]) -> UInt[Array, ""]:
    """The n-th largest value of `order` where `among` holds, bit by bit from the highest."""
    bits = 8 * order.dtype.itemsize

    def set_bit(i, value):
        trial = value | (order.dtype.type(1) << (bits - 1 - i).astype(order.dtype))
        return jnp.where(jnp.sum(among & (order >= trial)) >= n, trial, value)

    return jax.lax.fori_loop(0, bits, set_bit, order.dtype.type(0))

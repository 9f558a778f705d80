"""Boolean gates, their truth tables in lexicographic order of the inputs, and data sets of corners (spec 2.2)."""

from collections.abc import Callable, Sequence
from itertools import product

import numpy as np
from jaxtyping import Float, Int

from iclr_shared.errors import InputError

GATES: dict[str, tuple[int, Callable[..., int]]] = {
    "XOR": (2, lambda a, b: a ^ b),
    "AND": (2, lambda a, b: a & b),
    "OR": (2, lambda a, b: a | b),
    "IMP": (2, lambda a, b: (1 - a) | b),
    "NAND": (2, lambda a, b: 1 - (a & b)),
    "NOR": (2, lambda a, b: 1 - (a | b)),
    "NIMP": (2, lambda a, b: a & (1 - b)),
    "MAJORITY": (3, lambda a, b, c: int(a + b + c > 1)),
    "PARITY": (3, lambda a, b, c: a ^ b ^ c),
    "FULL_ADDER": (3, lambda a, b, c: a ^ b ^ c),
    "EXACT_2": (3, lambda a, b, c: int(a + b + c == 2)),
}
"""Arity and function by name; FULL_ADDER is its sum bit."""

#: Names of the 16 gates of two inputs, by their bits f00 f01 f10 f11.
NAMES = (
    "FALSE", "AND", "A_NIMPLY_B", "A", "B_NIMPLY_A", "B", "XOR", "OR", "NOR", "XNOR", "NOT_B", "B_IMPLY_A", "NOT_A",
    "A_IMPLY_B", "NAND", "TRUE",
)  # fmt: skip


def corners(n: int) -> Int[np.ndarray, "corners n"]:
    """All 2^n inputs, in lexicographic order."""
    return np.array(list(product((0, 1), repeat=n)))


def truth_table(gate: str | Sequence[int]) -> Int[np.ndarray, " corners"]:
    """Of a gate by name, or of a table given as bits.

    Raises:
        InputError: for an unknown name, values other than 0 and 1, or a length that is no power of two.
    """
    if isinstance(gate, str) and gate.upper() in GATES:
        n, function = GATES[gate.upper()]
        return np.array([function(*map(int, row)) for row in corners(n)])
    if isinstance(gate, str) and (not gate or set(gate) - {"0", "1"}):
        raise InputError(f"The gate {gate!r} is unknown; take one of {', '.join(GATES)}, or its bits such as 0110.")
    bits = np.array([float(bit) for bit in gate])
    if not np.isin(bits, (0, 1)).all():
        raise InputError(f"A truth table holds only 0 and 1, got {list(gate)}.")
    if len(bits) < 2 or len(bits) & (len(bits) - 1):
        raise InputError(f"A truth table has 2, 4, 8, ... bits, got {len(bits)}.")
    return bits.astype(int)


def arity(gate: str | Sequence[int]) -> int:
    """Number of inputs."""
    return len(truth_table(gate)).bit_length() - 1


def dataset(
    gates: Sequence[str | Sequence[int]],
    repeats: int,
    rng: np.random.Generator,
    noise: float = 0.0,
    skewed: bool = False,
) -> tuple[Float[np.ndarray, "rows n"], Float[np.ndarray, "rows gates"]]:
    """``repeats * 2^n`` corners drawn at random, uniformly or by random weights, with the gates' values.

    With `noise` each drawn row is repeated `repeats` times and the inputs are perturbed; the values stay those of the
    corner.

    Raises:
        InputError: if the gates have different numbers of inputs.
    """
    tables = [truth_table(gate) for gate in gates]
    if len({len(table) for table in tables}) != 1:
        raise InputError(f"Gates of one network must have equally many inputs, got {[arity(gate) for gate in gates]}.")
    x, y = corners(arity(gates[0])).astype(float), np.stack(tables, 1).astype(float)
    weights = rng.uniform(size=len(x)) if skewed else np.ones(len(x))
    drawn = rng.choice(len(x), repeats * len(x), p=weights / weights.sum())
    if noise > 0:
        drawn = np.repeat(drawn, repeats)
    return x[drawn] + noise * rng.standard_normal((len(drawn), x.shape[1])), y[drawn]

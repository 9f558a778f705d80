"""The people: their initial welfare, and what help and neglect do to each of them."""

import dataclasses
import functools
import operator
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Real

from iclr_shared.errors import InputError
from iclr_welfare.response import Constant, Logistic, Response

PerPerson = Real[np.ndarray, " N"] | Sequence[float]
"""One number for each person, as the user has them."""

_GRID = 257
"""Welfare levels at which smooth families are checked for monotonicity; of the others the knots tell all."""


@dataclasses.dataclass(frozen=True, eq=False)
class Population:
    """N people under the paper's dynamics: U_i grows by f_i(U_i) when helped and falls by g_i(U_i) when not.

    The paper's assumptions: f_i > 0 and g_i > 0; the Matthew effect (f_i does not fall and g_i does not rise with
    welfare: those who have are given, those who have not are taken from); f_i + g_i does not fall.

    Args:
        U0: initial welfare, shape (N,), any real numbers, N >= 2; integers become float64. Its dtype is the
            simulation's.
        f: return when helped, welfare per step; a number or an array (N,) stands for `Constant`.
        g: decay when not helped, welfare per step; likewise.
        matthew: whether the Matthew effect is required. False admits any positive f and g; then `who_wins` declines to
            answer, since the exact comparison assumes it.
        sum_check: whether to warn where f_i + g_i falls with welfare.

    Raises:
        InputError: if welfare is not finite (naming the rows), a parameter does not fit N people or is not positive,
            or the Matthew effect is required and fails (naming the person).

    References:
        Wu, Abebe, Hardt, Stoica, Policy Design in Long-Run Welfare Dynamics, ICLR 2025.
    """

    U0: PerPerson
    f: Response | float | PerPerson
    g: Response | float | PerPerson
    matthew: bool = True
    sum_check: bool = True

    def __post_init__(self):
        object.__setattr__(self, "U0", finite_welfare(self.U0))
        for name in ("f", "g"):
            response = getattr(self, name)
            if not isinstance(response, Response):
                response = Constant(response)
                object.__setattr__(self, name, response)
            for field in dataclasses.fields(response):
                shape = getattr(response, field.name).shape
                if shape not in ((), self.U0.shape):
                    raise InputError(
                        f"{name}: {type(response).__name__}.{field.name} holds {shape[0]} values for {self.N} people."
                    )
        if self.matthew:
            for name, falls, what in (
                ("f", True, "the return f falls with welfare"),
                ("g", False, "the decay g rises with welfare"),
            ):
                values = -self._on_grid[name] if falls else self._on_grid[name]
                bad = np.flatnonzero(_rises(values))
                if bad.size:
                    first = bad[0]
                    low, high = (limit[first] for limit in self._limits(name))
                    raise InputError(
                        f"The Matthew effect fails: {what} for {name_people(bad)} (person {first}: {name} goes from "
                        f"{low:g} at low to {high:g} at high welfare). Correct the parameters, or pass matthew=False "
                        "(--no-matthew)."
                    )
        if self.sum_check:
            bad = np.flatnonzero(self.sum_falls)
            if bad.size:
                warnings.warn(
                    f"f + g falls with welfare for {name_people(bad)}: the paper assumes that it does not, and the set "
                    "that a utilitarian policy helps may then keep changing.",
                    UserWarning,
                    stacklevel=3,
                )

    @property
    def N(self) -> int:
        """Number of people."""
        return self.U0.size

    def _limits(self, name: str) -> tuple[Float[np.ndarray, " N"], Float[np.ndarray, " N"]]:
        left, right = getattr(self, name).limits
        return np.broadcast_to(np.float64(left), (self.N,)), np.broadcast_to(np.float64(right), (self.N,))

    @property
    def f_minus(self) -> Float[np.ndarray, " N"]:
        """f^-, the return at u → -∞."""
        return self._limits("f")[0]

    @property
    def f_plus(self) -> Float[np.ndarray, " N"]:
        """f^+, the return at u → +∞."""
        return self._limits("f")[1]

    @property
    def g_plus(self) -> Float[np.ndarray, " N"]:
        """g^+, the decay at u → -∞."""
        return self._limits("g")[0]

    @property
    def g_minus(self) -> Float[np.ndarray, " N"]:
        """g^-, the decay at u → +∞."""
        return self._limits("g")[1]

    @functools.cached_property
    def _on_grid(self) -> dict[str, Float[np.ndarray, "levels N"]]:
        """f and g of each person at the knots of both and beyond, which is exact for families that are straight between
        their knots; for others at many levels in between."""
        knots = [np.broadcast_to(np.float64(k), (self.N,)) for k in (*self.f.knots, *self.g.knots)] or [
            np.zeros(self.N)
        ]
        low, high = np.min(knots, axis=0) - 1.0, np.max(knots, axis=0) + 1.0
        smooth = isinstance(self.f, Logistic) or isinstance(self.g, Logistic)
        between = np.linspace(low, high, _GRID if smooth else 2)
        levels = np.sort(np.concatenate([np.stack(knots), between]), axis=0)
        return {"f": np.float64(self.f(levels)), "g": np.float64(self.g(levels))}

    def _extreme(self, name: str, reduce: str) -> Float[np.ndarray, " N"]:
        values = np.concatenate([np.stack(self._limits(name)), self._on_grid[name]])
        return getattr(values, reduce)(axis=0)

    @functools.cached_property
    def worst(self) -> tuple[Float[np.ndarray, " N"], Float[np.ndarray, " N"]]:
        """(inf f, sup g): what help brings at worst and neglect costs at worst. Under the Matthew effect (f^-, g^+)."""
        return self._extreme("f", "min"), self._extreme("g", "max")

    @functools.cached_property
    def best(self) -> tuple[Float[np.ndarray, " N"], Float[np.ndarray, " N"]]:
        """(sup f, inf g): what help brings at best and neglect costs at best. Under the Matthew effect (f^+, g^-)."""
        return self._extreme("f", "max"), self._extreme("g", "min")

    @property
    def f_falls(self) -> Bool[np.ndarray, " N"]:
        """Whose return falls somewhere, against the Matthew effect."""
        return _rises(-self._on_grid["f"])

    @property
    def g_rises(self) -> Bool[np.ndarray, " N"]:
        """Whose decay rises somewhere, against the Matthew effect."""
        return _rises(self._on_grid["g"])

    @property
    def sum_falls(self) -> Bool[np.ndarray, " N"]:
        """Whose f + g falls somewhere."""
        return _rises(-(self._on_grid["f"] + self._on_grid["g"]))

    def check_budget(self, M: int) -> None:
        """Refuse a number of interventions per step that is not between 1 and N - 1.

        Raises:
            InputError: naming M and N.
        """
        check_budget(M, self.N)


def check_budget(M: int, N: int) -> None:
    """Refuse a number M of interventions per step that is no whole number or not between 1 and N - 1.

    Raises:
        InputError: naming M and N.
    """
    if not 1 <= whole(M, "The budget M") < N:
        raise InputError(
            f"The budget M = {M} must be at least 1 and smaller than the number of people N = {N}: "
            "with M >= N everyone is helped and there is nothing to choose."
        )


def whole(value: Any, what: str) -> int:
    """`value` as a Python integer.

    Raises:
        InputError: naming `what`, if it is no integer.
    """
    try:
        return operator.index(value)
    except TypeError:
        raise InputError(f"{what} must be a whole number, not {value!r}.") from None


def per_person(values: Any, what: str) -> Float[np.ndarray, " N"]:
    """`values` as an array of one axis. Floating-point numbers keep their dtype; all else becomes float64.

    Raises:
        InputError: naming `what`, if these are no numbers or have another number of axes.
    """
    try:
        array = np.asarray(values)
        array = array if np.issubdtype(array.dtype, np.floating) else array.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"{what} must be numbers, one per person: {error}.") from None
    if array.ndim != 1:
        raise InputError(f"{what} must have the shape (N,), one number per person, not {array.shape}.")
    return array


def finite_welfare(U: Any) -> Float[np.ndarray, " N"]:
    """U of at least two people, all finite.

    Raises:
        InputError: naming the people whose welfare is not finite.
    """
    welfare = per_person(U, "Welfare")
    if welfare.size < 2:
        raise InputError(f"A population needs at least two people, but welfare has {welfare.size}.")
    bad = np.flatnonzero(~np.isfinite(welfare))
    if bad.size:
        raise InputError(f"Welfare is not finite for {name_people(bad)}. Remove or correct these entries.")
    return welfare


def _rises(values: Float[np.ndarray, "levels N"]) -> Bool[np.ndarray, " N"]:
    """Whether a column rises anywhere by more than rounding."""
    return np.any(np.diff(values, axis=0) > 1e-9 * np.abs(values).max(axis=0), axis=0)


def name_people(indices: np.ndarray) -> str:
    """Such as ``persons 0, 3, 4 and 12 more``."""
    shown = ", ".join(str(i) for i in indices[:5])
    more = f" and {indices.size - 5} more" if indices.size > 5 else ""
    return f"person{'s' if indices.size > 1 else ''} {shown}{more}"

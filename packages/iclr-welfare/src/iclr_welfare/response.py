"""How welfare responds to being helped (the return f) and to being left alone (the decay g), one family per class.

Each family is nearly data only: its parameters, a call that evaluates it, its two limits and the points between which
it turns. Parameters are scalars or one value per person, shape (N,). All families are JAX pytrees, so that they pass
through ``jit`` and ``vmap``; given a numpy array they answer in numpy, given a JAX array in JAX.
"""

import dataclasses
from typing import Any, ClassVar

import jax
import numpy as np
from jaxtyping import Float
from scipy.special import expit

from iclr_shared.errors import InputError

Values = Float[np.ndarray, " *shape"] | Float[jax.Array, " *shape"]
"""An array of welfare levels or of returns; numpy in, numpy out; JAX in, JAX out."""

Parameter = float | Float[np.ndarray, ""] | Float[np.ndarray, " N"]
"""One value for all, or one per person."""


def _family[C](cls: type[C]) -> type[C]:
    """Make a frozen dataclass of parameters a pytree. Rebuilding skips the checks: inside a transformation the leaves
    are tracers, which cannot be compared."""
    cls = dataclasses.dataclass(frozen=True, eq=False)(cls)
    names = tuple(f.name for f in dataclasses.fields(cls))

    def unflatten(_: None, leaves: tuple[Any, ...]) -> C:
        made = object.__new__(cls)
        for name, leaf in zip(names, leaves, strict=True):
            object.__setattr__(made, name, leaf)
        return made

    jax.tree_util.register_pytree_node(cls, lambda r: (tuple(getattr(r, n) for n in names), None), unflatten)
    return cls


def _namespace(u: Values):
    """numpy or jax.numpy, whichever `u` belongs to (the array API's own question)."""
    return u.__array_namespace__()


def _settle(response: Any, positive: tuple[str, ...]) -> None:
    """Make every parameter a floating-point array; refuse what is not finite, or not positive where it must be."""
    family, sizes = type(response).__name__, set()
    for field in dataclasses.fields(response):
        name, value = field.name, np.asarray(getattr(response, field.name))
        if not np.issubdtype(value.dtype, np.floating):
            try:
                value = value.astype(np.float64)
            except (TypeError, ValueError):
                raise InputError(f"{family}: {name} must be a number, or one per person, not {value}.") from None
        if value.ndim > 1:
            raise InputError(f"{family}: {name} has shape {value.shape}; give one number, or one per person.")
        low = value <= 0 if name in positive else np.zeros(value.shape, bool)
        for bad, what in ((~np.isfinite(value), "not finite"), (low, "not positive")):
            if bad.any():
                who = f" for person {int(np.argmax(bad))}" if value.ndim else ""
                raise InputError(f"{family}: {name} is {what}{who} ({value[bad].flat[0] if value.ndim else value}).")
        object.__setattr__(response, name, value)
        sizes |= set(value.shape)
    if len(sizes) > 1:
        raise InputError(f"{family}: the parameters are for different numbers of people, {sorted(sizes)}.")


@_family
class Constant:
    """The same return or decay at every welfare level, f(u) = value.

    Args:
        value: welfare per step, positive.
    """

    positive: ClassVar[tuple[str, ...]] = ("value",)
    value: Parameter

    def __post_init__(self):
        _settle(self, self.positive)

    def __call__(self, u: Values) -> Values:
        return _namespace(u).zeros_like(u) + self.value

    @property
    def limits(self) -> tuple[Any, Any]:
        """Values at u → -∞ and at u → +∞."""
        return self.value, self.value

    @property
    def knots(self) -> tuple[Any, ...]:
        """Welfare levels at which the slope changes."""
        return ()


@_family
class LinearClipped:
    """A straight line between two levels, constant outside: clip(α u + β, lo, hi) (official code, "linear").

    The line passes through (x_lo, lo) and (x_hi, hi): rising if x_lo < x_hi, as a return f does, falling if
    x_lo > x_hi, as a decay g does. Either pair may come first: where lo > hi, both pairs are exchanged, which is the
    same line.

    Args:
        lo: lower level, welfare per step, positive.
        hi: upper level.
        x_lo: welfare at which the lower level is reached.
        x_hi: welfare at which the upper level is reached.

    Raises:
        InputError: if a level is not positive or the line has no width (then `Step` is meant).
    """

    positive: ClassVar[tuple[str, ...]] = ("lo", "hi")
    lo: Parameter
    hi: Parameter
    x_lo: Parameter
    x_hi: Parameter

    def __post_init__(self):
        _settle(self, self.positive)
        if np.any(self.x_lo == self.x_hi):
            raise InputError("LinearClipped: x_lo and x_hi coincide; give two welfare levels, or use Step for a jump.")
        swapped = self.lo > self.hi
        pairs = (("lo", "hi"), ("x_lo", "x_hi"))
        for low, high in pairs if np.any(swapped) else ():
            first, second = getattr(self, low), getattr(self, high)
            object.__setattr__(self, low, np.where(swapped, second, first))
            object.__setattr__(self, high, np.where(swapped, first, second))

    def __call__(self, u: Values) -> Values:
        line = self.lo + (self.hi - self.lo) * ((u - self.x_lo) / (self.x_hi - self.x_lo))
        return _namespace(u).clip(line, self.lo, self.hi)

    @property
    def limits(self) -> tuple[Any, Any]:
        """Values at u → -∞ and at u → +∞."""
        rising = self.x_lo < self.x_hi
        return np.where(rising, self.lo, self.hi), np.where(rising, self.hi, self.lo)

    @property
    def knots(self) -> tuple[Any, ...]:
        """Welfare levels at which the slope changes."""
        return self.x_lo, self.x_hi


@_family
class Step:
    """A jump at one welfare level: `left` below it, `right` from it on.

    Args:
        left: value at u < x, welfare per step, positive.
        right: value at u >= x.
        x: welfare level of the jump.
    """

    positive: ClassVar[tuple[str, ...]] = ("left", "right")
    left: Parameter
    right: Parameter
    x: Parameter

    def __post_init__(self):
        _settle(self, self.positive)

    def __call__(self, u: Values) -> Values:
        return _namespace(u).where(u < self.x, self.left, self.right)

    @property
    def limits(self) -> tuple[Any, Any]:
        """Values at u → -∞ and at u → +∞."""
        return self.left, self.right

    @property
    def knots(self) -> tuple[Any, ...]:
        """Welfare levels just below and at the jump."""
        return np.nextafter(self.x, -np.inf), self.x


@_family
class Logistic:
    """A smooth passage between two levels: left + (right - left) / (1 + exp(-(u - center)/width)).

    Args:
        left: limit at u → -∞, welfare per step, positive.
        right: limit at u → +∞.
        center: welfare level half way.
        width: welfare over which it turns, positive; three quarters of the change lie within ±2 widths.
    """

    positive: ClassVar[tuple[str, ...]] = ("left", "right", "width")
    left: Parameter
    right: Parameter
    center: Parameter
    width: Parameter

    def __post_init__(self):
        _settle(self, self.positive)

    def __call__(self, u: Values) -> Values:
        sigmoid = jax.nn.sigmoid if isinstance(u, jax.Array) else expit
        return self.left + (self.right - self.left) * sigmoid((u - self.center) / self.width)

    @property
    def limits(self) -> tuple[Any, Any]:
        """Values at u → -∞ and at u → +∞."""
        return self.left, self.right

    @property
    def knots(self) -> tuple[Any, ...]:
        """Welfare levels between which it makes 96 % of its way."""
        return self.center - 4 * self.width, self.center + 4 * self.width


@_family
class Concave:
    """A return that first rises, then falls part of the way back (official code, "concave"): three levels joined by
    straight lines.

    Args:
        left: level at u <= x_left, welfare per step, positive.
        peak: level at u = x_peak, at least the two others.
        right: level at u >= x_right; the long-run rate sees this limit only.
        x_left: welfare at which it starts to rise.
        x_peak: welfare of the peak.
        x_right: welfare at which it stops falling.

    Raises:
        InputError: if a level is not positive, the peak is not the highest, or the welfare levels are out of order.
    """

    positive: ClassVar[tuple[str, ...]] = ("left", "peak", "right")
    left: Parameter
    peak: Parameter
    right: Parameter
    x_left: Parameter
    x_peak: Parameter
    x_right: Parameter

    def __post_init__(self):
        _settle(self, self.positive)
        if np.any(self.peak < self.left) or np.any(self.peak < self.right):
            raise InputError("Concave: the peak must be at least as high as both limits.")
        if np.any(self.x_left >= self.x_peak) or np.any(self.x_peak >= self.x_right):
            raise InputError("Concave: need x_left < x_peak < x_right.")

    def __call__(self, u: Values) -> Values:
        xp = _namespace(u)
        rise = xp.clip((u - self.x_left) / (self.x_peak - self.x_left), 0.0, 1.0)
        fall = xp.clip((u - self.x_peak) / (self.x_right - self.x_peak), 0.0, 1.0)
        return self.left + (self.peak - self.left) * rise + (self.right - self.peak) * fall

    @property
    def limits(self) -> tuple[Any, Any]:
        """Values at u → -∞ and at u → +∞."""
        return self.left, self.right

    @property
    def knots(self) -> tuple[Any, ...]:
        """Welfare levels at which the slope changes."""
        return self.x_left, self.x_peak, self.x_right


Response = Constant | LinearClipped | Step | Logistic | Concave
"""A return function f or a decay function g."""

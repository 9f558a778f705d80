"""Where gradient descent of the UV model can come to rest, how stable each point is, and what a setting will do."""

from dataclasses import asdict, dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from iclr_dynamics.uv_model.maps import advance, coordinates, limiting_ntk
from iclr_shared.errors import InputError


@dataclass(frozen=True)
class FixedPoint:
    """A fixed point of the map in (Df, lambda).

    Args:
        kind: ``"zero loss"``, ``"origin"``, ``"upper boundary"`` or ``"lower boundary"``.
        residual: ``Df = f - y``.
        ntk: ``lambda``. The zero-loss points form a line; this is its flattest one, and with it the best chance of
            stability.
        multipliers: eigenvalues of the map's Jacobian there.
        stable_until: on the zero-loss line the points ``ntk <= lambda <= stable_until = 2 / eta`` are stable; None for
            the others.
    """

    kind: str
    residual: float
    ntk: float
    multipliers: tuple[float, float]
    stable_until: float | None = None

    @property
    def stability(self) -> str:
        """``"stable"``, ``"saddle"``, ``"repeller"``, or ``"unstable"`` for a line that repels across."""
        if self.stable_until is not None:
            return "stable" if self.ntk < self.stable_until else "unstable"
        outside = sum(abs(multiplier) > 1 for multiplier in self.multipliers)
        return ("stable", "saddle", "repeller")[outside]


def fixed_points(eta: float, k: float, y: float) -> list[FixedPoint]:
    """All fixed points, in the frame where y >= 0.

    I. zero-loss line ``Df = 0, lambda >= 2 k y``; II. origin ``f = 0, lambda = 0``; III./IV.
    ``Df = ±2 / (eta k), lambda = 4 / eta ± 2 k y`` on the boundary ``lambda = 2 k |f|`` (IV only where
    ``c = eta k y <= 2``). Multipliers come from the automatic Jacobian of the map.

    Args:
        eta: learning rate, > 0.
        k: coupling, > 0.
        y: target; a negative one is mirrored, (y, f) -> (-y, -f).

    Raises:
        InputError: naming the argument that is not finite, or not positive.
    """
    _positive(eta=eta, k=k)
    _finite(y=y)
    y = abs(float(y))
    found = [("zero loss", 0.0, 2 * k * y), ("origin", -y, 0.0), ("upper boundary", 2 / (eta * k), 4 / eta + 2 * k * y)]
    if eta * k * y <= 2:
        found.append(("lower boundary", -2 / (eta * k), 4 / eta - 2 * k * y))
    points = []
    for kind, residual, ntk in found:
        # On these four the boundary is exact; rounding must not push them out of the feasible region.
        P, M = coordinates(residual + y, max(ntk, 2 * k * abs(residual + y)), k)
        jacobian = jax.jacfwd(lambda at: jnp.stack(advance(at[0], at[1], eta, k, y)))(jnp.stack([P, M]))
        if not np.isfinite(jacobian).all():
            raise InputError(f"eta={eta:g} with k={k:g}, y={y:g} is beyond the range of floating-point numbers.")
        multipliers = np.sort(np.linalg.eigvals(np.asarray(jacobian)).real)
        until = 2 / eta if kind == "zero loss" else None
        points.append(FixedPoint(kind, residual, ntk, (float(multipliers[0]), float(multipliers[1])), until))
    return points


def critical_lr(k: float, y: float) -> float:
    """``eta_c = 1 / (k |y|)``: above it no zero-loss minimum is stable and training ends at the edge of stability.

    Raises:
        InputError: for y = 0, where every learning rate has a stable minimum.
    """
    _positive(k=k)
    _finite(y=y)
    if y == 0:
        raise InputError("y=0: the critical learning rate is infinite, the flattest minimum has zero sharpness.")
    return 1 / (k * abs(y))


class Nullclines(NamedTuple):
    """Where a step leaves one coordinate unchanged, as lambda over Df (Df = 0 is a further one of both).

    Args:
        residual: ``Df``.
        still_residual: ``eta lambda = eta^2 k^2 Df f``: Df rests.
        flip: ``eta lambda - eta^2 k^2 Df f = 1``: above it Df changes sign at each step.
        grow: ``eta lambda - eta^2 k^2 Df f = 2``: above it ``|Df|`` grows.
        still_ntk: ``eta lambda Df = 4 f``: lambda rests; NaN at Df = 0.
        boundary: ``lambda = 2 k |f|``, the edge of the feasible region.
    """

    residual: Float[Array, " points"]
    still_residual: Float[Array, " points"]
    flip: Float[Array, " points"]
    grow: Float[Array, " points"]
    still_ntk: Float[Array, " points"]
    boundary: Float[Array, " points"]


def nullclines(residual: Float[Array, " points"], eta: float, k: float, y: float) -> Nullclines:
    """The lines that organise the plane (Df, lambda) at one learning rate."""
    f = residual + y
    still = eta * k**2 * residual * f
    safe = jnp.where(residual == 0, jnp.nan, residual)
    return Nullclines(residual, still, still + 1 / eta, still + 2 / eta, 4 * f / (eta * safe), 2 * k * jnp.abs(f))


@dataclass(frozen=True)
class Phase:
    """What a setting will do, from its numbers alone.

    Args:
        label: one of `PHASES`.
        c: ``eta k |y|``, the learning rate over the critical one.
        eta_ntk: ``eta lambda_0``.
        eta_limit: ``eta lambda_inf`` of gradient flow: it asks for a stable minimum where this is below 2.
        laziness: ``k max(|y|, |f_0|) / lambda_0``; small means a kernel that hardly moves.
        on_manifold: whether the start has M = 0 (``lambda_0 = 2 k f_0``).
        mirrored: whether y < 0 was given and (y, f) -> (-y, -f) was used.
    """

    label: str
    c: float
    eta_ntk: float
    eta_limit: float
    laziness: float
    on_manifold: bool
    mirrored: bool

    @property
    def meaning(self) -> str:
        """The label in a sentence."""
        return PHASES[self.label]

    def numbers(self) -> dict[str, float | bool]:
        """Everything but the label."""
        return {name: value for name, value in asdict(self).items() if name != "label"}


PHASES = {
    "at-origin": "starts at the saddle f = 0, lambda = 0 and never moves",
    "lazy": "the kernel hardly moves: linear dynamics",
    "flow-like": "follows gradient flow: sharpens if |f_0| < |y|, flattens if |f_0| > |y|",
    "oscillating": "converges with a residual that flips sign, close to the flow's minimum",
    "catapult": "too steep at the start: the loss rises, lambda falls until eta lambda < 2",
    "sharpen-then-EoS-approach": "the flow's minimum is unstable: ends at a flatter one, eta lambda just below 2",
    "EoS": "no minimum is stable: ends on the edge-of-stability manifold, or diverges if it starts too far from it",
    "diverges-likely": "above twice the critical rate: no bounded attractor on the manifold",
    "diverges-certain": "above twice the critical rate and on the manifold: almost every start diverges",
}


def phase(eta: float, k: float, y: float, lambda0: float, f0: float) -> Phase:
    """Classify a setting before simulating it.

    Rules, first match wins: c > 2 diverges; k max(|y|, |f_0|) / lambda_0 < 0.01 with eta lambda_0 < 2 is lazy;
    eta max(lambda_0, lambda_inf) < 1 is flow-like; c > 1 is the edge of stability; eta lambda_0 > 2 is a catapult;
    eta lambda_inf > 2 approaches the edge; else oscillating. A catapult that starts above about eta lambda_0 = 4 can
    diverge: these are rules about attractors, `maps.simulate` decides.

    Args:
        eta: learning rate, > 0.
        k: coupling, > 0.
        y: target.
        lambda0: tangent kernel at the start, at least ``2 k |f0|``.
        f0: output at the start.

    Raises:
        InputError: naming the argument, or both numbers of an infeasible start.
    """
    _positive(eta=eta, k=k)
    _finite(y=y)
    mirrored = y < 0
    if mirrored:
        y, f0 = -y, -f0
    start = coordinates(f0, lambda0, k)
    c, eta_ntk = eta * k * y, eta * lambda0
    limit = float(limiting_ntk(max(lambda0, 2 * k * abs(f0)), f0, k, y))
    on_manifold = float(start.M) <= 1e-12 * float(start.P)
    laziness = k * max(y, abs(f0)) / lambda0 if lambda0 > 0 else float("inf")
    if lambda0 == 0:
        label = "at-origin"
    elif c > 2:
        label = "diverges-certain" if on_manifold else "diverges-likely"
    elif laziness < 0.01 and eta_ntk < 2:
        label = "lazy"
    elif eta * max(lambda0, limit) < 1:
        label = "flow-like"
    elif c > 1:
        label = "EoS"
    elif eta_ntk > 2:
        label = "catapult"
    elif eta * limit > 2:
        label = "sharpen-then-EoS-approach"
    else:
        label = "oscillating"
    return Phase(label, float(c), float(eta_ntk), float(eta * limit), float(laziness), on_manifold, mirrored)


def _finite(**values: float) -> None:
    for name, value in values.items():
        if not np.isfinite(value):
            raise InputError(f"{name}={value:g} must be finite.")


def _positive(**values: float) -> None:
    for name, value in values.items():
        if not (np.isfinite(value) and value > 0):
            raise InputError(f"{name}={value:g} must be positive and finite.")

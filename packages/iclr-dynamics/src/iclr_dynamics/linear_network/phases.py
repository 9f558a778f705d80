"""The phase diagram: which scalings of width, rates, output and initialisation learn features, and how fast."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from iclr_dynamics.function_space import Scalars
from iclr_dynamics.linear_network.initialisations import init_layers
from iclr_dynamics.linear_network.network import LinearNet, Setting, invariants, log_ntk_ratio, output_slope
from iclr_shared.errors import InputError

PhaseLabel = Literal["kernel", "feature", "feature from the saddle"]
Speed = Literal["unstable", "proper", "frozen"]


@dataclass(frozen=True)
class Exponents:
    """A parameterisation: how each hyperparameter scales with the width d, as ``d^(-exponent)``.

    Args:
        g: of the output scale, ``gamma = d^-g``.
        bu: of the second layer's initial variance, ``sigma_u² = d^-bu``.
        bw: of the first layer's initial variance, ``sigma_w² = d^-bw``.
        eu: of the second layer's rate, ``eta_u = d^-eu``.
        ew: of the first layer's rate, ``eta_w = d^-ew``.

    Raises:
        InputError: if one is not finite.
    """

    g: float
    bu: float = 0.0
    bw: float = 0.0
    eu: float = 0.0
    ew: float = 0.0

    def __post_init__(self):
        for name, value in vars(self).items():
            if not math.isfinite(value):
                raise InputError(f"{name} must be a finite number, got {value}.")

    def at(self, width: int, loss_factor: float = 0.5) -> Setting:
        """The hyperparameters at one width.

        Raises:
            InputError: if the width is below 1, or a power of it leaves the range of floats.
        """
        if width < 1:
            raise InputError(f"width must be at least 1, got {width}.")
        try:
            scales = [float(width) ** -e for e in (self.g, self.bu / 2, self.bw / 2, self.eu, self.ew)]
        except OverflowError as error:
            raise InputError(f"At width {width} these exponents leave the range of floats: {self}.") from error
        return Setting(width, *scales, loss_factor)


#: Named parameterisations. Tables in the literature differ in where they put the factors of the width: print
#: ``PARAMETERISATIONS[name].at(width)`` to see what is meant here.
PARAMETERISATIONS: dict[str, Exponents] = {
    "ntk": Exponents(0.5),
    "mean-field": Exponents(1.0, eu=-1.0, ew=-1.0),
    "standard": Exponents(0.0, bu=1.0, eu=1.0, ew=1.0),
    "mup": Exponents(0.0, bu=2.0, eu=1.0, ew=-1.0),
}


class Phase(NamedTuple):
    """Where a parameterisation leads as the width grows.

    Args:
        h: exponent of ``theta ~ d^h``: kernel phase where positive.
        rho: exponent of the rate ``s ~ d^rho``: 0 is a proper time scale.
        F0: exponent of the initial slope, at most ``h - 1/2``.
        label: ``kernel`` (h > 0), ``feature`` (h = 0, remembers its start), ``feature from the saddle`` (h < 0, after
            a delay that grows with ``|h| ln d``).
        speed: ``unstable`` (rho > 0, needs smaller rates), ``proper`` or ``frozen`` (rho < 0).
    """

    h: float
    rho: float
    F0: float
    label: PhaseLabel
    speed: Speed


def phase(exponents: Exponents) -> Phase:
    """The phase of a parameterisation in the limit of infinite width, for a target of order one.

    ``h = 1 - g + max(-bu + (eu - ew)/2, -bw + (ew - eu)/2)`` and ``rho = -g - (eu + ew)/2 + max(0, h)``. As theta is
    the sum of both layers' parts, lowering one layer's variance does not leave the kernel phase unless the other's part
    is small as well.
    """
    h, rho, F0 = scaling_exponents(*(getattr(exponents, name) for name in ("g", "bu", "bw", "eu", "ew")))
    # Exponents are typed by people: rounding errors of their sums are no phase.
    h, rho, F0 = (round(float(value), 12) + 0.0 for value in (h, rho, F0))
    label: PhaseLabel = "kernel" if h > 0 else "feature" if h == 0 else "feature from the saddle"
    speed: Speed = "unstable" if rho > 0 else "proper" if rho == 0 else "frozen"
    return Phase(h, rho, F0, label, speed)


def scaling_exponents(
    g: Scalars, bu: Scalars, bw: Scalars, eu: Scalars = 0.0, ew: Scalars = 0.0
) -> tuple[Scalars, Scalars, Scalars]:
    """``(h, rho, exponent of F0)`` of `phase`, for numbers or arrays of exponents."""
    h = 1 - g + np.maximum(-bu + (eu - ew) / 2, -bw + (ew - eu) / 2)
    return h, -g - (eu + ew) / 2 + np.maximum(0, h), 0.5 - g - (bu + bw) / 2


class FinitePhase(NamedTuple):
    """What a setting does at its own width, for a typical random start.

    Args:
        theta: scale below which targets are learned lazily, in units of the slope.
        F0_std: standard deviation of the initial slope.
        rate: final rate s, in 1 / time.
        K_ratio: change of the tangent kernel over training, from F0 = 0.
        delay: time to half-way where the start is small, ``ln(4 |F*| / theta) / s``; 0 otherwise, and infinite from the
            exact saddle.
        label: ``kernel`` where ``ln K_ratio < 0.05``, ``feature from the saddle`` where K_ratio > 10, else ``feature``.
    """

    theta: float
    F0_std: float
    rate: float
    K_ratio: float
    delay: float
    label: PhaseLabel


def phase_numeric(setting: Setting, target: float = 1.0, A: float = 1.0) -> FinitePhase:
    """The phase of actual hyperparameters at an actual width; no limit is taken.

    Args:
        setting: hyperparameters and width.
        target: slope F* to be learned, in units of y per x.
        A: ``E xi²``, > 0.
    """
    if not (0 < A < math.inf and math.isfinite(target)):
        raise InputError(f"A = E xi² must be positive and the target finite, got {A} and {target}.")
    theta = setting.theta
    F0_std = setting.gamma * math.sqrt(setting.width) * setting.sigma_u * setting.sigma_w
    s = setting.net.kappa * A * math.hypot(2 * target, theta)
    if target == 0:
        K_ratio, delay = 1.0, 0.0
    elif theta == 0:
        K_ratio, delay = math.inf, math.inf
    else:
        K_ratio = math.hypot(2 * target, theta) / theta
        delay = max(math.log(4) + math.log(abs(target)) - math.log(theta), 0.0) / s
    label: PhaseLabel = "feature" if K_ratio <= 10 else "feature from the saddle"
    if K_ratio < math.exp(0.05):
        label = "kernel"
    return FinitePhase(theta, F0_std, s, K_ratio, delay, label)


class Measured(NamedTuple):
    """Random networks, measured; arrays of equal shape.

    Args:
        theta: ``kappa sqrt(Pi)``.
        F0: initial slope.
        log_K_ratio: ``ln(K/K0)`` over training.
    """

    theta: Float[Array, "..."]
    F0: Float[Array, "..."]
    log_K_ratio: Float[Array, "..."]

    @property
    def K_ratio(self) -> Float[Array, "..."]:
        return jnp.exp(self.log_K_ratio)


def measure(
    key: PRNGKeyArray, exponents: Sequence[Exponents], width: int, target: float = 1.0, antisymmetric: bool = False
) -> Measured:
    """Draw one random network for each parameterisation, at one width, and measure it from its weights.

    Args:
        key: of the draws.
        exponents: the parameterisations, n of them.
        width: d.
        target: slope F*.
        antisymmetric: start each network at exactly F0 = 0.

    Returns:
        Arrays of shape (n,).
    """
    settings = [e.at(width) for e in exponents]
    columns = [
        jnp.array([getattr(s, name) for s in settings]) for name in ("gamma", "sigma_u", "sigma_w", "eta_u", "eta_w")
    ]
    return _measure(width, antisymmetric, jax.random.split(key, len(settings)), *columns, target)


@dataclass(frozen=True)
class PhaseGrid:
    """A phase diagram over the output scale's exponent g and the initial variances' exponent b (``bu = bw = b``).

    Args:
        g_range: smallest and largest g.
        b_range: smallest and largest b.
        points: grid points along each axis.
        eu: exponent of the second layer's rate.
        ew: exponent of the first layer's rate.
        widths: two widths between which exponents are measured.
        target: slope F*, of order one.
        antisymmetric: start all networks at exactly F0 = 0, so that |K_ratio - 1| has no part that the luck of the draw
            decides; widths must then be even.
    """

    g_range: tuple[float, float] = (-0.5, 2.5)
    b_range: tuple[float, float] = (-1.0, 2.0)
    points: int = 40
    eu: float = 0.0
    ew: float = 0.0
    widths: tuple[int, int] = (1_000, 100_000)
    target: float = 1.0
    antisymmetric: bool = True

    def __post_init__(self):
        if self.points < 2:
            raise InputError(f"points must be at least 2, got {self.points}.")
        if not 1 <= self.widths[0] < self.widths[1]:
            raise InputError(f"widths must be two growing numbers >= 1, got {self.widths}.")
        for name in ("g_range", "b_range"):
            low, high = getattr(self, name)
            if not -math.inf < low < high < math.inf:
                raise InputError(f"{name} must be a smaller and a larger number, got {low} and {high}.")

    @property
    def g(self) -> Float[np.ndarray, " points"]:
        return np.linspace(*self.g_range, self.points)

    @property
    def b(self) -> Float[np.ndarray, " points"]:
        return np.linspace(*self.b_range, self.points)

    def predicted(self) -> tuple[Float[np.ndarray, "points points"], Float[np.ndarray, "points points"]]:
        """``(h, rho)`` on the grid, rows along g."""
        g, b = self.g[:, None], self.b[None, :]
        h, rho, _ = scaling_exponents(g, b, b, self.eu, self.ew)
        return h, np.broadcast_to(rho, h.shape)

    def row(self, key: PRNGKeyArray, index: int) -> Float[np.ndarray, "widths 2 points"]:
        """One row of the measurement, at ``g[index]``: ln theta and ln|K_ratio - 1| at both widths.

        Args:
            key: of the whole grid; each row takes its own stream, so that rows can be computed in any order.
            index: of the row.
        """
        exponents = [Exponents(float(self.g[index]), float(b), float(b), self.eu, self.ew) for b in self.b]
        rows = []
        for number, width in enumerate(self.widths):
            stream = jax.random.fold_in(jax.random.fold_in(key, index), number)
            drawn = measure(stream, exponents, width, self.target, self.antisymmetric)
            # ln|exp(x) - 1|; expm1 would overflow far above the saddle.
            x = np.asarray(drawn.log_K_ratio, np.float64)
            change = np.where(x > 30, x, np.log(np.maximum(np.abs(np.expm1(np.minimum(x, 30))), 1e-300)))
            rows.append([np.log(np.asarray(drawn.theta, np.float64)), change])
        return np.array(rows)

    def rows(
        self, key: PRNGKeyArray, indices: Iterable[int] | None = None
    ) -> Iterator[tuple[int, Float[np.ndarray, "widths 2 points"]]]:
        """All rows (or those at `indices`), one at a time: ``(index, row)``."""
        for index in range(self.points) if indices is None else indices:
            yield index, self.row(key, index)

    def exponents(
        self, rows: Float[np.ndarray, "points widths 2 points"]
    ) -> tuple[Float[np.ndarray, "points points"], Float[np.ndarray, "points points"]]:
        """The measured exponents of theta and of ``|K_ratio - 1|`` between the two widths."""
        slopes = (rows[:, 1] - rows[:, 0]) / math.log(self.widths[1] / self.widths[0])
        return slopes[:, 0], slopes[:, 1]


@partial(jax.jit, static_argnums=(0, 1))
def _measure(width, antisymmetric, keys, gammas, sigmas_u, sigmas_w, etas_u, etas_w, target):
    def one(key, gamma, sigma_u, sigma_w, eta_u, eta_w):
        net = jax.tree.unflatten(_NET, (gamma, eta_u, eta_w, 0.5))
        # The active part of the first layer alone: it is Gaussian whatever the input dimension.
        unit = init_layers(key, width, antisymmetric=antisymmetric)
        u, a = sigma_u * unit.u, sigma_w * unit.w[:, 0]
        F0, inv = output_slope(net, u, a), invariants(net, u, a)
        return Measured(inv.theta, F0, log_ntk_ratio(F0, target, inv.theta))

    return jax.lax.map(lambda row: one(*row), (keys, gammas, sigmas_u, sigmas_w, etas_u, etas_w))


_NET = jax.tree.structure(LinearNet(1.0))

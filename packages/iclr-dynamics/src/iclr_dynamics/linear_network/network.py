"""The network ``f(x) = gamma sum_i u_i w_i·x``, its state, and what gradient flow conserves of it."""

import math
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from iclr_dynamics.function_space import FunctionSpace, Scalars, floating
from iclr_shared.errors import InputError

#: More bytes of weights than this are refused.
MEMORY_LIMIT = 2e9

Number = float | Array
"""A float; an array where a function is compiled for, or mapped over, many networks."""


@dataclass(frozen=True)
class LinearNet:
    """A one-hidden-layer linear network and how it is trained (gradient flow ``dθ/dt = -eta ∂L/∂θ`` for each layer).

    A pytree of its four numbers: `jax.vmap` and `jax.grad` work over networks.

    Args:
        gamma: output scale, > 0.
        eta_u: rate of the second layer, > 0, in 1 / time.
        eta_w: rate of the first layer, > 0, in 1 / time.
        loss_factor: the loss is ``loss_factor E (f - y)²``. The paper's is 1/2; with 1 everything is twice as fast.
    """

    gamma: float
    eta_u: float = 1.0
    eta_w: float = 1.0
    loss_factor: float = 0.5

    def __post_init__(self):
        for name in ("gamma", "eta_u", "eta_w", "loss_factor"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                raise InputError(f"{name} must be a positive number, got {value}.")

    @property
    def rates(self) -> tuple[Number, Number]:
        """``(eta_u, eta_w)`` of the same flow under the loss with factor 1/2."""
        return 2 * self.loss_factor * self.eta_u, 2 * self.loss_factor * self.eta_w

    @property
    def kappa(self) -> Number:
        """The coupling ``kappa = gamma sqrt(eta_u eta_w)``, the only one left in function space."""
        eta_u, eta_w = self.rates
        return self.gamma * eta_u**0.5 * eta_w**0.5

    def flow_constants(self, A: Number, target: Number) -> tuple[Number, Number]:
        """``(gain, target)`` of `iclr_dynamics.function_space.riccati`: ``kappa² A / 2`` and ``2 F* / kappa``."""
        return self.kappa**2 * A / 2, 2 * target / self.kappa


def _unchecked(_, values: tuple) -> LinearNet:
    net = object.__new__(LinearNet)
    for name, value in zip(("gamma", "eta_u", "eta_w", "loss_factor"), values, strict=True):
        object.__setattr__(net, name, value)
    return net


# Not `register_dataclass`: that rebuilds through __init__, which checks values, and traced ones cannot be checked.
jax.tree_util.register_pytree_node(
    LinearNet, lambda net: ((net.gamma, net.eta_u, net.eta_w, net.loss_factor), None), _unchecked
)


@dataclass(frozen=True)
class Setting:
    """A network of a given width with the scale of its random start: what a parameterisation means at one width.

    The defaults are the mean-field parameterisation at width 100.

    Args:
        width: number of hidden neurons d.
        gamma: output scale.
        sigma_u: standard deviation of the second layer's initial entries.
        sigma_w: standard deviation of the first layer's initial entries.
        eta_u: rate of the second layer.
        eta_w: rate of the first layer.
        loss_factor: of the loss, see `LinearNet`.
    """

    width: int = 100
    gamma: float = 0.01
    sigma_u: float = 1.0
    sigma_w: float = 1.0
    eta_u: float = 100.0
    eta_w: float = 100.0
    loss_factor: float = 0.5

    def __post_init__(self):
        if self.width < 1:
            raise InputError(f"width must be at least 1, got {self.width}.")
        for name in ("sigma_u", "sigma_w"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise InputError(f"{name} must be a number >= 0, got {value}.")
        _ = self.net

    @property
    def net(self) -> LinearNet:
        return LinearNet(self.gamma, self.eta_u, self.eta_w, self.loss_factor)

    @property
    def theta(self) -> float:
        """The typical ``theta = kappa sqrt(Pi)``: ``kappa d (sigma_u² / eta_u + sigma_w² / eta_w)``.

        Exact in the mean up to a relative ``O(1/sqrt(d))``.
        """
        eta_u, eta_w = self.net.rates
        return self.net.kappa * self.width * (self.sigma_u**2 / eta_u + self.sigma_w**2 / eta_w)


class Layers(NamedTuple):
    """The weights.

    Args:
        u: second layer, shape (d,).
        w: first layer, shape (d, D).
    """

    u: Float[Array, " d"]
    w: Float[Array, "d D"]


class Invariants(NamedTuple):
    """What gradient flow never changes; numbers or arrays of equal shape.

    Args:
        Pi: ``P M``, the product of the squared norms of sum and difference of the layers.
        Delta: ``|uh|² - |ah|²``, the balance of the layers.
        S: ``|uh|² |ah|² - (uh·ah)² = (Pi - Delta²) / 4``, the squared area that the two layers span.
        theta: ``kappa sqrt(Pi)``, in units of the slope F: the scale below which targets are learned lazily.
    """

    Pi: Float[Array, "..."]
    Delta: Float[Array, "..."]
    S: Float[Array, "..."]
    theta: Float[Array, "..."]


def rate_weighted(
    net: LinearNet, u: Float[ArrayLike, "*b d"], a: Float[ArrayLike, "*b d"]
) -> tuple[Float[Array, "*b d"], Float[Array, "*b d"]]:
    """``uh = u / sqrt(eta_u)`` and ``ah = a / sqrt(eta_w)``: in these the flow treats both layers alike."""
    eta_u, eta_w = net.rates
    return jnp.asarray(u) / eta_u**0.5, jnp.asarray(a) / eta_w**0.5


def function_space(net: LinearNet, u: Float[ArrayLike, "*b d"], a: Float[ArrayLike, "*b d"]) -> FunctionSpace:
    """``P = |uh + ah|²`` and ``M = |uh - ah|²`` (the Q of the derivation), from the two active layers.

    Args:
        net: the network.
        u: second layer.
        a: active part ``w·nhat`` of the first layer.
    """
    uh, ah = rate_weighted(net, u, a)
    return FunctionSpace(jnp.sum((uh + ah) ** 2, -1), jnp.sum((uh - ah) ** 2, -1))


def invariants(net: LinearNet, u: Float[ArrayLike, "*b d"], a: Float[ArrayLike, "*b d"]) -> Invariants:
    """The conserved quantities of a state.

    ``S`` is computed as the squared norm of one layer times the squared distance of the other from its line, so that
    it is exact also where the layers are nearly aligned and ``(Pi - Delta²) / 4`` cancels.
    """
    uh, ah = rate_weighted(net, u, a)
    P, M = function_space(net, u, a)
    uu, aa, ua = jnp.sum(uh**2, -1), jnp.sum(ah**2, -1), jnp.sum(uh * ah, -1)
    across = ah - (ua / jnp.where(uu > 0, uu, 1))[..., None] * uh
    area = uu * jnp.sum(across**2, -1)
    return Invariants(P * M, uu - aa, area, net.kappa * jnp.sqrt(P) * jnp.sqrt(M))


def output_slope(net: LinearNet, u: Float[ArrayLike, "*b d"], a: Float[ArrayLike, "*b d"]) -> Float[Array, "*b"]:
    """The slope of the network along the line, ``F = gamma u·a``."""
    return net.gamma * jnp.sum(jnp.asarray(u) * jnp.asarray(a), -1)


def kernel(F: Scalars, theta: Scalars, kappa: Scalars) -> Float[Array, "..."]:
    """The tangent kernel along the line, ``K = kappa sqrt(4 F² + theta²) = gamma² (eta_w |u|² + eta_u |a|²)``.

    It is the rate of the slope, ``dF/dt = -K A (F - F*)``. The kernel between inputs x and x' is K xi xi'.
    """
    return kappa * jnp.hypot(2 * jnp.asarray(F), theta)


def alignment(F: Scalars, S: Scalars, kappa: Scalars) -> Float[Array, "..."]:
    """The cosine between the layers, ``zeta = u·a / (|u| |a|) = F / sqrt(F² + kappa² S)``; 0 where a layer is zero."""
    F = jnp.asarray(F)
    length = jnp.hypot(F, kappa * jnp.sqrt(S))
    return F / jnp.where(length > 0, length, 1)


def layer_norms(
    net: LinearNet, F: Scalars, Pi: Scalars, Delta: Scalars
) -> tuple[Float[Array, "..."], Float[Array, "..."]]:
    """``(|u|, |a|)`` at slope F: ``|uh|² = (sqrt(4 F²/kappa² + Pi) + Delta) / 2``, ``|ah|²`` with ``-Delta``."""
    eta_u, eta_w = net.rates
    total = jnp.hypot(2 * jnp.asarray(F) / net.kappa, jnp.sqrt(Pi))
    return (jnp.sqrt(eta_u * jnp.maximum(total + Delta, 0) / 2), jnp.sqrt(eta_w * jnp.maximum(total - Delta, 0) / 2))


def ntk_ratio(F0: Scalars, F: Scalars, theta: Scalars) -> Float[Array, "..."]:
    """How much the kernel changes from slope F0 to F: ``K / K0 = sqrt((4 F² + theta²) / (4 F0² + theta²))``.

    With ``F = F*`` this is the whole of training.
    """
    return jnp.exp(log_ntk_ratio(F0, F, theta))


def log_ntk_ratio(F0: Scalars, F: Scalars, theta: Scalars) -> Float[Array, "..."]:
    """``ln(K / K0)``, accurate also deep in the kernel phase where the ratio rounds to 1."""
    F0, F, theta = floating(F0, F, theta)
    start, change = F0**2 + theta**2 / 4, (F - F0) * (F + F0)
    # From the saddle, where K0 = 0, the ratio is infinite, and 1 if the network never leaves it.
    from_zero = jnp.where(change > 0, jnp.inf, 0)
    return 0.5 * jnp.log1p(jnp.where(start > 0, change / jnp.where(start > 0, start, 1), from_zero))


def check_state(net: LinearNet, nhat: Float[np.ndarray, " D"], u0: ArrayLike, w0: ArrayLike) -> Layers:
    """The layers as arrays of one floating type.

    Raises:
        InputError: if their shapes do not fit each other or the data, or they or their squares are not finite.
    """
    u, w = floating(jnp.asarray(u0), jnp.asarray(w0))
    if u.ndim != 1 or w.ndim != 2 or w.shape[0] != u.shape[0] or u.size == 0:
        raise InputError(f"u0 must have shape (d,) and w0 (d, D) with the same d >= 1; got {u.shape} and {w.shape}.")
    if w.shape[1] != len(nhat):
        raise InputError(f"w0 takes inputs of dimension {w.shape[1]}, the data has dimension {len(nhat)}.")
    for name, layer in (("u0", u), ("w0", w)):
        with np.errstate(over="ignore", invalid="ignore"):
            finite = np.isfinite(np.sum(np.square(np.asarray(layer))))
        if not finite:
            raise InputError(
                f"{name} is not finite, or too large to be squared in {u.dtype}. Check its initialisation."
            )
    return Layers(u, w)

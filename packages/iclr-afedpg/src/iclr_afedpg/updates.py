"""The update of AFedPG: lookahead, momentum and normalised step, and the server that applies them in order of arrival.

Vectors may carry leading batch axes (several seeds at once); norms are over the last axis.
"""

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np
from jaxtyping import Float

from iclr_afedpg.schedules import Constant, LinearDecay, Schedule
from iclr_shared.errors import InputError

#: Directions shorter than this have no direction: the update is skipped and counted.
SHORTEST = 1e-12

type Vector = Float[np.ndarray, "*batch d"]


def lookahead(theta: Vector, previous: Vector, alpha: float) -> Vector:
    """Where the gradient is sampled: ``theta + (1 - alpha) / alpha * (theta - previous)``.

    There the momentum estimate equals the gradient at `theta` exactly if the gradient is affine and the momentum was
    exact one update before: the Hessian term cancels.
    """
    return theta + (1 - alpha) / alpha * (theta - previous)


def momentum(direction: Vector, gradient: Vector, alpha: float) -> Vector:
    """``(1 - alpha) * direction + alpha * gradient``."""
    return (1 - alpha) * direction + alpha * gradient


def normalized_step(theta: Vector, direction: Vector, eta: float) -> Vector:
    """Ascent by the distance `eta`: ``theta + eta * direction / |direction|``; `theta` where there is no direction."""
    norm = np.linalg.norm(direction, axis=-1, keepdims=True)
    return theta + eta * direction / np.where(norm < SHORTEST, np.inf, norm)


@dataclass(frozen=True)
class Rule:
    """How gradients become updates.

    Args:
        alpha: momentum and lookahead rate in (0, 1]; 1 is neither.
        eta: step length, a distance in parameter space if `normalize`.
        lookahead: sample gradients at the lookahead, not at the server's parameters.
        momentum_at: ``"server"`` mixes the gradient into the server's direction of now, ``"agent"`` into the direction
            that the agent had read; the two readings of the paper agree for one agent.
        alpha_index: ``"read"`` takes the rates at the counter at which the agent read the model, ``"apply"`` at the
            counter at which its gradient arrives (the lookahead, and momentum at the agent, always use the former).
        eta_delay_power: divides the step by ``(1 + delay) ** power``. Not the paper's; off at 0.
        normalize: normalised steps (the paper's); else ``theta + eta * direction``.
    """

    alpha: Schedule = field(default_factory=lambda: Constant(0.5))
    eta: Schedule = field(default_factory=lambda: LinearDecay(0.2))
    lookahead: bool = True
    momentum_at: Literal["server", "agent"] = "server"
    alpha_index: Literal["read", "apply"] = "read"
    eta_delay_power: float = 0.0
    normalize: bool = True

    def __post_init__(self):
        if self.momentum_at not in ("server", "agent"):
            raise InputError(f"momentum_at must be 'server' or 'agent', got {self.momentum_at!r}.")
        if self.alpha_index not in ("read", "apply"):
            raise InputError(f"alpha_index must be 'read' or 'apply', got {self.alpha_index!r}.")
        if not self.eta_delay_power >= 0:
            raise InputError(f"eta_delay_power must be at least 0, got {self.eta_delay_power}.")

    def rates(self, k: int, progress: float) -> tuple[float, float]:
        """``(alpha, eta)`` at counter `k`.

        Raises:
            InputError: if alpha is outside (0, 1] or eta is not positive.
        """
        alpha, eta = self.alpha(k, progress), self.eta(k, progress)
        if not 0 < alpha <= 1:
            raise InputError(f"alpha must be in (0, 1], got {alpha} at update {k}; the lookahead divides by it.")
        if not (eta > 0 and np.isfinite(eta)):
            raise InputError(f"eta must be a positive number, got {eta} at update {k}.")
        return alpha, eta


class Read(NamedTuple):
    """What an agent gets: the counter, where to sample, and what its momentum needs."""

    k: int
    theta: np.ndarray
    """``(*batch, d)``: the lookahead parameters, at which to sample."""
    direction: np.ndarray | None
    """``(*batch, d)``: the server's direction, only if momentum is kept at the agent."""
    alpha: float
    eta: float


class Applied(NamedTuple):
    """One applied update."""

    k: int
    """The server's counter before it."""
    delay: int
    """How many updates the server had applied since the agent read the model."""
    gradient_norm: float
    direction_norm: float
    skipped: bool
    """The direction had no length."""


@dataclass
class Server:
    """The global policy's parameters and the order of their updates.

    Args:
        theta: ``(*batch, d)`` initial parameters.
        rule: how gradients become updates.
    """

    theta: np.ndarray
    rule: Rule = field(default_factory=Rule)
    k: int = 0
    skipped: int = 0

    def __post_init__(self):
        self.previous = self.theta.copy()
        self.direction = np.zeros_like(self.theta)

    def pull(self, progress: float = 0.0) -> Read:
        """The model for an idle agent."""
        alpha, eta = self.rule.rates(self.k, progress)
        theta = lookahead(self.theta, self.previous, alpha) if self.rule.lookahead else self.theta
        kept = self.direction if self.rule.momentum_at == "agent" else None
        return Read(self.k, theta.astype(self.theta.dtype, copy=False), kept, alpha, eta)

    def check(self, vector: np.ndarray) -> None:
        """Refuse a vector of another shape than the parameters.

        Raises:
            InputError: with both shapes.
        """
        if vector.shape != self.theta.shape:
            raise InputError(
                f"An agent sent a vector of shape {vector.shape}, the policy has {self.theta.shape}: "
                "it runs another policy than the server."
            )

    def push(self, read: Read, vector: Vector, progress: float = 0.0) -> Applied:
        """Apply what an agent sends: its gradient, or its direction if momentum is kept at the agent.

        Raises:
            InputError: if the vector has another shape than the parameters.
        """
        self.check(vector)
        alpha, eta = (read.alpha, read.eta) if self.rule.alpha_index == "read" else self.rule.rates(self.k, progress)
        delay = self.k - read.k
        eta = eta / (1 + delay) ** self.rule.eta_delay_power
        direction = momentum(self.direction, vector, alpha) if self.rule.momentum_at == "server" else vector
        norm = float(np.max(np.linalg.norm(direction, axis=-1)))
        step = normalized_step if self.rule.normalize else _plain_step
        after = step(self.theta, direction, eta).astype(self.theta.dtype, copy=False)
        skipped = norm < SHORTEST
        applied = Applied(self.k, delay, float(np.max(np.linalg.norm(vector, axis=-1))), norm, skipped)
        self.previous, self.theta, self.direction = self.theta, after, direction.astype(self.theta.dtype, copy=False)
        self.skipped += skipped
        self.k += 1
        return applied


def _plain_step(theta, direction, eta):
    return theta + eta * direction

"""Policies as functions of one flat parameter vector: NumPy to act, PyTorch for the gradient of the log-probability.

A policy is any object with ``size``, ``initial(rng)``, ``actor(theta)``, ``log_prob(theta, observations, actions)`` and
``to_env(action)``; those here are bound to the spaces of an environment by ``bind``.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import gymnasium
import numpy as np
import torch
from gymnasium.spaces import Box, Discrete
from jaxtyping import Float, Shaped

from iclr_shared.errors import InputError


class SpaceError(InputError, TypeError):
    """The environment's observations or actions do not suit the policy."""


def _size(sizes: Sequence[int]) -> int:
    return sum((n + 1) * m for n, m in pairwise(sizes))


def mlp(theta: Any, sizes: Sequence[int], x: Any, tanh: Callable) -> Any:
    """Tanh network with a linear last layer; its weights and biases stand layer by layer in the flat `theta`.

    Works on NumPy arrays and on tensors alike, so that acting and differentiating share one definition.

    Args:
        theta: ``(size,)``.
        sizes: widths from input to output.
        x: ``(..., sizes[0])``.
        tanh: of the arrays' library.
    """
    at = 0
    for layer, (n, m) in enumerate(pairwise(sizes)):
        weights, at = theta[at : at + n * m].reshape(n, m), at + n * m
        x, at = x @ weights + theta[at : at + m], at + m
        if layer < len(sizes) - 2:
            x = tanh(x)
    return x


def _initial(sizes: Sequence[int], last_scale: float, rng: np.random.Generator) -> np.ndarray:
    """Weights of variance 1 / fan-in, the last layer's times `last_scale`; biases 0."""
    parts = []
    for layer, (n, m) in enumerate(pairwise(sizes)):
        scale = (last_scale if layer == len(sizes) - 2 else 1.0) / np.sqrt(n)
        parts += [scale * rng.standard_normal(n * m), np.zeros(m)]
    return np.concatenate(parts)


def _check_layers(hidden: Sequence[int], last_scale: float) -> None:
    if any(width < 1 for width in hidden):
        raise InputError(f"Hidden layers must have a width of at least 1, got {tuple(hidden)}.")
    if not (np.isfinite(last_scale) and last_scale >= 0):
        raise InputError(f"last_scale must be a number of at least 0, got {last_scale}.")


@dataclass(frozen=True)
class GaussianMLP:
    """Gaussian actions around a tanh network, with one log standard deviation for each action, for Box actions.

    Args:
        hidden: widths of the hidden layers; none is a linear policy.
        log_std: initial logarithm of the standard deviation.
        last_scale: factor of the last layer's initial weights.
        bounds: ``"clip"`` actions to the space, or ``"squash"`` them into it by tanh.
        scale: for a space without finite bounds: what an action of 1 means there.
    """

    hidden: tuple[int, ...] = (64, 64)
    log_std: float = -0.5
    last_scale: float = 0.01
    bounds: Literal["clip", "squash"] = "clip"
    scale: float | None = None

    def __post_init__(self):
        _check_layers(self.hidden, self.last_scale)
        if not np.isfinite(self.log_std):
            raise InputError(f"log_std must be a finite number, got {self.log_std}.")
        if self.bounds not in ("clip", "squash"):
            raise InputError(f"bounds must be 'clip' or 'squash', got {self.bounds!r}.")
        if self.scale is not None and not (np.isfinite(self.scale) and self.scale > 0):
            raise InputError(f"scale must be a positive number, got {self.scale}.")

    def bind(self, observations: gymnasium.Space, actions: gymnasium.Space) -> "GaussianPolicy":
        """The policy for an environment.

        Raises:
            SpaceError: if the actions are no Box, or an unbounded one without `scale`, or observations are no flat Box.
        """
        if not isinstance(actions, Box):
            raise SpaceError(f"GaussianMLP needs Box actions, the environment has {actions}; take CategoricalMLP.")
        bounded = bool(np.all(np.isfinite(actions.low)) and np.all(np.isfinite(actions.high)))
        if not bounded and (self.scale is None or self.bounds == "squash"):
            raise SpaceError(
                f"The actions {actions} have no finite bounds: wrap the environment in "
                "gymnasium.wrappers.ClipAction or RescaleAction, or give GaussianMLP(scale=...) with bounds='clip'."
            )
        return GaussianPolicy(self, _width(observations), actions)


def _width(observations: gymnasium.Space) -> int:
    if not isinstance(observations, Box):
        raise SpaceError(
            f"The observations {observations} are no Box: wrap the environment in "
            "gymnasium.wrappers.FlattenObservation, or take TabularSoftmax for Discrete ones."
        )
    return int(np.prod(observations.shape))


class GaussianPolicy:
    """`GaussianMLP` bound to an environment: float32 parameters, the network's first, then the log deviations."""

    dtype = np.float32

    def __init__(self, spec: GaussianMLP, width: int, actions: Box):
        self.spec, self.actions = spec, actions
        self.outputs = int(np.prod(actions.shape))
        self.sizes = (width, *spec.hidden, self.outputs)
        self.size = _size(self.sizes) + self.outputs
        self._low, self._high = actions.low.ravel(), actions.high.ravel()

    def initial(self, rng: np.random.Generator) -> Float[np.ndarray, " d"]:
        weights = _initial(self.sizes, self.spec.last_scale, rng)
        return np.concatenate([weights, np.full(self.outputs, self.spec.log_std)]).astype(self.dtype)

    def actor(self, theta: Float[np.ndarray, " d"]) -> Callable[..., np.ndarray]:
        """``act(observation, rng)`` draws an action, before bounds; without `rng` it is the mean."""
        std = np.exp(theta[-self.outputs :])

        def act(observation: np.ndarray, rng: np.random.Generator | None = None) -> np.ndarray:
            mean = mlp(theta, self.sizes, observation.ravel().astype(theta.dtype), np.tanh)
            return mean if rng is None else mean + std * rng.standard_normal(self.outputs, theta.dtype)

        return act

    def log_prob(
        self, theta: Float[torch.Tensor, " d"], observations: Shaped[torch.Tensor, "n ..."], actions: torch.Tensor
    ) -> Float[torch.Tensor, " n"]:
        """Of actions before bounds: what clipping or squashing adds does not depend on `theta`."""
        mean = mlp(theta, self.sizes, _rows(observations, theta), torch.tanh)
        log_std = theta[-self.outputs :]
        return (-0.5 * ((actions - mean) / log_std.exp()) ** 2 - log_std - 0.5 * np.log(2 * np.pi)).sum(-1)

    def to_env(self, action: np.ndarray) -> np.ndarray:
        """The action within the space's bounds and of its shape and type."""
        if self.spec.bounds == "squash":
            action = self._low + (self._high - self._low) * (np.tanh(action) + 1) / 2
        else:
            action = np.minimum(np.maximum(action * (self.spec.scale or 1.0), self._low), self._high)
        return action.astype(self.actions.dtype).reshape(self.actions.shape)


@dataclass(frozen=True)
class CategoricalMLP:
    """Softmax over a tanh network, for Discrete actions. Arguments as in `GaussianMLP`."""

    hidden: tuple[int, ...] = (64, 64)
    last_scale: float = 0.01

    def __post_init__(self):
        _check_layers(self.hidden, self.last_scale)

    def bind(self, observations: gymnasium.Space, actions: gymnasium.Space) -> "CategoricalPolicy":
        """The policy for an environment.

        Raises:
            SpaceError: if the actions are not Discrete, or observations are no Box.
        """
        _discrete(actions, "CategoricalMLP", "GaussianMLP")
        return CategoricalPolicy((_width(observations), *self.hidden, int(actions.n)), int(actions.start), self)


@dataclass(frozen=True)
class TabularSoftmax:
    """One logit for each observation and action, for Discrete observations and actions; all 0 at the start."""

    def bind(self, observations: gymnasium.Space, actions: gymnasium.Space) -> "TabularPolicy":
        """The policy for an environment.

        Raises:
            SpaceError: if observations or actions are not Discrete.
        """
        _discrete(actions, "TabularSoftmax", "GaussianMLP")
        if not isinstance(observations, Discrete):
            raise SpaceError(f"TabularSoftmax needs Discrete observations, the environment has {observations}.")
        return TabularPolicy(int(observations.n), int(actions.n), int(observations.start), int(actions.start))


def _discrete(actions, mine, other):
    if not isinstance(actions, Discrete):
        raise SpaceError(f"{mine} needs Discrete actions, the environment has {actions}; {other} is for Box actions.")


def _draw(logits: np.ndarray, rng: np.random.Generator | None) -> np.ndarray:
    """Index of a draw from the softmax (the largest of Gumbel-perturbed logits), or of the largest logit."""
    return np.asarray(np.argmax(logits if rng is None else logits + rng.gumbel(size=logits.shape)))


def _rows(observations: torch.Tensor, theta: torch.Tensor) -> torch.Tensor:
    """One row for each observation, of the parameters' type: pictures and counts are whole numbers."""
    return observations.to(theta.dtype).reshape(len(observations), -1)


def _chosen(logits: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
    return torch.log_softmax(logits, -1).gather(-1, actions[:, None])[:, 0]


class CategoricalPolicy:
    """`CategoricalMLP` bound to an environment; float32 parameters."""

    dtype = np.float32

    def __init__(self, sizes: tuple[int, ...], start: int, spec: CategoricalMLP):
        self.sizes, self.start, self.spec = sizes, start, spec
        self.size = _size(sizes)

    def initial(self, rng: np.random.Generator) -> Float[np.ndarray, " d"]:
        return _initial(self.sizes, self.spec.last_scale, rng).astype(self.dtype)

    def actor(self, theta: Float[np.ndarray, " d"]) -> Callable[..., np.ndarray]:
        """``act(observation, rng)`` draws the index of an action; without `rng` it is the likeliest."""
        return lambda observation, rng=None: _draw(
            mlp(theta, self.sizes, observation.ravel().astype(theta.dtype), np.tanh), rng
        )

    def log_prob(
        self, theta: Float[torch.Tensor, " d"], observations: Shaped[torch.Tensor, "n ..."], actions: torch.Tensor
    ) -> Float[torch.Tensor, " n"]:
        return _chosen(mlp(theta, self.sizes, _rows(observations, theta), torch.tanh), actions)

    def to_env(self, action: np.ndarray) -> int:
        return int(action) + self.start


class TabularPolicy:
    """`TabularSoftmax` bound to an environment; float64 parameters, row by row of the table."""

    dtype = np.float64

    def __init__(self, states: int, actions: int, first_state: int, start: int):
        self.shape, self.first_state, self.start = (states, actions), first_state, start
        self.size = states * actions

    def initial(self, rng: np.random.Generator) -> Float[np.ndarray, " d"]:
        return np.zeros(self.size, self.dtype)

    def actor(self, theta: Float[np.ndarray, " d"]) -> Callable[..., np.ndarray]:
        """``act(observation, rng)`` draws the index of an action; without `rng` it is the likeliest."""
        table = theta.reshape(self.shape)
        return lambda observation, rng=None: _draw(table[int(observation) - self.first_state], rng)

    def log_prob(
        self, theta: Float[torch.Tensor, " d"], observations: Shaped[torch.Tensor, " n"], actions: torch.Tensor
    ) -> Float[torch.Tensor, " n"]:
        return _chosen(theta.reshape(self.shape)[observations.long() - self.first_state], actions)

    def to_env(self, action: np.ndarray) -> int:
        return int(action) + self.start


def default_policy(
    observations: gymnasium.Space, actions: gymnasium.Space
) -> GaussianMLP | CategoricalMLP | TabularSoftmax:
    """Gaussian for Box actions, categorical for Discrete ones, tabular if the observations are Discrete too.

    Raises:
        SpaceError: for other actions.
    """
    if isinstance(actions, Box):
        return GaussianMLP()
    if isinstance(actions, Discrete):
        return TabularSoftmax() if isinstance(observations, Discrete) else CategoricalMLP()
    raise SpaceError(
        f"Actions must be Box or Discrete, the environment has {actions}: "
        "wrap it in gymnasium.wrappers.TransformAction, or give your own policy."
    )

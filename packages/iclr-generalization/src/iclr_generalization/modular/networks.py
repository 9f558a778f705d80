"""Modular and monolithic networks of equal size, and their training on the task's loss."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen as nn
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from iclr_generalization.ensembles.training import MLP
from iclr_generalization.modular.kernel_rule import generator, orthonormal
from iclr_shared.errors import InputError


class ModularNet(nn.Module):
    """``h(x) = sum_k h_k(U_k x)``: one ReLU network for each module, on a projection that is learned as well.

    Args:
        modules: K.
        b: dimension of each module's input.
        features: widths of a module's hidden layers and, last, the number of outputs.
    """

    modules: int
    b: int
    features: tuple[int, ...]

    @nn.compact
    def __call__(self, x: Float[Array, "n m"]) -> Float[Array, "n c"]:
        return self.parts(x).sum(0)

    @nn.compact
    def parts(self, x: Float[Array, "n m"]) -> Float[Array, "K n c"]:
        """Each module's output."""
        return self.responses(jnp.einsum("kbm,nm->knb", self._projections(x.shape[1]), x))

    @nn.compact
    def responses(self, z: Float[Array, "K n b"]) -> Float[Array, "K n c"]:
        """Outputs of the modules at projected inputs."""
        stack = nn.vmap(MLP, variable_axes={"params": 0}, split_rngs={"params": True}, axis_size=self.modules)
        return stack(self.features, name="h")(z)

    def _projections(self, m: int) -> Float[Array, "K b m"]:
        def draw(key, shape):
            return jax.vmap(orthonormal)(jax.random.normal(key, shape))

        return self.param("U", draw, (self.modules, self.b, m))


class Monolithic(nn.Module):
    """``h(x)``: one ReLU network on the whole input.

    Args:
        features: widths of the hidden layers and, last, the number of outputs.
    """

    features: tuple[int, ...]

    @nn.compact
    def __call__(self, x: Float[Array, "n m"]) -> Float[Array, "n c"]:
        return MLP(self.features, name="h")(x)


def _squared(output: Float[Array, "n c"], y: Float[Array, "n c"]) -> Float[Array, ""]:
    return jnp.square(output - y).mean()


def _cross_entropy(output: Float[Array, "n kc"], y: Array) -> Float[Array, ""]:
    """Mean over positions and samples; y holds one class for each of the k positions."""
    logits = output.reshape(*y.shape, -1)
    return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()


#: Losses by name.
LOSSES: dict[str, Callable[..., Array]] = {"squared": _squared, "cross_entropy": _cross_entropy}


@dataclass(frozen=True)
class Training:
    """How networks are trained (this package's choice; the paper's settings are not known).

    Args:
        steps: of Adam.
        learning_rate: of Adam.
        batch: samples of each step, drawn with replacement.
        projection_rate: factor on the learning rate for the projections, which drift otherwise.
        loss: ``"squared"``, or ``"cross_entropy"`` with one class for each position.
    """

    steps: int = 2000
    learning_rate: float = 1e-3
    batch: int = 128
    projection_rate: float = 0.1
    loss: str = "squared"


def count(params: PyTree) -> int:
    """Number of parameters, projections included."""
    return sum(leaf.size for leaf in jax.tree.leaves(params))


def equal_width(m: int, c: int, parameters: int) -> int:
    """Width H of a network m-H-H-c with as near as can be `parameters` weights and biases.

    Args:
        m: inputs.
        c: outputs.
        parameters: ``H² + (m + c + 2) H + c``.
    """
    linear = m + c + 2
    return max(1, round((-linear + math.sqrt(linear**2 + 4 * max(parameters - c, 0))) / 2))


def initialise(model: nn.Module, m: int, key: PRNGKeyArray) -> PyTree:
    """Random parameters for inputs of dimension m: LeCun's normal weights, no biases, orthonormal projections.

    They are drawn by NumPy from the bits of the key, so that a network of a new shape compiles nothing yet.
    """
    rng = generator(key)

    def draw(path, leaf):
        if path[-1].key == "U":
            values = np.linalg.qr(rng.normal(size=leaf.shape).swapaxes(1, 2))[0].swapaxes(1, 2)
        elif path[-1].key == "bias":
            values = np.zeros(leaf.shape)
        else:
            values = rng.normal(size=leaf.shape) / math.sqrt(leaf.shape[-2])
        return jnp.asarray(values, leaf.dtype)

    return jax.tree_util.tree_map_with_path(draw, jax.eval_shape(model.init, key, jnp.zeros((1, m))))


def with_projections(params: PyTree, U: Any) -> PyTree:
    """Parameters of a `ModularNet` whose first modules get these projections; the others keep theirs.

    Args:
        params: from `initialise`.
        U: projections (F, b, m), F at most the network's number of modules.

    Raises:
        InputError: for projections of other sizes.
    """
    old = params["params"]["U"]
    U = jnp.asarray(U, old.dtype)
    if U.shape[1:] != old.shape[1:] or len(U) > len(old):
        raise InputError(f"Projections of shape {U.shape} do not fit a network with {old.shape}.")
    return {**params, "params": {**params["params"], "U": old.at[: len(U)].set(U)}}


def fit(
    model: nn.Module, params: PyTree, x: Any, y: Any, key: PRNGKeyArray, *, training: Training = Training()
) -> tuple[PyTree, Float[Array, " steps"]]:
    """Train all parameters, projections included, on the task's loss.

    Args:
        model: `ModularNet` or `Monolithic`.
        params: start, from `initialise`.
        x: inputs (n, m).
        y: targets (n, c), or classes (n, k).
        key: of the batches.
        training: see `Training`.

    Returns:
        Parameters, and the loss of each step's batch.

    Raises:
        InputError: for sizes that differ, unknown losses, or a training that diverges.
    """
    if training.loss not in LOSSES:
        raise InputError(f"There is no loss {training.loss!r}; choose one of {', '.join(LOSSES)}.")
    if training.steps < 1 or training.batch < 1 or not 0 < training.learning_rate < np.inf:
        raise InputError("steps, batch and learning_rate must be positive and finite.")
    x, y = jnp.asarray(x), jnp.asarray(y)
    if len(x) != len(y):
        raise InputError(f"There are {len(y)} labels for {len(x)} samples.")
    rate = training.learning_rate
    rates = training.projection_rate * rate, rate
    params, losses = _fit(model, params, x, y, key, rates, training.loss, training.steps, training.batch)
    if not jnp.isfinite(losses[-1]):
        raise InputError("The training diverged. Choose a smaller learning rate, or scale inputs and targets.")
    return params, losses


@partial(jax.jit, static_argnums=(0, 6, 7, 8))
def _fit(model, params, x, y, key, rates, loss_name, steps, batch):
    def kind(path, _):
        return "U" if any(getattr(part, "key", None) == "U" for part in path) else "h"

    optimizer = optax.multi_transform(
        {"U": optax.adam(rates[0]), "h": optax.adam(rates[1])}, jax.tree_util.tree_map_with_path(kind, params)
    )

    def loss(params, rows):
        return LOSSES[loss_name](model.apply(params, x[rows]), y[rows])

    def step(state, number):
        params, moments = state
        rows = jax.random.randint(jax.random.fold_in(key, number), (batch,), 0, len(x))
        value, gradient = jax.value_and_grad(loss)(params, rows)
        updates, moments = optimizer.update(gradient, moments, params)
        return (optax.apply_updates(params, updates), moments), value

    (params, _), losses = jax.lax.scan(step, (params, optimizer.init(params)), jnp.arange(steps))
    return params, losses

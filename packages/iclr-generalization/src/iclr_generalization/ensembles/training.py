"""Train the members of a homogeneous ensemble side by side: one compiled program over a stack of seeds."""

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen as nn
from jaxtyping import Array, Float, Int, PRNGKeyArray, PyTree

from iclr_shared.adapters import pytree_arrays, pytree_restore
from iclr_shared.checkpoints import Checkpoint
from iclr_shared.errors import InputError


class MLP(nn.Module):
    """Fully connected ReLU network with logits as outputs.

    Args:
        features: widths of the hidden layers and, last, the number of outputs.
    """

    features: tuple[int, ...]

    @nn.compact
    def __call__(self, x: Float[Array, "*n D"]) -> Float[Array, "*n C"]:
        for width in self.features[:-1]:
            x = nn.relu(nn.Dense(width)(x))
        return nn.Dense(self.features[-1])(x)


class Split(NamedTuple):
    """Standardised images (n, D) with labels (n,), and fresh ones for testing."""

    x: Float[np.ndarray, "n D"]
    y: Int[np.ndarray, " n"]
    x_test: Float[np.ndarray, "m D"]
    y_test: Int[np.ndarray, " m"]


def digits(rng: np.random.Generator, train: int = 300) -> Split:
    """scikit-learn's 1,797 handwritten digits (8×8), each pixel standardised by (x - mean)/(std + 0.1), randomly split.

    Raises:
        InputError: unless 1 <= train < 1797.
    """
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    if not 1 <= train < len(x):
        raise InputError(f"There are {len(x)} digits; train on 1 to {len(x) - 1} of them, not {train}.")
    x = ((x - x.mean(0)) / (x.std(0) + 0.1)).astype(np.float32)
    order = rng.permutation(len(x))
    return Split(x[order[:train]], y[order[:train]], x[order[train:]], y[order[train:]])


@dataclass(frozen=True)
class Training:
    """How each member is trained (our own choice; the paper's settings are not known).

    Args:
        epochs: passes over the data.
        learning_rate: of Adam.
        batch_size: examples; a last incomplete batch is left out, as each epoch has its own order.
        group: members in one compiled program; also what is lost at most when training is killed.
    """

    epochs: int = 100
    learning_rate: float = 1e-3
    batch_size: int = 64
    group: int = 8


def train_ensemble(
    model: nn.Module,
    x: Float[np.ndarray, "n D"],
    y: Int[np.ndarray, " labels"],
    members: int,
    key: PRNGKeyArray,
    *,
    training: Training = Training(),
    folder: Path | None = None,
    progress: Callable[[Iterable[int]], Iterable[int]] = lambda groups: groups,
) -> PyTree:
    """Members that differ in their seed alone: initial weights and the order of the data.

    Args:
        model: flax module from (n, D) to logits (n, C).
        x: inputs, shape (n, D).
        y: class indices, shape (n,).
        members: K.
        key: member k uses ``fold_in(key, k)``: more members can be added later without changing these.
        training: see `Training`.
        folder: finished groups are kept here; a later call with the same data and settings trains the missing ones.
        progress: wraps the iteration over groups.

    Returns:
        Parameters with a leading axis of K.

    Raises:
        InputError: for sizes that do not fit, or labels that are no class indices.
    """
    if members < 1:
        raise InputError(f"members must be at least 1, got {members}.")
    if len(x) != len(y):
        raise InputError(f"There are {len(y)} labels for {len(x)} points.")
    if not 1 <= training.batch_size <= len(x):
        raise InputError(f"batch_size must lie in 1..{len(x)}, the number of points, got {training.batch_size}.")
    if training.epochs < 1 or not 0 < training.learning_rate < np.inf or training.group < 1:
        raise InputError("epochs, learning_rate and group must be positive and finite.")
    if not np.isfinite(x).all():
        raise InputError("An input is not finite (NaN or infinity).")
    data = jnp.asarray(x), jnp.asarray(y)
    settings = training.batch_size, training.epochs, training.learning_rate
    template = jax.eval_shape(model.init, key, data[0][:1])
    if folder is not None:
        digest = hashlib.sha256(repr((model, settings)).encode())
        for part in (x, y):
            digest.update(np.ascontiguousarray(part).tobytes())
        folder = Path(folder) / digest.hexdigest()[:16]
    parts = []
    for start in progress(range(0, members, training.group)):
        numbers = jnp.arange(start, min(members, start + training.group))
        keys = jax.vmap(lambda k: jax.random.fold_in(key, k))(numbers)
        parts.append(_kept(folder, start, keys, lambda keys: _train_group(model, *data, keys, *settings), template))
    return jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *parts)


def predict(model: nn.Module, params: PyTree, x: Float[np.ndarray, "n D"]) -> Float[np.ndarray, "K n C"]:
    """Each member's probabilities on `x`, float64 and normalised."""
    logits = np.asarray(_logits(model, params, jnp.asarray(x)), dtype=np.float64)
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


@partial(jax.jit, static_argnums=0)
def _logits(model, params, x):
    return jax.vmap(model.apply, in_axes=(0, None))(params, x)


@partial(jax.jit, static_argnums=(0, 4))
def _train_group(
    model: nn.Module, x: Array, y: Array, keys: Array, batch_size: int, epochs: int | Array, rate: float | Array
) -> PyTree:
    optimizer = optax.adam(rate)
    batches = len(x) // batch_size

    def loss(params, rows):
        logits = model.apply(params, x[rows])
        return optax.softmax_cross_entropy_with_integer_labels(logits, y[rows]).mean()

    def member(params, order_key):

        def epoch(number, state):
            order = jax.random.permutation(jax.random.fold_in(order_key, number), len(x))
            rows = order[: batches * batch_size].reshape(batches, -1)

            def step(state, rows):
                params, moments = state
                updates, moments = optimizer.update(jax.grad(loss)(params, rows), moments, params)
                return (optax.apply_updates(params, updates), moments), None

            return jax.lax.scan(step, state, rows)[0]

        # The number of epochs is traced, so that trainings of any length share one program.
        return jax.lax.fori_loop(0, epochs, epoch, (params, optimizer.init(params)))[0]

    init_keys, order_keys = jax.vmap(jax.random.split, out_axes=1)(keys)
    params = jax.lax.map(lambda key: model.init(key, x[:1]), init_keys)  # one by one: compiles faster than side by side
    return jax.vmap(member)(params, order_keys)


def _kept(folder: Path | None, start: int, keys: Array, train: Callable[[Array], PyTree], template: Any) -> PyTree:
    """A group of members: those in its checkpoint that have these keys, and the missing ones, which are trained."""
    if folder is None:
        return train(keys)
    checkpoint = Checkpoint(folder / f"members-{start:05d}", keep=1)
    seeds = np.asarray(jax.random.key_data(keys))
    saved = checkpoint.latest()
    known = saved[1]["seeds"] if saved is not None else seeds[:0]
    have = min(len(known), len(seeds))
    if not have or not np.array_equal(known[:have], seeds[:have]):
        params = train(keys)
    else:
        stacked = jax.tree.map(lambda leaf: np.zeros((have, *leaf.shape), leaf.dtype), template)
        params = pytree_restore(stacked, {name: leaf[:have] for name, leaf in saved[1]["params"].items()})
        if have == len(seeds):
            return params
        params = jax.tree.map(lambda *leaves: jnp.concatenate(leaves), params, train(keys[have:]))
    checkpoint.save(1, {"seeds": seeds, "params": pytree_arrays(params)})
    return params

"""The same mechanisms in deep networks: how consecutive layers align, rescale, and change the tangent kernel."""

import re
from collections.abc import Callable, Mapping
from functools import partial
from itertools import pairwise
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from iclr_dynamics.linear_network.mechanisms import CHANGE, Label, log_ratio
from iclr_shared.errors import InputError

#: Where a weight array has its axes of inputs and outputs: last two (Flax, Keras) or the first two (PyTorch).
Layout = Literal["in-out", "out-in"]


class LayerPair(NamedTuple):
    """Two consecutive layers, ``W1`` into the hidden neurons and ``W2`` out of them.

    Args:
        first, second: names of their weights.
        alignment: ``|<v1(W2), u1(W1)>|``, the cosine between the leading direction that W1 writes into the hidden layer
            and the one that W2 reads from it, in [0, 1]; 0 where a layer is zero.
        neuron_alignment: cosine between the norms of the neurons' incoming and outgoing weights, in [0, 1].
        first_norm, second_norm: Frobenius norms.
    """

    first: str
    second: str
    alignment: float
    neuron_alignment: float
    first_norm: float
    second_norm: float


class LayerChange(NamedTuple):
    """What training did to two consecutive layers.

    Args:
        before, after: the pair at the two moments.
        label: ``alignment`` or ``disalignment`` where `LayerPair.alignment` changed by more than 0.05, else
            ``rescaling`` where the product of the norms changed by more than 5 %, else ``kernel``.
    """

    before: LayerPair
    after: LayerPair
    label: Label

    @property
    def alignment_change(self) -> float:
        return self.after.alignment - self.before.alignment

    @property
    def log_rescaling(self) -> float:
        """``ln`` of the ratio of the products of both norms; infinite for a layer that starts at zero."""
        return log_ratio(*(pair.first_norm * pair.second_norm for pair in (self.after, self.before)))


def layer_alignment(params: PyTree, layout: Layout = "in-out") -> list[LayerPair]:
    """Alignment of all consecutive layers of a network.

    Layers are the arrays with two or more axes, in the natural order of their names (``Dense_2`` before ``Dense_10``);
    two of them are consecutive where the outputs of one are as many as the inputs of the next. Convolutions count each
    channel as a neuron.

    Args:
        params: pytree or mapping of arrays; biases and scalars are passed over.
        layout: position of the axes of inputs and outputs.

    Returns:
        One `LayerPair` for each pair, from the input on.

    Raises:
        InputError: if no two consecutive layers fit, or weights are not finite.
    """
    weights = [(name, _input_output(array, layout)) for name, array in _named_weights(params)]
    pairs = []
    for (first, W1), (second, W2) in pairwise(weights):
        if W1.shape[2] == W2.shape[0]:
            values = _pair(W1.reshape(-1, W1.shape[2]), W2.reshape(W2.shape[0], -1))
            pairs.append(LayerPair(first, second, *(float(value) for value in values)))
    if not pairs:
        shapes = ", ".join(f"{name} {W.shape[0]}→{W.shape[2]}" for name, W in weights) or "none"
        raise InputError(f"No two consecutive layers fit each other (layout {layout!r}). Weights found: {shapes}.")
    return pairs


def layer_changes(before: PyTree, after: PyTree, layout: Layout = "in-out") -> list[LayerChange]:
    """Which mechanism each pair of consecutive layers shows between two moments of training.

    Args:
        before, after: parameters of one network, as for `layer_alignment`.
        layout: position of the axes of inputs and outputs.

    Raises:
        InputError: if the two are not the same network.
    """
    shapes = [{name: array.shape for name, array in _named_weights(params)} for params in (before, after)]
    if shapes[0] != shapes[1]:
        odd = sorted(set(shapes[0].items()) ^ set(shapes[1].items()))
        raise InputError(f"The two networks differ in {odd[0][0]} {odd[0][1]}: give two states of the same one.")
    changes = []
    for old, new in zip(layer_alignment(before, layout), layer_alignment(after, layout), strict=True):
        change = LayerChange(old, new, "kernel")
        label: Label = "kernel"
        if abs(change.alignment_change) > CHANGE:
            label = "alignment" if change.alignment_change > 0 else "disalignment"
        elif abs(change.log_rescaling) > CHANGE:
            label = "rescaling"
        changes.append(change._replace(label=label))
    return changes


def tangent_kernel(apply: Callable[..., Any], params: PyTree, x: Float[Array, "n features"]) -> Float[Array, "n n"]:
    """The empirical tangent kernel, summed over outputs: ``K_ij = sum over o of <df_o(x_i)/dθ, df_o(x_j)/dθ>``.

    Args:
        apply: ``apply(params, x) -> outputs of shape (n, outputs)``. Compiled once for each function, so reuse it.
        params: pytree of arrays.
        x: inputs.
    """
    return _tangent_kernel(apply, params, x)


@jax.jit
def kernel_similarity(K: Float[Array, "n n"], L: Float[Array, "n n"]) -> Float[Array, ""]:
    """Centred kernel alignment (CKA) of two kernels on the same inputs: 1 where they agree up to a factor."""
    K, L = (k - k.mean(0) - k.mean(1)[:, None] + k.mean() for k in (K, L))
    return jnp.sum(K * L) / (jnp.linalg.norm(K) * jnp.linalg.norm(L))


@partial(jax.jit, static_argnums=0)
def _tangent_kernel(apply, params, x):
    outputs = jax.eval_shape(apply, params, x).shape[-1]

    def one(index):
        gradients = jax.vmap(jax.grad(lambda p, row: apply(p, row[None])[0, index]), (None, 0))(params, x)
        return sum(jnp.einsum("i...,j...->ij", g, g) for g in jax.tree.leaves(gradients))

    return jax.lax.map(one, jnp.arange(outputs)).sum(0)


@jax.jit
def _pair(W1, W2):
    written = jnp.linalg.svd(W1.T, full_matrices=False)[0][:, 0]
    read = jnp.linalg.svd(W2, full_matrices=False)[0][:, 0]
    incoming, outgoing = jnp.linalg.norm(W1, axis=0), jnp.linalg.norm(W2, axis=1)
    norms = jnp.linalg.norm(incoming), jnp.linalg.norm(outgoing)
    length = norms[0] * norms[1]
    aligned = jnp.where(length > 0, jnp.abs(written @ read), 0)
    return aligned, incoming @ outgoing / jnp.where(length > 0, length, 1), *norms


def _named_weights(params: PyTree) -> list[tuple[str, np.ndarray]]:
    if isinstance(params, Mapping) and all(hasattr(value, "shape") for value in params.values()):
        leaves = list(params.items())
    else:
        leaves = [
            (jax.tree_util.keystr(p, simple=True, separator="/"), v) for p, v in jax.tree.leaves_with_path(params)
        ]
    weights = [(str(name), np.asarray(value)) for name, value in leaves if np.ndim(value) >= 2]
    for name, array in weights:
        if array.dtype.kind in "OSU":
            raise InputError(f"The weights {name} are no numbers ({array.dtype}).")
        if not np.isfinite(array).all():
            raise InputError(f"The weights {name} are not finite: the run has diverged.")
    return sorted(weights, key=lambda item: [int(s) if s.isdigit() else s for s in re.split(r"(\d+)", item[0])])


def _input_output(array: np.ndarray, layout: Layout) -> np.ndarray:
    """As (inputs, positions, outputs)."""
    array = np.moveaxis(array, -2, 0) if layout == "in-out" else np.moveaxis(array, (1, 0), (0, -1))
    return array.reshape(array.shape[0], -1, array.shape[-1])

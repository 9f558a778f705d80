"""What is minimised: models with what they carry beside weights, and the losses of the paper.

Targets are one-hot rows throughout. Any pytree of weights will do: `flax_model` wraps a Flax module, `function_model` a
plain function (Equinox: partition the module and combine it inside the function).
"""

from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from iclr_dynamics.networks import error_rate, mse_loss
from iclr_shared.errors import InputError


class Model(NamedTuple):
    """A network as two functions.

    Args:
        init: ``init(key, inputs) -> (params, extra)``; `extra` holds running statistics and the like, ``{}`` if none.
        apply: ``apply(params, extra, inputs, train, key) -> (outputs, extra)``. With ``train=True`` batch
            normalisation uses the batch's own statistics and updates the running ones; `key` (or None) is of dropout.
    """

    init: Callable[..., tuple[PyTree, PyTree]]
    apply: Callable[..., tuple[Array, PyTree]]


@cache
def flax_model(module: nn.Module) -> Model:
    """A Flax module as a `Model`; the same object for an equal module, so that nothing compiles twice.

    Args:
        module: called as ``module(inputs)``, or ``module(inputs, train=...)`` if it has batch normalisation or dropout.
    """
    import inspect

    has_train = "train" in inspect.signature(type(module).__call__).parameters

    def options(train):
        return {"train": train} if has_train else {}

    @jax.jit
    def init(key, inputs):
        # Compiled, so that the forward pass, which only gives the shapes, is left out.
        variables = dict(module.init(key, inputs, **options(False)))
        return variables.pop("params"), variables

    def apply(params, extra, inputs, train=False, key=None):
        variables = {"params": params, **extra}
        rngs = {} if key is None else {"dropout": key}
        if train and extra:
            outputs, updated = module.apply(variables, inputs, rngs=rngs, mutable=list(extra), **options(True))
            return outputs, dict(updated)
        return module.apply(variables, inputs, rngs=rngs, **options(train)), extra

    return Model(init, apply)


@cache
def function_model(
    apply: Callable[[PyTree, Array], Array], init: Callable[[PRNGKeyArray], PyTree] | None = None
) -> Model:
    """A plain function ``apply(params, inputs) -> outputs`` of any pytree as a `Model`.

    Args:
        apply: the network.
        init: ``init(key) -> params``; without it, `fit` has to be given weights.
    """

    def start(key, inputs):
        if init is None:
            raise InputError("This model has no init function: pass its weights to fit(init=...).")
        return init(key), {}

    return Model(start, lambda params, extra, inputs, train=False, key=None: (apply(params, inputs), extra))


def one_hot(labels: Any, classes: int, dtype: Any = None) -> Float[Array, "samples classes"]:
    """Integer labels as one-hot rows.

    Raises:
        InputError: naming the first label that is no integer in ``[0, classes)``.
    """
    labels = np.asarray(labels)
    if labels.ndim != 1 or not np.issubdtype(labels.dtype, np.integer):
        raise InputError(f"Labels must be one integer per sample, got {labels.dtype} of shape {labels.shape}.")
    wrong = np.flatnonzero((labels < 0) | (labels >= classes))
    if wrong.size:
        raise InputError(f"Label {labels[wrong[0]]} of sample {wrong[0]} is out of range for {classes} classes.")
    return jax.nn.one_hot(labels, classes, dtype=dtype or jnp.result_type(float))


def smoothed_targets(targets: Float[Array, "*n classes"], smoothing: float) -> Float[Array, "*n classes"]:
    """The official smoothing: the true class gets ``1 - s``, each other class ``s / (C - 1)`` (not ``s / C``).

    Raises:
        InputError: if there is only one class.
    """
    if targets.shape[-1] < 2:
        raise InputError("Cross-entropy needs at least two classes.")
    return targets * (1 - smoothing) + (1 - targets) * (smoothing / (targets.shape[-1] - 1))


def cross_entropy(
    outputs: Float[Array, "samples classes"], targets: Float[Array, "samples classes"], smoothing: float = 0.0
) -> Float[Array, ""]:
    """Cross-entropy with smoothed targets q in the official form ``KL(q | p)``, whose minimum is 0; batch mean."""
    aims = smoothed_targets(targets, smoothing)
    return optax.losses.kl_divergence(jax.nn.log_softmax(outputs), aims).mean()


@cache
def loss_function(name: str, smoothing: float = 0.0) -> Callable[[Array, Array], Array]:
    """``loss(outputs, targets)`` by name: ``"cross-entropy"``, or ``"mse"`` (half the squared distance).

    Raises:
        InputError: for an unknown name or a smoothing outside [0, 1).
    """
    if not 0 <= smoothing < 1:
        raise InputError(f"Label smoothing is {smoothing}; it must be in [0, 1).")
    if name == "mse":
        return mse_loss
    if name == "cross-entropy":
        return partial(cross_entropy, smoothing=smoothing) if smoothing else cross_entropy
    raise InputError(f"The loss {name!r} is unknown; take 'cross-entropy' or 'mse'.")


@cache
def training_loss(
    model: Model, loss: Callable[[Array, Array], Array], batch_size: int | None = None
) -> Callable[..., Array]:
    """The whole training loss as one function of the weights, for Hessians: ``f(params, extra, x, y) -> scalar``.

    The model is in training mode, so batch normalisation uses the statistics of batches of `batch_size` samples taken
    in order (official flatness script: 128, first 5,000 images); a smaller last batch keeps its weight. Memory is that
    of one batch.

    Args:
        model: the network.
        loss: ``loss(outputs, targets)``, a mean over samples.
        batch_size: None takes all samples as one batch.
    """

    def on_batch(params, extra, x, y):
        return loss(model.apply(params, extra, x, True, None)[0], y)

    def function(params, extra, x, y):
        size = min(batch_size or len(x), len(x))
        whole = len(x) // size
        if whole == 1 and len(x) == size:
            return on_batch(params, extra, x, y)
        head = whole * size
        parts = (x[:head].reshape(whole, size, *x.shape[1:]), y[:head].reshape(whole, size, *y.shape[1:]))
        one = jax.checkpoint(lambda part: on_batch(params, extra, *part))
        total = jax.lax.map(one, parts).sum() * size
        if head < len(x):
            total += on_batch(params, extra, x[head:], y[head:]) * (len(x) - head)
        return total / len(x)

    return function


def in_batches(size: int, *arrays: Array) -> Iterator[tuple[Array, ...]]:
    """Consecutive parts of arrays of one length; the last one may be smaller."""
    if len(arrays[0]) <= size:
        yield arrays
    else:
        yield from (tuple(array[i : i + size] for array in arrays) for i in range(0, len(arrays[0]), size))


class Score(NamedTuple):
    """Mean loss, and error in per cent."""

    loss: float
    error: float


def evaluate(
    model: Model,
    params: PyTree,
    extra: PyTree,
    x: Array,
    y: Array,
    loss: Callable = cross_entropy,
    batch_size: int = 1000,
) -> Score:
    """Loss and error of a model in evaluation mode.

    Raises:
        InputError: if there are no samples.
    """
    if not len(x):
        raise InputError("There are no samples to evaluate the model on.")
    parts = [_score(model, loss, params, extra, *batch) for batch in in_batches(batch_size, x, y)]
    total, errors = np.sum([np.asarray(part) for part in parts], axis=0) / len(x)
    return Score(float(total), float(100 * errors))


@partial(jax.jit, static_argnums=(0, 1))
def _score(model, loss, params, extra, x, y):
    outputs, _ = model.apply(params, extra, x, False, None)
    return jnp.stack([loss(outputs, y), error_rate(outputs, y)]) * len(x)

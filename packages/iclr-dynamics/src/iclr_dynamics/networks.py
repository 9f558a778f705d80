"""Small real networks on real images: where the predictions of the solvable models are tested.

Losses carry the factor 1/2 (`mse_loss`), so that gradient descent is stable where sharpness < 2 / learning rate.
"""

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from jax.typing import ArrayLike
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from iclr_shared.errors import InputError

ACTIVATIONS: dict[str, Callable] = {"relu": nn.relu, "tanh": nn.tanh, "gelu": nn.gelu, "linear": lambda x: x}


class Split(NamedTuple):
    """Training and test examples with one-hot targets.

    Args:
        x: training inputs, `y`: their one-hot labels (after corruption), `x_test`, `y_test`: the rest, uncorrupted.
    """

    x: Float[Array, "train features"]
    y: Float[Array, "train classes"]
    x_test: Float[Array, "test features"]
    y_test: Float[Array, "test classes"]


def digits(
    key: PRNGKeyArray, *, train: int = 500, scale: str = "standard", random_labels: float = 0.0, dtype: Any = None
) -> Split:
    """The 1,797 8x8 handwritten digits that ship with scikit-learn, split at random.

    Args:
        key: of the split and of the random labels.
        train: number of training images, 1 to 1796; the others are the test set.
        scale: ``"standard"``: ``(x - mean) / (std + 0.1)`` for each pixel (grey levels 0 to 16; statistics of all
            images, no labels); ``"unit"``: grey levels divided by 16, in [0, 1].
        random_labels: fraction of the training labels replaced by uniformly random ones, in [0, 1].
        dtype: of the arrays; None takes jax's default float type.

    Returns:
        A `Split` with 64 features and 10 classes.

    Raises:
        InputError: if `train` or `random_labels` is out of range.
    """
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    if not 1 <= train < len(images):
        raise InputError(f"train={train}: the digits have {len(images)} images, take 1 to {len(images) - 1}.")
    if not 0 <= random_labels <= 1:
        raise InputError(f"random_labels={random_labels} is a fraction of the training labels: 0 to 1.")
    if scale == "standard":
        images = (images - images.mean(0)) / (images.std(0) + 0.1)
    elif scale == "unit":
        images = images / 16
    else:
        raise InputError(f"scale={scale!r} is unknown; take 'standard' or 'unit'.")
    images = jnp.asarray(images, dtype or jnp.result_type(float))
    return _split(images, jnp.asarray(labels), key, train, round(random_labels * train))


@partial(jax.jit, static_argnames=("train", "replace"))
def _split(images, labels, key, train: int, replace: int) -> Split:
    """The first `train` of the images in random order, with `replace` random labels, and the rest."""
    order_key, which_key, label_key = jax.random.split(key, 3)
    order = jax.random.permutation(order_key, len(images))
    x, labels = images[order], labels[order]
    y = jax.nn.one_hot(labels, 10, dtype=x.dtype)
    replaced = jax.random.permutation(which_key, train)[:replace]
    drawn = jax.random.randint(label_key, replaced.shape, 0, 10)
    y = y.at[replaced].set(jax.nn.one_hot(drawn, 10, dtype=x.dtype))
    return Split(x[:train], y[:train], x[train:], y[train:])


class MLP(nn.Module):
    """Fully connected network with a choice of parameterisation.

    Args:
        features: output width of each layer, such as ``(64, 64, 10)``; the last one is linear.
        activation: a name in `ACTIVATIONS`, or a function.
        sigma_w: scale of the initial weights.
        p: parameterisation. None (standard): weights N(0, sigma_w^2 / fan_in), no factors. A number in [0, 1]: weights
            N(0, sigma_w^2), each layer times 1/sqrt(fan_in), and the output times width^(-p/2) with the width of the
            last hidden layer: p = 0 is the NTK parameterisation, p = 1 the maximal-update one. There the learning rate
            has to be multiplied by `learning_rate_factor` = width^p, as in the UV model.
        bias: whether layers have biases, starting at zero.
    """

    features: Sequence[int]
    activation: str | Callable = "relu"
    sigma_w: float = 1.0
    p: float | None = None
    bias: bool = True

    def __post_init__(self):
        if isinstance(self.activation, str) and self.activation not in ACTIVATIONS:
            raise InputError(f"activation={self.activation!r} is unknown; take one of {', '.join(ACTIVATIONS)}.")
        if self.p is not None and not 0 <= self.p <= 1:
            raise InputError(f"p={self.p}: the parameterisation must lie in [0, 1].")
        if not 0 <= self.sigma_w < float("inf"):
            raise InputError(f"sigma_w={self.sigma_w} must be finite and not negative.")
        if min(self.features, default=0) < 1:
            raise InputError(f"features={tuple(self.features)}: every layer must be at least 1 wide.")
        super().__post_init__()

    @nn.compact
    def __call__(self, x: Float[ArrayLike, "*batch inputs"]) -> Float[Array, "*batch outputs"]:
        act = ACTIVATIONS[self.activation] if isinstance(self.activation, str) else self.activation
        for index, width in enumerate(self.features):
            fan_in = jnp.shape(x)[-1]
            std = self.sigma_w / fan_in**0.5 if self.p is None else self.sigma_w
            weights = self.param(f"w{index}", nn.initializers.normal(std), (fan_in, width), x.dtype)
            last = index == len(self.features) - 1
            factor = 1.0 if self.p is None else fan_in**-0.5 * (fan_in ** (-self.p / 2) if last else 1.0)
            x = (x @ weights) * factor
            if self.bias:
                x = x + self.param(f"b{index}", nn.initializers.zeros, (width,), x.dtype)
            x = x if last else act(x)
        return x

    @property
    def learning_rate_factor(self) -> float:
        """What the learning rate is multiplied by in this parameterisation: width^p, 1 for the standard one."""
        return float(self.features[-2] ** self.p) if self.p and len(self.features) > 1 else 1.0


def mse_loss(outputs: Float[Array, "samples classes"], targets: Float[Array, "samples classes"]) -> Float[Array, ""]:
    """``1/(2 N) sum over samples and outputs of (f - y)^2``: half the squared distance, averaged over samples."""
    return jnp.mean(jnp.sum((outputs - targets) ** 2, axis=-1)) / 2


@cache
def network_loss(model: nn.Module, loss: Callable = mse_loss) -> Callable:
    """``loss(params, x, y)`` of a Flax model; the same function for the same model, so that nothing compiles twice.

    Args:
        model: a Flax module called as ``model.apply(params, x)``.
        loss: ``loss(outputs, targets) -> scalar``.
    """

    def function(params, x, y):
        return loss(model.apply(params, x), y)

    return function


def error_rate(outputs: Float[Array, "samples classes"], targets: Float[Array, "samples classes"]) -> Float[Array, ""]:
    """Fraction of samples whose largest output is not the target class."""
    return jnp.mean(outputs.argmax(-1) != targets.argmax(-1), dtype=outputs.dtype)


class Descent(NamedTuple):
    """Where a stretch of training ended: `params`, optimiser `state`, and the loss before each of its steps."""

    params: PyTree
    state: PyTree
    losses: Float[Array, " steps"]


def gradient_descent(
    loss: Callable,
    params: PyTree,
    *batch: Any,
    learning_rate: float | Float[Array, ""],
    steps: int,
    optimizer: Callable[..., optax.GradientTransformation] = optax.sgd,
    state: PyTree | None = None,
    batch_size: int | None = None,
    key: PRNGKeyArray | None = None,
) -> Descent:
    """Full-batch (or minibatch) training in one compiled loop.

    Args:
        loss: ``loss(params, *batch) -> scalar``. Compiled once for each function, so reuse it.
        params: pytree of arrays.
        batch: the data; samples on the first axis of each array.
        learning_rate: may be traced: other rates do not compile anew, and `jax.vmap` over it trains many at once.
        steps: how many.
        optimizer: ``optimizer(learning_rate) -> optax transformation``; plain gradient descent by default. For
            momentum keep one ``functools.partial(optax.sgd, momentum=0.9)`` and reuse it.
        state: optimiser state of an earlier stretch; None starts afresh.
        batch_size: samples of each step, drawn anew without replacement; None takes all of them, every time.
        key: of the draws; needed with `batch_size`.

    Returns:
        A `Descent`. Divergence shows as non-finite losses; nothing is raised.

    Raises:
        InputError: if `steps` or `batch_size` does not fit.
    """
    if steps < 1:
        raise InputError(f"steps={steps}: train for at least one step.")
    if batch_size is not None:
        if key is None:
            raise InputError("batch_size needs a key to draw the batches with.")
        if not 1 <= batch_size <= len(batch[0]):
            raise InputError(f"batch_size={batch_size}: there are {len(batch[0])} samples.")
    keys = None if batch_size is None else jax.random.split(key, steps)
    return _descend(loss, optimizer, steps, batch_size, params, state, learning_rate, keys, *batch)


@partial(jax.jit, static_argnums=(0, 1, 2, 3))
def _descend(loss, optimizer, steps, batch_size, params, state, learning_rate, keys, *batch):
    transformation = optimizer(learning_rate)
    state = transformation.init(params) if state is None else state

    def step(carry, key):
        params, state = carry
        rows = batch
        if key is not None:
            chosen = jax.random.choice(key, len(batch[0]), (batch_size,), replace=False)
            rows = [array[chosen] for array in batch]
        value, gradient = jax.value_and_grad(loss)(params, *rows)
        updates, state = transformation.update(gradient, state, params)
        return (optax.apply_updates(params, updates), state), value

    (params, state), losses = jax.lax.scan(step, (params, state), keys, length=steps)
    return Descent(params, state, losses)

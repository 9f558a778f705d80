"""Deep nonlinear networks trained from different scales of initialisation: do they learn by the same mechanisms?"""

import math
from dataclasses import dataclass
from functools import cache, partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from iclr_dynamics.linear_network.layers import LayerChange, kernel_similarity, layer_changes, tangent_kernel
from iclr_dynamics.networks import MLP, Split, error_rate, gradient_descent, mse_loss
from iclr_dynamics.sharpness import top_eigenvalues
from iclr_shared.errors import InputError


@dataclass(frozen=True)
class DeepRun:
    """A multi-layer perceptron without biases and its full-batch training.

    The network's output is ``output_scale (f(x; θ) - f(x; θ0))``: it starts at exactly zero, as the antisymmetric start
    of the linear network does, so that the scale of the weights alone decides between the kernel regime and the others.

    Args:
        init_scale: standard deviation of the initial weights, times 1/sqrt(fan_in).
        output_scale: factor on the output, the gamma of the linear network.
        rate_ratio: rate of the last layer over that of the others, at a constant product of the two.
        hidden: widths of the hidden layers.
        activation: a name in `iclr_dynamics.networks.ACTIVATIONS`.
        epochs: steps of full-batch gradient descent.
        step: learning rate, in units of 1 / sharpness at the start of this network or of the one with init_scale 1,
            whichever is sharper; descent is stable below 2 as long as the sharpness stays.
        kernel_samples: training images on which the change of the tangent kernel is measured.
    """

    init_scale: float = 1.0
    output_scale: float = 1.0
    rate_ratio: float = 1.0
    hidden: tuple[int, ...] = (128, 128)
    activation: str = "relu"
    epochs: int = 400
    step: float = 1.0
    kernel_samples: int = 128

    def __post_init__(self):
        for name in ("init_scale", "output_scale", "rate_ratio", "step"):
            if not 0 < getattr(self, name) < math.inf:
                raise InputError(f"{name} must be positive and finite, got {getattr(self, name)}.")
        if self.epochs < 1 or min(self.hidden, default=0) < 1:
            raise InputError("A run needs at least one epoch and one hidden layer, each with at least one neuron.")
        if self.kernel_samples < 2:
            raise InputError(f"kernel_samples must be at least 2, got {self.kernel_samples}.")


class DeepResult(NamedTuple):
    """What a run did.

    Args:
        changes: of each pair of consecutive layers.
        alignment0, alignment: mean of `LayerPair.alignment` over the pairs, before and after training.
        neuron_alignment0, neuron_alignment: the same of `LayerPair.neuron_alignment`.
        log_rescaling: mean of `LayerChange.log_rescaling` over the pairs.
        kernel_change: ``1 - CKA`` of the tangent kernels before and after.
        train_loss: at the end.
        train_accuracy, test_accuracy: fractions.
        learning_rate: that was used.
        losses: before each step.
    """

    changes: list[LayerChange]
    alignment0: float
    alignment: float
    neuron_alignment0: float
    neuron_alignment: float
    log_rescaling: float
    kernel_change: float
    train_loss: float
    train_accuracy: float
    test_accuracy: float
    learning_rate: float
    losses: Float[np.ndarray, " epochs"]


def train(run: DeepRun, data: Split, key: PRNGKeyArray) -> DeepResult:
    """Train one network on half the mean squared distance to one-hot labels, and measure its mechanisms.

    Args:
        run: the network and its training.
        data: training and test examples, such as `iclr_dynamics.networks.digits` gives.
        key: of the initial weights; the same key gives the same directions at every init_scale.

    Raises:
        InputError: if the run diverges.
    """
    features = (*run.hidden, data.y.shape[1])
    init, apply, loss, accuracy = _functions(features, run.activation)
    unit = init(key, data.x[:1])
    start = jax.tree.map(lambda w: run.init_scale * w, unit)
    gamma = jnp.asarray(run.output_scale, data.x.dtype)
    sharpest = max(float(top_eigenvalues(loss, w, w, gamma, data.x, data.y).values[0]) for w in (unit, start))
    rate = run.step / sharpest
    optimizer = _layer_rates(run.rate_ratio, f"w{len(run.hidden)}")
    batch = start, gamma, data.x, data.y
    end, _, losses = gradient_descent(loss, start, *batch, learning_rate=rate, steps=run.epochs, optimizer=optimizer)
    if not bool(jnp.isfinite(losses[-1])):
        raise InputError(f"Training diverged at init_scale={run.init_scale}: take a smaller step than {run.step}.")
    changes = layer_changes(start, end)
    some = data.x[: run.kernel_samples]
    similarity = kernel_similarity(tangent_kernel(apply, start, some), tangent_kernel(apply, end, some))

    def mean(values):
        return float(np.mean(list(values)))

    return DeepResult(
        changes=changes,
        alignment0=mean(c.before.alignment for c in changes),
        alignment=mean(c.after.alignment for c in changes),
        neuron_alignment0=mean(c.before.neuron_alignment for c in changes),
        neuron_alignment=mean(c.after.neuron_alignment for c in changes),
        log_rescaling=mean(c.log_rescaling for c in changes),
        kernel_change=1 - float(similarity),
        train_loss=float(losses[-1]),
        train_accuracy=float(accuracy(end, start, data.x, data.y)),
        test_accuracy=float(accuracy(end, start, data.x_test, data.y_test)),
        learning_rate=rate,
        losses=np.asarray(losses),
    )


def ridge_accuracy(data: Split, penalty: float = 1e-3) -> float:
    """Test accuracy of linear ridge regression on the one-hot labels: the linear kernel, which learns no features.

    Args:
        data: training and test examples.
        penalty: relative to the mean squared norm of the inputs.
    """
    from sklearn.linear_model import Ridge

    x, y = np.asarray(data.x), np.asarray(data.y)
    fitted = Ridge(alpha=penalty * float((x**2).sum(1).mean()) * len(x)).fit(x, y)
    return 1 - float(error_rate(jnp.asarray(fitted.predict(np.asarray(data.x_test))), data.y_test))


@cache
def _functions(features: tuple[int, ...], activation: str):
    """Start, network, loss and accuracy; the same functions for the same network, so that nothing compiles twice."""
    model = MLP(features, activation, bias=False)
    apply = model.apply

    def loss(params: PyTree, start: PyTree, gamma: Float[Array, ""], x, y) -> Float[Array, ""]:
        return mse_loss(gamma * (apply(params, x) - apply(start, x)), y)

    @jax.jit
    def accuracy(params: PyTree, start: PyTree, x, y) -> Float[Array, ""]:
        return 1 - error_rate(apply(params, x) - apply(start, x), y)

    return jax.jit(model.init), apply, loss, accuracy


@cache
def _layer_rates(ratio: float, last: str):
    """Gradient descent whose rates are ``sqrt(ratio)`` for the last layer and ``1 / sqrt(ratio)`` for the others."""
    if ratio == 1:
        return optax.sgd

    def optimizer(learning_rate):
        rates = {True: ratio**0.5, False: ratio**-0.5}
        labels = partial(jax.tree_util.tree_map_with_path, lambda path, _: path[-1].key == last)
        return optax.multi_transform({k: optax.sgd(learning_rate * r) for k, r in rates.items()}, labels)

    return optimizer

"""Sharpness-aware minimisation: the perturbation e and the optimiser around it (Zhou et al., section 2; Foret et al.).

A step takes the gradient g at the weights w, climbs to ``w + e``, takes the gradient there on the *same* minibatch, and
lets the base optimiser step from w with it. Momentum and weight decay belong to the base optimiser: decay acts at w and
is no part of e. The outer loop is `optax.contrib.sam`; what this module adds are the perturbations.
"""

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
import optax.contrib
from jaxtyping import Array, Float, PyTree

from iclr_shared.errors import InputError

#: Radius of the perturbation: a number, or a traced one.
Radius = float | Float[Array, ""]

# Guards the division where the gradient vanishes: then e = 0.
_TINY = 1e-12


def sam_perturbation(grads: PyTree, params: PyTree, rho: Radius) -> PyTree:
    """SAM: ``e = rho g / |g|_2``, one norm over all parameters."""
    return optax.tree.scale(rho / (optax.tree.norm(grads) + _TINY), grads)


def asam_perturbation(grads: PyTree, params: PyTree, rho: Radius) -> PyTree:
    """Adaptive SAM: ``e = rho w^2 g / | |w| g |_2``, invariant when a layer and its successor are rescaled."""
    norm = optax.tree.norm(optax.tree.mul(params, grads))
    scale = rho / (norm + _TINY)
    return jax.tree.map(lambda w, g: scale * w * w * g, params, grads)


def usam_perturbation(grads: PyTree, params: PyTree, rho: Radius) -> PyTree:
    """Unnormalised SAM of the theory: ``e = rho g``."""
    return optax.tree.scale(rho, grads)


PERTURBATIONS: dict[str, Callable[[PyTree, PyTree, Radius], PyTree]] = {
    "sam": sam_perturbation,
    "asam": asam_perturbation,
    "usam": usam_perturbation,
}


def ascent(kind: str, rho: float) -> optax.GradientTransformation:
    """A perturbation as the adversarial optimiser that `optax.contrib.sam` asks for (it negates updates, so: ``-e``).

    Args:
        kind: ``"sam"``, ``"asam"`` or ``"usam"``.
        rho: radius.
    """
    perturbation = PERTURBATIONS[kind]

    def update(grads, state, params=None):
        return optax.tree.scale(-1.0, perturbation(grads, params, rho)), state

    return optax.GradientTransformation(lambda params: optax.EmptyState(), update)


def sam(
    base: optax.GradientTransformation,
    rho: float,
    adaptive: bool = False,
    normalize: bool = True,
    axis_name: str | None = None,
) -> optax.GradientTransformationExtraArgs:
    """The SAM family as an optax optimiser: ``update(grads, state, params, grad_fn=...)``.

    Args:
        base: optimiser that takes the step, such as ``optax.sgd(0.1, momentum=0.9)``; any optax chain.
        rho: radius of the perturbation, at least 0; common values are 0.05 to 0.2, for the adaptive form 0.5 to 2.
        adaptive: ASAM.
        normalize: False gives USAM.
        axis_name: mapped axis over which the second gradient is averaged, in data-parallel steps.

    Returns:
        An optimiser whose `update` needs ``grad_fn(params, i) -> grads``, the gradient of the same minibatch (i is 0).
        With ``rho=0`` (and no `axis_name`) it does without the second gradient and is the base optimiser, bit for bit.

    Raises:
        InputError: if rho is negative, or adaptive without normalisation is asked for.
    """
    if adaptive and not normalize:
        raise InputError("Adaptive SAM is normalised; take adaptive=False for USAM.")
    _check_rho(rho, adaptive)
    kind = "asam" if adaptive else "sam" if normalize else "usam"
    # sync_period counts the gradients of one step; with one the base optimiser is all that is left.
    gradients = 2 if rho or axis_name else 1
    return optax.contrib.sam(
        base, ascent(kind, rho), sync_period=gradients, opaque_mode=True, batch_axis_name=axis_name
    )


class TrainState(NamedTuple):
    """What a step changes.

    Args:
        params: pytree of weights.
        extra: pytree of what the model carries beside weights, such as running statistics of batch normalisation.
        optimizer: state of the optimiser in use.
    """

    params: PyTree
    extra: PyTree
    optimizer: PyTree


def make_step(
    loss: Callable[..., tuple[Any, tuple[PyTree, Any]]],
    optimizer: optax.GradientTransformation,
    *,
    axis_name: str | None = None,
    sync_perturbation: bool = True,
) -> Callable[..., tuple[TrainState, tuple[Any, Any]]]:
    """One training step of any optimiser, SAM or not; compile it with `jax.jit`.

    Both gradients of SAM see the same minibatch and the same dropout key. What the model carries beside weights
    (running statistics) is taken from the first forward pass only, and the second one still uses batch statistics.

    Args:
        loss: ``loss(params, extra, batch, key) -> (scalar, (new extra, anything))``.
        optimizer: from `sam`, or any optax optimiser.
        axis_name: mapped axis (`jax.vmap`, `jax.shard_map`) over which the batch is split.
        sync_perturbation: whether all devices share the perturbation of the whole batch. False is m-sharpness: each
            device climbs by the gradient of its own part, which is another method.

    Returns:
        ``step(state, batch, key) -> (state, (loss, anything))``.
    """
    optimizer = optax.with_extra_args_support(optimizer)

    def mean(tree):
        return tree if axis_name is None else jax.lax.pmean(tree, axis_name)

    def step(state: TrainState, batch: Any, key: Any) -> tuple[TrainState, tuple[Any, Any]]:
        def value(params):
            return loss(params, state.extra, batch, key)

        def grad_fn(params, _):
            return jax.grad(value, has_aux=True)(params)[0]

        (loss_value, (extra, more)), grads = jax.value_and_grad(value, has_aux=True)(state.params)
        grads = mean(grads) if sync_perturbation else grads
        updates, optimizer_state = optimizer.update(grads, state.optimizer, state.params, grad_fn=grad_fn)
        params = optax.apply_updates(state.params, updates)
        return TrainState(params, mean(extra), optimizer_state), (mean(loss_value), mean(more))

    return step


def _check_rho(rho: float, adaptive: bool) -> None:
    if not rho >= 0:
        raise InputError(f"rho is {rho}; the radius of SAM must be at least 0.")
    if rho > 0.5 and not adaptive:
        warnings.warn(
            f"rho={rho} is large for SAM that is not adaptive (0.05 to 0.2 is usual); values near 2 are for ASAM.",
            stacklevel=3,
        )


def base_optimizer(
    learning_rate: float, momentum: float = 0.0, weight_decay: float = 0.0
) -> optax.GradientTransformation:
    """SGD with coupled decay, ``v = momentum v + (g + weight_decay w); w -= learning_rate v``, as in the official code.

    The rate is a hyperparameter in the state, so that it can change between epochs: see `with_learning_rate`.
    """

    def build(learning_rate):
        return optax.chain(
            optax.add_decayed_weights(weight_decay) if weight_decay else optax.identity(),
            optax.sgd(learning_rate, momentum=momentum or None),
        )

    return optax.inject_hyperparams(build)(learning_rate=learning_rate)


def with_learning_rate(state: PyTree, learning_rate: float) -> PyTree:
    """`state` with another learning rate in it; unchanged if the optimiser does not keep one there."""
    current = optax.tree.get(state, "learning_rate", None)
    return state if current is None else optax.tree.set(state, learning_rate=jnp.asarray(learning_rate, current.dtype))

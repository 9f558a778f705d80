"""Projected gradient descent, the attack of adversarial training (Madry et al.; Zhou et al., section 5)."""

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray, PyTree, Shaped

from iclr_dynamics.late_sam.objective import Model, cross_entropy, evaluate, in_batches
from iclr_shared.errors import InputError


class Attack(NamedTuple):
    """A PGD attack on inputs in [0, 1].

    Args:
        eps: radius of the ball around each input (official: 4/255).
        alpha: step size (official: 2/255).
        steps: gradients (official: 10).
        norm: of the ball, ``"linf"`` or ``"l2"`` over all of one input's entries.
    """

    eps: float = 4 / 255
    alpha: float = 2 / 255
    steps: int = 10
    norm: str = "linf"

    def check(self) -> None:
        """Raise `InputError` if a number is out of range; warn if `eps` looks like a grey level of 0 to 255."""
        if not (self.eps >= 0 and self.alpha >= 0 and self.steps >= 0):
            raise InputError(
                f"PGD needs eps, alpha and steps of at least 0, got {self.eps}, {self.alpha}, {self.steps}."
            )
        if self.norm not in _PROJECTIONS:
            raise InputError(f"The norm {self.norm!r} is unknown; take 'linf' or 'l2'.")
        if self.norm == "linf" and self.eps >= 1:
            warnings.warn(
                f"eps={self.eps} covers all of [0, 1]; if it is a grey level of 0 to 255, divide it by 255.",
                stacklevel=3,
            )


#: The numbers of the official code, for CIFAR.
OFFICIAL = Attack()


def _project_linf(delta: Array, eps: float) -> Array:
    return jnp.clip(delta, -eps, eps)


def _project_l2(delta: Array, eps: float) -> Array:
    norm = jnp.sqrt(jnp.sum(delta**2, axis=tuple(range(1, delta.ndim)), keepdims=True))
    return delta * jnp.minimum(1.0, eps / jnp.maximum(norm, jnp.finfo(delta.dtype).tiny))


_PROJECTIONS: dict[str, Callable[[Array, float], Array]] = {"linf": _project_linf, "l2": _project_l2}


def perturb(gradient: Callable[[Array], Array], x: Array, attack: Attack, key: PRNGKeyArray | None = None) -> Array:
    """The attack inside a compiled program: no checks.

    ``x_0 = clip(x + U(-eps, eps))``, then `steps` times ``x += alpha sign(gradient(x))``, projection onto the ball
    around x, clip to [0, 1].

    Args:
        gradient: of the loss that is driven up, with respect to the inputs.
        x: (samples, ...) in [0, 1].
        attack: its numbers.
        key: of the random start; None starts at x.
    """
    project = _PROJECTIONS[attack.norm]

    def inside(moved):
        return jnp.clip(x + project(moved - x, attack.eps), 0, 1)

    start = x if key is None else inside(x + jax.random.uniform(key, x.shape, x.dtype, -attack.eps, attack.eps))
    climb = lambda _, at: inside(at + attack.alpha * jnp.sign(gradient(at)))  # noqa: E731
    return jax.lax.fori_loop(0, attack.steps, climb, start)


def pgd(
    loss: Callable[..., Any],
    params: PyTree,
    x: Shaped[Array, "samples ..."],
    y: Any,
    *,
    eps: float = 4 / 255,
    alpha: float = 2 / 255,
    steps: int = 10,
    norm: str = "linf",
    key: PRNGKeyArray | None = None,
) -> Float[Array, "samples ..."]:
    """Untargeted PGD on any loss: inputs within `eps` of `x`, in [0, 1], that raise ``loss(params, x, y)``.

    Args:
        loss: ``loss(params, x, y) -> scalar``, of a model in evaluation mode.
        params: pytree of weights.
        x: inputs in [0, 1], not normalised (normalise inside the model).
        y: what the loss takes as targets.
        eps, alpha, steps, norm: see `Attack`.
        key: of a random start (for training); None starts at x (for evaluation).

    Raises:
        InputError: if the inputs are integers or outside [0, 1], or a number is out of range.
    """
    attack = Attack(eps, alpha, steps, norm)
    attack.check()
    check_inputs(x)
    return _pgd(loss, attack, params, x, y, key)


@partial(jax.jit, static_argnums=(0, 1))
def _pgd(loss, attack, params, x, y, key):
    return perturb(lambda at: jax.grad(loss, argnums=1)(params, at, y), x, attack, key)


def check_inputs(x: Any) -> None:
    """Raise `InputError` unless `x` holds floating-point numbers in [0, 1]."""
    if not x.size:
        raise InputError(f"There are no inputs to attack: their shape is {x.shape}.")
    if not jnp.issubdtype(x.dtype, jnp.floating):
        raise InputError(f"PGD works on floating-point inputs in [0, 1], got {x.dtype}; divide images by 255 first.")
    low, high = float(x.min()), float(x.max())
    if not (low >= 0 and high <= 1):
        raise InputError(
            f"PGD works on inputs in [0, 1], got {low:.3g} to {high:.3g}; divide by 255 and normalise inside the model."
        )


def adversarial(
    model: Model, params: PyTree, extra: PyTree, x: Array, y: Array, attack: Attack, key: PRNGKeyArray | None = None
) -> Array:
    """Adversarial inputs for a model, which is in evaluation mode while it is attacked; plain cross-entropy."""

    def gradient(at):
        return jax.grad(lambda inputs: cross_entropy(model.apply(params, extra, inputs, False, None)[0], y))(at)

    return perturb(gradient, x, attack, key)


def robust_error(
    model: Model, params: PyTree, extra: PyTree, x: Array, y: Array, attack: Attack = OFFICIAL, batch_size: int = 1000
) -> float:
    """Error in per cent on inputs attacked from their own position (no random start)."""
    attack.check()
    check_inputs(x)
    moved = [_adversarial(model, params, extra, *batch, attack) for batch in in_batches(batch_size, x, y)]
    return evaluate(model, params, extra, jnp.concatenate(moved), y, batch_size=batch_size).error


_adversarial = jax.jit(adversarial, static_argnums=(0, 5))

"""Which layers of a pre-trained network to fine-tune: the paper's experiment, for any equinox model.

Each inner run starts from the same pre-trained weights, trains the chosen blocks and what always trains (the head), and
is judged by its validation error. Frozen parameters take no part: optax sets their updates to zero.
"""

from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import numpy as np
import optax
from jaxtyping import Array, Float, Int, PyTree

from iclr_shared.errors import InputError
from iclr_subset.baselines import Found, search
from iclr_subset.minimize import Result, minimize

type Where = Callable[[Any], Any]


def default_blocks(model: Any) -> Sequence[Any]:
    """``model.blocks``."""
    return model.blocks


def default_head(model: Any) -> Any:
    """``model.head``."""
    return model.head


def layer_mask(
    model: PyTree, chosen: Sequence[int], blocks: Where = default_blocks, always: Where | None = default_head
) -> PyTree:
    """A tree of booleans like `model`: True at the float arrays of the chosen blocks and of what always trains.

    For `eqx.partition`, `optax.masked` and `optax.multi_transform`.

    Args:
        model: an equinox module, or any tree.
        chosen: indices of blocks.
        blocks: picks the sequence of blocks out of the model.
        always: picks what trains in any case; None is nothing.

    Raises:
        InputError: if a block does not exist.
    """
    count = len(blocks(model))
    if not all(0 <= i < count for i in chosen):
        raise InputError(f"Blocks go from 0 to {count - 1}, got {list(chosen)}.")
    mask = jax.tree.map(lambda _: False, model)

    def parts(tree):
        found = [blocks(tree)[i] for i in chosen]
        return found if always is None else [*found, always(tree)]

    if not parts(model):
        return mask
    return eqx.tree_at(parts, mask, [jax.tree.map(eqx.is_inexact_array, part) for part in parts(model)])


def frozen_optimizer(optimizer: optax.GradientTransformation, mask: PyTree) -> optax.GradientTransformation:
    """`optimizer` on what `mask` marks, nothing elsewhere; frozen parameters have no optimizer state."""
    labels = jax.tree.map(lambda trained: "trained" if trained else "frozen", mask)
    # labels of a callable model are callable themselves, and optax would call them
    return optax.multi_transform({"trained": optimizer, "frozen": optax.set_to_zero()}, lambda _: labels)


def freeze_statistics(model: PyTree, chosen: Sequence[int], blocks: Where = default_blocks) -> PyTree:
    """The model with batch normalisation of the blocks that are not chosen in inference mode, so that their running
    statistics stay those of pre-training."""

    def norms(tree):
        frozen = [block for i, block in enumerate(blocks(tree)) if i not in chosen]
        leaves = jax.tree.leaves(frozen, is_leaf=lambda x: isinstance(x, eqx.nn.BatchNorm))
        return [leaf.inference for leaf in leaves if isinstance(leaf, eqx.nn.BatchNorm)]

    flags = norms(model)
    return eqx.tree_at(norms, model, [True] * len(flags)) if flags else model


def finetune(
    model: PyTree,
    mask: PyTree,
    X: Float[Array | np.ndarray, "samples *features"],
    y: Int[Array | np.ndarray, " samples"],
    steps: int = 60,
    lr: float = 2e-3,
) -> PyTree:
    """A stock inner run: full-batch Adam on the cross-entropy of ``jax.vmap(model)(X)``; only `mask` moves.

    Args:
        model: gives logits for one sample.
        mask: of `layer_mask`.
        X, y: samples and their classes.
        steps: of Adam.
        lr: step length.

    Raises:
        InputError: if steps or lr cannot be used.
    """
    check_inner_run(steps, lr)
    trained, fixed = eqx.partition(model, mask)
    return eqx.combine(_descend(trained, fixed, X, y, steps, lr), fixed)


def check_inner_run(steps: int, lr: float) -> None:
    """Raise InputError unless there are no fewer than 0 steps, of a positive length."""
    if steps < 0 or not 0 < lr < float("inf"):
        raise InputError(f"An inner run takes 0 steps or more of a positive length, got {steps} of length {lr}.")


@eqx.filter_jit
def _descend(trained, fixed, X, y, steps, lr):
    """Compiled once for each mask and length."""
    optimizer = optax.adam(lr)

    def loss(trained):
        logits = jax.vmap(eqx.combine(trained, fixed))(X)
        return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()

    def step(carry, _):
        trained, state = carry
        updates, state = optimizer.update(eqx.filter_grad(loss)(trained), state)
        return (eqx.apply_updates(trained, updates), state), None

    return jax.lax.scan(step, (trained, optimizer.init(trained)), None, length=steps)[0][0]


def select(
    model: PyTree,
    k: int,
    fit_fn: Callable[..., PyTree],
    val_fn: Callable[[PyTree], Any],
    *,
    blocks: Where = default_blocks,
    always: Where | None = default_head,
    strategy: str = "mirror",
    **options: Any,
) -> Result | Found:
    """Choose k blocks to fine-tune by the validation error after a short inner run (Greenstein et al., ICLR 2025).

    Args:
        model: pre-trained; never changed, every inner run starts from it.
        k: blocks to unfreeze. The head does not count.
        fit_fn: ``fit_fn(model, mask)`` gives the fine-tuned model. It should take the same data in the same order.
        val_fn: ``val_fn(model)`` gives the validation error.
        blocks, always: where the blocks and the head are.
        strategy: ``"mirror"``, or one of `baselines.STRATEGIES`.
        **options: of `minimize` or `search`: budget, method, batch, seed, checkpoint, ...

    Returns:
        `subset` are the chosen blocks.

    Raises:
        InputError: if k or another option cannot be used.
    """

    def cost(chosen):
        ready = freeze_statistics(model, chosen.tolist(), blocks)
        return float(val_fn(fit_fn(ready, layer_mask(ready, chosen.tolist(), blocks, always))))

    n = len(blocks(model))
    if strategy == "mirror":
        return minimize(cost, n, k, **options)
    return search(strategy, cost, n, k, **options)

"""A transfer experiment at the user's size: a residual network, a shifted target with few labels, and the error of any
set of fine-tuned blocks. All sets train at once by vmap over the freeze mask, which makes the ground truth affordable.
"""

from dataclasses import dataclass
from functools import partial
from itertools import combinations, pairwise

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Bool, Float, Int, Key

from iclr_shared.errors import InputError
from iclr_shared.seeds import SeedTree

type Labelled = tuple[Float[Array, "_ features"], Int[Array, " _"]]  # samples and their classes
type Table = tuple[Float[np.ndarray, "_ _"], np.ndarray]
SHIFTS = ("rotate", "invert", "roll", "none")


class Block(eqx.Module):
    """``x + W2 relu(W1 x + b1)``."""

    inner: eqx.nn.Linear
    outer: eqx.nn.Linear

    def __init__(self, width: int, key: Key[Array, ""]):
        first, second = jax.random.split(key)
        self.inner = eqx.nn.Linear(width, width, key=first)
        self.outer = eqx.nn.Linear(width, width, use_bias=False, key=second)

    def __call__(self, x: Float[Array, " width"]) -> Float[Array, " width"]:
        """One residual update of x, shape (width,)."""
        return x + self.outer(jax.nn.relu(self.inner(x)))


class ResidualMLP(eqx.Module):
    """A stem, blocks of one width, and a head.

    Args:
        inputs, outputs: features and classes.
        width: of all blocks.
        depth: number of blocks.
        key: of the initial weights.
    """

    stem: eqx.nn.Linear
    blocks: tuple[Block, ...]
    head: eqx.nn.Linear

    def __init__(self, inputs: int, outputs: int, width: int, depth: int, key: Key[Array, ""]):
        stem, head, *keys = jax.random.split(key, depth + 2)
        self.stem = eqx.nn.Linear(inputs, width, key=stem)
        self.blocks = tuple(Block(width, k) for k in keys)
        self.head = eqx.nn.Linear(width, outputs, key=head)

    def __call__(self, x: Float[Array, " inputs"]) -> Float[Array, " outputs"]:
        """Logits (outputs,) of x, shape (inputs,)."""
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


@dataclass(frozen=True)
class Task:
    """Source for pre-training; target to fine-tune on, to choose by, and to report on.

    Args:
        source, train, validation, test: pairs of samples (m, features) and classes (m,).
        classes: number of classes.
    """

    source: Labelled
    train: Labelled
    validation: Labelled
    test: Labelled
    classes: int


def digits_task(seeds: SeedTree, labels: int = 100, shift: str = "rotate") -> Task:
    """scikit-learn's 1797 digits of 8 x 8 pixels: 900 as they are for pre-training, the rest shifted.

    Args:
        seeds: of the split.
        labels: target images with labels for fine-tuning; 300 more choose, the rest report.
        shift: rotate by 90 degrees, invert, roll by two pixels, or none.

    Raises:
        InputError: if the shift is unknown or too few images are left.
    """
    from sklearn.datasets import load_digits

    images, y = load_digits(return_X_y=True)
    if shift not in SHIFTS:
        raise InputError(f"A shift is one of {', '.join(SHIFTS)}, got {shift!r}.")
    if not 10 <= labels <= 400:
        raise InputError(f"The digits leave room for 10 to 400 labels, got {labels}.")
    order = seeds.child("split").numpy().permutation(len(y))
    X = images[order].reshape(-1, 8, 8) / 16
    y = y[order]
    change = {
        "rotate": lambda x: np.rot90(x, axes=(1, 2)), "invert": lambda x: 1 - x,
        "roll": lambda x: np.roll(x, 2, axis=2), "none": lambda x: x,
    }  # fmt: skip
    shifted = change[shift](X[900:]).reshape(-1, 64)
    return _task(X[:900].reshape(-1, 64), y[:900], shifted, y[900:], labels, 300)


def table_task(source: Table, target: Table, seeds: SeedTree, labels: int = 100) -> Task:
    """A task from two tables with the same features; the target is split into labels, 40 % of the rest, and the rest.

    Args:
        source, target: samples (m, features) and class labels (m,) of any kind.
        seeds: of the split.
        labels: target rows to fine-tune on.

    Raises:
        InputError: if columns differ, values are not finite, or rows are too few.
    """
    (X, a), (Z, b) = source, target
    if X.shape[1] != Z.shape[1]:
        raise InputError(f"Source and target must have the same features, got {X.shape[1]} and {Z.shape[1]}.")
    if not (np.isfinite(X).all() and np.isfinite(Z).all()):
        raise InputError("Source and target must be finite numbers: fill or drop missing values first.")
    if not 1 <= labels <= len(Z) - 10:
        raise InputError(f"labels must leave at least 10 of the target's {len(Z)} rows to judge by, got {labels}.")
    names, classes = np.unique(np.concatenate([a, b]), return_inverse=True)
    if len(names) < 2:
        raise InputError("There must be at least two classes.")
    centre, spread = X.mean(0), X.std(0) + 1e-6
    order = seeds.child("split").numpy().permutation(len(Z))
    scaled, y = ((Z - centre) / spread)[order], classes[len(a) :][order]
    return _task((X - centre) / spread, classes[: len(a)], scaled, y, labels, int(0.4 * (len(Z) - labels)))


def _task(X: np.ndarray, y: np.ndarray, target: np.ndarray, target_y: np.ndarray, labels: int, validation: int) -> Task:
    def pair(a: np.ndarray, b: np.ndarray) -> Labelled:
        return jnp.asarray(np.ascontiguousarray(a), jnp.float32), jnp.asarray(b, jnp.int32)

    cuts = (0, labels, labels + validation, len(target_y))
    parts = [pair(target[a:b], target_y[a:b]) for a, b in pairwise(cuts)]
    return Task(pair(X, y), *parts, int(max(y.max(), target_y.max())) + 1)


def pretrain(
    task: Task, seeds: SeedTree, width: int = 48, depth: int = 8, steps: int = 300, lr: float = 2e-3
) -> ResidualMLP:
    """Full-batch Adam on the source."""
    from iclr_subset.layers import finetune

    if width < 1 or depth < 2 or steps < 0:
        raise InputError(f"The network needs a width of 1, a depth of 2 at least, got {width} and {depth}.")
    features = task.source[0].shape[1]
    model = ResidualMLP(features, task.classes, width, depth, seeds.child("network").jax())
    mask = jax.tree.map(eqx.is_inexact_array, model)
    return finetune(model, mask, *task.source, steps=steps, lr=lr)


class Stacked(eqx.Module):
    """A `ResidualMLP` whose blocks are stacked along a first axis, so that one compiled block serves all depths."""

    stem: eqx.nn.Linear
    blocks: Block
    head: eqx.nn.Linear

    def __call__(self, X: Float[Array, "samples inputs"]) -> Float[Array, "samples outputs"]:
        """Logits (samples, outputs) of a batch (samples, inputs)."""

        def layer(x, block):
            return jax.vmap(block)(x), None

        x, _ = jax.lax.scan(layer, jax.vmap(self.stem)(X), self.blocks)
        return jax.vmap(self.head)(x)


def stack(model: ResidualMLP) -> Stacked:
    """The same network, stacked."""
    return Stacked(model.stem, jax.tree.map(lambda *x: jnp.stack(x), *model.blocks), model.head)


@partial(jax.jit, static_argnames=("steps",))
def _errors(model, train, validation, test, masks, steps, lr):
    optimizer = optax.adam(lr)

    def one(mask):
        def scaled(gradient):  # a frozen block's gradient is zero, and so is Adam's update of it
            where = jax.tree.map(lambda g: g * mask.reshape(-1, *[1] * (g.ndim - 1)), gradient.blocks)
            stem = jax.tree.map(jnp.zeros_like, gradient.stem)
            return Stacked(stem, where, gradient.head)

        def loss(model):
            return optax.softmax_cross_entropy_with_integer_labels(model(train[0]), train[1]).mean()

        def step(carry, _):
            model, state = carry
            updates, state = optimizer.update(scaled(jax.grad(loss)(model)), state)
            return (optax.apply_updates(model, updates), state), None

        tuned = jax.lax.scan(step, (model, optimizer.init(model)), None, length=steps)[0][0]
        return jnp.stack([jnp.mean(tuned(X).argmax(1) != y) for X, y in (validation, test)])

    return jax.lax.map(one, masks, batch_size=64)


def errors(
    model: ResidualMLP, task: Task, masks: Bool[np.ndarray, "sets depth"], steps: int = 60, lr: float = 2e-3
) -> tuple[Float[np.ndarray, " sets"], Float[np.ndarray, " sets"]]:
    """Validation and test error (1 - accuracy) after fine-tuning each set of blocks and the head, all at once.

    Args:
        model: pre-trained.
        task: the target's splits.
        masks: which blocks train.
        steps, lr: of full-batch Adam.
    """
    from iclr_subset.layers import check_inner_run

    check_inner_run(steps, lr)
    weights = jnp.asarray(masks, jnp.float32)
    found = np.asarray(_errors(stack(model), task.train, task.validation, task.test, weights, steps, lr))
    return found[:, 0], found[:, 1]


@dataclass(frozen=True)
class Truth:
    """Errors of all sets of k blocks.

    Args:
        subsets: all of them.
        validation, test: their errors, shape (subsets,).
    """

    subsets: list[tuple[int, ...]]
    validation: Float[np.ndarray, " subsets"]
    test: Float[np.ndarray, " subsets"]

    def rank(self, subset: tuple[int, ...]) -> int:
        """1 + number of sets with a lower test error."""
        return 1 + int(np.sum(self.test < self.test[self.subsets.index(subset)]))

    def costs(self) -> dict[tuple[int, ...], float]:
        """Validation error of each set."""
        return dict(zip(self.subsets, self.validation.tolist(), strict=True))


def truth(model: ResidualMLP, task: Task, k: int, steps: int = 60, lr: float = 2e-3) -> Truth:
    """Fine-tune every set of k blocks."""
    depth = len(model.blocks)
    if not 1 <= k < depth:
        raise InputError(f"k must be at least 1 and below the network's {depth} blocks, got {k}.")
    subsets = list(combinations(range(depth), k))
    masks = np.zeros((len(subsets), depth), dtype=bool)
    for row, subset in zip(masks, subsets, strict=True):
        row[list(subset)] = True
    return Truth(subsets, *errors(model, task, masks, steps, lr))

"""Networks with found, random, true and no modules, side by side on one task."""

import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray

from iclr_generalization.modular.kernel_rule import generator
from iclr_generalization.modular.networks import (
    ModularNet,
    Monolithic,
    Training,
    count,
    equal_width,
    fit,
    initialise,
    with_projections,
)
from iclr_generalization.modular.recovery import module_recovery
from iclr_generalization.modular.search import NoModuleFound, Search, find_modules
from iclr_generalization.modular.tasks import Compositional, SineTask

#: Who is compared. `rule`, `random` and `oracle` are one architecture with different first projections.
LEARNERS = ("monolithic", "random", "rule", "oracle")


@dataclass(frozen=True)
class Sizes:
    """Sizes of a comparison.

    Args:
        modules: K.
        b: dimension of each module's input.
        hidden: width of a module's two hidden layers.
        restarts: starts of the search in each round.
        search: see `Search`.
        training: see `Training`.
    """

    modules: int = 3
    b: int = 1
    hidden: int = 64
    restarts: int = 12
    search: Search = field(default_factory=lambda: Search(steps=150, batch=256, group=6))
    training: Training = field(default_factory=Training)


#: Sine waves, one-dimensional modules.
SINE_SIZES = Sizes()

Predict = Callable[[Any], np.ndarray]


def train_learners(
    x: Any,
    y: Any,
    labels: Any,
    true: Any,
    key: PRNGKeyArray,
    sizes: Sizes,
    learners: Iterable[str] = LEARNERS,
    outputs: int | None = None,
) -> tuple[dict[str, Predict], np.ndarray]:
    """Train each learner on the same samples, with equal numbers of parameters.

    Args:
        x: inputs (n, m).
        y: what the loss compares with: targets (n, c) or classes (n, k).
        labels: what the kernel rule explains: targets (n, c), or one-hot classes.
        true: the task's projections (K, b, m), for the oracle.
        key: of initial weights, batches and starts.
        sizes: see `Sizes`.
        learners: names in `LEARNERS`.
        outputs: of the networks, c if None.

    Returns:
        A function from inputs to outputs for each learner, and the found projections (0 of them where the rule found
        none; the network then starts from random ones).
    """
    m, c = x.shape[1], outputs or y.shape[1]
    modular = ModularNet(sizes.modules, sizes.b, (sizes.hidden, sizes.hidden, c))
    start = initialise(modular, m, jax.random.fold_in(key, 0))
    width = equal_width(m, c, count(start))
    found = np.zeros((0, sizes.b, m))
    result = {}
    for name in learners:
        model, params = modular, start
        if name == "monolithic":
            model = Monolithic((width, width, c))
            params = initialise(model, m, jax.random.fold_in(key, 1))
        elif name == "oracle":
            params = with_projections(start, true)
        elif name == "rule":
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", message=".*overlap in")  # wanted here, for small m
                try:
                    found = find_modules(
                        x, labels, sizes.modules, sizes.b, restarts=sizes.restarts, key=jax.random.fold_in(key, 2),
                        search=sizes.search,
                    ).U  # fmt: skip
                    params = with_projections(start, found)
                except NoModuleFound:
                    pass
        trained, _ = fit(model, params, x, y, jax.random.fold_in(key, 3), training=sizes.training)
        result[name] = partial(_outputs, model, trained)
    return result, found


def sine_losses(
    m: int, key: PRNGKeyArray, *, n: int = 1000, sizes: Sizes = SINE_SIZES, test: int = 1000
) -> dict[str, Any]:
    """Test losses on fresh samples of one sine task, in distribution and at twice the inputs' scale.

    Args:
        m: input dimension.
        key: of the task, the samples and the learners.
        n: training samples.
        sizes: see `Sizes`.
        test: fresh samples.

    Returns:
        ``test`` and ``ood``, each with a loss (over the variance of the targets) for every learner and for kernel ridge
        regression on the whole input, and the rule's ``recovery`` before training.
    """
    from sklearn.kernel_ridge import KernelRidge

    keys = jax.random.split(key, 5)
    task = SineTask(m, sizes.modules, sizes.b, key=keys[0])
    x, y = task.sample(n, keys[1])
    mean, scale = y.mean(0), y.std(0)
    y = (y - mean) / scale
    learners, found = train_learners(x, y, y, task.U, keys[2], sizes)
    ridge = KernelRidge(alpha=0.1, kernel="rbf", gamma=1 / m).fit(np.asarray(x), np.asarray(y))
    learners["kernel ridge"] = ridge.predict
    fresh = {"test": task.sample(test, keys[3]), "ood": task.sample(test, keys[4], scale=2.0)}
    result: dict[str, Any] = {
        kind: {
            name: float(np.square(predict(np.asarray(points)) - np.asarray((truth - mean) / scale)).mean())
            for name, predict in learners.items()
        }
        for kind, (points, truth) in fresh.items()
    }
    return {**result, "recovery": module_recovery(found, np.asarray(task.U, dtype=np.float64))}


#: Modules of 16 dimensions see distances of about sqrt(2 * 16), so the kernel's length is sqrt(16).
IMAGE_SIZES = Sizes(
    b=16, restarts=8, search=Search(steps=100, batch=256, length=4.0, group=4), training=Training(loss="cross_entropy")
)


def image_errors(
    images: Any,
    labels: Any,
    k: int,
    key: PRNGKeyArray,
    *,
    n: int = 2000,
    sizes: Sizes = IMAGE_SIZES,
    learners: Iterable[str] = ("monolithic", "random", "rule", "oracle"),
    test: int = 2000,
) -> dict[str, Any]:
    """Errors in telling the classes of k images at once, on compositions of images that were not trained on.

    Args:
        images: flat images (N, D); a fifth of them is kept for tests.
        labels: classes (N,).
        k: images in each input.
        key: of the split, the compositions and the learners.
        n: training compositions.
        sizes: see `Sizes`; the number of modules is k.
        learners: names in `LEARNERS`.
        test: test compositions.

    Returns:
        ``test`` (seen pairs of classes), ``exact`` (all k classes right) and, for k > 1, ``ood`` (held-out pairs): a
        share of wrong answers for each learner; and the rule's ``recovery`` of the true modules.
    """
    task = Compositional(images, labels, k, jax.random.fold_in(key, 0))
    rng = generator(key)
    order = rng.permutation(len(images))
    cut = len(images) // 5
    x, y = task.sample(n, rng, among=order[cut:])
    sizes = replace(sizes, modules=k)
    coded = np.eye(task.classes)[y].reshape(n, -1)
    true = task.U(sizes.b)
    trained, found = train_learners(
        x.astype(np.float32), y, coded, true, jax.random.fold_in(key, 1), sizes, learners, outputs=k * task.classes
    )
    result: dict[str, Any] = {"recovery": module_recovery(found, true)}
    for kind in ("test", "ood") if k > 1 else ("test",):
        points, truth = task.sample(test, rng, held_out=kind == "ood", among=order[:cut])
        wrong = {
            name: predict(points.astype(np.float32)).reshape(test, k, -1).argmax(2) != truth
            for name, predict in trained.items()
        }
        result[kind] = {name: float(value.mean()) for name, value in wrong.items()}
        if kind == "test":
            result["exact"] = {name: float(value.any(1).mean()) for name, value in wrong.items()}
    return result


def _outputs(model: Any, params: Any, x: Any) -> np.ndarray:
    return np.asarray(_apply(model, params, jnp.asarray(x)))


@partial(jax.jit, static_argnums=0)
def _apply(model, params, x):
    return model.apply(params, x)

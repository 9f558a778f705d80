"""The paper's experiments at the size of a laptop: a tanh network on digits whose labels are partly random.

With the squared loss and full batches, theory predicts both ends: gradient descent stays at its edge of stability,
sharpness ``2/eta``, USAM at its own lower one, ``h_SAM``. Several claims read the same runs, so their numbers are
kept in the run folder, by seed and settings.
"""

import dataclasses
import hashlib
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Float, PRNGKeyArray, PyTree

from iclr_dynamics.late_sam.attack import Attack, robust_error
from iclr_dynamics.late_sam.objective import Model, evaluate, flax_model, loss_function, training_loss
from iclr_dynamics.late_sam.runs import unit_digits
from iclr_dynamics.late_sam.schedule import LearningRate, SwitchSchedule
from iclr_dynamics.late_sam.sweep import switch_sweep
from iclr_dynamics.late_sam.training import RunResult, Training, fit
from iclr_dynamics.networks import MLP, Split, digits
from iclr_dynamics.sharpness import hvp, top_eigenvalues
from iclr_shared.checkpoints import Checkpoint
from iclr_shared.seeds import SeedTree

#: Training images of `noisy_digits`.
SAMPLES = 600
#: Full batch, eta = 0.25, USAM 0.1: the edges are 8 and 5.247.
FULL_BATCH = Training(
    epochs=2500, learning_rate=0.25, batch_size=None, momentum=0.0, weight_decay=0.0, rho=0.1, loss="mse", smoothing=0.0
)
#: Batches of 10 with replacement, normalised SAM 0.3; 100 times 60 steps.
MINIBATCH = dataclasses.replace(
    FULL_BATCH, epochs=100, learning_rate=0.1, batch_size=10, rho=0.3, sampling="replacement"
)
#: Where late SAM does little: the rate is low when it comes.
DECAYED = Training(
    epochs=60,
    learning_rate=LearningRate(0.05, "multistep", (30,), 0.2),
    batch_size=50,
    momentum=0.9,
    weight_decay=0.0,
    rho=0.1,
    smoothing=0.1,
)
#: Cross-entropy without smoothing at a constant rate: its minimum lies at infinity, and sharpness goes to zero.
UNSMOOTHED = dataclasses.replace(DECAYED, learning_rate=0.05, smoothing=0.0)
#: Adversarial training on digits in [0, 1].
ADVERSARIAL = Training(
    epochs=50,
    learning_rate=0.1,
    batch_size=50,
    momentum=0.9,
    weight_decay=0.0,
    smoothing=0.0,
    attack=Attack(eps=0.1, alpha=0.025, steps=5),
)


def network(activation: str = "tanh") -> Model:
    """64-64-64-10; initial weights have the variance of PyTorch's default, 1 / (3 fan_in)."""
    return flax_model(MLP((64, 64, 64, 10), activation=activation, sigma_w=3**-0.5))


def noisy_digits(key: PRNGKeyArray, train: int = SAMPLES, random_labels: float = 0.1) -> Split:
    """Digits with grey levels in [0, 1], then ``(x - mean) / (std + 0.1)`` for each pixel; some labels random."""
    data = digits(key, train=train, scale="unit", random_labels=random_labels)
    images = jnp.concatenate([data.x, data.x_test])
    mean, spread = images.mean(0), images.std(0) + 0.1
    return data._replace(x=(data.x - mean) / spread, x_test=(data.x_test - mean) / spread)


def numbers(model: Model, run: RunResult, data: Any, training: Training) -> dict[str, float]:
    """Sharpness of the loss that was minimised, that loss, and the test error in per cent.

    Beside the converged sharpness stands, as ``"power"``, what 30 power iterations give: a lower value, because several
    eigenvalues crowd at the edge of stability.
    """
    loss = loss_function(training.loss, training.smoothing)
    whole = training_loss(model, loss)
    batch = run.extra, data.x, data.y
    return {
        "sharpness": float(top_eigenvalues(whole, run.params, *batch, tol=1e-4).values[0]),
        "power": float(_power_iterations(whole, run.params, *batch)),
        "loss": evaluate(model, run.params, run.extra, data.x, data.y, loss).loss,
        "error": evaluate(model, run.params, run.extra, data.x_test, data.y_test, loss).error,
    }


@partial(jax.jit, static_argnums=0)
def _power_iterations(loss, params, *batch, count=30):
    flat, unravel = ravel_pytree(params)

    def product(vector):
        return ravel_pytree(hvp(loss, params, unravel(vector), *batch))[0]

    def step(_, vector):
        image = product(vector)
        return image / jnp.linalg.norm(image)

    start = jax.random.normal(jax.random.key(0), flat.shape, flat.dtype)
    vector = jax.lax.fori_loop(0, count, step, start)
    return vector @ product(vector)


def arms(
    folder: Path,
    seeds: SeedTree,
    index: int,
    training: Training,
    *,
    family: str = "usam",
    late: str | None = None,
    switches: tuple[float, ...] = (),
    early: tuple[float, ...] = (),
) -> dict[str, Any]:
    """All runs of one seed, which share data, initial weights and batches.

    Args:
        folder: of the claims run; finished seeds are kept there.
        seeds: root of the claims run, so that all claims mean the same runs by one index.
        index: which seed.
        training: one of this module's recipes.
        family: mode of the whole-run arm ``"sam"`` and of the early arms.
        late: mode after the switch; None is `family`. ``"sgd"`` removes the effect.
        switches: fractions of training at which the late arms switch, giving ``"late 0.9"`` and so on.
        early: fractions at which the early arms go back to SGD, giving ``"early 0.8"`` and so on.

    Returns:
        For each arm, ``"sgd"`` among them, the `numbers`; and under ``"weights"`` flat weights of every arm.
    """
    tree = seeds.child("late_sam", "arms", index)
    late = late or family

    def compute():
        data, model = noisy_digits(tree.child("data").jax()), network()

        def sweep(first, then, fractions):
            at = {fraction: round(fraction * training.epochs) for fraction in fractions}
            key = tree.child("run").jax()
            runs = switch_sweep(model, data, training, at.values(), key=key, first=first, late=then)
            return {fraction: runs[switch] for fraction, switch in at.items()}

        early_runs = sweep(family, "sgd", (*early, 1.0))
        # A switch at 0 is the whole-run arm, which is there already.
        known = {0.0: early_runs[1.0]} if late == family and 0.0 in switches else {}
        late_runs = known | sweep("sgd", late, [*(switch for switch in switches if switch not in known), 1.0])
        runs = {"sgd": late_runs.pop(1.0), "sam": early_runs.pop(1.0)}
        runs |= {f"late {fraction:g}": run for fraction, run in late_runs.items()}
        runs |= {f"early {fraction:g}": run for fraction, run in early_runs.items()}
        return {
            "arms": {name: numbers(model, run, data, training) for name, run in runs.items()},
            "weights": {name: flat_weights(run.params) for name, run in runs.items()},
        }

    settings = {"training": dataclasses.asdict(training), "late": late, "family": family}
    kept_result = kept(folder, {**settings, "arms": [switches, early], "tree": [tree.seed, *tree.path]}, compute)
    return {**kept_result["arms"], "weights": kept_result["weights"]}


def kept(folder: Path, settings: Any, compute: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """``compute()``, or what it gave earlier in this folder for the same settings."""
    name = hashlib.blake2b(json.dumps(settings, sort_keys=True, default=str).encode(), digest_size=8).hexdigest()
    checkpoint = Checkpoint(folder / "checkpoints" / "shared" / name)
    if (saved := checkpoint.latest()) is None:
        checkpoint.save(0, compute())
        saved = checkpoint.latest()
    return saved[1]


def flat_weights(params: PyTree) -> Float[np.ndarray, " size"]:
    """All weights in one array."""
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(params)])


def weights_of(flat: Float[np.ndarray, " size"]) -> PyTree:
    """Flat weights of `network` as its pytree."""
    shapes, _ = jax.eval_shape(network().init, jax.random.key(0), jax.ShapeDtypeStruct((1, 64), flat.dtype))
    leaves, structure = jax.tree.flatten(shapes)
    parts = np.split(flat, np.cumsum([leaf.size for leaf in leaves])[:-1])
    return structure.unflatten([part.reshape(leaf.shape) for part, leaf in zip(parts, leaves, strict=True)])


def adversarial_arms(
    folder: Path, seeds: SeedTree, index: int, training: Training = ADVERSARIAL, late: str = "at", share: float = 0.2
) -> dict[str, dict[str, float]]:
    """Natural, fully adversarial, late and early adversarial training of one seed.

    Args:
        folder, seeds, index: as in `arms`.
        training: with its attack; evaluation takes seven steps of it.
        late: mode of the late arm; ``"sgd"`` removes the effect.
        share: fraction of the epochs that the late and the early arm train adversarially.

    Returns:
        For each arm the clean and the robust test error in per cent.
    """
    tree = seeds.child("late_sam", "adversarial", index)
    count = round(share * training.epochs)
    schedules = {
        "natural": SwitchSchedule.never(),
        "full": SwitchSchedule.always("at"),
        "late": SwitchSchedule.late_from(training.epochs - count, late),
        "early": SwitchSchedule.early_until(count, "at"),
        "early 0.8": SwitchSchedule.early_until(round(0.8 * training.epochs), "at"),
    }

    def compute():
        data, model = unit_digits(tree.child("data").jax()), network("relu")
        values = {}
        for name, schedule in schedules.items():
            run = fit(model, data, schedule, training, key=tree.child("run").jax())
            attack = training.attack._replace(steps=7)
            values[name] = {
                "clean": evaluate(model, run.params, run.extra, data.x_test, data.y_test).error,
                "robust": robust_error(model, run.params, run.extra, data.x_test, data.y_test, attack),
            }
        return {"arms": values}

    settings = [dataclasses.asdict(training), late, share, [tree.seed, *tree.path]]
    return kept(folder, settings, compute)["arms"]


def gap_closed(sgd: Any, late: Any, sam: Any) -> float:
    """How far late SAM comes: ``(ln S_sgd - ln S_late) / (ln S_sgd - ln S_sam)`` of geometric means over seeds."""
    sgd, late, sam = (np.log(np.asarray(values, float)).mean() for values in (sgd, late, sam))
    with np.errstate(divide="ignore", invalid="ignore"):
        return float(np.divide(sgd - late, sgd - sam))

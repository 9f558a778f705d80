"""The same measurements in a real network: train it and record loss, sharpness, Hessian trace and tangent kernel.

A network trained on many examples has a continuous Hessian spectrum: near eta * sharpness = 2 expect a dense band
instead of the UV model's clean period doubling. That is a limit of the model, not of the measurement.
"""

import hashlib
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen as nn
from jaxtyping import Array, Float, Int, PRNGKeyArray, PyTree

from iclr_dynamics.networks import gradient_descent, mse_loss, network_loss
from iclr_dynamics.sharpness import top_eigenvalues, trace
from iclr_dynamics.uv_model.regime_labels import Regimes, regimes
from iclr_shared.checkpoints import Checkpoint
from iclr_shared.errors import InputError
from iclr_shared.progress import progress

DIVERGED = 1e6
"""Loss above which a run counts as divergent and is stopped."""


class Track(NamedTuple):
    """One training run, recorded at equally spaced steps.

    Args:
        step: of each record, starting with 0.
        loss: training loss.
        sharpness: largest Hessian eigenvalue.
        trace: Hutchinson's estimate of the Hessian's trace, NaN if not asked for.
        ntk: largest eigenvalue of the tangent kernel over the number of samples (of the Gauss-Newton matrix), NaN if
            not asked for; it differs from the sharpness away from zero loss.
        eta: learning rate.
        diverged: first recorded step at which the loss had passed `DIVERGED` or was not finite, -1 if none.
        params: at the end.
    """

    step: Int[np.ndarray, " records"]
    loss: Float[np.ndarray, " records"]
    sharpness: Float[np.ndarray, " records"]
    trace: Float[np.ndarray, " records"]
    ntk: Float[np.ndarray, " records"]
    eta: float
    diverged: int
    params: PyTree

    def regimes(self) -> Regimes:
        """What the run did; see `regimes`."""
        if self.diverged >= 0:
            return Regimes(False, False, False, True, np.nan, np.nan, np.nan)
        return regimes(self.sharpness, self.loss, self.eta)

    def late(self, fraction: float = 0.2) -> Float[np.ndarray, " late"]:
        """``eta * sharpness`` over the last part of the run: its column of the bifurcation diagram."""
        return self.eta * self.sharpness[-max(1, int(fraction * len(self.sharpness))) :]


def train_and_track(
    model: nn.Module,
    params: PyTree,
    x: Float[Array, "samples *features"],
    y: Float[Array, "samples outputs"],
    *,
    eta: float,
    steps: int,
    every: int = 20,
    loss: Callable = mse_loss,
    optimizer: Callable[..., optax.GradientTransformation] = optax.sgd,
    batch_size: int | None = None,
    key: PRNGKeyArray | None = None,
    trace_samples: int = 0,
    ntk: bool = False,
    tol: float = 1e-3,
    checkpoint: Checkpoint | None = None,
    quiet: bool = True,
) -> Track:
    """Train by full-batch gradient descent (or SGD) and measure curvature of the full loss every so many steps.

    Args:
        model: a Flax module called as ``model.apply(params, x)``.
        params: where to start.
        x: inputs.
        y: targets.
        eta: learning rate; multiply by ``MLP.learning_rate_factor`` first for a maximal-update network.
        steps: a multiple of `every`.
        every: steps between records; one record costs about 40 gradients.
        loss: ``loss(outputs, targets)``; with the factor 1/2 the edge is at ``eta * sharpness = 2``.
        optimizer: ``optimizer(eta) -> optax transformation``. The threshold 2 belongs to plain gradient descent.
        batch_size: of SGD; None is full batch.
        key: of the batches and the trace estimate.
        trace_samples: sign vectors of the trace estimate; 0 leaves it out.
        ntk: whether to record the tangent kernel's norm.
        tol: relative accuracy of the sharpness.
        checkpoint: where to save and resume; a finished part of the run is not repeated.
        quiet: no progress bar.

    Returns:
        A `Track`, shorter if the run diverged.

    Raises:
        InputError: if an argument is out of range, or the checkpoint is of another run.
    """
    if every < 1 or steps < every or steps % every:
        raise InputError(f"steps={steps} must be a positive multiple of every={every}.")
    if not (np.isfinite(eta) and eta > 0):
        raise InputError(f"eta={eta:g} must be positive and finite.")
    if key is None and (batch_size is not None or trace_samples):
        raise InputError("Batches and trace estimates are random: give a key.")
    objective, shape = network_loss(model, loss), jax.tree.structure(params)
    state = optimizer(eta).init(params)
    run = _fingerprint(params, x, y, key, eta, every, batch_size, trace_samples, ntk)
    leading = jax.tree.map(jnp.zeros_like, params)
    records: list[list[float]] = []
    begin = 0
    if checkpoint is not None and (saved := checkpoint.latest()):
        begin, held = saved
        if held["run"] != run:
            raise InputError(f"{checkpoint.folder} holds another run. Choose another output, or start anew.")
        params = jax.tree.unflatten(shape, _leaves(held["params"]))
        leading = jax.tree.unflatten(shape, _leaves(held["leading"]))
        state = jax.tree.unflatten(jax.tree.structure(state), _leaves(held.get("state", {})))
        records = held["records"].tolist()
    diverged = begin if records and not _fine(records[-1][1]) else -1

    for done in progress(range(begin, steps + 1, every), desc=f"training, eta={eta:.3g}", quiet=quiet):
        if diverged >= 0 or (records and records[-1][0] >= done):
            continue
        if done:
            chunk = None if key is None else jax.random.fold_in(key, done)
            stretch = gradient_descent(
                objective, params, x, y, learning_rate=eta, steps=every, optimizer=optimizer, state=state,
                batch_size=batch_size, key=chunk,
            )  # fmt: skip
            params, state = stretch.params, stretch.state
        value = float(jax.jit(objective)(params, x, y))
        if not _fine(value):
            diverged = done
            records.append([done, value, *[np.nan] * 3])
        else:
            start = leading if done else None
            spectrum = top_eigenvalues(objective, params, x, y, tol=tol, start=start, basis=8 if done else None)
            leading = jax.tree.map(lambda vector: vector[0], spectrum.vectors)
            traced = kernel = np.nan
            if trace_samples:
                probes = jax.random.fold_in(jax.random.fold_in(key, done), 1)
                traced = trace(objective, params, x, y, key=probes, samples=trace_samples).value
            if ntk:
                kernel = float(top_eigenvalues(_linearised(model), params, params, x, tol=tol).values[0])
            records.append([done, value, float(spectrum.values[0]), traced, kernel])
        if checkpoint is not None and (checkpoint.due() or done == steps):
            held = {"params": _named(params), "leading": _named(leading), "records": np.array(records)}
            if jax.tree.leaves(state):
                held["state"] = _named(state)
            checkpoint.save(done, {**held, "run": run})
    columns = np.array(records).T
    return Track(columns[0].astype(int), *columns[1:], eta=float(eta), diverged=diverged, params=params)


@cache
def _linearised(model: nn.Module) -> Callable:
    """A loss in `params` whose Hessian at `centre` is the Gauss-Newton matrix J^T J / samples."""

    def function(params: Any, centre: Any, x: Any):
        shift = jax.tree.map(jnp.subtract, params, centre)
        change = jax.jvp(lambda at: model.apply(at, x), (centre,), (shift,))[1]
        return jnp.sum(change**2) / (2 * len(x))

    return function


def _fine(loss: float) -> bool:
    return bool(np.isfinite(loss) and loss <= DIVERGED)


def _named(tree: PyTree) -> dict[str, np.ndarray]:
    return {str(index): np.asarray(leaf) for index, leaf in enumerate(jax.tree.leaves(tree))}


def _leaves(held: dict[str, np.ndarray]) -> list[Array]:
    return [jnp.asarray(held[str(index)]) for index in range(len(held))]


def _fingerprint(params: PyTree, x: Any, y: Any, key: Any, *settings: Any) -> str:
    """Of everything that decides the numbers of a run, so that no other run is taken for it."""
    digest = hashlib.sha256(repr(settings).encode())
    randomness = [] if key is None else [jax.random.key_data(key)]
    for leaf in (*jax.tree.leaves(params), x, y, *randomness):
        digest.update(np.asarray(leaf).tobytes())
    return digest.hexdigest()

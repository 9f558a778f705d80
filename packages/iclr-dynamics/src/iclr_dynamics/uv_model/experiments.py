"""The experiments that several claims read; each runs once for a seed and its sizes. Networks train in float32."""

from functools import cache
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from iclr_dynamics.networks import MLP, digits, network_loss
from iclr_dynamics.sharpness import top_eigenvalues
from iclr_dynamics.uv_model.maps import final_state, limiting_ntk, observables, simulate, unbalancedness
from iclr_dynamics.uv_model.tracking import Track, train_and_track
from iclr_dynamics.uv_model.weights import UVParams, gradient_step, init, initial_coordinates, loss, to_function_space
from iclr_shared.seeds import root


def key_of(seed: int, *names: str | int) -> jax.Array:
    """The key of an experiment: the same for every claim that reads it."""
    return root(seed).child("uv-model", *names).jax()


class Starts(NamedTuple):
    """Small-step runs from random starts, to the end.

    Args:
        f0, ntk0: output and kernel at the start; `ntk`: kernel at the end; `limit`: of gradient flow; `y`: target.
    """

    f0: np.ndarray
    ntk0: np.ndarray
    ntk: np.ndarray
    limit: np.ndarray
    y: float


@cache
def small_steps(seed: int, starts: int, eta_ntk: float, steps: int) -> Starts:
    """Train random starts at ``eta = eta_ntk / lambda_0``.

    sigma_w is log-uniform in [0.3, 3] and n = 4, so that both |f_0| < y and |f_0| > y occur often.
    """
    scale_key, weight_key = jax.random.split(key_of(seed, "starts"))
    sigma = 0.3 * 10 ** jax.random.uniform(scale_key, (starts,))
    unit = UVParams(n=4, sigma_w=1.0)
    P0, M0 = (sigma**2 * value for value in initial_coordinates(weight_key, unit, starts))
    residual, ntk0 = observables(P0, M0, unit.k, unit.y)
    end, _ = final_state(P0, M0, unit.k, unit.y, eta_ntk / ntk0, steps)
    f0 = residual + unit.y
    limit = limiting_ntk(ntk0, f0, unit.k, unit.y)
    return Starts(*map(np.asarray, (f0, ntk0, observables(*end, unit.k, unit.y)[1], limit)), y=unit.y)


class Edge(NamedTuple):
    """End of long runs at many c, over initialisations of two scales.

    Args:
        c: (rates,).
        converged: (rates,), fraction of inits with ``|f - y| < 1e-6``.
        unbalancedness: (rates, inits), ``D / lambda^2``.
        log_mean: (rates, inits), mean of ``ln(eta lambda)`` over the last two states.
        bounded: (rates, inits).
    """

    c: np.ndarray
    converged: np.ndarray
    unbalancedness: np.ndarray
    log_mean: np.ndarray
    bounded: np.ndarray


@cache
def edge_sweep(seed: int, inits: int, steps: int, rates: int) -> Edge:
    """c from 0.5 to 1.5, k = 1, y = 2, n = 512, sigma_w = 0.5 and 1."""
    c = np.linspace(0.5, 1.5, rates)
    starts = [
        initial_coordinates(key_of(seed, "edge", index), UVParams(sigma_w=sigma), inits)
        for index, sigma in enumerate((0.5, 1.0))
    ]
    P0, M0 = (jnp.concatenate(values) for values in zip(*starts, strict=True))
    k, y, eta = 1.0, 2.0, jnp.asarray(c)[:, None] / 2.0
    end, early = final_state(P0, M0, k, y, eta, steps - 1)
    last = simulate(*end, k, y, eta, 1)
    bounded = np.asarray((early < 0) & (last.diverged < 0))
    converged = bounded & (np.abs(np.asarray(last.residual[1])) < 1e-6)
    balance = unbalancedness(last.P[1], last.M[1], k) / last.ntk[1] ** 2
    logs = jnp.log(eta * last.ntk).mean(0)
    return Edge(c, converged.mean(1), np.asarray(balance), np.asarray(logs), bounded)


def bounded_fraction(seed: int, c: float, sigma_w: float, inits: int, steps: int, on_manifold: bool = False) -> float:
    """Fraction of initialisations (k = 1, y = 2, n = 512) that have not diverged after `steps` at rate c."""
    params = UVParams(sigma_w=sigma_w)
    P0, M0 = initial_coordinates(key_of(seed, "basin", int(1000 * sigma_w)), params, inits)
    if on_manifold:
        M0 = jnp.zeros_like(M0)
    _, diverged = final_state(P0, M0, params.k, params.y, c / (params.k * params.y), steps)
    return float((diverged < 0).mean())


class Descent(NamedTuple):
    """Gradient descent on actual weights: residual, kernel and sharpness (NaN if not asked for) at each step."""

    residual: np.ndarray
    ntk: np.ndarray
    sharpness: np.ndarray
    P0: float
    M0: float


def weight_descent(
    key: jax.Array, params: UVParams, eta: np.ndarray, steps: int, loss_factor: float, dense: bool
) -> Descent:
    """Train U and v themselves on ``loss_factor (f - y)^2`` at each rate, and measure with dense Hessians if asked.

    Returns:
        A `Descent` whose arrays have shape (rates, steps).
    """
    state = init(key, params)
    P0, M0, _ = to_function_space(state, params)

    def measure(state):
        P, M, k = to_function_space(state, params)
        residual, ntk = observables(P, M, k, params.y)
        top = jnp.nan
        if dense:
            flat, unravel = ravel_pytree(state)
            hessian = 2 * loss_factor * jax.hessian(lambda w: loss(unravel(w), params))(flat)
            top = jnp.linalg.eigvalsh(hessian)[-1]
        return residual, ntk, top

    def train(eta):
        # gradient_step descends (f - y)^2 / 2.
        step = lambda state, _: (gradient_step(state, params, 2 * loss_factor * eta), measure(state))  # noqa: E731
        return jax.lax.scan(step, state, length=steps)[1]

    residual, ntk, top = jax.jit(jax.vmap(train))(jnp.asarray(eta))
    return Descent(np.asarray(residual), np.asarray(ntk), np.asarray(top), float(P0), float(M0))


class Network(NamedTuple):
    """One initialisation of the digits network at all rates.

    Args:
        scale: of its initial weights.
        tracks: one for each rate.
        reference: a run at 1/20 of the rate 1 / lambda_H, so at most 1/20 of every rate from there on; None if not
            asked for.
    """

    scale: float
    tracks: tuple[Track, ...]
    reference: Track | None


RATES = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0)


@cache
def digits_network(
    seed: int,
    index: int,
    scale: float,
    steps: int = 3000,
    slow_steps: int = 20_000,
    width: int = 64,
    rates: tuple[float, ...] = RATES,
) -> Network:
    """3-layer ReLU network on 500 standardised digits, half mean squared error, full batch, eta = C / lambda_H(0)."""
    data = digits(key_of(seed, "digits", index), train=500, dtype=jnp.float32)
    model = MLP((width, width, 10), "relu")
    params = jax.jit(model.init)(key_of(seed, "network", index), data.x)
    params = jax.tree.map(lambda weights: scale * weights, params)  # the biases are 0
    start = float(top_eigenvalues(network_loss(model), params, data.x, data.y).values[0])

    def train(rate: float, steps: int, every: int) -> Track:
        return train_and_track(model, params, data.x, data.y, eta=rate / start, steps=steps, every=every)

    tracks = tuple(train(rate, steps, min(50, steps // 10)) for rate in rates)
    return Network(scale, tracks, train(0.05, slow_steps, slow_steps // 50) if slow_steps else None)


def end_of_track(track: Track) -> float:
    """Mean of ``eta lambda_H`` over the last fifth of a run."""
    return float(np.mean(track.late()))

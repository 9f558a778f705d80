"""Gradient descent as an exact map of two numbers; descent and flow on the weights themselves, for reference."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float
from scipy.integrate import solve_ivp

from iclr_dynamics.function_space import FunctionSpace, Scalars, step
from iclr_dynamics.linear_network.data import LineData
from iclr_dynamics.linear_network.network import Layers, LinearNet, check_state
from iclr_dynamics.linear_network.trajectory import Times, times
from iclr_shared.errors import InputError


def gd_map(net: LinearNet, data: LineData, P: Scalars, M: Scalars, steps: int) -> FunctionSpace:
    """`steps` steps of gradient descent in function space: ``P' = P (1 - kappa r)²``, ``M' = M (1 + kappa r)²``.

    With ``r = A (F - F*)``, ``F = kappa (P - M) / 4``; exact for any step size. The rates of the network are the step
    sizes: a network with rates ``eta_u dt, eta_w dt`` makes steps of length dt.

    Args:
        net: output scale and step sizes.
        data: statistics of the data.
        P, M: at the start, of any equal shape; see `iclr_dynamics.linear_network.network.function_space`.
        steps: how many.

    Returns:
        P and M after each step, with a leading axis of length ``steps + 1`` whose first entry is the start.
    """
    P, M = jnp.broadcast_arrays(jnp.asarray(P, jnp.result_type(float, P)), jnp.asarray(M))
    return _iterate(_count(steps), net, data.A, data.target, P, M.astype(P.dtype))


def simulate_gd(
    net: LinearNet, data: LineData, u0: ArrayLike, w0: ArrayLike, steps: int, every: int = 1
) -> tuple[Float[Array, "T d"], Float[Array, "T d D"]]:
    """Plain gradient descent on the weights, by automatic differentiation of the loss: the reference.

    Args:
        net: output scale and step sizes.
        data: statistics of the data.
        u0: initial second layer, shape (d,).
        w0: initial first layer, shape (d, D).
        steps: how many, a multiple of `every`.
        every: record after each so many steps.

    Returns:
        u and w, with the start as first entry: ``T = steps / every + 1``.
    """
    u, w = check_state(net, data.nhat, u0, w0)
    if every < 1 or steps % every:
        raise InputError(f"every={every} must divide steps={steps}.")
    nhat = jnp.asarray(data.nhat, u.dtype)
    return tuple(_descend(_count(steps) // every, net, data.A, data.target, nhat, u, w, every))


def integrate_flow(
    net: LinearNet, data: LineData, u0: ArrayLike, w0: ArrayLike, t: Times, rtol: float = 1e-10, atol: float = 1e-12
) -> tuple[Float[np.ndarray, "T d"], Float[np.ndarray, "T d D"]]:
    """Gradient flow on the weights by an adaptive Runge-Kutta method of order 8 (scipy's DOP853): the reference.

    Args:
        net: output scale and rates.
        data: statistics of the data.
        u0: initial second layer, shape (d,).
        w0: initial first layer, shape (d, D).
        t: times >= 0, in any order.
        rtol, atol: tolerances of the solver.

    Returns:
        u and w at each time, in double precision.

    Raises:
        InputError: as `solve`.
        RuntimeError: if the solver gives up.
    """
    u, w = (np.asarray(layer, np.float64) for layer in check_state(net, data.nhat, u0, w0))
    d, (eta_u, eta_w) = len(u), net.rates
    grid, place = np.unique(times(t, np.dtype(np.float64)), return_inverse=True)

    def slope(_, state):
        u, a = state[:d], state[d:].reshape(w.shape) @ data.nhat
        residual = net.gamma * data.A * (net.gamma * u @ a - data.target)
        return np.concatenate([-eta_u * residual * a, -eta_w * residual * np.outer(u, data.nhat).ravel()])

    start = np.concatenate([u, w.ravel()])
    run = solve_ivp(slope, (0, grid[-1]), start, method="DOP853", t_eval=grid, rtol=rtol, atol=atol)
    if not run.success:
        raise RuntimeError(f"The adaptive solver gave up: {run.message}")
    path = run.y.T[place]
    return path[:, :d], path[:, d:].reshape(-1, *w.shape)


def loss(net: LinearNet, A: Scalars, target: Scalars, nhat: Float[Array, " D"], layers: Layers) -> Float[Array, ""]:
    """The part of the loss that depends on the weights: ``loss_factor A (F - F*)²``, ``F = gamma uᵀ w nhat``."""
    return net.loss_factor * A * (net.gamma * layers.u @ (layers.w @ nhat) - target) ** 2


@partial(jax.jit, static_argnums=0)
def _iterate(steps, net, A, target, P, M):
    def advance(point, _):
        delta = net.kappa * A * (net.kappa * (point.P - point.M) / 4 - target)
        point = step(*point, delta)
        return point, point

    start = FunctionSpace(P, M)
    _, path = jax.lax.scan(advance, start, length=steps)
    return FunctionSpace(*(jnp.concatenate([first[None], rest]) for first, rest in zip(start, path, strict=True)))


@partial(jax.jit, static_argnums=0)
def _descend(records, net, A, target, nhat, u, w, every):
    def one(_, layers):
        gradient = jax.grad(loss, argnums=4)(net, A, target, nhat, layers)
        return Layers(layers.u - net.eta_u * gradient.u, layers.w - net.eta_w * gradient.w)

    def record(layers, _):
        layers = jax.lax.fori_loop(0, every, one, layers)
        return layers, layers

    start = Layers(u, w)
    _, path = jax.lax.scan(record, start, length=records)
    return jax.tree.map(lambda first, rest: jnp.concatenate([first[None], rest]), start, path)


def _count(steps: int) -> int:
    if steps < 1:
        raise InputError(f"steps={steps}: make at least one step.")
    return steps

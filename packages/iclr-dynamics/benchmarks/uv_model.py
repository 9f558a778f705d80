"""How fast the UV model's diagram and the network's sharpness are, against what one would run instead.

    python benchmarks/uv_model.py

Outputs are held equal before anything is timed. The weights' loop is timed on far fewer steps and scaled per step.
"""

import time

import jax
import jax.numpy as jnp
import numpy as np

from iclr_dynamics.networks import MLP, digits, gradient_descent, network_loss
from iclr_dynamics.sharpness import top_eigenvalues
from iclr_dynamics.uv_model import UVParams, bifurcation, init, simulate, to_function_space
from iclr_dynamics.uv_model.weights import gradient_step, output
from iclr_shared.bench import compare, print_comparisons
from iclr_shared.tables import print_table


def numpy_diagram(c, burn_in, record, k=1.0, y=2.0, z0=0.37):
    """The same diagram with NumPy, vectorised over the rates."""
    P, M, eta = np.full(len(c), 2 * y * z0 / k), np.zeros(len(c)), c / (k * y)
    Ps, Ms = np.empty((2, record, len(c)))
    for step in range(burn_in + record):
        if step >= burn_in:
            Ps[step - burn_in], Ms[step - burn_in] = P, M
        delta = eta * k * (k / 2 * (P - M) - y)
        P, M = P * (1 - delta) ** 2, M * (1 + delta) ** 2
    residual, ntk = k / 2 * (Ps - Ms) - y, k**2 * (Ps + Ms)
    top = (ntk + np.sqrt(np.maximum(ntk**2 + 4 * k**2 * residual * (3 * residual + 2 * y), 0))) / 2
    return residual.T / y + 1, (eta * ntk).T, (eta * top).T


def diagrams():
    """Compiled over the whole grid, against NumPy."""

    def same(outputs):
        for ours, theirs in zip(*outputs.values(), strict=True):
            np.testing.assert_allclose(ours, theirs, atol=1e-6)

    comparisons = []
    for rates in (200, 2000, 20_000):
        c = np.linspace(0.8, 1.29, rates)  # periodic: chaos would part two roundings of the same orbit
        comparisons.append(
            compare(
                {
                    "ours": lambda c=c: bifurcation(c, burn_in=2000, record=256)[1:4],
                    "NumPy over the grid": lambda c=c: numpy_diagram(c, 2000, 256),
                },
                check=same,
                reps=5, warmup=1, sync=jax.block_until_ready, label=f"diagram, {rates} rates x 2,256 steps",
            )
        )  # fmt: skip
    print_comparisons(comparisons)


def one_run(n=512, d=32, steps=300):
    """One run in function space, against a Python loop over the weights, compiled or not."""
    params = UVParams(n=n)
    eta = 0.9 / (params.k * params.y)
    state = init(jax.random.key(0), params)
    P, M, k = to_function_space(state, params)
    compiled = jax.jit(lambda s: gradient_step(s, params, eta))
    U0, v0, x = np.asarray(state.U), np.asarray(state.v), params.x

    def weights_jax():
        s = state
        for _ in range(steps):
            s = compiled(s)
        return output(s, params)

    def weights_numpy():
        U, v = U0.copy(), v0.copy()
        for _ in range(steps):
            hidden = U @ x
            residual = v @ hidden / params.n_eff**0.5 - params.y
            scale = eta * residual / params.n_eff**0.5
            U, v = U - scale * np.outer(v, x), v - scale * hidden
        return v @ (U @ x) / params.n_eff**0.5

    print_comparisons(
        [
            compare(
                {
                    "ours": lambda: simulate(P, M, k, params.y, eta, steps).residual[-1] + params.y,
                    "loop on U, v (NumPy)": weights_numpy,
                    "loop on U, v (jitted step)": weights_jax,
                },
                check=lambda out: np.testing.assert_allclose([float(v) for v in out.values()], float(out["ours"])),
                reps=5, sync=jax.block_until_ready, label=f"one run, n = {n}, {steps} steps",
            )
        ]
    )  # fmt: skip


def per_step(rates=2000, steps=2256, n=512):
    """What the whole grid costs per step and rate, against one step on the weights."""
    c = jnp.linspace(0.8, 2.0, rates)
    bifurcation(c, burn_in=steps - 256)
    start = time.perf_counter()
    jax.block_until_ready(bifurcation(c, burn_in=steps - 256))
    ours = (time.perf_counter() - start) / rates / steps
    params = UVParams(n=n)
    state = init(jax.random.key(0), params)
    step = jax.jit(lambda s: gradient_step(s, params, 0.5))
    jax.block_until_ready(step(state))
    start = time.perf_counter()
    for _ in range(200):
        state = step(state)
    jax.block_until_ready(state)
    loop = (time.perf_counter() - start) / 200
    print_table(
        ("per step and rate", "seconds", "ratio"),
        [("ours, whole grid", ours, 1.0), (f"Python loop on U, v, n = {n}", loop, loop / ours)],
    )


def sharpness_of_a_network():
    """One Lanczos sharpness, cold and warm, in gradients, and its growth with the width."""
    rows = []
    data = digits(jax.random.key(0), train=500)
    for width in (32, 64, 128, 256):
        model = MLP((width, width, 10))
        loss, params = network_loss(model), model.init(jax.random.key(1), data.x)
        params = gradient_descent(loss, params, data.x, data.y, learning_rate=0.05, steps=100).params
        gradient = jax.jit(jax.grad(loss))

        def seconds(function):
            jax.block_until_ready(function())
            start = time.perf_counter()
            for _ in range(5):
                jax.block_until_ready(function())
            return (time.perf_counter() - start) / 5

        one = seconds(lambda p=params, g=gradient: g(p, data.x, data.y))
        cold = top_eigenvalues(loss, params, data.x, data.y, tol=1e-3)
        first = jax.tree.map(lambda v: v[0], cold.vectors)
        after = gradient_descent(loss, params, data.x, data.y, learning_rate=0.05, steps=20).params
        times = {}
        for name, options in (("cold", {}), ("warm", {"start": first, "basis": 8})):
            call = lambda o=options, p=after, f=loss: top_eigenvalues(f, p, data.x, data.y, tol=1e-3, **o)  # noqa: E731
            times[name] = seconds(lambda c=call: c().values), call().products
        rows.append((width, 1e3 * one, *(v for t, n in times.values() for v in (1e3 * t, n, t / one))))
    print_table(
        ("width", "gradient (ms)", "cold (ms)", "products", "gradients", "warm (ms)", "products", "gradients"),
        rows, title="sharpness of an MLP on 500 digits",
    )  # fmt: skip


if __name__ == "__main__":
    with jax.enable_x64(True):
        diagrams()
        print()
        one_run()
        print()
        per_step()
    print()
    sharpness_of_a_network()

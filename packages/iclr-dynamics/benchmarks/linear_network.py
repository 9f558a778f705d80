"""The closed form against what one would run instead: an adaptive ODE solver, and gradient descent on the weights.

python benchmarks/linear_network.py
"""

import jax
import numpy as np
from scipy.integrate import solve_ivp

from iclr_dynamics.linear_network import (
    PARAMETERISATIONS,
    PhaseGrid,
    draw,
    integrate_flow,
    simulate_gd,
    solve,
    unit_data,
)
from iclr_shared.bench import compare, print_comparisons
from iclr_shared.tables import print_table

TIMES = 200
STEPS = 2_000  # of gradient descent up to the same end, a multiple of TIMES


def problem(d, D=1):
    setting, data = PARAMETERISATIONS["mean-field"].at(d), unit_data(D)
    layers = draw(jax.random.key(0), setting, D)
    return setting.net, data, layers, np.linspace(0, 5, TIMES + 1)[1:]


def slopes_by_solver(net, data, u, a, t):
    """The slope by DOP853 on the 2d active weights alone, the least that a user would integrate."""
    d = len(u)

    def flow(_, state):
        u, a = state[:d], state[d:]
        residual = net.gamma * data.A * (net.gamma * u @ a - data.target)
        return np.concatenate([-net.eta_u * residual * a, -net.eta_w * residual * u])

    run = solve_ivp(flow, (0, t[-1]), np.concatenate([u, a]), method="DOP853", t_eval=t, rtol=1e-8, atol=1e-10)
    return net.gamma * np.sum(run.y[:d] * run.y[d:], 0)


def slopes_by_descent(net, data, u, a, t):
    """The slope by a plain loop of gradient descent, recorded at the same times."""
    dt, every, slopes = t[-1] / STEPS, STEPS // TIMES, []
    for step in range(STEPS):
        residual = net.gamma * data.A * (net.gamma * u @ a - data.target)
        u, a = u - dt * net.eta_u * residual * a, a - dt * net.eta_w * residual * u
        if (step + 1) % every == 0:
            slopes.append(net.gamma * u @ a)
    return np.array(slopes)


def scalars(d):
    net, data, layers, t = problem(d)
    u, a = np.asarray(layers.u), np.asarray(layers.w[:, 0])
    candidates = {
        "closed form": lambda: solve(net, data, *layers, t, weights=False).F,
        "DOP853 on 2d weights": lambda: slopes_by_solver(net, data, u, a, t),
        f"{STEPS} steps of descent": lambda: slopes_by_descent(net, data, u, a, t),
    }

    def check(outputs):
        ours, solver, descent = outputs.values()
        np.testing.assert_allclose(ours, solver, atol=1e-6)
        np.testing.assert_allclose(ours, descent, atol=5 / STEPS)

    return compare(candidates, check=check, reps=7, sync=jax.block_until_ready, label=f"slope at {TIMES} times, d={d}")


def weights(d, D):
    net, data, layers, t = problem(d, D)
    dt = t[-1] / STEPS
    scaled = type(net)(net.gamma, net.eta_u * dt, net.eta_w * dt)
    candidates = {
        "closed form": lambda: solve(net, data, *layers, t)[-2:],
        "DOP853 on all weights": lambda: integrate_flow(net, data, *layers, t, rtol=1e-8, atol=1e-10),
        f"{STEPS} steps of compiled descent": lambda: simulate_gd(scaled, data, *layers, STEPS, STEPS // TIMES),
    }

    def check(outputs):
        ours, solver, descent = outputs.values()
        for one, other, third in zip(ours, solver, descent, strict=True):
            np.testing.assert_allclose(one, other, atol=1e-5)
            np.testing.assert_allclose(one, third[1:], atol=20 / STEPS)

    label = f"all weights at {TIMES} times, d={d}, D={D}"
    return compare(candidates, check=check, reps=7, sync=jax.block_until_ready, label=label)


def diagram_row(points, width):
    """One row of the phase diagram against numpy, one network at a time. Drawing the weights is nearly all of it, and
    JAX's generator, which gives each point its own reproducible stream, is slower than numpy's on a CPU."""
    grid, key = PhaseGrid(points=points, widths=(width // 10, width)), jax.random.key(0)

    def by_numpy():
        rng, rows = np.random.default_rng(0), []
        for d in grid.widths:
            line = []
            for b in grid.b:
                sigma = d ** (-b / 2)
                half = sigma * rng.standard_normal((2, d // 2))
                u, a = np.concatenate([half[0], half[0]]), np.concatenate([half[1], -half[1]])
                theta = d ** -grid.g[0] * np.sqrt(np.sum((u + a) ** 2) * np.sum((u - a) ** 2))
                line.append((np.log(theta), np.log(np.expm1(0.5 * np.log1p(4 / theta**2)))))
            rows.append(np.transpose(line))
        return np.array(rows)

    def check(outputs):
        ours, other = outputs.values()
        np.testing.assert_allclose(ours[:, 0], other[:, 0], atol=0.2)  # different random networks

    candidates = {"PhaseGrid.row": lambda: grid.row(key, 0), "numpy loop": by_numpy}
    return compare(candidates, check=check, reps=7, label=f"diagram row, {points} points, d={width}")


def growth():
    """Time of the closed form over the width and over the number of times."""
    rows = []
    for d in (100, 1_000, 10_000, 100_000):
        net, data, layers, t = problem(d)
        alone = compare(
            {"scalars": lambda n=net, x=data, s=layers, t=t: solve(n, x, *s, t, weights=False).F},
            check=lambda outputs: None,
            reps=5,
            sync=jax.block_until_ready,
        )
        memory = 2 * 8 * d * TIMES / 1e6
        rows.append((d, TIMES, 1000 * alone.median("scalars"), memory))
    print_table(("d", "times", "ms, scalars", "MB that the weights would take"), rows, "growth with the width (D = 1)")


def main():
    with jax.enable_x64(True):
        comparisons = [scalars(1_000), scalars(10_000), weights(100, 5), weights(1_000, 5), diagram_row(40, 10_000)]
        print_comparisons(comparisons, "ours is the first of each case; mean-field parameterisation, double precision")
        growth()


if __name__ == "__main__":
    main()

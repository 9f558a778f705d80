"""Speed of the kernel rule: ours against what a user would run instead.

    python benchmarks/modular.py

One descent of several starts is held against the same written with NumPy and SciPy (gradient by hand, starts one after
the other) and against PyTorch (automatic differentiation through the Cholesky factor); one gradient also against finite
differences. PyTorch is only needed here.
"""

import time

import jax
import jax.numpy as jnp
import numpy as np
from scipy.linalg import cho_factor, cho_solve

from iclr_generalization.modular.kernel_rule import objective
from iclr_generalization.modular.search import _descend
from iclr_shared.bench import compare, peak_memory, print_comparisons
from iclr_shared.errors import require
from iclr_shared.tables import print_table

STEPS, RATE, STARTS, M = 20, 0.05, 6, 20


def problem(n: int, m: int = M, starts: int = STARTS):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(n, m))
    y = np.sin(2 * x[:, :1]) + np.cos(3 * x[:, 1:2])
    y = (y - y.mean()) / y.std()
    return rng.normal(size=(starts, 1, m)), x, y


def numpy_gradient(a, x, y):
    """J and its gradient for b = 1, with one Cholesky factorisation."""
    norm = np.linalg.norm(a)
    v = a / norm
    z = x @ v
    difference = z[:, None] - z[None, :]
    G = np.exp(-(difference**2) / 2)
    w = cho_solve(cho_factor(G + np.eye(len(x)), lower=True), y)
    value = (y * w).sum() / len(x)
    weight = (w @ w.T) * G * difference / len(x)  # -dJ/dG times dG/dz: both ends of each pair
    slope = 2 * (weight.sum(1) @ x)
    return value, (slope - (slope @ v) * v) / norm


def numpy_descend(A, x, y):
    ends = []
    for start in A[:, 0]:
        a, first, second = start.copy(), 0.0, 0.0
        for t in range(1, STEPS + 1):
            _, g = numpy_gradient(a, x, y)
            first, second = 0.9 * first + 0.1 * g, 0.999 * second + 0.001 * g**2
            a = a - RATE * (first / (1 - 0.9**t)) / (np.sqrt(second / (1 - 0.999**t)) + 1e-8)
        ends.append(a / np.linalg.norm(a))
    return np.array(ends)


def torch_descend(torch, A, x, y):
    x, y = torch.from_numpy(x), torch.from_numpy(y)
    eye, ends = torch.eye(len(x), dtype=x.dtype), []
    for start in A[:, 0]:
        a = torch.from_numpy(start.copy()).requires_grad_()
        adam = torch.optim.Adam([a], RATE)
        for _ in range(STEPS):
            adam.zero_grad()
            z = x @ (a / a.norm())
            G = torch.exp(-((z[:, None] - z[None, :]) ** 2) / 2)
            factor = torch.linalg.cholesky(G + eye)
            half = torch.linalg.solve_triangular(factor, y, upper=False)
            ((half**2).sum() / len(x)).backward()
            adam.step()
        ends.append((a / a.norm()).detach().numpy())
    return np.array(ends)


def alike(outputs):
    reference = np.asarray(next(iter(outputs.values())))
    for name, value in outputs.items():
        np.testing.assert_allclose(np.asarray(value).reshape(reference.shape), reference, atol=1e-5, err_msg=name)


def descents():
    torch = require("torch", "torch")
    done = []
    for n in (150, 500):
        A, x, y = problem(n)
        on_device = jnp.asarray(A), jnp.asarray(x), jnp.asarray(y)
        candidates = {
            "ours (jit, all starts at once)": lambda on_device=on_device, n=n: _descend(
                *on_device, jax.random.key(0), jnp.asarray(1.0), RATE, "rbf", 1.0, STEPS, n
            )[0],
            "numpy, start by start": lambda A=A, x=x, y=y: numpy_descend(A, x, y),
            "torch, start by start": lambda A=A, x=x, y=y: torch_descend(torch, A, x, y),
        }
        label = f"n = {n}, {STARTS} starts, {STEPS} steps"
        done.append(compare(candidates, check=alike, reps=5, sync=jax.block_until_ready, label=label))
    print_comparisons(done, "descent of the kernel rule, m = 20, b = 1, float64")


def gradients():
    done = []
    ours = jax.jit(jax.grad(objective))
    value = jax.jit(objective)
    for m in (5, 20, 80):
        A, x, y = (jnp.asarray(part) for part in problem(200, m, 1))
        steps = 1e-6 * jnp.eye(m)[:, None, :]

        def differences(A=A, x=x, y=y, steps=steps):
            slopes = [(value(A[0] + step, x, y) - value(A[0] - step, x, y)) / 2e-6 for step in steps]
            return jnp.stack(slopes)[None]

        candidates = {"ours": lambda A=A, x=x, y=y: ours(A[0], x, y), "central differences": differences}
        done.append(compare(candidates, check=alike, reps=5, sync=jax.block_until_ready, label=f"m = {m}, n = 200"))
    print_comparisons(done, "one gradient of the objective")


def growth():
    rows = []
    for n in (100, 200, 400, 800, 1600):
        A, x, y = (jnp.asarray(part) for part in problem(n, starts=4))
        arguments = (A, x, y, jax.random.key(0), jnp.asarray(1.0), RATE, "rbf", 1.0, 3, n)
        jax.block_until_ready(_descend(*arguments))
        start = time.perf_counter()
        jax.block_until_ready(_descend(*arguments))
        rows.append((n, 1000 * (time.perf_counter() - start) / 12))
    print_table(("n", "ms per start and step"), rows, "growth with the number of samples")
    rows = []
    for group in (1, 4, 16):
        code = (
            "import numpy as np\nfrom iclr_generalization.modular import Search, find_modules\n"
            "rng = np.random.default_rng(0)\nx = rng.normal(size=(1000, 5))\n"
            f"quick = Search(steps=2, null=4, improve=10.0, group={group})\n"
            "find_modules(x, np.sin(2 * x[:, 0]), 1, restarts=16, search=quick)"
        )
        rows.append((group, peak_memory(code) / 2**20))
    print_table(("starts in one call", "peak memory, MiB"), rows, "memory of a search with n = 1,000, float32")


if __name__ == "__main__":
    with jax.enable_x64(True):
        descents()
        gradients()
        growth()

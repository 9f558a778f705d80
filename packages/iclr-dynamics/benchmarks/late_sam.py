"""Speed of SAM steps, switched runs and sharpness: ours against what a user would run instead.

    python benchmarks/late_sam.py

Steps and runs are held against PyTorch on the CPU, written as the official code does it: a closure-free SAM optimiser
around SGD with two backward passes. PyTorch is only needed here.
"""

import time
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from iclr_dynamics.late_sam import SwitchSchedule, Training, fit, flax_model, training_loss
from iclr_dynamics.late_sam.sam import TrainState, base_optimizer, make_step, sam
from iclr_dynamics.networks import MLP, Split, mse_loss
from iclr_dynamics.sharpness import top_eigenvalues
from iclr_shared.bench import compare, print_comparisons
from iclr_shared.errors import require
from iclr_shared.tables import print_table

RATE, MOMENTUM, RHO = 0.05, 0.9, 0.1


def data(samples: int, width: int):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((samples, 64)).astype(np.float32)
    y = np.eye(10, dtype=np.float32)[rng.integers(0, 10, samples)]
    model = flax_model(MLP((width, width, width, 10), activation="tanh"))
    return x, y, model, model.init(jax.random.key(0), jnp.asarray(x[:1]))[0]


class TorchSam:
    """The official step: climb by rho g / |g|, second gradient on the same batch, back, then SGD."""

    def __init__(self, params, width):
        self.torch = torch = require("torch", "torch")
        torch.set_num_threads(1)
        self.weights = []
        for index in range(4):
            for name in (f"w{index}", f"b{index}"):
                self.weights.append(torch.tensor(np.array(params[name]), requires_grad=True))
        self.sgd = torch.optim.SGD(self.weights, RATE, MOMENTUM)

    def loss(self, x, y):
        for index in range(4):
            x = x @ self.weights[2 * index] + self.weights[2 * index + 1]
            x = x.tanh() if index < 3 else x
        return ((x - y) ** 2).sum(1).mean() / 2

    def step(self, x, y, climb=True):
        self.sgd.zero_grad()
        self.loss(x, y).backward()
        if climb:
            with self.torch.no_grad():
                norm = self.torch.stack([w.grad.norm() for w in self.weights]).norm()
                saved = [w.detach().clone() for w in self.weights]
                for w in self.weights:
                    w.add_(w.grad, alpha=float(RHO / (norm + 1e-12)))
            self.sgd.zero_grad()
            self.loss(x, y).backward()
            with self.torch.no_grad():
                for w, old in zip(self.weights, saved, strict=True):
                    w.copy_(old)
        self.sgd.step()


def compare_steps(samples: int, width: int, steps: int = 50):
    """`steps` SAM steps on one batch, both from the same weights."""
    x, y, model, params = data(samples, width)
    optimizer = sam(base_optimizer(RATE, MOMENTUM), RHO)

    def objective(params, extra, batch, key):
        return mse_loss(model.apply(params, extra, batch[0], True, None)[0], batch[1]), (extra, None)

    step = make_step(objective, optimizer)

    @jax.jit
    def ours(params, x, y):
        state = TrainState(params, {}, optimizer.init(params))
        body = lambda _, state: step(state, (x, y), None)[0]  # noqa: E731
        return jax.lax.fori_loop(0, steps, body, state).params

    @jax.jit
    def one(state, x, y):
        return step(state, (x, y), None)[0]

    def ours_from_python():
        state = TrainState(params, {}, optimizer.init(params))
        for _ in range(steps):
            state = one(state, x, y)
        return np.asarray(jax.block_until_ready(state.params["w3"]))

    def torch():
        network = TorchSam(params, width)
        tx, ty = network.torch.tensor(x), network.torch.tensor(y)
        for _ in range(steps):
            network.step(tx, ty)
        return network.weights[6].detach().numpy()

    def same(outputs):
        for name, value in outputs.items():
            np.testing.assert_allclose(value, outputs["torch"], rtol=2e-3, atol=2e-4, err_msg=name)

    candidates = {
        "ours": lambda: np.asarray(jax.block_until_ready(ours(params, x, y)["w3"])),
        "ours, loop in Python": ours_from_python,
        "torch": torch,
    }
    label = f"{steps} SAM steps: {samples} samples, width {width}"
    return compare(candidates, check=same, reps=7, label=label)


def compare_runs(width: int = 64, epochs: int = 60):
    """Wall time of whole runs: SGD, SAM in the last tenth, SAM throughout."""
    x, y, model, _ = data(640, width)

    inputs = Split(jnp.asarray(x), jnp.asarray(y), jnp.asarray(x), jnp.asarray(y))
    training = Training(epochs=epochs, learning_rate=RATE, batch_size=64, weight_decay=0.0, rho=RHO, loss="mse")
    schedules = {
        "late 10 %": SwitchSchedule.late_from(0.9, unit="fraction"),
        "SGD": SwitchSchedule.never(),
        "SAM": SwitchSchedule.always(),
    }

    def run(schedule):
        return fit(model, inputs, schedule, training, key=jax.random.key(0)).losses[: epochs * 9]

    def same(outputs):
        np.testing.assert_array_equal(outputs["late 10 %"], outputs["SGD"])

    return compare(
        {name: partial(run, schedule) for name, schedule in schedules.items()},
        check=same,
        reps=7,
        label=f"{epochs} epochs of 10 steps",
    )


def sharpness_growth():
    """Seconds and Hessian-vector products of one sharpness, by width."""
    rows = []
    for width in (64, 128, 256, 512):
        x, y, model, params = data(600, width)
        whole = training_loss(model, mse_loss)
        batch = {}, jnp.asarray(x), jnp.asarray(y)
        top_eigenvalues(whole, params, *batch, tol=1e-4)
        begin = time.perf_counter()
        spectrum = top_eigenvalues(whole, params, *batch, tol=1e-4)
        weights = sum(leaf.size for leaf in jax.tree.leaves(params))
        memory = jax.jit(jax.grad(whole)).lower(params, *batch).compile().memory_analysis()
        rows.append((width, weights, time.perf_counter() - begin, spectrum.products, memory.temp_size_in_bytes / 2**20))
    return rows


def main():
    print_comparisons([compare_steps(*size) for size in ((10, 64), (128, 64), (128, 512))], "steps")
    print_comparisons([compare_runs()], "whole runs")
    columns = ("width", "weights", "seconds for one sharpness", "products", "MiB of one gradient")
    print_table(columns, sharpness_growth())


if __name__ == "__main__":
    main()

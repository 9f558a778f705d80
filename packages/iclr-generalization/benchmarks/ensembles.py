"""Speed of the analysis and training of ensembles: ours against what a user would run instead.

    python benchmarks/ensembles.py

The exact law is held against the plain loop over all subsets, training of stacked members against a loop over members,
and the memory of an analysis against the size of the predictions.
"""

import itertools
import math
import tempfile
import time
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from iclr_generalization.ensembles import MLP, decompose, loss_curve
from iclr_generalization.ensembles.training import _train_group
from iclr_shared.bench import compare, peak_memory, print_comparisons
from iclr_shared.tables import print_table

POINTS, CLASSES = 500, 10


def predictions(K: int, n: int = POINTS):
    rng = np.random.default_rng(0)
    raw = np.exp(rng.normal(size=(K, n, CLASSES)))
    return raw / raw.sum(2, keepdims=True), rng.integers(0, CLASSES, n)


def subset_losses(preds, y, M):
    truth = np.eye(CLASSES)[y]
    subsets = itertools.combinations(range(len(preds)), M)
    return np.mean([np.square(preds[list(s)].mean(0) - truth).sum(1).mean() for s in subsets])


def law():
    done = []
    for K, M in ((10, 5), (12, 6), (14, 7)):
        preds, y = predictions(K)
        candidates = {
            "ours (Gram matrix, every M)": lambda preds=preds, y=y, M=M: decompose(preds, y).law.loss(M),
            "loop over subsets, this M": partial(subset_losses, preds, y, M),
        }
        label = f"K = {K}, M = {M}: {math.comb(K, M):,} subsets"

        def alike(outputs):
            np.testing.assert_allclose(*outputs.values(), rtol=1e-10)

        done.append(compare(candidates, check=alike, reps=3, warmup=1, label=label))
    print_comparisons(done, f"exact Brier score of subsets, {POINTS} points, {CLASSES} classes")
    # The full case of K = 20 is not enumerated: its time is that of one subset times their number.
    preds, y = predictions(20)
    decompose(preds, y)
    start = time.perf_counter()
    for _ in range(20):
        decompose(preds, y).law.loss(10)
    ours = (time.perf_counter() - start) / 20
    truth, some = np.eye(CLASSES)[y], list(itertools.islice(itertools.combinations(range(20), 10), 300))
    start = time.perf_counter()
    for subset in some:
        np.square(preds[list(subset)].mean(0) - truth).sum(1).mean()
    loop = (time.perf_counter() - start) / len(some) * math.comb(20, 10)
    rows = [("ours", 1000 * ours, 1.0), ("loop (extrapolated from 300 subsets)", 1000 * loop, loop / ours)]
    print_table(("what", "ms", "relative to ours"), rows, f"K = 20, M = 10: {math.comb(20, 10):,} subsets")


def sampled():
    preds, y = predictions(16, 200)
    truth = np.eye(CLASSES)[y]

    def loop():
        rng = np.random.default_rng(0)
        orders = rng.permuted(np.tile(np.arange(16), (200, 1)), axis=1)
        curve = np.zeros(16)
        for order in orders:
            for M in range(1, 17):
                mean = preds[order[:M]].mean(0)
                curve[M - 1] -= np.log(np.clip((mean * truth).sum(1), 1e-12, None)).mean()
        return curve / len(orders)

    candidates = {
        "ours (running means along 200 orders)": lambda: loss_curve(preds, y, "nll", mode="sampled"),
        "loop over the same subsets": loop,
    }

    def alike(outputs):
        np.testing.assert_allclose(*outputs.values(), rtol=1e-8)

    done = compare(candidates, check=alike, reps=5, label="K = 16, 200 points, every size")
    print_comparisons([done], "negative log-likelihood of sampled subsets")


def training():
    rng = np.random.default_rng(0)
    x, y = jnp.asarray(rng.normal(size=(300, 64)), jnp.float32), jnp.asarray(rng.integers(0, 10, 300))
    settings, done = (64, 10, 1e-3), []  # batch size, epochs, learning rate
    for width in (10, 40, 160):
        model = MLP((width, width, 10))
        keys = jax.random.split(jax.random.key(0), 8)
        candidates = {
            "ours (8 members stacked)": lambda model=model, keys=keys: _train_group(model, x, y, keys, *settings),
            "loop over 8 members (jit)": lambda model=model, keys=keys: jax.tree.map(
                lambda *leaves: jnp.concatenate(leaves),
                *[_train_group(model, x, y, key[None], *settings) for key in keys],
            ),
        }

        def alike(outputs):
            for one, other in zip(*map(jax.tree.leaves, outputs.values()), strict=True):
                np.testing.assert_allclose(one, other, atol=1e-2)

        done.append(compare(candidates, check=alike, reps=5, sync=jax.block_until_ready, label=f"width {width}"))
    print_comparisons(done, "training on 300 points, 10 epochs")


def memory():
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "predictions.npy"
        for n in (10_000, 100_000, 1_000_000):
            array = np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=(8, n, 10))
            rng = np.random.default_rng(0)
            for part in range(0, n, 10_000):
                array[:, part : part + 10_000] = rng.random((8, 10_000, 10), dtype=np.float32)
            del array
            code = (
                "import numpy as np\nfrom iclr_generalization.ensembles import decompose\n"
                f"preds = np.load({str(path)!r}, mmap_mode='r')\n"
                "decompose(preds, np.arange(preds.shape[1]) % 10)"
            )
            start = time.perf_counter()
            peak = peak_memory(code)
            rows.append((f"{n:,}", 8 * n * 10 * 4 / 2**20, peak / 2**20, time.perf_counter() - start))
    columns = ("points", "predictions on disk, MiB", "peak memory, MiB", "s, interpreter start included")
    print_table(columns, rows, "decomposition of 8 members x 10 outputs, memory-mapped float32")
    print("Peak memory counts the mapped pages that are still cached; the system may drop those at any time.")


if __name__ == "__main__":
    law()
    sampled()
    training()
    memory()

"""What the search costs beside its evaluations, and what it saves of them: `python benchmarks/subset.py`,
which needs `iclr-subset[controls]`."""

import math
import time
from itertools import combinations, permutations

import numpy as np

from iclr_shared.bench import compare, print_comparisons
from iclr_shared.tables import print_table
from iclr_subset import ExactK, SubsetOptimizer, minimize, search
from iclr_subset.distributions import DP_LARGEST, sequence_score, set_log_prob
from iclr_subset.planted import Overlap, plant


def sampling() -> None:
    """All draws of a batch at once against `rng.choice` for each; both follow the same law."""
    comparisons = []
    for n, size in ((20, 32), (1000, 32), (1000, 256)):
        w, rng, k = np.random.default_rng(0).random(n) + 0.1, np.random.default_rng(1), 10
        law, p = ExactK(w, k), w / w.sum()

        def one_by_one(n=n, k=k, p=p, rng=rng, size=size):
            return np.array([rng.choice(n, k, replace=False, p=p) for _ in range(size)])

        def same(outputs, p=p):
            means = [p[draws].mean() for draws in outputs.values()]
            assert abs(means[0] / means[1] - 1) < 0.2  # the same law, other draws

        ours = {"ours": lambda law=law, rng=rng, size=size: law.sample(rng, size), "rng.choice": one_by_one}
        comparisons.append(compare(ours, check=same, reps=7))
    print_comparisons(comparisons, "drawing 10 of 20 or 1000, batches of 32, 32, 256 (wanted ≥ 10x at the last)")


def scores() -> None:
    """Scores of a batch at once against a loop over draws and items."""
    comparisons = []
    for n, size in ((100, 32), (1000, 256)):
        w, k = np.random.default_rng(0).random(n) + 0.1, 10
        order = ExactK(w, k).sample(np.random.default_rng(1), size)

        def loop(w=w, order=order, n=n, k=k):
            found = np.zeros((len(order), n))
            for row, drawn in zip(found, order, strict=True):
                left, there = w.sum(), np.ones(n, dtype=bool)
                for i in drawn:
                    row[there] -= 1 / left
                    row[i] += 1 / w[i]
                    there[i] = False
                    left -= w[i]
            return found

        def same(outputs):
            np.testing.assert_allclose(outputs["ours"], outputs["loop"], rtol=1e-7, atol=1e-9)

        ours = {"ours": lambda w=w, order=order: sequence_score(w, order), "loop": loop}
        comparisons.append(compare(ours, check=same, reps=7))
    print_comparisons(comparisons, "sequence scores of 32 draws of 100, 256 of 1000")


def set_probability() -> None:
    """The probability of one set of k: dynamic program or integral against the sum over k! orders."""
    comparisons, rows = [], []
    w = np.random.default_rng(0).random(100) + 0.1
    for k in (4, 5, 7):
        law, subset = ExactK(w, k), np.arange(k)
        orders = np.array(list(permutations(range(k))))

        def same(outputs):
            np.testing.assert_allclose(outputs["ours"], outputs["all orders"], rtol=1e-10)

        candidates = {
            "ours": lambda s=subset: np.asarray(set_log_prob(w, s)),
            "all orders": lambda law=law, o=orders: np.log(np.exp(law.sequence_log_prob(o)).sum()),
        }
        comparisons.append(compare(candidates, check=same, reps=7))
    print_comparisons(comparisons, "log-probability of a set of 4, 5, 7")
    for k in (4, 8, 12, 16, 50):
        start = time.perf_counter()
        for _ in range(5):
            ExactK(w, k).score(np.arange(k)[None], "set")
        rows.append((k, 1000 * (time.perf_counter() - start) / 5, "sum over sets" if k <= DP_LARGEST else "integral"))
    print_table(("k", "ms", "by"), rows, "set score of one draw, growth with k")


def step() -> None:
    """A whole step of ask and tell."""
    rows = []
    for method in ("exact", "expected"):
        for n, size in ((20, 1), (100, 32), (1000, 32)):
            optimizer = SubsetOptimizer(n=n, k=10, method=method, batch=size, score="sequence")
            costs = np.random.default_rng(0).random(size).tolist()
            start = time.perf_counter()
            for _ in range(100):
                optimizer.tell(optimizer.ask(), costs)
            spent = 10 * (time.perf_counter() - start)
            rows.append((method, n, size, spent, "≤ 1" if n == 1000 else ""))
    print_table(("method", "n", "batch", "ms per step", "wanted"), rows, "ask, tell and mirror step")


def evaluations() -> None:
    """Evaluations until the planted subset was seen, against enumeration, chance and greed."""
    rows = []
    for n, k in ((12, 3), (20, 5), (30, 6)):
        total, counts = math.comb(n, k), {"mirror": [], "greedy": [], "cma": []}
        for seed in range(3):
            best = plant(n, k, seed)
            found = minimize(Overlap(best), n, k, steps=4000, seed=seed)
            other = search("cma", Overlap(best), n, k, budget=4000, seed=seed)
            for name, calls in (("mirror", found.calls), ("cma", other.calls)):
                counts[name].append(next((i + 1 for i, e in enumerate(calls) if e.subset == best), math.inf))
            counts["greedy"].append(search("greedy", Overlap(best), n, k).evaluations)
        medians = [float(np.median(counts[name])) for name in ("mirror", "cma", "greedy")]
        rows.append((n, k, total, (total + 1) / 2, *medians))
    columns = ("n", "k", "enumeration", "chance, mean", "mirror descent, median", "CMA-ES, median", "greedy")
    print_table(columns, rows, "different evaluations until the best is seen; an additive cost is greedy's best case")
    start = time.perf_counter()
    cost = Overlap((0, 1, 2, 3))
    for subset in combinations(range(20), 4):
        cost(np.array(subset))
    naive = time.perf_counter() - start
    start = time.perf_counter()
    search("enumerate", cost, 20, 4)
    print_table(("what", "s"), [("loop", naive), ("ours, ledger kept", time.perf_counter() - start)], "all 4845 sets")


if __name__ == "__main__":
    sampling()
    scores()
    set_probability()
    step()
    evaluations()

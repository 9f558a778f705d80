"""Batched heads against loops over classes, geoopt, pyriemann; growth with n: `python benchmarks/symspaces.py`."""

import numpy as np
import torch
from pyriemann.geometry.distance import distance_riemann
from pyriemann.geometry.mean import mean_riemann

from iclr_shared.bench import compare, print_comparisons
from iclr_shared.tables import print_table
from iclr_symspaces import SPD, FrechetMean, PoincareBall
from iclr_symspaces.experiment_claims import LOG_EUCLIDEAN, PER_CLASS, PER_PAIR, SHARED, _costs
from iclr_symspaces.riemannian import geoopt


def close(rtol: float = 1e-6):
    def check(outputs):
        first, *others = outputs.values()
        for other in others:
            np.testing.assert_allclose(np.asarray(other), np.asarray(first), rtol=rtol, atol=rtol)

    return check


def ball_head() -> None:
    """All classes at once against a loop over classes, as the official head has it, and geoopt's Möbius addition."""
    comparisons = []
    for classes, d, batch in ((10, 64, 128), (100, 512, 128), (1000, 512, 128)):
        generator = torch.Generator().manual_seed(0)
        ball, theirs = PoincareBall(d), geoopt.PoincareBall(c=1.0)
        x = ball.random(batch, generator, 0.02, torch.float32)
        p, u = (
            ball.random(classes, generator, 0.02, torch.float32),
            ball.random_boundary(classes, generator, torch.float32),
        )

        def loop(x=x, p=p, u=u, theirs=theirs):
            columns = []
            for q, v in zip(p, u, strict=True):
                y = theirs.mobius_add(-q, x)
                columns.append(-((v - y).square().sum(-1) / (1 - y.square().sum(-1))).log())
            return torch.stack(columns, -1)

        candidates = {"ours": lambda b=ball, x=x, u=u, p=p: b.signed_distance(x, u, p), "loop over classes": loop}
        label = f"K={classes}, d={d}, B={batch}"
        comparisons.append(compare(candidates, check=close(1e-4), reps=5 if classes < 1000 else 3, label=label))
    print_comparisons(comparisons, "signed distances in the ball, float32 (wanted: 5x at K = 100)")


def spd_head() -> None:
    """One batched Cholesky against a loop over classes."""
    comparisons = []
    for n in (8, 16, 32):
        generator, space = torch.Generator().manual_seed(0), SPD(n)
        x, p = space.random(64, generator, 0.3), space.random(10, generator, 0.3)
        xi = space.random_boundary(10, generator)

        def loop(space=space, x=x, p=p, xi=xi):
            columns = []
            for q, k, a in zip(p, xi.k, xi.a, strict=True):
                w, v = torch.linalg.eigh(q)
                m = k.T @ ((v * w.rsqrt()) @ v.T) @ x @ ((v * w.rsqrt()) @ v.T) @ k
                columns.append((space.composite(m, torch.eye(len(q), dtype=q.dtype)) * a).sum(-1))
            return torch.stack(columns, -1)

        candidates = {"ours": lambda s=space, x=x, xi=xi, p=p: s.signed_distance(x, xi, p), "loop over classes": loop}
        comparisons.append(compare(candidates, check=close(), reps=7, label=f"n={n}, K=10, B=64"))
    print_comparisons(comparisons, "signed distances on SPD(n), float64")


def distances_and_means() -> None:
    """Pairwise distances and Karcher means against geoopt and pyriemann."""
    comparisons = []
    for n in (8, 32):
        generator, space = torch.Generator().manual_seed(0), SPD(n)
        x, y = space.random(64, generator, 0.3), space.random(64, generator, 0.3)
        theirs = geoopt.SymmetricPositiveDefinite()
        candidates = {
            "ours": lambda s=space, x=x, y=y: s.dist(x, y),
            "geoopt": lambda t=theirs, x=x, y=y: t.dist(x, y),
            "pyriemann": lambda x=x, y=y: distance_riemann(x.numpy(), y.numpy()),
        }
        comparisons.append(compare(candidates, check=close(), reps=7, label=f"distance, n={n}, 64 pairs"))
        mean = FrechetMean(space, "karcher")
        candidates = {"ours": lambda m=mean, x=x: m(x), "pyriemann": lambda x=x: mean_riemann(x.numpy(), tol=1e-7)}
        comparisons.append(compare(candidates, check=close(1e-5), reps=5, label=f"Karcher mean, n={n}, 64 matrices"))
    print_comparisons(comparisons, "distances and means on SPD(n)")


def growth() -> None:
    """Forward and backward pass of four heads; where a flag per class loses is in the table too."""
    orders = (8, 16, 32, 64)
    found = _costs(orders, 10, 64, 3)
    names = (SHARED, PER_CLASS, LOG_EUCLIDEAN, PER_PAIR)
    rows = [(n, *(found[name][i] for name in names)) for i, n in enumerate(orders)]
    print_table(("n", *(f"{name} (ms)" for name in names)), rows, "forward and backward pass, K=10, B=64, float64")


if __name__ == "__main__":
    torch.set_num_threads(1)
    ball_head()
    spd_head()
    distances_and_means()
    growth()

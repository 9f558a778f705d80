"""The experiments behind the claims; each is computed once for its seed and sizes."""

from functools import cache
from itertools import combinations
from typing import Any

import numpy as np

from iclr_shared.seeds import root
from iclr_subset.baselines import search
from iclr_subset.distributions import ExactK
from iclr_subset.minimize import minimize
from iclr_subset.optimizer import Settings
from iclr_subset.planted import Overlap, plant


@cache
def stationarity(seed: int, steps: int, seeds: int, arm: str) -> dict[str, tuple[float, float]]:
    """Mean of ||w - w+||^2 / eta^2 over steps and seeds (1-norm, or Euclidean), and the last f; eta = 0.5 / sqrt(T).
    For the arm ``"KL"`` also with costs of noise, in the same compiled run; w+ is always the exact gradient's."""
    import jax
    import jax.numpy as jnp

    from iclr_subset.descent import descend, exact_gradient

    a = np.random.default_rng(3).random(8)
    subsets = np.array(list(combinations(range(8), 3)))
    costs = a[subsets].mean(1)
    euclid = arm == "euclidean"
    settings = Settings(
        n=8, k=3, c=0.01, eta=0.5 / steps**0.5, steps=steps, batch=1 if arm == "B = 1" else int(steps**0.5),
        geometry="euclidean" if euclid else "kl",
    )  # fmt: skip

    def watch(w, move):
        change = move(exact_gradient(costs, subsets, w)) - w
        return (jnp.sum(change**2) if euclid else jnp.sum(jnp.abs(change)) ** 2) / settings.eta(0) ** 2

    def one(noise, key):
        def cost(member, key):
            return jnp.where(noise, jax.random.uniform(key, dtype=jnp.float64), jnp.sum(member * a) / 3)

        trace = descend(cost, key, settings, watch=watch, dtype=jnp.float64)
        return trace.w, trace.watched.mean()

    kinds = (False, True) if arm == "KL" else (False,)
    with jax.enable_x64(True):
        keys = jax.random.split(jax.random.key(seed), seeds)
        run = jax.jit(jax.vmap(jax.vmap(one, (None, 0)), (0, None)))
        w, measures = (np.asarray(x) for x in run(jnp.asarray(kinds), keys))
    found = {}
    for kind, at, measure in zip(kinds, w, measures, strict=True):
        finals = [float(np.exp(ExactK(x, 3).log_prob(subsets)) @ costs) for x in at]
        found["costs of noise" if kind else arm] = (float(measure.mean()), float(np.mean(finals)))
    return found


@cache
def passages(seed: int, n: int, k: int, geometry: str, grid: tuple[float, ...], seeds: int, steps: int) -> np.ndarray:
    """First step at which w(C*) >= 0.9, shape (grid, seeds); `steps` where never."""
    import jax
    import jax.numpy as jnp

    from iclr_subset.descent import descend

    settings = Settings(n=n, k=k, geometry=geometry, steps=steps, eta=1.0, score="sequence")

    def cost(member, key):
        return 1 - jnp.sum(member[:k]) / k

    def one(eta, key):
        reached = descend(cost, key, settings, eta, lambda w, move: w[:k].sum() >= 0.9).watched
        return jnp.where(reached.any(), jnp.argmax(reached), steps)

    power = n if geometry == "kl" else n**2
    with jax.enable_x64(True):
        keys = jax.random.split(jax.random.key(seed), seeds)
        etas = jnp.asarray(grid) / power
        return np.asarray(jax.jit(jax.vmap(jax.vmap(one, (None, 0)), (0, None)))(etas, keys))


@cache
def recoveries(seed: int, method: str, seeds: int, budget: int, noise: float, n: int, k: int) -> dict[str, int]:
    """How many of the seeds' planted subsets are found, by the answer, the best seen, and the largest weights."""
    found = {"answer": 0, "best seen": 0, "largest weights": 0, "distinct": 0}
    for i in range(seeds):
        best, own = plant(n, k, seed + i), seed + i
        cost = Overlap(best, charge_size=method == "expected", noise=noise)
        if method == "random":
            calls = search("random", cost, n, k, budget=budget, seed=own, cache=not noise) if not noise else None
            answer = noisy_random(cost, n, k, budget, own) if calls is None else calls.subset
            found["answer"] += answer == best
            continue
        result = minimize(
            cost, n, k, method, steps=budget, cache=False, noisy=noise > 0, seed=own, empty=1.0, repeats=20
        )
        found["answer"] += result.subset == best
        found["best seen"] += result.best_seen[0] == best
        found["largest weights"] += result.top == best
        found["distinct"] += len({e.subset for e in result.calls})
    return found


def noisy_random(cost: Overlap, n: int, k: int, budget: int, seed: int) -> tuple[int, ...]:
    """Best single draw of so many."""
    rng = np.random.default_rng([seed, 2])
    drawn = ExactK(np.full(n, 1.0), k).sample(rng, budget)
    costs = [cost(subset, rng) for subset in drawn]
    return tuple(sorted(drawn[int(np.argmin(costs))].tolist()))


@cache
def network_truth(seed: int, depth: int, width: int, k: int, pretrain: int, steps: int) -> Any:
    """Errors of all sets of k blocks, for one network and split."""
    from iclr_subset import transfer

    tree = root(seed)
    task = transfer.digits_task(tree)
    return transfer.truth(transfer.pretrain(task, tree, width, depth, pretrain), task, k, steps)


def choose_layers(truth, depth: int, k: int, budget: int, seed: int) -> dict[str, Any]:
    """Mirror descent on validation errors, and random search with as many different evaluations."""
    costs = truth.costs()

    def cost(chosen):
        return costs[tuple(chosen.tolist())]

    ours = minimize(cost, depth, k, budget=budget, batch=2, normalise=True, seed=seed)
    other = search("random", cost, depth, k, budget=ours.evaluations, seed=seed)
    return {"ours": ours.subset, "random": other.subset, "evaluations": ours.evaluations}


@cache
def layer_runs(seed: int, depth, width, k, budget, networks, outer, pretrain, steps) -> list[dict[str, Any]]:
    """Choices by both searches for several networks and outer seeds, with their test ranks and errors."""
    found = []
    for network in range(networks):
        truth = network_truth(seed + network, depth, width, k, pretrain, steps)
        for i in range(outer):
            run = choose_layers(truth, depth, k, budget, 100 * network + i)
            ranks = {name: truth.rank(run[name]) for name in ("ours", "random")}
            test = dict(zip(truth.subsets, truth.test.tolist(), strict=True))
            found.append(
                run | {"rank": ranks, "last": test[truth.subsets[-1]], "error": test[run["ours"]], "truth": truth}
                | {"rank of last": truth.rank(truth.subsets[-1]), "rank of first": truth.rank(truth.subsets[0])}
            )  # fmt: skip
    return found

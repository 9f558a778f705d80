"""The ledger's checks. What several rows read is computed once for each seed and size."""

from functools import partial
from itertools import combinations, permutations
from typing import Any

import numpy as np
from scipy.optimize import minimize as scipy_minimize

from iclr_shared.claims import ClaimRun, Measurement
from iclr_shared.testing import loglog_slope
from iclr_subset import figures, mirror
from iclr_subset.baselines import expected_random_rank, search
from iclr_subset.distributions import ExactK, ExpectedK, sequence_score
from iclr_subset.experiments import layer_runs, passages, recoveries, stationarity
from iclr_subset.minimize import minimize
from iclr_subset.planted import SubsetSum

W = np.array([0.05, 0.1, 0.15, 0.2, 0.22, 0.28])
A = np.array([3.0, 1, 4, 1, 5, 9])
B = np.array([0.2, 0.4, 0.6, 0.3, 0.7, 0.8])
GRADIENT = np.array([-2.84908351875, -7.75525413792, 1.06554565854, -5.79839001225, 2.56929152425, 4.83064860023])
GRADIENT_B = np.array([4.38, 1.3, 4.8, 1.32, 5.4, 6.66])
SETS = np.array(list(combinations(range(6), 3)))
ORDERS = np.array(list(permutations(range(6), 3)))
EVERY = np.array([[i >> j & 1 for j in range(6)] for i in range(64)], dtype=bool)


# --- C1: unbiased gradients ------------------------------------------------------------------------------------------


def _cost(subsets: np.ndarray) -> np.ndarray:
    return (A[subsets].sum(-1) - 8) ** 2 / 10


def _cost_b(members: np.ndarray) -> np.ndarray:
    return (members @ A - 8) ** 2 / 10


def _f(w: np.ndarray) -> float:
    return float(np.exp(ExactK(w, 3).log_prob(SETS)) @ _cost(SETS))


def _f_b(w: np.ndarray) -> float:
    return float(np.exp(ExpectedK(w).log_prob(EVERY)) @ _cost_b(EVERY))


def _differences(f, w: np.ndarray, step: float = 1e-6) -> np.ndarray:
    return np.array([(f(w + step * e) - f(w - step * e)) / (2 * step) for e in np.eye(len(w))])


def _error(expected: np.ndarray, f, w: np.ndarray, stored: np.ndarray) -> float:
    return max(np.abs(expected - stored).max(), np.abs(expected - _differences(f, w)).max())


def _sorted_error() -> float:
    p = np.exp(ExactK(W, 3).sequence_log_prob(ORDERS))
    return float(np.abs(p @ (_cost(ORDERS)[:, None] * sequence_score(W, np.sort(ORDERS, 1))) - GRADIENT).max())


def sequence_is_unbiased(run: ClaimRun, *, in_order: bool = True) -> Measurement:
    """Row 1: mean of cost times sequence score over all orders. Control: indices sorted before the score is taken."""
    law = ExactK(W, 3)
    p = np.exp(law.sequence_log_prob(ORDERS))
    given = ORDERS if in_order else np.sort(ORDERS, 1)
    return Measurement(
        _error(p @ (_cost(ORDERS)[:, None] * law.score(given, "sequence")), _f, W, GRADIENT),
        baseline=("indices sorted", _sorted_error()), n=len(ORDERS),
    )  # fmt: skip


def set_is_unbiased(run: ClaimRun, *, weights: np.ndarray = W) -> Measurement:
    """Row 1: the same for the set score; its second moment is below the sequence's. Control: indices sorted."""
    law = ExactK(weights, 3)
    p, q = np.exp(law.log_prob(SETS)), np.exp(law.sequence_log_prob(ORDERS))
    scores = _cost(SETS)[:, None] * law.score(SETS, "set")
    moments = {
        "second moment, set": float(p @ (scores**2).sum(1)),
        "second moment, sequence": float(q @ ((_cost(ORDERS)[:, None] * law.score(ORDERS)) ** 2).sum(1)),
    }
    error = _error(p @ scores, _f, W, GRADIENT)
    return Measurement(error, baseline=("indices sorted", _sorted_error()), n=len(SETS), details=moments)


def independent_is_unbiased(run: ClaimRun, *, sign: float = -1.0) -> Measurement:
    """Row 1: the same for independent choices. Control: a score that forgets the items left out."""
    law = ExpectedK(B)
    p, scores = np.exp(law.log_prob(EVERY)), law.score(EVERY)
    errors = [
        _error(p @ (_cost_b(EVERY)[:, None] * np.where(EVERY, scores, -s * scores)), _f_b, B, GRADIENT_B)
        for s in (sign, 0.0)
    ]
    return Measurement(errors[0], baseline=("no score for items left out", errors[1]), n=64)


def samples_agree(run: ClaimRun, *, draws: int = 1_000_000, in_order: bool = True) -> Measurement:
    """Row 1: Monte-Carlo means of the three estimators in standard errors, the largest of 18. Control: sorted."""
    rng = run.seeds.child("draws").numpy()
    found = {}
    for _ in run.progress(range(1), desc="sampling"):
        drawn = ExactK(W, 3).sample(rng, draws)
        chosen = ExpectedK(B).sample(rng, draws)
    given = drawn if in_order else np.sort(drawn, 1)
    for name, costs, score, truth in (
        ("sequence", _cost(drawn), sequence_score(W, given), GRADIENT),
        ("set", _cost(drawn), ExactK(W, 3).score(SETS, "set")[_places(drawn)], GRADIENT),
        ("independent", _cost_b(chosen), ExpectedK(B).score(chosen), GRADIENT_B),
        ("sorted", _cost(drawn), sequence_score(W, np.sort(drawn, 1)), GRADIENT),
    ):
        terms = costs[:, None] * score
        found[name] = float((np.abs(terms.mean(0) - truth) / (terms.std(0) / draws**0.5)).max())
    control = found.pop("sorted")
    return Measurement(max(found.values()), baseline=("indices sorted", control), n=draws, details=found)


def _places(drawn: np.ndarray) -> np.ndarray:
    """Index into SETS."""
    code = np.zeros(64, dtype=int)
    code[(1 << SETS).sum(1)] = np.arange(len(SETS))
    return code[(1 << drawn).sum(1)]


def sorted_is_biased(run: ClaimRun, *, in_order: bool = False) -> Measurement:
    """Row 1's control: error of the sequence score of sorted indices. Control: in the order drawn."""
    right = sequence_is_unbiased(run).measured
    return Measurement(right if in_order else _sorted_error(), baseline=("in the order drawn", right), n=len(ORDERS))


# --- C2, C3: sizes and law -------------------------------------------------------------------------------------------


def sizes_are_exact(run: ClaimRun, *, draws: int = 100_000, exact: bool = True) -> Measurement:
    """Row 2: draws whose size is not k, formulation A. Control: formulation B."""
    rng = run.seeds.child("draws").numpy()
    drawn = np.sort(ExactK(W, 3).sample(rng, draws), 1)
    wrong = [int((np.diff(drawn, axis=1) == 0).any(1).sum()), int((ExpectedK(B).sample(rng, draws).sum(1) != 3).sum())]
    return Measurement(wrong[0 if exact else 1], baseline=("formulation B", wrong[1]), n=draws)


def mean_size(run: ClaimRun, *, draws: int = 100_000, inside: bool = True) -> Measurement:
    """Row 2: |mean size - k| in standard errors after a mirror step. Control: clipping after the root was found."""
    rng = run.seeds.child("draws").numpy()
    g = np.array([8.0, 4, 0, -4, 1, -8])
    step = mirror.fermi_dirac_step(B, g, 1.0, 0.05, 3)
    free = mirror.fermi_dirac_step(B, g, 1.0, 0.0, 3).w
    off = []
    for w in (step.w, np.clip(free, 0.05, 0.95)):
        size = ExpectedK(w).sample(rng, draws).sum(1)
        off.append(float(abs(size.mean() - 3) / ((w * (1 - w)).sum() / draws) ** 0.5))
    return Measurement(off[0 if inside else 1], baseline=("clipped after the root", off[1]), n=draws)


def variance_of_size(run: ClaimRun, *, draws: int = 100_000, independent: bool = True) -> Measurement:
    """Row 2: |variance of the size / sum w (1 - w) - 1|. Control: formulation A, whose size does not vary."""
    rng = run.seeds.child("draws").numpy()
    wanted = float((B * (1 - B)).sum())
    size = ExpectedK(B).sample(rng, draws).sum(1)
    found = abs(float(size.var()) / wanted - 1)
    return Measurement(
        found if independent else 1.0, baseline=("formulation A", 1.0), n=draws, details={"wanted": wanted}
    )


def sampler_law(run: ClaimRun, *, draws: int = 200_000, conditional: bool = False) -> Measurement:
    """Row 3: total variation between draws and P_w over 20 sets. Control: the law of independent choices given k."""
    drawn = ExactK(W, 3).sample(run.seeds.child("draws").numpy(), draws)
    counts = np.bincount(_places(drawn), minlength=20) / draws
    p = np.exp(ExactK(W, 3).log_prob(SETS))
    q = W[SETS].prod(1) / W[SETS].prod(1).sum()
    return Measurement(
        np.abs(counts - (q if conditional else p)).sum() / 2,
        baseline=("law of products", np.abs(q - p).sum() / 2),
        n=draws,
    )


# --- C4: projections -------------------------------------------------------------------------------------------------


def _points(run: ClaimRun, points: int) -> list[tuple[np.ndarray, float]]:
    """Logarithms of random points, moderate to extreme, and floors."""
    rng = run.seeds.child("points").numpy()
    return [(rng.standard_normal(12) * 10 ** rng.uniform(-1, 1.5), rng.uniform(0.001, 1 / 12)) for _ in range(points)]


def kl_is_exact(run: ClaimRun, *, points: int = 100, plain: bool = False) -> Measurement:
    """Row 4: largest violation of sum, bounds and optimality of the KL projection. Control: plain renormalisation."""

    def violation(w, log_y, c):
        free = w > c
        log_t = np.median(log_y[free] - np.log(w[free]))
        y = np.exp(log_y - log_t)
        equal = np.abs(y[free] - w[free]).max(initial=0.0)
        below = np.maximum(y[~free] - c, 0).max(initial=0.0)
        return max(abs(w.sum() - 1), max(c - w.min(), 0), equal, below)

    found = [violation(mirror.kl_projection(y, c).w, y, c) for y, c in _points(run, points)]
    control = [violation(_renormalised(y, c), y, c) for y, c in _points(run, points)]
    return Measurement(max(control if plain else found), baseline=("renormalised", max(control)), n=points)


def _renormalised(log_y: np.ndarray, c: float) -> np.ndarray:
    y = np.exp(log_y - log_y.max())
    w = np.maximum(y / y.sum(), c)
    return w / w.sum()


def kl_against_solver(run: ClaimRun, *, points: int = 20, plain: bool = False) -> Measurement:
    """Row 4: largest distance to SLSQP's solution. Control: plain renormalisation."""
    off, control = [], []
    for y, c in run.progress(_points(run, points), desc="solving"):
        y = np.clip(y, -12, 12)  # the outside solver's range
        found = scipy_minimize(
            lambda w, y=y: w @ (np.log(w) - y), np.full(12, 1 / 12), jac=lambda w, y=y: np.log(w) - y + 1,
            bounds=[(c, 1)] * 12, method="SLSQP", options={"ftol": 1e-15, "maxiter": 500},
            constraints={"type": "eq", "fun": lambda w: w.sum() - 1, "jac": lambda w: np.ones(12)},
        )  # fmt: skip
        off.append(np.abs(found.x - mirror.kl_projection(y, c).w).max())
        control.append(np.abs(found.x - _renormalised(y, c)).max())
    return Measurement(max(control if plain else off), baseline=("renormalised", max(control)), n=points)


def renormalising_differs(run: ClaimRun, *, points: int = 100, same: bool = False) -> Measurement:
    """Row 4's control: median distance of plain renormalisation. Control: the projection of the projection."""
    found = [mirror.kl_projection(y, c).w for y, c in _points(run, points)]
    plain = [np.abs(_renormalised(y, c) - w).max() for (y, c), w in zip(_points(run, points), found, strict=True)]
    again = [
        np.abs(mirror.kl_projection(np.log(w), c).w - w).max()
        for (_, c), w in zip(_points(run, points), found, strict=True)
    ]
    return Measurement(np.median(again if same else plain), baseline=("projected twice", np.median(again)), n=points)


def box_is_exact(run: ClaimRun, *, points: int = 100, inside: bool = True) -> Measurement:
    """Row 4 for formulation B: violation of sum, bounds and optimality, three geometries. Control: clipped
    afterwards."""
    worst, control = 0.0, 0.0
    start, k = np.linspace(0.05, 0.95, 12), 5.0
    for y, c in _points(run, points):
        for name, step in (("fermi_dirac", mirror.fermi_dirac_step), ("entropy", mirror.entropy_step)):
            w, nu = step(start, -y, 1.0, c, k)
            s = (np.log(start / (1 - start)) if name == "fermi_dirac" else np.log(start)) + y - nu
            p = 1 / (1 + np.exp(-np.clip(s, -700, 700))) if name == "fermi_dirac" else np.exp(np.minimum(s, 1))
            worst = max(worst, abs(w.sum() - k), np.abs(np.clip(p, c, 1 - c) - w).max())
        w, nu = mirror.euclidean_projection(start + y, c, 1 - c, k)
        worst = max(worst, abs(w.sum() - k), np.abs(np.clip(start + y - nu, c, 1 - c) - w).max())
        free = mirror.fermi_dirac_step(start, -y, 1.0, 0.0, k).w
        control = max(control, abs(np.clip(free, c, 1 - c).sum() - k))
    return Measurement(worst if inside else control, baseline=("clipped afterwards", control), n=points)


# --- C5: the rate ----------------------------------------------------------------------------------------------------


def convergence_rate(
    run: ClaimRun,
    *,
    steps: tuple[int, ...] = (100, 200, 400, 800, 1600, 3200, 6400),
    seeds: int = 10,
    noise: bool = False,
    beside: tuple[str, ...] = ("B = 1", "euclidean"),
) -> Measurement:
    """Row 5: log-log slope of the stationarity measure in T, KL, batch sqrt(T). Control: costs that are noise; the
    measure, of the true costs' gradient, must not fall. Beside it batch 1 and Euclidean steps, at every other T."""
    seed = run.seeds.int32()
    arms: dict[str, list[tuple[int, float, float]]] = {}
    for i, T in enumerate(run.progress(steps, desc="rate")):
        for arm in ("KL",) if i % 2 and i + 1 < len(steps) else ("KL", *beside):
            for name, (measure, final) in stationarity(seed, T, seeds, arm).items():
                arms.setdefault(name, []).append((T, measure, final))
    points = {name: tuple(zip(*rows, strict=True)) for name, rows in arms.items()}
    slopes = {name: loglog_slope(x, y) for name, (x, y, _) in points.items()}
    curves = {name: (x, y) for name, (x, y, _) in points.items()}
    run.figure("rate", figures.lines_figure(curves, "steps T", "mean stationarity measure", "Rate of convergence"))
    slope, error = slopes["costs of noise" if noise else "KL"]
    details = {f"slope, {name}": value[0] for name, value in slopes.items()}
    details["slope of the last four"] = loglog_slope(*(part[-4:] for part in curves["KL"]))[0]
    _, measures, finals = points["KL"]
    return Measurement(
        slope, baseline=("costs of noise", slopes["costs of noise"][0]), ci=(slope - 2 * error, slope + 2 * error),
        n=seeds, series={"T": steps, "measure": measures, "f(w_T)": finals}, details=details,
    )  # fmt: skip


# --- C6: dependence on n ---------------------------------------------------------------------------------------------


def dependence_on_n(
    run: ClaimRun, *, sizes: tuple[int, ...] = (16, 64, 256), k: int = 4, seeds: int = 5, steps: int = 6000,
    grid: tuple[float, ...] = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0), geometry: str = "kl",
) -> Measurement:  # fmt: skip
    """Row 6, open: growth exponent in n of the median first passage to w(C*) >= 0.9, best eta of each n. Control:
    Euclidean steps at their best eta."""
    found: dict[str, Any] = {}
    details: dict[str, Any] = {}
    for name in ("kl", "euclidean"):
        medians = []
        for n in run.progress(sizes, desc=name):
            medians_of = np.median(passages(run.seeds.int32(), n, k, name, grid, seeds, steps), axis=1)
            best = int(medians_of.argmin())
            medians.append(float(medians_of[best]))
            edge = ", at the grid's edge" if best in (0, len(grid) - 1) else ""
            details[f"{name}, n = {n}"] = f"{medians_of[best]:g} at {grid[best]:g}{edge}" + (
                ", not reached" if medians_of[best] >= steps else ""
            )
        found[name] = medians
    slopes = {name: loglog_slope(sizes, np.maximum(values, 1))[0] for name, values in found.items()}
    curves = {name: (sizes, values) for name, values in found.items()}
    run.figure("passage", figures.lines_figure(curves, "items n", "median first passage (steps)", "Dependence on n"))
    return Measurement(
        slopes[geometry], baseline=("Euclidean", slopes["euclidean"]), n=seeds, series=found, details=details
    )


# --- C7, C9: planted subsets -----------------------------------------------------------------------------------------


def _recovery(run, method, seeds, budget, noise, n, k, flat) -> Measurement:
    seed = run.seeds.child("planted").int32() % 10**6
    own = recoveries(seed, "random" if flat else method, seeds, budget, noise, n, k)
    control = recoveries(seed, "random", seeds, budget, noise, n, k)["answer"] / seeds
    details = {f"recovered, {name}": own[name] / seeds for name in ("best seen", "largest weights")}
    details["distinct subsets of a run"] = own["distinct"] / seeds
    return Measurement(own["answer"] / seeds, baseline=("random search", control), n=seeds, details=details)


def exact_recovers(
    run: ClaimRun, *, seeds: int = 10, budget: int = 2000, n: int = 20, k: int = 5, flat: bool = False
) -> Measurement:
    """Row 7, formulation A: share of seeds whose planted subset is found. Control: random search, equal budget."""
    return _recovery(run, "exact", seeds, budget, 0.0, n, k, flat)


def expected_recovers(
    run: ClaimRun, *, seeds: int = 10, budget: int = 2000, n: int = 20, k: int = 5, flat: bool = False
) -> Measurement:
    """Row 7, formulation B. Control: random search, equal budget."""
    return _recovery(run, "expected", seeds, budget, 0.0, n, k, flat)


def random_does_not(
    run: ClaimRun, *, seeds: int = 10, budget: int = 2000, n: int = 20, k: int = 5, noise: float = 0.0
) -> Measurement:
    """Row 7: random search. Control: formulation A."""
    seed = run.seeds.child("planted").int32() % 10**6
    own = recoveries(seed, "random", seeds, budget, noise, n, k)["answer"] / seeds
    other = recoveries(seed, "exact", seeds, budget, noise, n, k)["answer"] / seeds
    return Measurement(own, baseline=("formulation A", other), n=seeds)


def noise_exact(
    run: ClaimRun, *, seeds: int = 10, budget: int = 4000, n: int = 20, k: int = 5, flat: bool = False
) -> Measurement:
    """Row 9, formulation A: recovery under noise of 0.2, final candidates paid for 20 times. Control: random search."""
    return _recovery(run, "exact", seeds, budget, 0.2, n, k, flat)


def noise_expected(
    run: ClaimRun, *, seeds: int = 10, budget: int = 4000, n: int = 20, k: int = 5, flat: bool = False
) -> Measurement:
    """Row 9, formulation B. Control: random search."""
    return _recovery(run, "expected", seeds, budget, 0.2, n, k, flat)


noise_random = partial(random_does_not, budget=4000, noise=0.2)


def needle(run: ClaimRun, *, seeds: int = 10, budget: int = 2000, n: int = 20, k: int = 5) -> Measurement:
    """Row 7, reported: exact hits of a planted subset sum by formulation A. Control: random search; beside it B."""
    hits = {"exact": 0, "expected": 0, "random": 0}
    for i in run.progress(range(seeds), desc="subset sums"):
        rng = run.seeds.child("sum", i).numpy()
        a = rng.integers(1, 10_001, n).astype(float)
        best = rng.choice(n, k, replace=False)
        cost = SubsetSum(a, float(a[best].sum()))
        hits["random"] += search("random", cost, n, k, budget=budget, seed=i).cost == 0
        for method in ("exact", "expected"):
            found = minimize(cost, n, k, method, steps=budget, cache=False, seed=i, empty=1.0)
            hits[method] += found.best_seen[1] == 0
    details = {"formulation B": hits["expected"] / seeds}
    return Measurement(
        hits["exact"] / seeds, baseline=("random search", hits["random"] / seeds), n=seeds, details=details
    )


# --- C8: layers ------------------------------------------------------------------------------------------------------


SMALL_NET = {"depth": 8, "width": 48, "k": 3, "budget": 22, "networks": 3, "outer": 5, "pretrain": 300, "steps": 60}


def _layers(run: ClaimRun, sizes: dict) -> list[dict[str, Any]]:
    return layer_runs(run.seeds.child("layers").int32() % 10**6, **SMALL_NET | sizes)


def layers_rank(run: ClaimRun, *, worst: bool = False, **sizes: int) -> Measurement:
    """Row 8: median test rank of the chosen blocks over the number of sets. Control: random search, as many runs."""
    runs = _layers(run, sizes)
    total = len(runs[0]["truth"].subsets)
    ranks = {name: [r["rank"][name] / total for r in runs] for name in ("ours", "random")}
    last = [r["rank of last"] / total for r in runs]
    marks = {"mirror descent": runs[0]["ours"], "random": runs[0]["random"]}
    subsets = runs[0]["truth"].subsets
    run.figure("sets", figures.layers_figure(runs[0]["truth"], marks | {"first": subsets[0], "last": subsets[-1]}))
    details = {
        "rank of the first k": float(np.median([r["rank of first"] for r in runs])) / total,
        "rank of the last k": float(np.median(last)),
        "expected random rank on validation": expected_random_rank(total, runs[0]["evaluations"]) / total,
        "evaluations": float(np.mean([r["evaluations"] for r in runs])),
    }
    own = last if worst else ranks["ours"]
    low, high = np.quantile(own, [0.25, 0.75])
    return Measurement(
        float(np.median(own)), baseline=("random search", float(np.median(ranks["random"]))),
        ci=(float(low), float(high)), n=len(runs), details=details, series=ranks,
    )  # fmt: skip


def layers_beat_last(run: ClaimRun, *, worst: bool = False, **sizes: int) -> Measurement:
    """Row 8: share of runs whose choice has a lower test error than the last k. Control: random search's share."""
    runs = _layers(run, sizes)
    share = {name: float(np.mean([r["rank"][name] < r["rank of last"] for r in runs])) for name in ("ours", "random")}
    gain = float(np.median([r["last"] - r["error"] for r in runs]))
    return Measurement(
        0.0 if worst else share["ours"], baseline=("random search", share["random"]), n=len(runs),
        details={"median gain in test error": gain},
    )  # fmt: skip


def layers_cost(run: ClaimRun, *, enumerate_all: bool = False, **sizes: int) -> Measurement:
    """Row 8: different inner runs over those of enumeration. Control: enumeration."""
    runs = _layers(run, sizes)
    share = max(r["evaluations"] for r in runs) / len(runs[0]["truth"].subsets)
    return Measurement(1.0 if enumerate_all else share, baseline=("enumeration", 1.0), n=len(runs))


def layers_against_random(run: ClaimRun, *, seeds: int = 20, **sizes: int) -> Measurement:
    """Row 8, larger case, reported: median test rank of random search minus ours, n = 12, k = 4, 60 evaluations.
    Control: the rank on validation that random search is expected to have. Honest where there is no advantage."""
    sizes = {"depth": 12, "width": 32, "k": 4, "budget": 60, "networks": 2, "outer": seeds // 2} | sizes
    runs = _layers(run, sizes)
    total = len(runs[0]["truth"].subsets)
    gains = np.array([r["rank"]["random"] - r["rank"]["ours"] for r in runs], dtype=float)
    rng = run.seeds.child("resamples").numpy()
    medians = np.median(rng.choice(gains, (1000, len(gains))), axis=1)
    details = {
        "median rank, ours": float(np.median([r["rank"]["ours"] for r in runs])),
        "median rank, random": float(np.median([r["rank"]["random"] for r in runs])),
        "sets": total, "evaluations": float(np.mean([r["evaluations"] for r in runs])),
        "share of runs that beat random": float((gains > 0).mean()), "ties": float((gains == 0).mean()),
    }  # fmt: skip
    return Measurement(
        float(np.median(gains)), baseline=("expected random rank", expected_random_rank(total, details["evaluations"])),
        ci=tuple(float(x) for x in np.quantile(medians, [0.025, 0.975])), n=len(runs), details=details,
    )  # fmt: skip

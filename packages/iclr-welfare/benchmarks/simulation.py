"""Simulation against what a user would write instead, at the official sizes; growth with people, seeds and horizon.

    python benchmarks/simulation.py

Baselines: a NumPy program that visits people one by one, and the official code's style: NumPy over people, a Python
heap picks whom to help, one seed after the other. Outputs are held equal first. Ratios are times relative to ours.
"""

import heapq
import resource

import jax
import numpy as np

import iclr_welfare as iw
from iclr_shared.bench import compare, peak_memory, print_comparisons
from iclr_shared.tables import print_table

KEY = jax.random.key(0)


def over_people(people: iw.Population, M: int, T: int) -> float:
    """Rawlsian policy, person by person."""
    U, f, g = people.U0.copy(), people.f, people.g
    for _ in range(T):
        S = set(np.argsort(U, kind="stable")[:M].tolist())
        after = np.empty_like(U)
        for i in range(people.N):
            if i in S:
                slope = (f.hi - f.lo) / (f.x_hi[i] - f.x_lo[i])
                after[i] = U[i] + min(max(f.lo + slope * (U[i] - f.x_lo[i]), f.lo), f.hi)
            else:
                slope = (g.hi - g.lo) / (g.x_hi[i] - g.x_lo[i])
                after[i] = U[i] - min(max(g.lo + slope * (U[i] - g.x_lo[i]), g.lo), g.hi)
        U = after
    return U.mean()


def official_style(people: iw.Population, M: int, T: int, rng: np.random.Generator | None = None) -> float:
    """Rawlsian policy, NumPy over people and heapq over Python integers, as the official scripts do."""
    U = people.U0.copy()
    deviation = np.sqrt(M * (people.f_plus.max() + people.g_plus.max()))
    for _ in range(T):
        S = heapq.nsmallest(M, range(len(U)), key=U.__getitem__)
        helped = np.zeros(len(U))
        helped[S] = 1
        change = people.f(U) * helped - people.g(U) * (1 - helped)
        U = U + change
        if rng is not None:
            U = U + np.clip(rng.normal(0, deviation, len(U)), -2 * deviation**2, 2 * deviation**2)
    return U.mean()


def ours(people: iw.Population, M: int, T: int, seeds: int = 1, noise: iw.Noise | None = None) -> np.ndarray:
    return iw.simulate(people, "rawlsian", M, T, key=KEY, seeds=seeds, noise=noise, record=(), record_every=T).mean[
        :, -1
    ]


def agree(outputs) -> None:
    values = [float(np.mean(v)) for v in outputs.values()]
    np.testing.assert_allclose(values, values[0], rtol=1e-9)


def close(outputs) -> None:
    """Different random numbers: the means over seeds agree to a few standard errors."""
    values = [float(np.mean(v)) for v in outputs.values()]
    np.testing.assert_allclose(values, values[0], rtol=2e-2)


def people_of(N: int) -> iw.Population:
    rng = np.random.default_rng(0)
    return iw.homogeneous(rng.uniform(10, 200, N), rng=rng)


def main() -> None:
    rows = []
    for N, M, T in ((49, 1, 1_000), (340, 1, 1_000), (340, 10, 1_000)):
        people = people_of(N)
        rows.append(
            compare(
                {
                    "iclr_welfare, 1 seed": lambda p=people, m=M, t=T: ours(p, m, t),
                    "NumPy over people, official style": lambda p=people, m=M, t=T: official_style(p, m, t),
                    "loop over people": lambda p=people, m=M, t=T: over_people(p, m, t),
                },
                check=agree,
                reps=5,
                warmup=1,
                label=f"N={N}, M={M}, T={T}, no noise",
            )
        )
    print_comparisons(rows, "One seed")
    rows = []
    for N, M, seeds in ((49, 1, 20), (340, 10, 20)):
        people, T = people_of(N), 500
        noise = iw.Noise.official(people, M)

        def one_after_another(p=people, m=M, t=T, n=seeds):
            rng = np.random.default_rng(0)
            return [official_style(p, m, t, rng) for _ in range(n)]

        rows.append(
            compare(
                {
                    f"iclr_welfare, {seeds} seeds": lambda p=people, m=M, t=T, n=seeds, e=noise: ours(p, m, t, n, e),
                    "official style, one after another": one_after_another,
                },
                check=close,
                reps=5,
                warmup=1,
                label=f"N={N}, M={M}, T={T}, noise",
            )
        )
    print_comparisons(rows, "Many seeds, with shocks")
    grow()
    memory()


def grow() -> None:
    """Time of one run as people and seeds grow, with shocks."""
    import time

    rows = []
    for N, seeds in ((50, 10), (50, 100), (50, 1000), (500, 10), (5000, 10)):
        people = people_of(N)
        noise = iw.Noise.official(people, 1)
        ours(people, 1, 200, seeds, noise)
        start = time.perf_counter()
        ours(people, 1, 200, seeds, noise)
        seconds = time.perf_counter() - start
        rows.append((N, seeds, 1000 * seconds, 1e9 * seconds / (200 * N * seeds)))
    print_table(("people", "seeds", "ms for T = 200", "ns per person, step and seed"), rows, "Growth, M = 1")


_MEMORY = """
import numpy as np, jax, iclr_welfare as iw
people = iw.homogeneous(np.random.default_rng(0).uniform(10, 200, 340))
iw.simulate(people, "rawlsian", 1, {T}, key=jax.random.key(0), seeds=10, record={record}, record_every={every})
"""


def memory() -> None:
    """Peak memory of a fresh process as the horizon grows: flat for scalars at a fixed number of records."""
    rows = []
    for T in (1_000, 10_000, 40_000):
        scalars = peak_memory(_MEMORY.format(T=T, record=("mean", "min"), every=T // 500)) / 2**20
        history = peak_memory(_MEMORY.format(T=T, record=("welfare",), every=1)) / 2**20 if T <= 10_000 else None
        expected = 340 * 10 * (T + 1) * 8 / 2**20
        rows.append((T, scalars, history, expected))
    columns = ("T", "500 records of mean and min, MiB", "full history kept, MiB", "history alone, MiB")
    print_table(columns, rows, "Peak memory, N = 340, 10 seeds")
    print(f"this process: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB")


if __name__ == "__main__":
    main()

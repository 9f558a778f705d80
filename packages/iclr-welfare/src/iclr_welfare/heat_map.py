"""The heat map (Fig. 3): how often the Rawlsian policy beats max_welfare, by heterogeneity σ² and ratio of decays b."""

from typing import NamedTuple

import numpy as np
from scipy.stats import spearmanr

from iclr_shared.claims import ClaimRun, Measurement
from iclr_shared.plots import new_figure
from iclr_shared.seeds import root
from iclr_shared.sweep import sweep, values
from iclr_welfare import scenarios
from iclr_welfare.conditions import survival
from iclr_welfare.dynamics import Noise
from iclr_welfare.incomes import from_incomes, load_401ksubs
from iclr_welfare.simulation import simulate_many


def cell(b: float, sigma2: float, seed: int, repeats: int, T: int, short: int, group: float, rival: str) -> list[float]:
    """Win shares of the Rawlsian policy in one cell, M = 1: mean over time of total welfare at least the rival's.

    Args:
        b: decay at high relative to low welfare.
        sigma2: spread σ² of each person's limits.
        seed: of this map; people and shocks of a cell depend on the cell as well.
        repeats: populations drawn, with one series of shocks each, which both policies get.
        T: long horizon, steps.
        short: short horizon, steps.
        group: households per person.
        rival: the other policy.

    Returns:
        Shares at the short and at the long horizon, and the share of populations that meet the survival condition.
    """
    tree = root(seed).child("heat map")
    U0 = from_incomes(load_401ksubs(), group, rng=tree.child("incomes").numpy())
    here = tree.child(f"{b:.9g}", f"{sigma2:.9g}")
    rng = here.child("people").numpy()
    people = [scenarios.heat_map_cell(U0, b, sigma2, rng=rng) for _ in range(repeats)]
    noise = [Noise.official(p, 1) for p in people]
    average = {}
    for policy in ("rawlsian", rival):
        runs = simulate_many(
            people, policy, 1, T, key=here.child("shocks").jax(), noise=noise, record=("average",), record_every=short
        )
        average[policy] = runs.average[:, 0, [1, -1]]
    wins = (average["rawlsian"] >= average[rival]).mean(axis=0)
    return [float(wins[0]), float(wins[1]), float(np.mean([survival(p, 1) for p in people]))]


class Map(NamedTuple):
    """Win shares by b (rows, ascending) and σ² (columns, ascending)."""

    b: np.ndarray
    sigma2: np.ndarray
    short: np.ndarray
    long: np.ndarray
    survival: np.ndarray


def heat_map(
    run: ClaimRun, size: int, repeats: int, T: int, short: int, group: float, rival: str = "max_welfare"
) -> Map:
    """The map on the official ranges, b in [0.05, 1] and σ² in [0.25, 100]. Finished cells survive a kill, and the
    three claims that read the map share them."""
    b, sigma2 = np.linspace(0.05, 1, size), np.linspace(0.25, 100, size)
    shared = {"seed": run.seeds.seed, "repeats": repeats, "T": T, "short": short, "group": group, "rival": rival}
    grid = [{"b": float(x), "sigma2": float(y), **shared} for x in b for y in sigma2]
    out = run.folder / "checkpoints" / "heat-map"
    found = sweep(cell, grid, jobs=run.jobs, backend=run.backend, out=out, quiet=run.quiet, desc="heat map")
    shares = np.array(values(found)).reshape(size, size, 3)
    return Map(b, sigma2, *np.moveaxis(shares, -1, 0))


def _draw(run: ClaimRun, name: str, found: Map) -> None:
    figure, axes = new_figure(1, 2, width=10)
    for panel, (title, shares) in zip(axes, (("short run", found.short), ("long run", found.long)), strict=True):
        panel.grid(visible=False)
        mesh = panel.pcolormesh(found.sigma2, found.b, shares, vmin=0, vmax=1, shading="nearest")
        panel.set(xlabel="heterogeneity σ²", ylabel="ratio of decays b", title=title)
        figure.colorbar(mesh, ax=panel, label="share won by rawlsian")
    run.figure(name, figure)


def heat_map_corner(
    run: ClaimRun, *, size: int = 12, repeats: int = 20, T: int = 3_000, short: int = 10, group: float = 200,
    rival: str = "max_welfare",
) -> Measurement:  # fmt: skip
    """C5a: mean over the quarter of rows and columns with the smallest b and σ². Control: the opposite corner."""
    found = heat_map(run, size, repeats, T, short, group, rival)
    _draw(run, "map", found)
    edge = max(size // 4, 1)
    corner, opposite = found.long[:edge, :edge], found.long[-edge:, -edge:]
    return Measurement(
        measured=float(corner.mean()),
        baseline=("opposite corner, large σ² and b", float(opposite.mean())),
        n=corner.size * repeats,
        details={
            "survival condition met, corner": float(found.survival[:edge, :edge].mean()),
            "whole map": float(found.long.mean()),
        },
    )


def heat_map_falls(
    run: ClaimRun,
    *,
    size: int = 12,
    repeats: int = 20,
    T: int = 3_000,
    short: int = 10,
    group: float = 200,
    shuffle: bool = False,
) -> Measurement:
    """C5b: Spearman correlations over all cells, the larger of the two. Control: its 5 % quantile over 200 shuffles of
    the cells. `shuffle` measures one of these shuffles."""
    found = heat_map(run, size, repeats, T, short, group)
    rng = run.seeds.child("shuffle").numpy()
    B, S = np.meshgrid(found.b, found.sigma2, indexing="ij")

    def correlations(shares: np.ndarray) -> list[float]:
        if np.ptp(shares) == 0:
            return [float("nan")] * 2
        return [float(spearmanr(axis.ravel(), shares).statistic) for axis in (S, B)]

    shuffled = [correlations(rng.permutation(found.long.ravel())) for _ in range(200)]
    own = shuffled[0] if shuffle else correlations(found.long.ravel())
    figure, axes = new_figure(1, 2, width=9, sharey=True)
    for panel, x, mean, what in (
        (axes[0], found.sigma2, found.long.mean(0), "heterogeneity σ²"),
        (axes[1], found.b, found.long.mean(1), "ratio of decays b"),
    ):
        panel.plot(x, mean, "o-")
        panel.set(xlabel=what, ylabel="share won by rawlsian, T long", ylim=(-0.03, 1.03))
    run.figure("margins", figure)
    details = {"with σ²": own[0], "with b": own[1]}
    return Measurement(
        measured=float(np.max(own)),
        baseline=("5 % quantile with cells shuffled", float(np.quantile(np.max(shuffled, axis=1), 0.05))),
        n=size * size * repeats,
        details=details,
    )


def heat_map_short_run(
    run: ClaimRun, *, size: int = 12, repeats: int = 20, T: int = 3_000, short: int = 10, group: float = 200,
    rival: str = "max_welfare",
) -> Measurement:  # fmt: skip
    """C5c: mean over the whole map. Control: the long-run share on the same map."""
    found = heat_map(run, size, repeats, T, short, group, rival)
    _draw(run, "map", found)
    return Measurement(
        measured=float(found.short.mean()),
        baseline=("long-run share", float(found.long.mean())),
        n=size * size * repeats,
        details={"largest short-run share of a cell": float(found.short.max())},
    )

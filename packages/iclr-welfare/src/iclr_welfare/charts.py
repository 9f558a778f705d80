"""Figures of trajectories, of who is helped, of ranks over the horizon, and of the region where each policy wins."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from iclr_welfare.conditions import regime
from iclr_welfare.growth import best_locked_set, rate_locked, rate_rawls_down, rate_rawls_up, worst_locked_set
from iclr_welfare.policies import POLICIES
from iclr_welfare.population import Population
from iclr_welfare.trajectories import Result

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

REGIONS = (
    "survival: Rawlsian wins for every S",
    "survival: depends on S",
    "survival: utilitarian wins for every S",
    "indeterminate: the start decides",
    "ruin: Rawlsian wins for every S",
    "ruin: depends on S",
    "ruin: utilitarian wins for every S",
)
"""Regions of the parameter plane, as numbered by `region`."""

_REGION_COLOURS = ("#0072B2", "#8CBEDD", "#E69F00", "#D9D9D9", "#009E73", "#F2B48C", "#D55E00")


def colour(policy: str) -> str:
    """The colour of a policy, the same in all figures."""
    from iclr_shared.plots import COLOURS

    return COLOURS[list(POLICIES).index(policy) % len(COLOURS)]


def growth_curves(axes: "Axes", results: Mapping[str, Result], closed: Mapping[str, float] | None = None) -> None:
    """R(T) against the horizon: mean over seeds, a band from the lowest to the highest seed, closed forms dashed."""
    for k, (name, result) in enumerate(results.items()):
        growth = np.atleast_2d(result.growth)[:, 1:]
        times = result.times[1:]
        axes.fill_between(times, growth.min(0), growth.max(0), color=colour(name), alpha=0.15, linewidth=0)
        # Later lines are thinner, so that policies that coincide can all be seen.
        axes.plot(times, growth.mean(0), color=colour(name), label=name, linewidth=max(3.2 - 0.6 * k, 1.0))
    done: list[float] = []
    for name, rate in (closed or {}).items():
        again = any(np.isclose(rate, other) for other in done)
        axes.axhline(rate, color=colour(name), linestyle=(0, (4, 6)) if not again else (5, (4, 6)), linewidth=1.0)
        done.append(rate)
    if done:
        axes.plot([], [], color="0.3", linestyle=(0, (4, 6)), linewidth=1.0, label="closed form, T → ∞")
    axes.set(xscale="log", xlabel="horizon T (steps)", ylabel="growth R(T) (welfare per step)")
    axes.legend(frameon=True, facecolor="white", edgecolor="none", framealpha=1.0)


def simulation_figure(results: Mapping[str, Result], closed: Mapping[str, float]) -> "Figure":
    """Growth of mean welfare, welfare of the worst-off, and who is helped, under each policy.

    Args:
        results: by policy, on the same people.
        closed: long-run rates in closed form, by policy.
    """
    from matplotlib.ticker import FixedLocator, NullLocator

    from iclr_shared.plots import new_figure

    figure, axes = new_figure(1, 3, width=13.5)
    growth_curves(axes[0], results, closed)
    for name, result in results.items():
        axes[1].plot(result.times, np.atleast_2d(result.min).mean(0), color=colour(name), label=name)
    axes[1].set(xscale="symlog", xlabel="time t (steps)", ylabel="welfare of the worst-off, min U(t)")
    axes[1].set_yscale("symlog", linthresh=1000.0)
    axes[1].yaxis.set_major_locator(FixedLocator([0.0, *(sign * 10.0**k for k in range(3, 19) for sign in (-1, 1))]))
    axes[1].yaxis.set_minor_locator(NullLocator())
    helped_by_start(axes[2], results)
    return figure


def helped_by_start(axes: "Axes", results: Mapping[str, Result], groups: int = 10) -> None:
    """Who is helped: share of all interventions that goes to each tenth of people by initial welfare."""
    first = next(iter(results.values()))
    order = np.array_split(np.argsort(first.U0, kind="stable"), min(groups, first.U0.size))
    width = 0.8 / len(results)
    for k, (name, result) in enumerate(results.items()):
        counts = np.atleast_2d(result.selected_counts).mean(0)
        shares = [counts[members].sum() / counts.sum() for members in order]
        where = np.arange(len(order)) + (k - (len(results) - 1) / 2) * width
        axes.bar(where, shares, width, color=colour(name), label=name)
    axes.set_xticks(range(len(order)), [str(k + 1) for k in range(len(order))])
    axes.set(xlabel=f"people by initial welfare (1: poorest {100 / len(order):.0f} %)", ylabel="share of interventions")


def ranks(results: Mapping[str, Result], horizon: int, tolerance: float = 1e-3) -> dict[str, int]:
    """Rank of each policy by mean R(T), 1 for the best; policies within `tolerance` of each other share a rank.

    Args:
        results: by policy.
        horizon: T, a recorded time.
        tolerance: relative difference below which two policies count as equal.
    """
    values = {name: float(np.mean(result.growth_at(horizon))) for name, result in results.items()}
    margin = tolerance * max(abs(v) for v in values.values())
    return {name: 1 + sum(other > value + margin for other in values.values()) for name, value in values.items()}


def comparison_figure(
    results: Mapping[str, Result], closed: Mapping[str, float], horizons: Sequence[int], crossing: int | None
) -> "Figure":
    """Growth with the crossing time, and the ranking of the policies at several horizons.

    Args:
        results: by policy.
        closed: long-run rates in closed form, by policy.
        horizons: recorded times at which policies are ranked.
        crossing: time at which the Rawlsian policy overtakes the utilitarian one, or None.
    """
    from iclr_shared.plots import new_figure

    figure, axes = new_figure(1, 2, width=11)
    growth_curves(axes[0], results, closed)
    if crossing is not None:
        axes[0].axvline(crossing, color="0.4", linestyle=":", linewidth=1.2)
        axes[0].annotate(f" T* = {crossing}", (crossing, 0.03), xycoords=("data", "axes fraction"), color="0.3")
    rank_chart(axes[1], results, horizons)
    return figure


def rank_chart(axes: "Axes", results: Mapping[str, Result], horizons: Sequence[int]) -> None:
    """Rank of each policy at each horizon; lines that share a rank are drawn beside each other."""
    table = [ranks(results, t) for t in horizons]
    for k, name in enumerate(results):
        offset = 0.09 * (k - (len(results) - 1) / 2)
        axes.plot(range(len(horizons)), [row[name] + offset for row in table], "o-", color=colour(name), label=name)
    axes.set_xticks(range(len(horizons)), [f"{t:,}" for t in horizons])
    axes.set_yticks(range(1, len(results) + 1))
    axes.set(xlabel="horizon T (steps)", ylabel="rank by R(T), 1 is best", ylim=(len(results) + 0.6, 0.4))
    axes.legend(frameon=False, fontsize="small", loc="center left", bbox_to_anchor=(1.0, 0.5))


def region(population: Population, M: int) -> int:
    """Number of the region in `REGIONS` that people and budget lie in."""
    where = regime(population, M)
    if where == "indeterminate":
        return 3
    rawls = rate_rawls_up(population, M) if where == "survival" else rate_rawls_down(population, M)
    best, worst = (rate_locked(population, S(population, M)) for S in (best_locked_set, worst_locked_set))
    relative = 1e-12 * abs(rawls)
    order = 0 if rawls > best + relative else 2 if rawls < worst - relative else 1
    return order + (4 if where == "ruin" else 0)


def region_grid(population: Population, scales: Sequence[float] | np.ndarray, budgets: Sequence[int]) -> "np.ndarray":
    """`region` for returns scaled by each of `scales` and for each budget, shape (budgets, scales)."""
    scaled = [scaled_returns(population, float(s)) for s in scales]
    return np.array([[region(p, M) for p in scaled] for M in budgets])


def scaled_returns(population: Population, scale: float) -> Population:
    """The same people with the levels of f multiplied by `scale`; welfare levels at which f turns stay."""
    levels = {name: getattr(population.f, name) * scale for name in type(population.f).positive if name != "width"}
    return dataclasses.replace(population, f=dataclasses.replace(population.f, **levels), sum_check=False)


def region_figure(
    population: Population, M: int, scales: np.ndarray, budgets: Sequence[int], grid: "np.ndarray"
) -> "Figure":
    """The parameter plane: where survival, ruin and each policy's victory hold; a cross marks the user's own point.

    Args:
        population: the people, at scale 1.
        M: the user's budget.
        scales: factors on the returns f, ascending.
        budgets: budgets, ascending.
        grid: `region_grid` of these.
    """
    from matplotlib.colors import BoundaryNorm, ListedColormap
    from matplotlib.patches import Patch

    from iclr_shared.plots import new_figure

    figure, axes = new_figure(width=9.5, height=4.6)
    axes.grid(visible=False)
    norm = BoundaryNorm(np.arange(len(REGIONS) + 1) - 0.5, len(REGIONS))
    axes.pcolormesh(scales, budgets, grid, cmap=ListedColormap(_REGION_COLOURS), norm=norm, shading="nearest")
    axes.plot([1.0], [M], "x", color="black", markersize=9, markeredgewidth=2)
    axes.set(xscale="log", yscale="log", xlabel="factor on the returns f", ylabel="budget M (interventions per step)")
    axes.yaxis.set_major_formatter("{x:g}")
    handles: list[Any] = [Patch(color=_REGION_COLOURS[i], label=REGIONS[i]) for i in np.unique(grid)]
    axes.legend(handles=handles, frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize="small")
    return figure

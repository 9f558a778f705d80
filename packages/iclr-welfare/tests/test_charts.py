import jax
import numpy as np
import pytest

import iclr_welfare as iw
from iclr_welfare import charts


@pytest.fixture(scope="module")
def results(mixed):
    return iw.compare(mixed, ["rawlsian", "util_gain"], 1, 40, 2, key=jax.random.key(0), noise=iw.Noise(10.0))


def test_ranks_share_ties(results):
    same = {"rawlsian": results["rawlsian"], "random": results["rawlsian"], "util_gain": results["util_gain"]}
    ranks = charts.ranks(same, 40)
    assert ranks["rawlsian"] == ranks["random"]
    assert sorted(ranks.values()) in ([1, 1, 3], [1, 2, 2], [1, 1, 1])
    value = {name: result.growth_at(40).mean() for name, result in results.items()}
    assert charts.ranks(results, 40, tolerance=0.0)[max(value, key=value.get)] == 1


def test_regions_agree_with_the_verdicts(mixed, reference):
    assert charts.REGIONS[charts.region(reference, 1)] == "survival: Rawlsian wins for every S"
    assert charts.REGIONS[charts.region(iw.ruin_example(np.zeros(200)), 1)] == "ruin: utilitarian wins for every S"
    grid = charts.region_grid(mixed, [1e-3, 1.0, 10.0], [1, 5, 9])
    assert grid.shape == (3, 3)
    for j, M in enumerate((1, 5, 9)):
        for i, scale in enumerate((1e-3, 1.0, 10.0)):
            people = charts.scaled_returns(mixed, scale)
            np.testing.assert_allclose(people.f_plus, scale * mixed.f_plus)
            name = charts.REGIONS[grid[j, i]]
            assert name.startswith(iw.regime(people, M))
            if iw.regime(people, M) != "indeterminate":
                said = iw.wins_whatever_happens(people, M)
                assert {"rawlsian": "Rawlsian wins", "utilitarian": "utilitarian wins"}.get(said, said) in name


def test_figures_show_what_they_are_given(mixed, results):
    closed = {"rawlsian": 60.0, "util_gain": 50.0}
    figure = charts.simulation_figure(results, closed)
    growth, worst, helped = figure.axes
    np.testing.assert_allclose(growth.lines[0].get_ydata(), results["rawlsian"].growth[:, 1:].mean(0))
    assert len(worst.lines) == 2
    assert sum(bar.get_height() for bar in helped.patches) == pytest.approx(2.0)
    figure = charts.comparison_figure(results, closed, [10, 40], 20)
    assert figure.axes[1].get_xlabel() == "horizon T (steps)"
    factors, budgets = np.array([0.5, 1.0]), [1, 2]
    grid = charts.region_grid(mixed, factors, budgets)
    figure = charts.region_figure(mixed, 1, factors, budgets, grid)
    shown = {text.get_text() for text in figure.axes[0].get_legend().get_texts()}
    assert shown == {charts.REGIONS[i] for i in np.unique(grid)}

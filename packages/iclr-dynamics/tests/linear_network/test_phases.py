import jax
import numpy as np
import pytest

from iclr_dynamics.linear_network import (
    PARAMETERISATIONS,
    Exponents,
    PhaseGrid,
    Setting,
    measure,
    phase,
    phase_numeric,
    solve,
    unit_data,
)
from iclr_shared.errors import InputError


@pytest.fixture(autouse=True)
def _double(x64):
    """Everything here is in double precision."""


@pytest.mark.parametrize(
    ("name", "h", "label"),
    [("ntk", 0.5, "kernel"), ("mean-field", 0, "feature"), ("standard", 1, "kernel"), ("mup", 0, "feature")],
)
def test_named_parameterisations(name, h, label):
    found = phase(PARAMETERISATIONS[name])
    assert (found.h, found.rho, found.label, found.speed) == (h, 0, label, "proper")


def test_saddle_unstable_and_frozen():
    saddle = phase(Exponents(1.0, bu=0.5, bw=0.5, eu=-1.0, ew=-1.0))
    assert (saddle.label, saddle.h, saddle.speed) == ("feature from the saddle", -0.5, "proper")
    assert phase(Exponents(0.0)).speed == "unstable"
    assert phase(Exponents(1.0)).speed == "frozen"
    # Typed decimals do not make a phase out of rounding: 1 - 0.7 + max(-0.3, ...) is 0.
    assert phase(Exponents(0.7, bu=0.3, bw=0.3)).label == "feature"


def test_lowering_one_layer_alone_does_not_leave_the_kernel_phase():
    assert phase(Exponents(0.5, bu=5.0)).label == "kernel"
    assert phase(Exponents(0.5, bu=5.0, bw=5.0)).label == "feature from the saddle"


@pytest.mark.parametrize("name", sorted(PARAMETERISATIONS))
def test_finite_phase_is_that_of_random_networks(name):
    exponents = PARAMETERISATIONS[name]
    found = phase_numeric(exponents.at(2000))
    drawn = measure(jax.random.key(0), [exponents] * 4, 2000)
    np.testing.assert_allclose(drawn.theta, found.theta, rtol=0.1)
    np.testing.assert_allclose(drawn.K_ratio, found.K_ratio, rtol=0.05)
    assert np.abs(drawn.F0).max() < 4 * found.F0_std
    assert found.label == phase(exponents).label


def test_delay_from_the_saddle_is_that_of_the_trajectory():
    d, setting = 100, Setting(100, 0.01, 1e-4, 1e-4, 100.0, 100.0)
    finite = phase_numeric(setting)
    assert finite.label == "feature from the saddle"
    u = np.concatenate([np.ones(d // 2), np.ones(d // 2)]) * 1e-4
    w = np.concatenate([np.ones(d // 2), -np.ones(d // 2)])[:, None] * 1e-4
    path = solve(setting.net, unit_data(), u, w, np.full(3, finite.delay))
    np.testing.assert_allclose(path.F, 0.5, atol=0.02)


def test_finite_phase_at_its_edges():
    assert phase_numeric(Setting(sigma_u=0.0, sigma_w=0.0)).K_ratio == np.inf
    assert phase_numeric(Setting(), target=0.0).label == "kernel"
    assert phase_numeric(Setting(sigma_u=0.0, sigma_w=0.0), target=0.0).label == "kernel"
    for bad in ({"A": 0.0}, {"A": np.inf}, {"target": np.nan}):
        with pytest.raises(InputError, match="A = E xi² must be positive and the target finite"):
            phase_numeric(Setting(), **bad)


def test_bad_exponents_and_widths():
    with pytest.raises(InputError, match="bu must be a finite number, got nan"):
        Exponents(1.0, bu=np.nan)
    with pytest.raises(InputError, match="leave the range of floats"):
        Exponents(-1000.0).at(1000)
    with pytest.raises(InputError, match="width must be at least 1"):
        Exponents(1.0).at(0)


def test_grid_rows_do_not_depend_on_their_order():
    grid, key = PhaseGrid(points=4, widths=(100, 400)), jax.random.key(3)
    rows = dict(grid.rows(key))
    np.testing.assert_array_equal(grid.row(key, 2), rows[2])
    theta, change = grid.exponents(np.array([rows[i] for i in range(4)]))
    h, rho = grid.predicted()
    np.testing.assert_allclose(theta, h, atol=0.5)
    assert np.all(np.sign(change) == -np.sign(h))
    assert rho.shape == (4, 4)
    assert not np.array_equal(rows[0], rows[1])


def test_the_extremes_of_the_diagram_are_finite():
    grid = PhaseGrid((-40.0, 40.0), (0.0, 1.0), 4, widths=(100, 400))
    assert np.isfinite(np.array([row for _, row in grid.rows(jax.random.key(0))])).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"points": 1}, "points must be at least 2"),
        ({"widths": (100, 100)}, "two growing numbers"),
        ({"g_range": (1.0, 0.0)}, "g_range must be a smaller and a larger number"),
        ({"b_range": (1.0, 1.0)}, "b_range"),
        ({"g_range": (-np.inf, 1.0)}, "g_range"),
        ({"b_range": (0.0, np.nan)}, "b_range"),
    ],
)
def test_bad_grids(options, message):
    with pytest.raises(InputError, match=message):
        PhaseGrid(**options)

import numpy as np
import pytest

from iclr_dynamics.linear_network import LineData, fit_stats, read_csv, unit_data
from iclr_shared.errors import InputError


def on_a_line(n=50, D=3, seed=0):
    rng = np.random.default_rng(seed)
    direction = rng.standard_normal(D)
    direction /= np.linalg.norm(direction) * np.sign(direction[np.abs(direction).argmax()])
    xi = rng.standard_normal(n)
    return xi[:, None] * direction, 0.7 * xi + rng.standard_normal(n), xi, direction


@pytest.mark.parametrize("D", [1, 3])
def test_statistics_are_those_of_the_line(D):
    X, y, xi, direction = on_a_line(D=D)
    data = fit_stats(X, y)
    np.testing.assert_allclose(data.nhat, direction, atol=1e-14)
    np.testing.assert_allclose((data.A, data.B, data.Ey2), (np.mean(xi**2), np.mean(xi * y), np.mean(y**2)), rtol=1e-12)
    slope = np.linalg.lstsq(xi[:, None], y)[0][0]
    np.testing.assert_allclose(data.target, slope, rtol=1e-12)
    np.testing.assert_allclose(data.floor, np.mean((y - slope * xi) ** 2), rtol=1e-12)


def test_single_precision_and_a_perfect_fit():
    X, _, xi, _ = on_a_line()
    data = fit_stats(X.astype(np.float32), (2 * xi).astype(np.float32))
    assert abs(data.target - 2) < 1e-6
    assert 0 <= data.floor < 1e-10
    assert unit_data(3, -2.0).floor == 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda X, y: (X[:-1], y), "49 samples and y has 50"),
        (lambda X, y: (X[:0], y[:0]), "0 samples"),
        (lambda X, y: (0 * X, y), "All inputs are zero"),
        (lambda X, y: (np.where(np.arange(50)[:, None] == 7, np.nan, X), y), "X is not finite in sample 7"),
        (lambda X, y: (X, np.where(np.arange(50) == 3, np.inf, y)), "y is not finite in sample 3"),
        (lambda X, y: (X + np.eye(3)[0], y), "needs one-dimensional data"),
        (lambda X, y: (X + np.eye(3)[0], y, np.nan), "allowed: nan"),
        (lambda X, y: (X[:, 0], y), r"X must have shape \(n, D\) with D >= 1 and y \(n,\); got \(50,\) and \(50,\)"),
        (lambda X, y: (X[:, :0], y), r"got \(50, 0\)"),
        (lambda X, y: (X, y[:, None]), r"got \(50, 3\) and \(50, 1\)"),
        (lambda X, y: (1e200 * X, y), "A = E xi² must be a positive number, got inf"),
        (lambda X, y: (1e-200 * X, y), r"got 0\.0. Check or rescale the inputs"),
    ],
)
def test_bad_samples(change, message):
    with pytest.raises(InputError, match=message):
        fit_stats(*change(*on_a_line()[:2]))


def test_integers_and_lists_are_numbers_too():
    data = fit_stats([[1], [2], [3]], [2, 4, 6])
    assert (data.target, data.Ey2, data.floor) == (2, 56 / 3, 0)


@pytest.mark.parametrize(
    ("statistics", "message"),
    [
        (([3.0], 1.0, 1.0, 1.0), "nhat must be a unit vector"),
        (([np.nan], 1.0, 1.0, 1.0), "nhat must be a unit vector"),
        (([1.0], 0.0, 1.0, 1.0), "A = E xi² must be a positive number"),
        (([1.0], np.nan, 1.0, 1.0), "A = E xi² must be a positive number"),
        (([1.0], 1.0, np.inf, 1.0), "must be finite"),
        (([1.0], 1.0, 1.0, np.nan), "must be finite"),
        (([1.0], 1.0, 2.0, 1.0), r"is below B² / A = 4\.0, which no data can have"),
    ],
)
def test_statistics_that_no_data_can_have(statistics, message):
    nhat, *rest = statistics
    with pytest.raises(InputError, match=message):
        LineData(np.array(nhat), *rest)


def test_the_tolerance_decides_what_one_dimensional_means():
    X, y, _, _ = on_a_line()
    bent = X + 1e-5 * np.random.default_rng(1).standard_normal(X.shape)
    with pytest.raises(InputError, match=r"second singular value is .*e-0. of the first \(allowed: 1e-08\)"):
        fit_stats(bent, y)
    assert fit_stats(bent, y, rtol=1e-3).A > 0


def test_csv_columns_by_name_and_by_default(tmp_path):
    file = tmp_path / "data.csv"
    file.write_text("a, b ,y\n1,2,3\n\n4,5e-1,6\n")
    X, y, names, target = read_csv(file)
    assert (X.tolist(), y.tolist(), names, target) == ([[1, 2], [4, 0.5]], [3, 6], ("a", "b"), "y")
    X, y, names, target = read_csv(file, "a", ("y",))
    assert (X.tolist(), y.tolist(), names, target) == ([[3], [6]], [1, 4], ("y",), "a")


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("x,y\n1,2\n3,oops\n", {}, "'oops' in row 2 below the header, column 'y' is not a number"),
        ("x,y\n1\n", {}, "'' in row 1 below the header, column 'y'"),
        ("1,2\n3,4\n", {}, "first line must name the columns"),
        ("x,y\n", {}, "has no data"),
        ("x,y\n1,2\n", {"target": "z"}, "no column 'z'. Its columns are: x, y"),
        ("x,y\n1,2\n", {"features": ("x", "w")}, "no column 'w'"),
        ("x,y\n1,2\n", {"features": ("x", "y")}, "target 'y' is also among the features"),
        ("y\n1\n", {}, "one column only"),
    ],
)
def test_bad_csv(tmp_path, text, options, message):
    file = tmp_path / "data.csv"
    file.write_text(text)
    with pytest.raises(InputError, match=message):
        read_csv(file, **options)


def test_no_file(tmp_path):
    with pytest.raises(InputError, match="Cannot read"):
        read_csv(tmp_path / "absent.csv")

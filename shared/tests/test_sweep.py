import importlib
import math
import os

import pytest
from joblib.externals.loky import get_reusable_executor

from iclr_shared.errors import InputError
from iclr_shared.sweep import sweep, values

POINTS = """
import math
import os
import time


def work(x, seed):
    if x == 2:
        raise ValueError("two is not allowed")
    return {"y": x * 10 + seed, "nan": math.nan, "pair": (x, x)}


def odd(x):
    return object()


def count(x, folder):
    with open(os.path.join(folder, f"{x}-{time.monotonic_ns()}"), "w"):
        return x
"""


@pytest.fixture(scope="module")
def points(tmp_path_factory):
    """A module that workers can import, too: known numbers, NaN and an error among them."""
    folder = tmp_path_factory.mktemp("site")
    (folder / "sweep_points.py").write_text(POINTS)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        patch.setenv("PYTHONPATH", str(folder))
        get_reusable_executor().shutdown(wait=True)  # workers of an earlier test have another path
        yield importlib.import_module("sweep_points")


GRID = [{"x": x, "seed": seed} for x in range(4) for seed in (0, 1)]


def check(results):
    assert [dict(result.params) for result in results] == GRID
    for result in results:
        x, seed = result.params["x"], result.params["seed"]
        if x == 2:
            assert "two is not allowed" in result.error
        else:
            assert result.value["y"] == x * 10 + seed
            assert math.isnan(result.value["nan"])
    with pytest.raises(RuntimeError, match=r"2 of 8 points failed, first .*'x': 2"):
        values(results)


def test_in_this_process(points):
    check(sweep(points.work, GRID, quiet=True))


def test_loky(points, tmp_path):
    check(sweep(points.work, GRID, jobs=2, quiet=True, out=tmp_path))


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["dask", "ray"])
@pytest.mark.filterwarnings("ignore::Warning")  # of the clusters, about ports and contexts
def test_clusters_give_the_same(points, backend, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))  # Ray writes an access token there
    check(sweep(points.work, GRID, jobs=2, backend=backend, quiet=True, out=tmp_path / "points"))


def test_finished_points_are_not_computed_again(points, tmp_path):
    calls = tmp_path / "calls"
    calls.mkdir()
    grid = [{"x": x, "folder": str(calls)} for x in range(3)]
    first = sweep(points.count, grid[:2], out=tmp_path / "out", quiet=True)
    again = sweep(points.count, grid, out=tmp_path / "out", quiet=True)
    assert values(first) == [0, 1]
    assert values(again) == [0, 1, 2]
    assert len(os.listdir(calls)) == 3
    next((tmp_path / "out").glob("*.json")).write_text("{")
    assert values(sweep(points.count, grid, out=tmp_path / "out", quiet=True)) == [0, 1, 2]
    assert len(os.listdir(calls)) == 4


def test_a_resumed_value_has_the_types_of_a_fresh_one(points, tmp_path):
    fresh = values(sweep(points.work, GRID[:1], out=tmp_path, quiet=True))
    stored = values(sweep(points.work, GRID[:1], out=tmp_path, quiet=True))
    assert repr(fresh) == repr(stored)


def test_a_value_that_cannot_be_stored_is_that_points_error(points, tmp_path):
    [result] = sweep(points.odd, [{"x": 1}], out=tmp_path, quiet=True)
    assert "holds a object, which a record cannot hold" in result.error
    assert list(tmp_path.iterdir()) == []


def test_bad_input(points):
    with pytest.raises(InputError, match="loky, dask, ray"):
        sweep(points.work, GRID, backend="slurm")
    with pytest.raises(InputError, match="at least 1"):
        sweep(points.work, GRID, jobs=0)


def test_parameters_that_cannot_be_stored(points, tmp_path):
    with pytest.raises(InputError, match="JSON-able"):
        sweep(points.work, [{"x": object(), "seed": 0}], out=tmp_path)

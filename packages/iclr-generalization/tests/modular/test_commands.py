"""The verbs through the command line: what they print and write, and what they refuse."""

import csv

import numpy as np
import pytest

from iclr_generalization.modular import ModularRegressor, theory
from iclr_shared.testing import assert_light_import, run_cli

# The sizes of test_regressor.py, so that compiled functions are shared: 150 of 200 rows, 6 inputs.
QUICK = ("--search-steps", 60, "--restarts", 8, "--steps", 300, "--hidden", 16, "--test", 0.25)
NAMES = ("a", "b", "c", "d", "e", "f", "y")


def write(path, names, rows):
    np.savetxt(path, rows, delimiter=",", header=",".join(names), comments="")
    return path


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 6))
    y = np.sin(1.5 * x[:, 0]) + 0.5 * x[:, 1] ** 2
    path = tmp_path_factory.mktemp("table") / "data.csv"
    return write(path, NAMES, np.column_stack([x, y]))


def test_the_description_is_light():
    assert_light_import("iclr_generalization.modular.paper")


def test_samples(tmp_path):
    code, shown, error = run_cli("modular", "samples", "--dims", 1, 3, 5, "--have", 100, "--out", tmp_path)
    assert code == 0, error
    assert "218.7" in shown
    rows = list(csv.reader((tmp_path / "samples.csv").read_text().splitlines()))
    assert [float(row[2]) for row in rows[1:]] == pytest.approx([2.7, 24.3, 218.7])
    assert [float(row[4]) for row in rows[1:]] == pytest.approx([8.1] * 3)
    assert float(rows[3][5]) == pytest.approx(theory.test_loss(243, 243, 100))
    assert (tmp_path / "samples.png").stat().st_size > 10_000


def test_samples_leave_out_modules_without_room():
    code, shown, _ = run_cli("modular", "samples", "--dims", 1, "--module-dim", 2)
    assert code == 0
    assert "24.3" not in shown  # 3 modules of 9 features have no room in one dimension


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--eps", 1.5), "eps must lie"),
        (("--dims", 0), "at least 1"),
        (("--features", 1), "C above 1"),
        (("--noise", 0.5), "eps must lie"),
        (("--have", 0), "at least 1 sample"),
    ],
)
def test_bad_samples(arguments, words):
    code, _, error = run_cli("modular", "samples", *arguments)
    assert code == 2
    assert words in " ".join(error.split())


def test_train(table, tmp_path):
    out = tmp_path / "out"
    code, shown, error = run_cli("modular", "train", table, "--target", "y", "--modules", 2, *QUICK, "--out", out)
    assert code == 0, error
    assert "monolithic" in shown
    assert "linear" in shown
    rows = list(csv.reader((out / "modules.csv").read_text().splitlines()))
    assert rows[0][4:] == [*NAMES[:-1]]
    model = ModularRegressor.load(out / "model.npz")
    told = list(csv.DictReader((out / "predictions.csv").read_text().splitlines()))
    data = np.loadtxt(table, delimiter=",", skiprows=1)
    index = int(told[0]["row"])
    assert float(told[0]["y"]) == pytest.approx(data[index, 6])
    assert float(told[0]["predicted y"]) == pytest.approx(model.predict(data[index : index + 1, :6])[0], rel=1e-5)
    assert (out / "train.png").stat().st_size > 10_000
    assert any((out / "search").rglob("manifest.json"))  # what a killed search goes on from
    again = run_cli("modular", "train", table, "--target", "y", "--modules", 2, *QUICK, "--out", out)
    assert again[:2] == (0, shown)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"text": "a,a,y\n" + "1,2,3\n" * 40}, "the column a is named twice"),
        ({"more": ("--hidden", 0)}, "hidden must be at least 1"),
        ({"more": ("--length", 0)}, "must be positive and finite"),
        ({"target": "z"}, "no column z; it has a, b"),
        ({"file": "none.csv"}, "Cannot read"),
        ({"text": "a,y\n1,2\nred,3\n"}, "line 3, column a: 'red' is no finite number"),
        ({"text": "a,y\n1,2\n1\n"}, "line 3: 1 values for 2 columns"),
        ({"text": "a,y\n"}, "line of column names"),
        ({"text": "y\n" + "1\n2\n" * 10}, "no columns besides the target"),
        ({"text": "a,y\n1,2\n3,4\n"}, "too few to keep"),
        ({"text": "a,y\n" + "1,2\n3,nan\n" * 20}, "line 3, column y: 'nan' is no finite number"),
        ({"text": "a,y\n" + "".join(f"{i},7\n" for i in range(40))}, "nothing to explain"),
        ({"more": ("--dim", 9)}, "9 dimensions where the input has 6"),
        ({"more": ("--test", 1)}, "between 0 and 1"),
        ({"more": ("--restarts", 2)}, "twice as many restarts"),
        ({"noise": True}, "No module found"),
    ],
)
def test_bad_train(table, tmp_path, change, words):
    file = tmp_path / "data.csv"
    if "text" in change:
        file.write_text(change["text"])
    elif "noise" in change:
        write(file, NAMES, np.random.default_rng(0).normal(size=(200, 7)))
    else:
        file.write_bytes(table.read_bytes())
    if "file" in change:
        file = tmp_path / change["file"]
    code, _, error = run_cli(
        "modular", "train", file, "--target", change.get("target", "y"), "--modules", 2, *QUICK,
        *change.get("more", ()), "--out", tmp_path / "out",
    )  # fmt: skip
    assert code == 2, error
    assert words in " ".join(error.split())

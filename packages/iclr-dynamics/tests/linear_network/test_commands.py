"""The verbs as a user types them."""

import csv
import json
import shutil

import numpy as np
import pytest

from iclr_dynamics.linear_network import commands, phases
from iclr_shared.testing import Killed, fault_inject, run_cli

POINTS = ("--points", 20, "--weights")  # one compiled program for all
GRID = ("phase", "--grid", "--points", 4, "--widths", 100, 400)


@pytest.fixture(scope="module")
def line_csv(tmp_path_factory):
    rng = np.random.default_rng(0)
    xi = rng.standard_normal(40)
    rows = np.column_stack([3 * xi + 1, 4 * xi - 2, xi + 0.1 * rng.standard_normal(40) + 5])
    file = tmp_path_factory.mktemp("data") / "line.csv"
    np.savetxt(file, rows, delimiter=",", header="x1,x2,y", comments="", fmt="%.17g")
    return file


def verb(*arguments):
    return run_cli("linear-network", *arguments)


def test_solve_prints_what_was_used_and_writes_every_format(line_csv, tmp_path):
    files = [tmp_path / f"run.{kind}" for kind in ("npz", "csv", "png")]
    code, out, err = verb("solve", line_csv, "--center", "--width", 8, "--gamma", 0.5, *POINTS, "--out", *files)
    assert (code, err) == (0, "")
    for line in (
        "x1, x2 → y, centred",
        "gamma        0.5",
        "sigma_u      1",
        "eta_w        8",
        "mechanism",
        "time to 0.01",
    ):
        assert line in out
    with np.load(files[0]) as run:
        assert run["w"].shape == (20, 8, 2)
        setting = json.loads(str(run["setting"]))
        assert (setting["gamma"], setting["eta_u"], setting["seed"]) == (0.5, 8.0, 0)
        np.testing.assert_allclose(run["nhat"], (0.6, 0.8), atol=1e-12)
        np.testing.assert_allclose(
            run["F"], 0.5 * np.einsum("td,tdk,k->t", run["u"], run["w"], run["nhat"]), rtol=1e-10
        )
        np.testing.assert_allclose(run["F"][-1], run["B"] / run["A"], rtol=1e-6)
        with files[1].open() as table:
            rows = list(csv.DictReader(table))
        np.testing.assert_allclose([float(row["F"]) for row in rows], run["F"], rtol=1e-15)
    assert files[2].stat().st_size > 10_000


def test_solve_says_what_its_flow_cannot_do(line_csv):
    code, out, err = verb(
        "solve", line_csv, "--center", "--width", 8, "--sigma-u", 0, "--sigma-w", 0, "--time", 1, *POINTS
    )
    assert code == 0
    assert "stays at zero for ever" in err
    assert "time to 0.01 |F*|  inf" in out


def test_mechanism_goes_from_alignment_to_the_kernel(line_csv, tmp_path):
    files = [tmp_path / "scales.csv", tmp_path / "scales.png"]
    code, _, _ = verb("mechanism", line_csv, "--center", "--width", 8, "--scales", 0.01, 30, "--out", *files)
    assert code == 0
    with files[0].open() as table:
        rows = list(csv.DictReader(table))
    assert [row["mechanism"].split(",")[0] for row in rows] == ["alignment", "kernel"]
    assert files[1].stat().st_size > 10_000


@pytest.mark.parametrize(
    ("arguments", "texts"),
    [
        (("ntk",), ("phase kernel", "gamma 0.0316228", "K∞ / K0 1.0005")),
        (("--g", "1", "--eu", "-1", "--ew", "-1"), ("phase feature", "theta 2 ")),
        (("mup", "--width", "100"), ("sigma_u 0.01", "eta_w 100")),
    ],
)
def test_phase_of_one_parameterisation(arguments, texts):
    code, out, _ = verb("phase", *arguments)
    assert code == 0
    for text in texts:
        assert text in " ".join(out.split())


def test_phase_grid_writes_the_diagram(tmp_path):
    files = [tmp_path / f"diagram.{kind}" for kind in ("npz", "csv", "png")]
    code, out, _ = verb(*GRID, "--out", *files)
    assert code == 0
    assert "theta as predicted" in out
    with np.load(files[0]) as diagram:
        np.testing.assert_allclose(diagram["theta_exponent"], diagram["h"], atol=0.5)
    assert len(files[1].read_text().splitlines()) == 17
    assert files[2].stat().st_size > 10_000
    assert sorted(p.name for p in tmp_path.iterdir()) == ["diagram.csv", "diagram.npz", "diagram.png"]


def test_a_killed_grid_resumes_to_the_same_diagram(tmp_path, monkeypatch):
    whole, cut = tmp_path / "whole.csv", tmp_path / "cut.csv"
    assert verb(*GRID, "--out", whole)[0] == 0
    with monkeypatch.context() as patch:
        patch.setattr(phases.PhaseGrid, "row", fault_inject(phases.PhaseGrid.row, 2))
        with pytest.raises(Killed):
            verb(*GRID, "--out", cut)
    code, _, err = verb(*GRID, "--seed", 1, "--out", cut, "--resume")
    assert (code, "other settings" in err) == (2, True)
    rows = []
    with monkeypatch.context() as patch:
        original = phases.PhaseGrid.row
        patch.setattr(phases.PhaseGrid, "row", lambda self, key, i: rows.append(i) or original(self, key, i))
        assert verb(*GRID, "--out", cut, "--resume")[0] == 0
    assert rows == [2, 3]
    assert cut.read_text() == whole.read_text()
    assert not (tmp_path / "cut.csv.rows").exists()


def test_layers_of_the_users_own_network(tmp_path):
    rng = np.random.default_rng(0)
    before = {"0.weight": rng.standard_normal((5, 4)), "0.bias": np.zeros(5), "2.weight": rng.standard_normal((3, 5))}
    np.savez(tmp_path / "before.npz", **before)
    np.savez(tmp_path / "after.npz", **{name: 2 * w for name, w in before.items()})
    code, out, _ = verb(
        "layers",
        tmp_path / "before.npz",
        tmp_path / "after.npz",
        "--layout",
        "out-in",
        "--out",
        tmp_path / "layers.csv",
    )
    assert code == 0
    assert "0.weight → 2.weight" in out
    assert "rescaling" in (tmp_path / "layers.csv").read_text()


def test_bad_input_is_one_sentence_and_exit_code_2(line_csv, tmp_path):
    shutil.copy(line_csv, tmp_path / "line.npz")
    cases = [
        (("solve", line_csv), "needs one-dimensional data; centre it"),
        (("solve", tmp_path / "absent.csv"), "Cannot read"),
        (("solve", line_csv, "--center", "--out", "run.txt"), "writes .npz, .csv, .png files"),
        (("solve", line_csv, "--center", "--points", 1), "points must be at least 2"),
        (("solve", line_csv, "--center", "--time", -1), "time must be a positive number"),
        (("solve", line_csv, "--center", "--time", "inf"), "time must be a positive number"),
        (("solve", line_csv, "--center", "--rtol", "nan"), "allowed: nan"),
        (("solve", line_csv, "--center", "--width", 10**10), "take 240.0 GB"),
        (("solve", line_csv, "--center", "--width", 0), "width must be at least 1"),
        (("solve", line_csv, "--center", "--gamma", 0), "gamma must be a positive number"),
        (("solve", line_csv, "--center", "--width", 3, "--antisymmetric"), "even width"),
        (("mechanism", line_csv, "--center", "--scales", 0), "scales must be positive"),
        (("phase",), "Give either a name"),
        (("phase", "ntk", "--g", 1), "Give either a name"),
        (("phase", "ntk", "--resume"), "belong to --grid"),
        (("phase", "ntk", "--width", 0), "width must be at least 1"),
        (("phase", "--g", -1000), "leave the range of floats"),
        (("phase", "ntk", "--grid"), "give it no name"),
        (("phase", "--grid", "--resume"), "nothing to resume"),
        ((*GRID[:-2], 101, 400), "even width, got 101"),
        (("layers", tmp_path / "line.npz", tmp_path / "line.npz"), "Give an .npz file of named weights"),
    ]
    for arguments, message in cases:
        code, _, err = verb(*arguments)
        assert code == 2, arguments
        assert message in err, arguments
        assert "Traceback" not in err


def test_every_option_is_documented():
    code, out, _ = verb("solve", "--help")
    assert code == 0
    assert "initial standard deviation of the second layer" in " ".join(out.split())
    assert commands.NetworkOptions().setting().gamma == 0.01

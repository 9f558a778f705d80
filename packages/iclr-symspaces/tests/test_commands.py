import json
import re
import zipfile

import numpy as np
import pytest

from iclr_shared.testing import Killed, fault_inject, run_cli
from iclr_symspaces import training
from iclr_symspaces.simulation import simulate_eeg

FAST = ("--epochs", 40, "--lr", 0.05, "--quiet")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    data = simulate_eeg(0, 0.0, 1.0, channels=3, time=64, classes=2, train=15, test=10)
    np.savez(folder / "train.npz", X=data.train, y=data.train_labels)
    np.savez(folder / "test.npz", X=data.test, y=data.test_labels)
    covariances = data.train @ data.train.transpose(0, 2, 1) / 64
    np.savez(folder / "cov.npz", X=covariances, y=data.train_labels, groups=np.arange(30) % 3)
    broken = covariances.copy()
    broken[17] = np.diag([1.0, 1.0, -3.1e-8])
    np.savez(folder / "broken.npz", X=broken, y=data.train_labels)
    rng = np.random.default_rng(0)
    points = rng.normal(size=(40, 2)) * 0.2
    np.savez(folder / "ball.npz", X=points, y=np.where(points[:, 0] > 0, "right", "left"))
    np.savez(folder / "outside.npz", X=points + 2, y=points[:, 0] > 0)
    np.savez(folder / "one.npz", X=points, y=np.zeros(40))
    np.savez(folder / "empty.npz", Z=points)
    (folder / "text.npz").write_text("nothing")
    return folder


def test_classify(folder, tmp_path):
    out = tmp_path / "out"
    code, shown, error = run_cli("symspaces", "classify", folder / "train.npz", "--folds", 3, "--out", out, *FAST)
    assert code == 0, error
    assert re.search(r"30 samples, 2 classes, 3 folds; largest class 0.5", shown)
    content = json.loads((out / "accuracies.json").read_text())
    assert set(content["accuracies"]) == {
        "Busemann", "Euclidean logistic", "log-Euclidean logistic", "MDM", "tangent-space logistic"
    }  # fmt: skip
    assert np.mean(content["accuracies"]["Busemann"]) > 0.8
    assert (out / "accuracies.png").stat().st_size > 10_000
    code, shown, error = run_cli("symspaces", "classify", folder / "cov.npz", "--shared-flag", *FAST)
    assert code == 0, error
    assert "3 groups" in shown
    code, shown, error = run_cli("symspaces", "classify", folder / "ball.npz", "--manifold", "ball", *FAST)
    assert code == 0, error
    assert "geodesic" in shown
    assert "logistic on log_o" in shown


def test_fit_and_predict(folder, tmp_path):
    model, out = tmp_path / "model.pt", tmp_path / "out.csv"
    code, shown, error = run_cli("symspaces", "fit", folder / "train.npz", "--out", model, *FAST)
    assert code == 0, error
    assert "SPD(n=3" in shown
    code, shown, error = run_cli("symspaces", "predict", model, folder / "test.npz", "--out", out)
    assert code == 0, error
    accuracy = float(re.search(r"accuracy\s+([\d.]+)", shown)[1])
    assert accuracy > 0.8
    rows = [line.split(",") for line in out.read_text().splitlines()]
    assert rows[0] == ["label", "logit_0", "logit_1"]
    assert all((float(b) > float(a)) == (label == "1") for label, a, b in rows[1:])
    assert len(rows) == 21
    ball = tmp_path / "ball.pt"
    options = ("--manifold", "ball", "--head", "geodesic")
    code, _, error = run_cli("symspaces", "fit", folder / "ball.npz", "--out", ball, *options, *FAST)
    assert code == 0, error
    code, _, error = run_cli("symspaces", "predict", ball, folder / "ball.npz", "--out", out)
    assert code == 0, error
    assert {line.split(",")[0] for line in out.read_text().splitlines()[1:]} == {"left", "right"}
    code, _, error = run_cli("symspaces", "predict", ball, folder / "train.npz", "--out", out)
    assert (code, "needs X of shape" in error) == (2, True)


def test_killed_and_resumed(folder, tmp_path, monkeypatch):
    whole, cut = tmp_path / "whole.pt", tmp_path / "cut.pt"
    assert run_cli("symspaces", "fit", folder / "train.npz", "--out", whole, *FAST)[0] == 0
    with monkeypatch.context() as patch:
        patch.setattr(training, "_epoch", fault_inject(training._epoch, 4))
        patch.setattr(training.Checkpoint, "due", lambda self: True)
        with pytest.raises(Killed):
            run_cli("symspaces", "fit", folder / "train.npz", "--out", cut, *FAST)
    code, _, error = run_cli("symspaces", "fit", folder / "train.npz", "--out", cut, *FAST)
    assert (code, "go on with --resume" in error) == (2, True)
    code, _, error = run_cli("symspaces", "fit", folder / "train.npz", "--out", cut, "--resume", *FAST)
    assert code == 0, error
    results = []
    for model in (whole, cut):
        run_cli("symspaces", "predict", model, folder / "test.npz", "--out", tmp_path / "out.csv")
        results.append((tmp_path / "out.csv").read_text())
    assert results[0] == results[1]
    assert {path.name for path in tmp_path.iterdir()} == {"whole.pt", "cut.pt", "out.csv"}


def test_distance(folder, tmp_path):
    """The reference values of the SPD(3) and ball cases."""
    c, s = np.cos(0.3), np.sin(0.3)
    k = np.array([[[c, -s, 0], [s, c, 0], [0, 0, 1]]])
    a, q = np.array([[2.0, 0, -1]]), np.array([[[1.5, 0.2, 0], [0.2, 1, 0.1], [0, 0.1, 0.8]]])
    np.savez(tmp_path / "x.npz", X=np.array([[[4, 1, 0], [1, 3, 0.5], [0, 0.5, 2]]]))
    np.savez(tmp_path / "xi.npz", k=k, a=a, p=q)
    np.savez(tmp_path / "w.npz", w=k @ np.diag(a[0]) @ k.transpose(0, 2, 1))
    out = tmp_path / "s.csv"
    code, shown, error = run_cli("symspaces", "distance", tmp_path / "x.npz", "--xi", tmp_path / "xi.npz", "--out", out)
    assert code == 0, error
    assert "0.513441" in shown
    assert float(out.read_text().splitlines()[1]) == pytest.approx(0.5134414686847519, rel=1e-12)
    code, shown, _ = run_cli("symspaces", "distance", tmp_path / "x.npz", "--xi", tmp_path / "w.npz")
    assert (code, "-1.0069" in shown) == (0, True)
    np.savez(tmp_path / "x.npz", X=np.array([[0.3, -0.2]]))
    np.savez(tmp_path / "xi.npz", u=np.array([[1.0, 2.0]]), p=np.array([[0.1, 0.4]]))
    options = ("--manifold", "ball", "--norm", "gyro")
    code, shown, _ = run_cli("symspaces", "distance", tmp_path / "x.npz", "--xi", tmp_path / "xi.npz", *options)
    assert (code, "-2.94285" in shown) == (0, True)
    for content, message in (
        ({"v": np.eye(2)}, "lacks u"),
        ({"u": np.ones((1, 3))}, r"u must have shape \(K, 2\)"),
        ({"u": np.zeros((1, 2))}, "direction 0 is zero"),
        ({"u": np.ones((1, 2)), "p": np.zeros((2, 2))}, r"p must have shape \(1, 2\), a point for each"),
        ({"u": np.ones((1, 2)), "p": np.ones((1, 2))}, "hyperplane point 0 lies outside the ball"),
    ):
        np.savez(tmp_path / "bad.npz", **content)
        code, _, error = run_cli("symspaces", "distance", tmp_path / "x.npz", "--xi", tmp_path / "bad.npz", *options)
        assert code == 2
        assert re.search(message, error)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("classify", "broken.npz"), r"matrix 17 is not positive definite: min eigenvalue -3.1e-08; add shrinkage"),
        (("classify", "cov.npz", "--manifold", "ball"), r"points of shape \(samples, d\)"),
        (("classify", "train.npz", "--folds", 99), "--folds must be from 2 to 15"),
        (("classify", "one.npz", "--manifold", "ball"), "one class only"),
        (("classify", "outside.npz", "--manifold", "ball"), "point 0 lies outside the ball"),
        (("classify", "none.npz"), "There is no file"),
        (("classify", "text.npz"), "no npz file"),
        (("classify", "empty.npz"), "lacks X and y; it holds Z"),
        (("fit", "broken.npz", "--out", "m.pt"), "matrix 17 is not positive definite"),
        (
            ("fit", "ball.npz", "--manifold", "ball", "--norm", "gyro", "--head", "geodesic", "--out", "m.pt"),
            "Busemann",
        ),
        (("fit", "cov.npz", "--beta", -1.0, "--out", "m.pt"), "no metric"),
        (("fit", "cov.npz", "--device", "cuda", "--out", "m.pt"), "no device 'cuda' here"),
        (("predict", "none.pt", "cov.npz", "--out", "x.csv"), "no model"),
        (("distance", "cov.npz", "--xi", "none.npz"), "There is no file"),
    ],
)
def test_bad_input(arguments, message, folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    paths = [folder / a if str(a).endswith(".npz") and a != "none.npz" else a for a in arguments]
    code, _, error = run_cli("symspaces", *paths)
    assert code == 2, error
    assert re.search(message, error), error
    assert "Traceback" not in error
    assert not [path for path in tmp_path.iterdir() if path.suffix != ".state"]


@pytest.fixture(scope="module")
def damaged(folder):
    """Files that are no npz file of arrays, or hold what is no data, by name."""
    whole = (folder / "train.npz").read_bytes()
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 255
    for name, content in (("void", b""), ("cut", whole[: len(whole) // 2]), ("flipped", bytes(flipped))):
        (folder / f"{name}.npz").write_bytes(content)
    with np.load(folder / "train.npz") as file:
        X, y = file["X"], file["y"]
    np.save(folder / "single.npy", X)
    (folder / "single.npy").rename(folder / "single.npz")
    with zipfile.ZipFile(folder / "other.npz", "w") as file:
        file.writestr("notes.txt", "nothing")
    nothing, points = np.full(len(y), np.nan), np.zeros((len(y), 2))
    for name, arrays in {
        "scalar": {"X": np.float64(3), "y": y}, "zero": {"X": X[:0], "y": y[:0]}, "nolabel": {"X": X, "y": nothing},
        "complex": {"X": X * 1j, "y": y}, "strings": {"X": points.astype(str), "y": y},
        "nogroup": {"X": X, "y": y, "groups": nothing}, "same": {"X": X, "y": np.full(len(y), "rest")},
    }.items():  # fmt: skip
        np.savez(folder / f"{name}.npz", **arrays)
    return folder


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("void", "or a damaged one"), ("cut", "or a damaged one"), ("flipped", "Bad CRC-32"),
        ("single", "no npz file of plain arrays"), ("other", "holds notes.txt, which is no array"),
        ("scalar", r"got float64 of shape \(\)"), ("zero", "there are no samples"),
        ("complex", "must be real numbers .* got complex128"),
        ("strings", "must be real numbers .* got strings"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("verb", ["fit", "classify", "predict", "distance"])
def test_files_that_hold_no_data(verb, name, message, damaged, tmp_path, model):
    out, manifold = ("--out", tmp_path / "out.pt"), "ball" if name == "strings" else "spd"
    data = damaged / f"{name}.npz"
    arguments = {
        "fit": (data, "--manifold", manifold, *out), "classify": (data, "--manifold", manifold),
        "predict": (model, data, *out), "distance": (data, "--manifold", manifold, "--xi", damaged / "xi.npz"),
    }  # fmt: skip
    code, _, error = run_cli("symspaces", verb, *arguments[verb])
    assert code == 2, error
    assert re.search(message, error), error
    assert not list(tmp_path.iterdir())


@pytest.fixture(scope="module")
def model(folder):
    path = folder / "model.pt"
    code, _, error = run_cli("symspaces", "fit", folder / "train.npz", "--out", path, "--epochs", 2, "--quiet")
    assert code == 0, error
    return path


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("fit", "same.npz", "--out", "m.pt"), "all labels are rest"),
        (("classify", "same.npz"), "one class only, rest:"),
        (("classify", "nogroup.npz"), "NaN or None"),
        (("classify", "nolabel.npz"), r"no label for sample 0 \(NaN"),
        (("fit", "nolabel.npz", "--out", "m.pt"), r"no label for sample 0 \(NaN"),
        (("predict", "model.pt", "nolabel.npz", "--out", "x.csv"), r"no label for sample 0 \(NaN"),
        (("classify", "train.npz", "--estimator", "foo"), "estimator 'foo' of pyriemann failed: .*oas"),
        (("fit", "train.npz", "--estimator", "foo", "--out", "m.pt"), "estimator 'foo'"),
        (("fit", "train.npz", "--device", "foo", "--out", "m.pt"), "no device 'foo'"),
        (("predict", "model.pt", "test.npz", "--device", "foo", "--out", "x.csv"), "no device 'foo'"),
        (("classify", "train.npz", "--seed", -1), "seed must be from 0"),
        (("fit", "train.npz", "--seed", -1, "--out", "m.pt"), "seed must be from 0"),
        (("fit", "train.npz", "--out", "."), "Cannot write .: it is a folder. Choose another"),
        (("predict", "model.pt", "test.npz", "--out", "."), "Cannot write .: it is a folder"),
        (("fit", "train.npz", "--out", "file/m.pt"), "Cannot write file/m.pt: file is a file"),
        (("classify", "train.npz", "--out", "file"), "Cannot write file/accuracies.json: "),
        (("predict", "model.pt", "test.npz", "--out", "file/x.csv"), "Cannot write file/x.csv: "),
        (("distance", "cov.npz", "--xi", "cov.npz", "--out", "file/x.csv"), "Cannot write file/x.csv: "),
        (("fit", "ball.npz", "--manifold", "ball", "--clip", "inf", "--out", "m.pt"), "clip must be a positive finite"),
    ],
)
def test_bad_options(arguments, message, damaged, model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    paths = [damaged / a if str(a).endswith(".npz") or a == "model.pt" else a for a in arguments]
    code, _, error = run_cli("symspaces", *paths)
    assert code == 2, error
    assert re.search(message, error), error
    assert "np.str_" not in error
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize(
    ("hyperplanes", "message"),
    [
        ({"k": np.eye(3)[None], "a": np.array([2.0, 1, 0])}, r"got \(1, 3, 3\) and \(3,\)"),
        ({"k": np.eye(3), "a": np.array([[2.0, 1, 0]])}, "k of shape"),
        ({"k": np.eye(3)[None].astype(str), "a": np.array([[2.0, 1, 0]])}, "k must be real numbers .* got strings"),
        ({"k": np.eye(3)[None][:0], "a": np.zeros((0, 3))}, "k: there are no samples"),
        ({"w": np.full((1, 3, 3), np.nan)}, "w: entry 0 holds NaN"),
        ({"w": np.zeros((0, 3, 3))}, "w: there are no samples"),
        ({"w": np.float64(3)}, "w must be real numbers"),
        ({"w": np.eye(3)[None], "p": np.eye(3)}, r"p must have shape \(1, 3, 3\)"),
    ],
)
def test_hyperplanes_that_are_none(hyperplanes, message, folder, tmp_path):
    np.savez(tmp_path / "xi.npz", **hyperplanes)
    code, _, error = run_cli("symspaces", "distance", folder / "cov.npz", "--xi", tmp_path / "xi.npz")
    assert code == 2, error
    assert re.search(message, error), error


def test_a_training_is_not_resumed_on_other_data(folder, tmp_path, monkeypatch):
    out = tmp_path / "m.pt"
    with monkeypatch.context() as patch:
        patch.setattr(training, "_epoch", fault_inject(training._epoch, 3))
        patch.setattr(training.Checkpoint, "due", lambda self: True)
        with pytest.raises(Killed):
            run_cli("symspaces", "fit", folder / "train.npz", "--out", out, *FAST)
    code, _, error = run_cli("symspaces", "fit", folder / "cov.npz", "--out", out, "--resume", *FAST)
    assert (code, "belongs to another data set" in error) == (2, True), error
    code, _, error = run_cli("symspaces", "fit", folder / "train.npz", "--out", out, "--resume", "--alpha", 0.5, *FAST)
    assert (code, "belongs to another model" in error) == (2, True), error


def test_bad_matrix_leaves_no_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    x = np.stack([np.eye(3)] * 12)
    x[5, 1, 1] = -0.5
    np.savez("bad.npz", X=x, y=np.arange(12) % 2)
    code, _, error = run_cli("symspaces", "classify", "bad.npz", "--out", "a/b")
    assert code == 2
    assert "matrix 5 is not positive definite: min eigenvalue -0.5" in error
    assert [path.name for path in tmp_path.iterdir()] == ["bad.npz"]

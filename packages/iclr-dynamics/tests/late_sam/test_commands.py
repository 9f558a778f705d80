import json
from pathlib import Path

import flax.linen as nn
import numpy as np
import pytest

from iclr_dynamics.late_sam import runs
from iclr_dynamics.late_sam.architectures import Normalized
from iclr_shared.testing import run_cli

# The network of the README's commands, whose compiled programs these tests share.
QUICK = ("--epochs", 4, "--quiet")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Two networks: SGD throughout, and SAM for the last of four epochs."""
    folder = tmp_path_factory.mktemp("runs")
    late = run_cli("late-sam", "train", folder / "late", *QUICK, "--switch", 0.75, "--sharpness-every", 2)
    plain = run_cli("late-sam", "train", folder / "plain", *QUICK, "--switch", 1)
    assert (late[0], plain[0]) == (0, 0), late[2] + plain[2]
    return folder, late[1]


def test_train_writes_what_it_says(trained):
    folder, table = trained
    assert table.split()[-5:-3] == ["0.35", "1.25"]  # one epoch of four at twice the price, 7 steps at 0.05
    settings = json.loads((folder / "late" / "run.json").read_text())
    assert settings["schedule"]["start"] == 0.75
    lines = (folder / "late" / "history.csv").read_text().splitlines()
    assert [line.split(",")[1] for line in lines[1:]] == ["sgd"] * 3 + ["sam"]
    assert [bool(line.split(",")[-1]) for line in lines[1:]] == [False, True, False, True]
    late, plain = (np.load(folder / name / "model.npz") for name in ("late", "plain"))
    assert set(late.files) == set(plain.files)


def test_train_does_not_overwrite_but_resumes(trained):
    folder, table = trained
    options = ("late-sam", "train", folder / "late", *QUICK, "--switch", 0.75, "--sharpness-every", 2)
    code, _, error = run_cli(*options)
    assert code == 2
    assert "--resume" in error
    code, out, _ = run_cli(*options, "--resume")
    assert (code, out) == (0, table)
    code, _, error = run_cli(*options, "--resume", "--rho", 0.2)
    assert code == 2
    assert "another rho" in error


def test_late_fine_tuning(trained, tmp_path):
    folder, _ = trained
    code, out, error = run_cli(
        "late-sam", "train", tmp_path / "tuned", "--init", folder / "plain", *QUICK, "--epochs", 1, "--switch", 0
    )
    assert code == 0, error
    assert "2" in out
    assert json.loads((tmp_path / "tuned" / "run.json").read_text())["init"] == str(folder / "plain")


def test_sharpness_connect_attack(trained, tmp_path):
    folder, _ = trained
    code, out, _ = run_cli("late-sam", "sharpness", folder / "late", folder / "plain")
    assert code == 0
    assert len(out.splitlines()) == 3
    for target in ("path.csv", "path.png"):
        code, out, _ = run_cli(
            "late-sam",
            "connect",
            folder / "late",
            folder / "plain",
            "--points",
            8,
            "--rebn",
            "--out",
            tmp_path / target,
        )
        assert code == 0
        assert "barrier" in out
    alphas = np.loadtxt(tmp_path / "path.csv", delimiter=",", skiprows=1)[:, 0]
    np.testing.assert_allclose(alphas, np.linspace(-0.2, 1.2, 8))
    assert (tmp_path / "path.png").read_bytes()[:4] == b"\x89PNG"
    code, out, _ = run_cli("late-sam", "attack", folder / "plain", "--eps", 0.1, "--alpha", 0.03)
    assert code == 0
    clean, robust = map(float, out.split()[-2:])
    assert robust >= clean


def test_sweep(tmp_path):
    options = ("late-sam", "sweep", tmp_path / "sweep", *QUICK, "--switches", 0, 0.5, 1)
    code, out, error = run_cli(*options)
    assert code == 0, error
    rows = np.loadtxt(tmp_path / "sweep" / "sweep.csv", delimiter=",", skiprows=1)
    assert rows[:, 0].tolist() == [0, 2, 4]
    np.testing.assert_allclose(rows[:, 2], [4 * 7 * 0.05, 2 * 7 * 0.05, 0])
    assert (tmp_path / "sweep" / "switch-2" / "model.npz").exists()
    assert run_cli(*options)[0] == 2
    assert run_cli(*options, "--resume")[:2] == (0, out)
    assert run_cli("late-sam", "sweep", tmp_path / "other", *QUICK, "--switches", 2)[0] == 2


def test_stability_table():
    code, out, _ = run_cli("late-sam", "stability", 0.25, "--rho", 0.1)
    assert code == 0
    assert "5.24695" in out
    for option in ("--h", "--rho", "--gamma"):
        code, _, error = run_cli("late-sam", "stability", 0.25, option, "nan")
        assert code == 2
        assert f"{option[2:]} is nan" in error


class Tiny(nn.Module):
    classes: int

    @nn.compact
    def __call__(self, x, train: bool = False):
        x = nn.relu(nn.BatchNorm(use_running_average=not train, momentum=0.9)(nn.Conv(4, (3, 3))(x)))
        return nn.Dense(self.classes)(x.mean((1, 2)))


def test_own_images_through_a_convolutional_network(tmp_path, monkeypatch):
    """The full-scale path at a tiny size: CIFAR-like images, batch normalisation, augmentation, adaptive SAM."""
    monkeypatch.setattr(runs, "architecture", lambda name, classes, normalize: Normalized(Tiny(classes)))
    rng = np.random.default_rng(0)
    np.savez(
        tmp_path / "images.npz",
        x_train=rng.integers(0, 256, (8, 8, 8, 3), dtype=np.uint8),
        y_train=np.arange(8) % 2,
        x_test=rng.integers(0, 256, (8, 8, 8, 3), dtype=np.uint8),
        y_test=np.arange(8) % 2,
    )
    out = tmp_path / "run"
    network = ("--dataset", tmp_path / "images.npz", "--network", "resnet8", "--augment", "crop-flip-cutout")
    code, _, error = run_cli(
        "late-sam", "train", out, *network, "--epochs", 1, "--batch-size", 4, "--late", "asam", "--rho", 2,
        "--switch", 0, "--shape", "multistep", "--milestones", 1, "--quiet",
    )  # fmt: skip
    assert code == 0, error
    assert (out / "model.npz").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--dataset", "nothing.npz"), "neither a .npz file nor a folder"),
        (("--network", "resnet20"), "takes images"),
        (("--activation", "sine"), "'sine' is unknown"),
        (("--hidden", 0), "at least 1"),
        (("--sharpness-every", -1), "at least 0"),
        (("--switch", "nan"), "0 <= start"),
        (("--switch", 70, "--unit", "epochs"), "beyond the training"),
        (("--rho", -1), "at least 0"),
        (("--batch-size", 5000), "larger than the training set"),
        (("--init", "nowhere"), "holds no trained network"),
    ],
)
def test_bad_options(tmp_path, arguments, message):
    code, _, error = run_cli("late-sam", "train", tmp_path / "run", *arguments, "--quiet")
    assert code == 2
    assert message in error
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("sharpness",), "at least one folder"),
        (("sharpness", "plain", "--samples", 0), "at least one sample"),
        (("sharpness", "plain", "--batch-size", 0), "batch_size=0"),
        (("connect", "plain", "late", "--points", 1), "points=1"),
        (("connect", "plain", "late", "--out", "path.pdf"), ".csv or .png"),
        (("attack", "plain", "--dataset", "other.npz"), "takes inputs of shape (64,) in 10 classes"),
        (("sharpness", "damaged"), "holds no trained network, or a damaged one"),
    ],
)
def test_bad_options_on_trained_networks(trained, monkeypatch, arguments, message):
    folder, _ = trained
    monkeypatch.chdir(folder)
    np.savez("other.npz", x_train=np.zeros((2, 3)), y_train=[0, 1], x_test=np.zeros((2, 3)), y_test=[0, 1])
    Path("damaged").mkdir(exist_ok=True)
    Path("damaged/run.json").write_bytes(Path("plain/run.json").read_bytes())
    Path("damaged/model.npz").write_bytes(b"junk")
    code, _, error = run_cli("late-sam", *arguments)
    assert code == 2
    assert message in error

import numpy as np
import pytest

from iclr_dynamics.uv_model import commands
from iclr_dynamics.uv_model.bifurcations import bifurcation
from iclr_shared.testing import Killed, fault_inject, run_cli


def uv(*arguments):
    return run_cli("uv-model", *arguments)


def ok(*arguments):
    code, out, err = uv(*arguments)
    assert code == 0, err
    return out


def test_phase_of_a_given_start():
    out = ok("phase", "--c", "1.1", "--lambda0", "0.5")
    assert "EoS" in out
    assert "repeller" in out
    assert "mirrored" in ok("phase", "--eta", "0.1", "--y", "-2", "--lambda0", "0.5")


def test_phase_of_drawn_starts():
    out = ok("phase", "--eta", "0.25", "--n", "64", "--sigma-w", "2.6", "--draws", "10")
    assert "catapult" in out


SAMPLED = ("--steps", "800", "--stride", "2")  # as many records as in the README, and so the same programs


def test_simulate_writes_what_it_prints(tmp_path):
    out = ok("simulate", "--c", "1.1", *SAMPLED, "--out", tmp_path)
    with np.load(tmp_path / "trajectory.npz") as held:
        assert len(held["step"]) == len(held["sharpness"]) == 401
        late = np.sort(held["eta"] * held["ntk"][-1:])
    assert f"{late[-1]:.6g}" in out
    assert (tmp_path / "trajectory.png").stat().st_size > 5000
    assert "diverged at step" in ok("simulate", "--c", "3", "--lambda0", "3", "--f0", "0.2", *SAMPLED)


GRID = ("--c", "0.9:2.2:14", "--burn-in", "200", "--record", "16", "--chunk", "5")


def test_bifurcation_resumes_after_a_kill(tmp_path, monkeypatch):
    out = ok("bifurcation", *GRID, "--out", tmp_path / "whole")
    assert "diverges" in out
    assert "bounded up to c = 2" in out
    monkeypatch.setattr(commands.diagrams, "bifurcation", fault_inject(bifurcation, 2))
    with pytest.raises(Killed):
        uv("bifurcation", *GRID, "--out", tmp_path / "cut")
    # One chunk is left: a second call would be killed.
    monkeypatch.setattr(commands.diagrams, "bifurcation", fault_inject(bifurcation, 1))
    assert ok("bifurcation", *GRID, "--out", tmp_path / "cut", "--resume") == out
    with np.load(tmp_path / "whole/bifurcation.npz") as whole, np.load(tmp_path / "cut/bifurcation.npz") as cut:
        assert set(whole.files) == {"eta", "c", "z", "ntk", "sharpness", "diverged", "onsets"}
        for name in whole.files:
            np.testing.assert_array_equal(whole[name], cut[name])
    assert (tmp_path / "cut/bifurcation.png").exists()
    code, _, err = uv("bifurcation", "--c", "0.9:1:3", "--out", tmp_path / "cut", "--resume")
    assert code == 2
    assert "other settings" in err


def test_bifurcation_over_eta_from_random_weights():
    out = ok(
        "bifurcation", "--eta", "0.55:0.6:2", "--sigma-w", "0.5", "--burn-in", "2000", "--y", "-2", "--record", "9"
    )
    assert "mirrored" in out
    assert out.splitlines()[2].split()[:2] == ["1.1", "2"]


def test_onsets(tmp_path):
    out = ok("onsets", "--doublings", "4", "--out", tmp_path)
    assert "1.236067977500" in out
    assert np.load(tmp_path / "onsets.npz")["c"].shape == (4,)
    assert "1.000000000000" in ok("onsets", "--doublings", "1")


def test_train_then_sharpness_on_the_users_data(tmp_path):
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "data.npz", x=rng.standard_normal((30, 5)), y=rng.integers(0, 3, 30))
    small = (tmp_path / "data.npz", "--width", "6", "--steps", "80", "--every", "10", "--quiet", "--out", tmp_path)
    out = ok("train", *small, "--rates", "0.5", "50", "--p", "1")
    assert "divergent" in out
    assert (tmp_path / "tracks.png").exists()
    assert ok("train", *small, "--rates", "0.5", "50", "--p", "1", "--resume") == out
    with np.load(tmp_path / "tracks.npz") as held:
        last = held["sharpness_0"][-1]
    arguments = (tmp_path / "weights-0.npz", tmp_path / "data.npz", "--p", "1", "--k", "2")
    out = ok("sharpness", *arguments, "--out", tmp_path)
    assert np.load(tmp_path / "spectrum.npz")["values"][0] == pytest.approx(last, rel=2e-3)
    assert "Frobenius norm" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("phase", "--c", "1"), "Give either --lambda0"),
        (("phase", "--lambda0", "1"), "Give the learning rate"),
        (("phase", "--c", "1", "--y", "0", "--lambda0", "1"), "critical learning rate is infinite"),
        (("phase", "--c", "1", "--lambda0", "1", "--f0", "3"), "lambda >= 2 k |f|"),
        (("simulate", "--eta", "-1"), "eta=-1 must be positive"),
        (("simulate", "--c", "1", "--norm", "0"), "zero norm"),
        (("simulate", "--c", "1", "--p", "2"), "p=2"),
        (("bifurcation", "--c", "1-2"), "FIRST:LAST:COUNT"),
        (("bifurcation", "--c", "-1:2:3"), "all of them positive"),
        (("bifurcation", "--c", "1:2:0"), "at least one rate"),
        (("bifurcation", "--resume"), "needs --out"),
        (("bifurcation", "--y", "0"), "critical learning rate is infinite"),
        (("phase", "--c", "1", "--n", "4", "--draws", "0"), "--draws 0"),
        (("onsets", "--out", "/proc/none"), "Cannot write to /proc/none"),
        (("train", "--resume"), "needs --out"),
        (("train", "--steps", "40"), "too few records"),
        (("onsets", "--doublings", "0"), "max_power=0"),
        (("train", "none.npz"), "There is no file"),
        (("train", "--rates", "-1"), "must be positive"),
        (("train", "--activation", "step"), "activation='step'"),
        (("sharpness", "none.npz"), "There is no file"),
    ],
)
def test_bad_input_is_one_message_and_exit_code_2(arguments, message):
    code, _, err = uv(*arguments)
    assert code == 2
    assert message in err

import json
import re
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from iclr_shared.testing import run_cli

SMALL = ("--env", "CartPole-v1", "--batch-steps", 20, "--horizon", 10, "--hidden", 4, "--quiet")


def test_train_resume_evaluate(tmp_path):
    out = tmp_path / "run"
    code, shown, error = run_cli("afedpg", "train", *SMALL, "--times", "1,1,5", "--virtual-time", 10, "--out", out)
    assert code == 0, error
    assert re.search(r"updates\s+22", shown)
    assert {file.name for file in out.iterdir()} == {
        "checkpoint", "delays.png", "events.json", "learning.png", "policy.npz", "settings.json", "updates.csv"
    }  # fmt: skip
    code, _, error = run_cli("afedpg", "train", *SMALL, "--updates", 3, "--out", out)
    assert (code, "already holds a run" in error) == (2, True)
    code, shown, error = run_cli("afedpg", "train", *SMALL, "--virtual-time", 15, "--out", out, "--resume")
    assert code == 0, error
    assert re.search(r"updates\s+33", shown)
    code, shown, error = run_cli("afedpg", "evaluate", out, "--episodes", 3, "--out", tmp_path / "returns.json")
    assert code == 0, error
    returns = json.loads((tmp_path / "returns.json").read_text())["returns"]
    assert re.search(rf"mean return\s+{np.mean(returns):.3g}", shown)
    assert all(1 <= value <= 10 for value in returns)


@pytest.mark.parametrize("method", ["fedpg", "asyncpg", "pg"])
def test_baselines(method, tmp_path):
    code, _, error = run_cli("afedpg", "train", *SMALL, "--method", method, "--updates", 3, "--out", tmp_path / "run")
    assert code == 0, error


def test_killed_and_resumed(tmp_path):
    """The same parameters as an uninterrupted run, after SIGKILL in the middle."""
    options = [*map(str, SMALL), "--times", "1,2", "--updates", "150"]
    assert run_cli("afedpg", "train", *options, "--out", tmp_path / "whole")[0] == 0
    code = "import sys; from iclr_afedpg.training import AFedPG\n"
    code += "import functools; AFedPG.run = functools.partialmethod(AFedPG.run, every_s=0)\n"
    code += "from iclr_shared.cli import main; sys.exit(main(sys.argv[1:]))"
    process = subprocess.Popen(
        [sys.executable, "-c", code, "afedpg", "train", *options, "--out", str(tmp_path / "run")],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    while not any((tmp_path / "run" / "checkpoint").glob("step-*/manifest.json")) and process.poll() is None:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (tmp_path / "run" / "policy.npz").exists()
    code, _, error = run_cli("afedpg", "train", *options, "--out", tmp_path / "run", "--resume")
    assert code == 0, error
    whole, run = (np.load(tmp_path / name / "policy.npz")["theta"] for name in ("whole", "run"))
    np.testing.assert_array_equal(run, whole)


def test_predict(tmp_path):
    code, shown, error = run_cli("afedpg", "predict", "--times", "1,1,1,10", "--out", tmp_path)
    assert code == 0, error
    assert re.search(r"speed-up\s+7.75", shown)
    summary = json.loads((tmp_path / "prediction.json").read_text())
    assert summary["largest delay, simulated"] == 30
    assert (tmp_path / "delays.png").stat().st_size > 10_000
    trace = tmp_path / "trace.csv"
    trace.write_text("agent,iteration,seconds\n0,0,1\n0,1,3\n1,0,4\n")
    code, shown, error = run_cli("afedpg", "predict", "--trace", trace, "--updates", 30)
    assert code == 0, error
    assert re.search(r"speed-up\s+1.5", shown)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("predict",), "either --times or --trace"),
        (("predict", "--times", "1,x"), "numbers between commas"),
        (("predict", "--times", "1,0"), "time of agent 1 must be a positive number of seconds, got 0"),
        (("predict", "--times", "1e400,1"), "time of agent 0 must be a positive number"),
        (("predict", "--times", "1", "--updates", 0), "at least 1"),
        (("train", *SMALL, "--out", "x"), "Give a budget"),
        (("train", "--env", "NoSuch-v0", "--updates", 1, "--out", "x"), "cannot be made"),
        (("train", *SMALL, "--updates", 1, "--out", "x", "--backend", "local", "--slow", "1"), "AGENT:FACTOR"),
        (("train", *SMALL, "--updates", 1, "--out", "x", "--backend", "local", "--slow", "9:2"), "names agent 9"),
        (("train", *SMALL, "--updates", 1, "--out", "x", "--slow", "1:2"), "give simulated ones a clock"),
        (("train", *SMALL, "--updates", 1, "--out", "x", "--alpha", 2), "alpha must be in"),
        (("train", "--env", "Blackjack-v1", "--updates", 1, "--out", "x"), "no Box|Tuple"),
        (("train", *SMALL, "--updates", 1, "--out", "nowhere", "--resume"), "holds no training run"),
        (("evaluate", "nowhere"), "holds no training run"),
        (("evaluate", "nowhere", "--episodes", 0), "at least 1"),
    ],
)
def test_bad_input(arguments, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, _, error = run_cli("afedpg", *arguments)
    assert code == 2, error
    assert re.search(message, error)
    assert "Traceback" not in error
    assert list(tmp_path.iterdir()) == []


def test_strange_runs(tmp_path):
    for content, message in ((b"\xff{", "is no text"), (b"{", "no settings of a run"), (b"{}", "no settings of a run")):
        (tmp_path / "settings.json").write_bytes(content)
        code, _, error = run_cli("afedpg", "evaluate", tmp_path)
        assert (code, message in error) == (2, True), error


def test_a_budget_that_is_too_small_can_be_enlarged(tmp_path):
    code, _, error = run_cli(
        "afedpg", "train", *SMALL, "--times", "2,3", "--virtual-time", 1, "--out", tmp_path / "run"
    )
    assert (code, "No update came within this budget" in error) == (2, True), error
    code, shown, error = run_cli("afedpg", "train", *SMALL, "--virtual-time", 4, "--out", tmp_path / "run", "--resume")
    assert code == 0, error
    assert re.search(r"updates\s+3", shown)

import json
import re

import numpy as np
import pytest

from iclr_interp.identifiability.examples import TRAINED
from iclr_shared.testing import run_cli

QUICK = ("--repeats", 25, "--lr", 0.02, "--epochs", 150, "--quiet")


@pytest.fixture
def network(tmp_path):
    TRAINED.save(tmp_path / "net.npz")
    return tmp_path / "net.npz"


def test_enumerate(network, tmp_path):
    out = tmp_path / "out"
    code, shown, error = run_cli("identifiability", "enumerate", network, "--gate", "XOR", "--out", out, "--quiet")
    assert code == 0, error
    assert re.search(r"circuits\s+40\s+not unique", shown)
    assert re.search(r"interpretations\s+3[, ]?932", shown)
    report = json.loads((out / "report.json").read_text())
    assert report["counts"]["circuits"] == 40
    assert report["candidates"] == 56
    assert report["identifiable"]["circuits"] is False
    assert (out / "circuits.png").stat().st_size > 10_000
    with np.load(out / "circuits.npz") as file:
        assert file["edges0"].shape == (40, 3)
    code, shown, _ = run_cli("identifiability", "enumerate", network, "--gate", "0110", "--all-nodes", "--quiet")
    assert (code, bool(re.search(r"circuits\s+158", shown))) == (0, True)
    code, shown, _ = run_cli("identifiability", "enumerate", network, "--gate", "XOR", "--sample", 200, "--quiet")
    assert (code, "200 circuits sampled" in shown) == (0, True)


def test_train_and_go_on(tmp_path):
    out = tmp_path / "out"
    code, shown, error = run_cli("identifiability", "train", "--seeds", "0:2", "--out", out, *QUICK)
    assert code == 0, error
    first = (out / "counts.jsonl").read_text().splitlines()
    assert [json.loads(line)["seed"] for line in first] == [0, 1]
    code, shown, error = run_cli("identifiability", "train", "--seeds", "0:3", "--out", out, *QUICK)
    assert code == 0, error
    lines = (out / "counts.jsonl").read_text().splitlines()
    assert lines[:2] == first  # not repeated
    assert [json.loads(line)["seed"] for line in lines] == [0, 1, 2]
    assert len(re.findall(r"XOR", shown)) == 3
    assert (out / "network-XOR-2.npz").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("enumerate", "missing.npz", "--gate", "XOR"), "holds no network"),
        (("enumerate", "net.npz", "--gate", "AND"), "does not compute the gate"),
        (("enumerate", "net.npz", "--gate", "BAR"), "unknown"),
        (("enumerate", "net.npz", "--gate", "MAJORITY"), "3 inputs"),
        (("enumerate", "net.npz", "--gate", "XOR", "--limit", 10), "3,000 circuits"),
        (("enumerate", "net.npz", "--gate", "XOR", "--depth", 0), "depth must be at least 1"),
        (("train", "--seeds", "a"), "range such as"),
        (("train", "--seeds", "3:3"), "empty"),
        (("train", "--gates", "XOR", "MAJORITY"), "equally many inputs"),
    ],
)
def test_bad_input(network, arguments, message, monkeypatch):
    monkeypatch.chdir(network.parent)
    code, _, error = run_cli("identifiability", *arguments)
    assert code == 2, error
    assert re.search(message, error)
    assert "Traceback" not in error

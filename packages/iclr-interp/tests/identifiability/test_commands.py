import json
import re

import numpy as np
import pytest
import torch

from iclr_interp.identifiability import commands
from iclr_interp.identifiability.examples import TRAINED
from iclr_interp.identifiability.gates import corners
from iclr_interp.identifiability.search import find_circuits
from iclr_interp.identifiability.training import Training, train_gates
from iclr_shared.testing import Killed, fault_inject, run_cli

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
    assert (code, "200 of 3,000" in " ".join(shown.split())) == (0, True)

    assert "a sample cannot tell" in shown or "not unique" in shown
    assert "standard error" in shown


def test_enumerate_a_fresh_network(monkeypatch):
    code, shown, _ = run_cli("identifiability", "enumerate", "train", "--gate", "OR", "--seed", 1, "--quiet")
    assert (code, "not unique" in shown) == (0, True)

    def hasty(gates, hidden, seeds, progress):
        return train_gates(gates, hidden, seeds, Training(repeats=2, epochs=1))

    monkeypatch.setattr("iclr_interp.identifiability.commands.train_gates", hasty)
    code, _, error = run_cli("identifiability", "enumerate", "train", "--gate", "XOR", "--seed", 5, "--quiet")
    assert (code, bool(re.search(r"seed 5 has not converged \(loss [\d.]+, accuracy [\d.]+\)", error))) == (2, True)


def test_circuits_of_the_last_layers(network, tmp_path):
    x = np.repeat(corners(2), 3, 0)
    np.savez(tmp_path / "data.npz", x=x, y=x[:, 0] ^ x[:, 1])
    arguments = ("identifiability", "circuits", network, tmp_path / "data.npz", "--quiet")
    code, shown, error = run_cli(*arguments, "--out", tmp_path / "circuits.npz")
    assert code == 0, error
    assert re.search(r"accepted\s+40", shown)
    with np.load(tmp_path / "circuits.npz") as file:
        assert len(file["accuracy"]) == 40
    code, shown, _ = run_cli(*arguments, "--head", 2)
    seen = TRAINED.activations(torch.as_tensor(x))[1].numpy()
    known = len(find_circuits(TRAINED.head(2), seen, (x[:, :1] ^ x[:, 1:])))
    assert (code, bool(re.search(rf"accepted\s+{known}\b", shown))) == (0, True)
    code, shown, _ = run_cli(*arguments, "--sample", 100)
    assert (code, "100 of 3,000" in shown) == (0, True)
    np.savez(tmp_path / "data.npz", x=x[:, :1], y=x[:, 0])
    assert "do not fit" in run_cli(*arguments)[2]
    (tmp_path / "data.npz").write_bytes(b"")
    assert "holds no arrays x and y" in run_cli(*arguments)[2]


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


def test_a_killed_series_goes_on(tmp_path, monkeypatch):
    arguments = ("identifiability", "train", "--gates", "OR", "--seeds", "0:3", *QUICK)
    assert run_cli(*arguments, "--out", tmp_path / "whole")[0] == 0
    monkeypatch.setattr(commands, "TOGETHER", 1)
    explained, cut = commands.explained, tmp_path / "cut" / "counts.jsonl"
    monkeypatch.setattr(commands, "explained", fault_inject(explained, 2))
    with pytest.raises(Killed):
        run_cli(*arguments, "--out", tmp_path / "cut")
    assert len(cut.read_text().splitlines()) == 2
    calls = []
    monkeypatch.setattr(commands, "explained", lambda **params: calls.append(params["seeds"]) or explained(**params))
    assert run_cli(*arguments, "--out", tmp_path / "cut")[0] == 0
    assert calls == [[2]]
    texts = ((tmp_path / name / "counts.jsonl").read_text().splitlines() for name in ("cut", "whole"))
    for lines in zip(*texts, strict=True):
        one, other = map(json.loads, lines)
        assert (one["seed"], one["converged"]) == (other["seed"], other["converged"])
        assert one.get("counts") == other.get("counts")


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
        (("train", "--gates", "BAR"), "unknown"),
        (("train", "--width", 5, "--min-sparsity", 0), "1,247,432,400 circuits"),
        (("train", "--width", 0), "must be positive"),
        (("train", "--out", "broken"), "not as written here"),
    ],
)
def test_bad_input(network, arguments, message, monkeypatch):
    monkeypatch.chdir(network.parent)
    (network.parent / "broken").mkdir()
    (network.parent / "broken" / "counts.jsonl").write_text('{"seed')
    code, _, error = run_cli("identifiability", *arguments)
    assert code == 2, error
    assert re.search(message, error)
    assert "Traceback" not in error

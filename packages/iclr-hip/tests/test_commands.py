import json
import re

import pytest

from iclr_shared.testing import run_cli

SMALL = ("--mask-k", 32, "--sliding-window-size", 16, "--sink-token-size", 4, "--block-size-q", 16)


@pytest.fixture(scope="module")
def prompt(tmp_path_factory):
    file = tmp_path_factory.mktemp("prompt") / "prompt.txt"
    file.write_text("Sparse attention looks at few keys. " * 8)
    return file


def test_generate(model_dir, prompt, tmp_path):
    code, shown, error = run_cli(
        "hip", "generate", model_dir, prompt, "--max-new-tokens", 6, "--offload", "--compare-dense",
        "--dense-layers", 1, *SMALL, "--out", tmp_path / "record.json",
    )  # fmt: skip
    assert code == 0, error
    record = json.loads((tmp_path / "record.json").read_text())
    assert record["prompt tokens"] == 288
    assert record["new tokens"] == 6
    assert 0 < record["share of dense attention kept"] < 1
    assert record["cache"]["host tokens"] == 293
    assert 0 <= record["agreement with dense"] <= 1
    assert re.search(r"agreement with dense", shown)
    code, _, error = run_cli(
        "hip", "generate", model_dir, prompt, "--max-new-tokens", 6, "--dense-layers", 1, "--mask-k", 512,
        "--compare-dense", "--out", tmp_path / "all.json",
    )  # fmt: skip
    assert code == 0, error
    record = json.loads((tmp_path / "all.json").read_text())
    assert record["agreement with dense"] == 1.0
    assert record["share of dense attention kept"] == pytest.approx(1.0)


def test_inspect(model_dir, prompt, tmp_path):
    code, _, error = run_cli("hip", "inspect", model_dir, prompt, "--out", tmp_path, *SMALL)
    assert code == 0, error
    layers = json.loads((tmp_path / "masks.json").read_text())["layers"]
    assert [layer["layer"] for layer in layers] == [0, 1, 2]
    assert all(layer["keys of the last token"] <= 52 for layer in layers)
    assert sorted(file.name for file in tmp_path.glob("*.png")) == ["layer-00.png", "layer-01.png", "layer-02.png"]


def test_bench(tmp_path):
    code, shown, error = run_cli(
        "hip", "bench", "--lengths", "128,256", "--reps", 1, "--quiet", *SMALL, "--out", tmp_path / "bench.json"
    )
    assert code == 0, error
    assert [row["T"] for row in json.loads((tmp_path / "bench.json").read_text())] == [128, 256]
    assert "token ratio" in shown or "ratio" in shown


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("generate", "nowhere", "p.txt"), "nowhere holds no model: config.json is missing"),
        (("generate", "MODEL", "p.txt"), "There is no prompt p.txt"),
        (("generate", "MODEL", "PROMPT", "--max-new-tokens", 0), "at least 1, got 0"),
        (("generate", "MODEL", "PROMPT", "--mask-k", 7), "mask_k must be a multiple of block_size_k"),
        (("inspect", "MODEL", "PROMPT", "--out", "x", "--dense-layers", 3), "All 3 layers are dense"),
        (("bench", "--lengths", "1k"), "whole numbers between commas"),
        (("bench", "--heads", 0), "--heads must be at least 1"),
    ],
)
def test_bad_input(arguments, message, model_dir, prompt, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    places = {"MODEL": model_dir, "PROMPT": prompt}
    code, _, error = run_cli("hip", *(places.get(a, a) for a in arguments))
    assert code == 2, error
    assert re.search(message, error), error
    assert "Traceback" not in error


def test_an_empty_prompt(model_dir, tmp_path):
    (tmp_path / "empty.txt").write_text("")
    code, _, error = run_cli("hip", "generate", model_dir, tmp_path / "empty.txt")
    assert (code, "is empty" in error) == (2, True)

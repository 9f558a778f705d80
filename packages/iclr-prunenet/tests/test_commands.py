import json
import shutil

import pytest
from transformers import AutoModelForCausalLM

from iclr_prunenet import commands, training
from iclr_shared.testing import Killed, fault_inject, run_cli


@pytest.fixture(scope="module")
def policy_dir(model_dir, tmp_path_factory):
    out = tmp_path_factory.mktemp("policy") / "policy"
    code, printed, error = run_cli("prunenet", "train", model_dir, "--out", out, "--episodes", 2, "--quiet")
    assert code == 0, error
    assert "random rows" in printed
    return out


def test_train(policy_dir):
    assert sorted(path.name for path in policy_dir.iterdir()) == ["policy.json", "policy.safetensors", "training.png"]
    record = json.loads((policy_dir / "policy.json").read_text())
    assert (record["hidden_size"], record["intermediate_size"]) == (16, 48)
    assert len(record["training"]["history"]) == 2


def test_train_spares_a_policy(policy_dir, model_dir):
    code, _, error = run_cli("prunenet", "train", model_dir, "--out", policy_dir, "--episodes", 1)
    assert code == 2
    assert "holds a policy" in error


def test_compress_with_a_policy(policy_dir, model_dir, tmp_path, text_file):
    out = tmp_path / "pruned"
    code, printed, error = run_cli(
        "prunenet", "compress", model_dir, "--ratio", 0.25, "--out", out, "--policy", policy_dir,
        "--eval-text", text_file,
    )  # fmt: skip
    assert code == 0, error
    assert "perplexity" in printed
    assert AutoModelForCausalLM.from_pretrained(out).config.intermediate_size == 36
    assert (out / "spectra.png").exists()
    code, _, error = run_cli("prunenet", "compress", model_dir, "--out", out, "--policy", policy_dir)
    assert code == 2
    assert "exists" in error
    code, _, _ = run_cli("prunenet", "compress", model_dir, "--out", out, "--policy", policy_dir, "--overwrite")
    assert code == 0
    assert AutoModelForCausalLM.from_pretrained(out).config.intermediate_size == 33


def test_compress_learns_and_sweeps(model_dir, tmp_path):
    code, printed, error = run_cli(
        "prunenet", "compress", model_dir, "--sweep", 0.25, 0.5, "--out", tmp_path / "all", "--episodes", 1, "--quiet"
    )  # fmt: skip
    assert code == 0, error
    assert "0.25" in printed
    for ratio, kept in ((0.25, 36), (0.5, 24)):
        assert (
            AutoModelForCausalLM.from_pretrained(tmp_path / "all" / f"ratio-{ratio}").config.intermediate_size == kept
        )
    assert (tmp_path / "all" / "ratio-0.5" / "policy" / "policy.safetensors").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["all"]


def test_killed_while_recovering(model_dir, tmp_path, text_file, monkeypatch):
    """Nothing appears before all is done, and the same command goes on from the learned policy."""
    command = (
        "prunenet", "compress", model_dir, "--sweep", 0.25, 0.5, "--out", tmp_path / "out", "--episodes", 2, "--quiet",
        "--recover-text", text_file,
    )  # fmt: skip
    with monkeypatch.context() as patch:
        patch.setattr(commands, "recover", fault_inject(lambda model, *_: model, at_call=1))
        with pytest.raises(Killed):
            run_cli(*command)
    assert [path.name for path in tmp_path.iterdir()] == [".out.training"]
    learned = []
    episode = training._Training.episode
    monkeypatch.setattr(training._Training, "episode", lambda self: (learned.append(1), episode(self)))
    monkeypatch.setattr(commands, "recover", lambda model, *_: model)
    code, _, error = run_cli(*command)
    assert code == 0, error
    assert learned == []
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "prune.json", "ratio-0.25", "ratio-0.5", "spectra.png"
    ]  # fmt: skip
    record = json.loads((tmp_path / "out/ratio-0.5/policy/policy.json").read_text())
    assert len(record["training"]["history"]) == 2


def test_texts_are_read_before_anything_is_learned(model_dir, tmp_path, text_file, monkeypatch):
    monkeypatch.setattr(commands, "train_policy", None)
    short = tmp_path / "short.txt"
    short.write_text("word " * 20)
    bare = tmp_path / "bare"
    shutil.copytree(model_dir, bare, ignore=shutil.ignore_patterns("tokenizer*"))
    for model, option, text, message in (
        (model_dir, "--recover-text", short, "two sequences of 1024 are needed"),
        (bare, "--eval-text", text_file, "has no tokenizer"),
        (bare, "--recover-text", text_file, "has no tokenizer"),
    ):
        code, _, error = run_cli("prunenet", "compress", model, "--out", tmp_path / "out", option, text)
        assert code == 2
        assert message in error
    code, _, error = run_cli("prunenet", "evaluate", tmp_path / "nowhere", "--text", text_file)
    assert code == 2
    assert "no model directory" in error


@pytest.mark.parametrize("method", ["random", "magnitude"])
def test_baselines(method, model_dir, tmp_path):
    code, _, error = run_cli("prunenet", "compress", model_dir, "--out", tmp_path / "out", "--method", method)
    assert code == 0, error
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "out").config.intermediate_size == 33


def test_recovery(model_dir, tmp_path, text_file):
    code, _, error = run_cli(
        "prunenet", "compress", model_dir, "--out", tmp_path / "out", "--method", "random", "--recover-text", text_file,
        "--quiet",
    )  # fmt: skip
    assert code == 0, error
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "out").config.intermediate_size == 33
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out"]


def test_evaluate(model_dir, tmp_path, text_file):
    out = tmp_path / "numbers.json"
    code, printed, error = run_cli(
        "prunenet", "evaluate", model_dir, model_dir, "--text", text_file, "--length", 8, "--limit", 600, "--out", out
    )
    assert code == 0, error
    assert "tokens/s" in printed
    (found,) = json.loads(out.read_text()).values()
    assert 100 < found["perplexity"] < 700


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--ratio", "1"], "at least 0 and below 1"),
        (["--ratio", "0.999"], "leaves none of 48"),
        (["--ratio", "nan"], "below 1"),
        (["--policy", "nowhere"], "holds no policy"),
        (["--method", "random", "--policy", "nowhere"], "--policy is for --method prunenet"),
        (["--sweep", "0.2", "0.2"], "names a ratio twice"),
        (["--episodes", "0"], "episodes must be at least 1"),
        (["--seed", "-1"], "seed must be at least 0"),
        (["--eval-text", "nowhere.txt"], "cannot be read as text"),
        (["--device", "teapot"], "device 'teapot' cannot be used"),
    ],
)
def test_bad_input(arguments, message, model_dir, tmp_path):
    code, _, error = run_cli("prunenet", "compress", model_dir, "--out", tmp_path / "out", "--quiet", *arguments)
    assert code == 2
    assert message in error
    assert "Traceback" not in error
    assert list(tmp_path.iterdir()) == []


def test_no_model(tmp_path):
    code, _, error = run_cli("prunenet", "compress", tmp_path, "--out", tmp_path / "out")
    assert code == 2
    assert "it has no config.json" in error
    code, _, error = run_cli("prunenet", "evaluate", tmp_path / "nothing")
    assert code == 2
    assert "it has no config.json" in error


def test_policy_of_another_model(policy_dir, llama, tmp_path):
    from iclr_prunenet.pruning import random_prune

    random_prune(llama, 0.5)
    llama.save_pretrained(tmp_path / "other")
    code, _, error = run_cli(
        "prunenet", "compress", tmp_path / "other", "--out", tmp_path / "out", "--policy", policy_dir
    )
    assert code == 2
    assert "train a policy for this model" in error
    assert not (tmp_path / "out").exists()

import json
import os
import signal
import subprocess
import sys
import time

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer, BertConfig, BertModel, GPT2Config, GPT2LMHeadModel

from iclr_prunenet import directories
from iclr_prunenet.architectures import tiny_models
from iclr_prunenet.directories import ModelDirectory, compress_directory
from iclr_prunenet.feed_forward import UnsupportedModel, scored_matrices
from iclr_prunenet.policy import PruneNetPolicy
from iclr_prunenet.pruning import at_random, by_policy, random_prune
from iclr_shared.errors import InputError


@pytest.mark.parametrize("name", list(tiny_models(0)))
def test_streamed_is_pruned_in_memory(name, models, tmp_path):
    """Tensor by tensor gives the same directory as in memory, and it loads with the plain library call."""
    model = models[name]
    model.save_pretrained(tmp_path / "dense")
    assert ModelDirectory(tmp_path / "dense").streamable
    report = compress_directory(tmp_path / "dense", tmp_path / "out", 0.3, at_random(1))
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "out").eval()
    assert report == random_prune_like(model, report)
    assert loaded.num_parameters() == report.parameters[1]
    tokens = torch.arange(10).view(1, 10)
    with torch.no_grad():
        torch.testing.assert_close(loaded(input_ids=tokens).logits, model(input_ids=tokens).logits)


def random_prune_like(model, report):
    """The report of pruning `model` in memory, with the rows' identity checked and taken over."""
    own = random_prune(model, 0.3, 1)
    assert all(torch.equal(a, b) for a, b in zip(own.rows, report.rows, strict=True))
    return type(own)(own.ratio, own.intermediate_size, report.rows, own.ks, own.parameters)


def test_tokenizer_and_record_are_there(model_dir, tmp_path):
    out = tmp_path / "new" / "out"
    compress_directory(model_dir, out, 0.25, at_random(0))
    assert (
        AutoTokenizer.from_pretrained(out)("a")["input_ids"]
        == AutoTokenizer.from_pretrained(model_dir)("a")["input_ids"]
    )
    record = json.loads((out / "prune.json").read_text())
    assert record["intermediate_size"] == [48, 36]
    assert len(record["rows"]) == 3
    assert json.loads((out / "config.json").read_text())["intermediate_size"] == 36
    assert [path.name for path in out.parent.iterdir()] == ["out"]


def test_several_shards(llama, tmp_path):
    llama.save_pretrained(tmp_path / "dense", max_shard_size="10KB")
    assert len(list((tmp_path / "dense").glob("*.safetensors"))) > 2
    compress_directory(tmp_path / "dense", tmp_path / "out", 0.5, at_random(0))
    index = json.loads((tmp_path / "out" / "model.safetensors.index.json").read_text())
    sizes = 0
    for file in set(index["weight_map"].values()):
        with safe_open(tmp_path / "out" / file, "pt") as opened:
            sizes += sum(opened.get_tensor(k).numel() * 4 for k in opened.keys())  # noqa: SIM118
    assert index["metadata"]["total_size"] == sizes
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "out").config.intermediate_size == 24


def test_lazy_matrices_are_those_of_the_model(llama, model_dir):
    lazy = ModelDirectory(model_dir).matrices()
    assert len(lazy) == 3
    assert all(torch.equal(a, b) for a, b in zip(lazy, scored_matrices(llama), strict=True))


def test_policy_cuts_a_directory(model_dir, tmp_path):
    policy = PruneNetPolicy(16, 48, torch.Generator().manual_seed(0))
    first = compress_directory(model_dir, tmp_path / "a", 0.5, by_policy(policy))
    again = compress_directory(model_dir, tmp_path / "b", 0.5, by_policy(policy))
    assert first.ks == again.ks


def test_half_precision_stays(llama, tmp_path):
    llama.bfloat16().save_pretrained(tmp_path / "dense")
    compress_directory(tmp_path / "dense", tmp_path / "out", 0.5, at_random(0))
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype="auto").dtype == torch.bfloat16


def test_saved_without_the_heads_prefix(tmp_path):
    """The hub's GPT-2 files hold the names of the model without its head."""
    config = GPT2Config(vocab_size=32, n_embd=16, n_layer=2, n_head=2, n_positions=32, bos_token_id=0, eos_token_id=0)
    model = GPT2LMHeadModel(config).eval()
    model.transformer.save_pretrained(tmp_path / "dense")
    compress_directory(tmp_path / "dense", tmp_path / "out", 0.5, at_random(0))
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    random_prune(model, 0.5, 0)
    tokens = torch.arange(8).view(1, 8)
    torch.testing.assert_close(loaded.eval()(input_ids=tokens).logits, model(input_ids=tokens).logits)


def test_other_weight_files(llama, tmp_path):
    folder = tmp_path / "dense"
    llama.save_pretrained(folder)
    (folder / "model.safetensors").unlink()
    torch.save(llama.state_dict(), folder / "pytorch_model.bin")
    with pytest.raises(InputError, match="not in safetensors"):
        ModelDirectory(folder).matrices()
    compress_directory(folder, tmp_path / "out", 0.5, at_random(0))
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "out").config.intermediate_size == 24
    assert not (tmp_path / "out" / "pytorch_model.bin").exists()


def test_ratio_zero_keeps_every_byte_of_the_weights(model_dir, tmp_path):
    compress_directory(model_dir, tmp_path / "out", 0.0, at_random(0))
    with (
        safe_open(model_dir / "model.safetensors", "pt") as a,
        safe_open(tmp_path / "out/model.safetensors", "pt") as b,
    ):
        assert all(torch.equal(a.get_tensor(k), b.get_tensor(k)) for k in a.keys())  # noqa: SIM118


def test_output_exists(model_dir, tmp_path):
    (tmp_path / "out").mkdir()
    with pytest.raises(InputError, match="exists: choose another output folder, or give --overwrite"):
        compress_directory(model_dir, tmp_path / "out", 0.3, at_random(0))
    compress_directory(model_dir, tmp_path / "out", 0.3, at_random(0), overwrite=True)
    assert (tmp_path / "out" / "config.json").exists()
    with pytest.raises(InputError, match="is the model itself"):
        compress_directory(model_dir, model_dir, 0.3, at_random(0), overwrite=True)


def test_output_cannot_be_written(model_dir, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="Cannot write"):
        compress_directory(model_dir, tmp_path / "file" / "out", 0.3, at_random(0))


def test_failure_leaves_nothing(model_dir, tmp_path, monkeypatch):
    def fail(*arguments, **options):
        raise RuntimeError("disk")

    monkeypatch.setattr(directories, "save_file", fail)
    with pytest.raises(RuntimeError, match="disk"):
        compress_directory(model_dir, tmp_path / "out", 0.3, at_random(0))
    assert list(tmp_path.iterdir()) == []


def test_no_model_directory(tmp_path):
    with pytest.raises(InputError, match=r"it has no config\.json"):
        ModelDirectory(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(InputError, match=r"config\.json cannot be read"):
        ModelDirectory(tmp_path)


def test_no_weights(model_dir, tmp_path):
    (tmp_path / "config.json").write_bytes((model_dir / "config.json").read_bytes())
    with pytest.raises(InputError, match="cannot be loaded"):
        compress_directory(tmp_path, tmp_path / "out", 0.3, at_random(0))


def test_damaged_weights(model_dir, tmp_path):
    folder = tmp_path / "dense"
    folder.mkdir()
    for name in ("config.json", "model.safetensors"):
        data = (model_dir / name).read_bytes()
        (folder / name).write_bytes(data[:2000] if name.startswith("model") else data)
    with pytest.raises(InputError, match="damaged"):
        compress_directory(folder, tmp_path / "out", 0.3, at_random(0))
    assert not (tmp_path / "out").exists()


def test_no_causal_language_model(tmp_path):
    BertModel(BertConfig(vocab_size=32, hidden_size=16, num_hidden_layers=1, num_attention_heads=2)).save_pretrained(
        tmp_path
    )
    with pytest.raises(UnsupportedModel):
        compress_directory(tmp_path, tmp_path / "out", 0.3, at_random(0))


def test_quantised_directory(model_dir, tmp_path):
    config = json.loads((model_dir / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "gptq", "bits": 4}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(UnsupportedModel, match="quantised"):
        ModelDirectory(tmp_path)


def test_killed_while_writing(model_dir, tmp_path):
    """A killed run leaves no output directory, and the next one clears what it left."""
    code = f"""
import os, signal
from iclr_prunenet import directories
from iclr_prunenet.pruning import at_random
directories.save_file = lambda *a: (print("writing", flush=True), signal.pause())
directories.compress_directory({str(model_dir)!r}, {str(tmp_path / "out")!r}, 0.3, at_random(0))
"""
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "writing\n"
    time.sleep(0.1)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    process.stdout.close()
    assert not (tmp_path / "out").exists()
    compress_directory(model_dir, tmp_path / "out", 0.3, at_random(0))
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.fixture
def shards(llama, tmp_path):
    """A model in several files, and its index."""
    llama.save_pretrained(tmp_path / "dense", max_shard_size="10KB")
    index = tmp_path / "dense" / "model.safetensors.index.json"
    return tmp_path / "dense", index, json.loads(index.read_text())


def test_damaged_shard_without_feed_forward(shards, tmp_path):
    folder, _, index = shards
    file = folder / index["weight_map"]["model.embed_tokens.weight"]
    file.write_bytes(file.read_bytes()[:300])
    with pytest.raises(InputError, match=f"{file.name} cannot be read from"):
        compress_directory(folder, tmp_path / "out", 0.3, at_random(0))


def test_damaged_index(shards):
    folder, file, index = shards
    index["weight_map"]["model.embed_tokens.weight"] = "../elsewhere.safetensors"
    for content in (json.dumps(index), "[]", "{"):
        file.write_text(content)
        with pytest.raises(InputError, match="damaged"):
            ModelDirectory(folder).matrices()


@pytest.mark.parametrize("child", ["up_proj", "down_proj"])
def test_weights_that_are_no_numbers_in_any_matrix(child, llama, tmp_path):
    with torch.no_grad():
        getattr(llama.model.layers[1].mlp, child).weight[0, 0] = float("nan")
    llama.save_pretrained(tmp_path / "dense")
    with pytest.raises(InputError, match=f"layers.1.mlp.{child}.weight holds NaN"):
        compress_directory(tmp_path / "dense", tmp_path / "out", 0.3, at_random(0))
    with pytest.raises(InputError, match=f"layers.1.mlp.{child}.weight holds NaN"):
        random_prune(llama, 0.3)
    assert llama.config.intermediate_size == 48


def test_weights_unlike_the_configuration(llama, tmp_path):
    llama.save_pretrained(tmp_path / "dense")
    config = json.loads((tmp_path / "dense/config.json").read_text())
    (tmp_path / "dense/config.json").write_text(json.dumps(config | {"intermediate_size": 40}))
    with pytest.raises(InputError, match=r"is \(48, 16\) in .*, but \(40, 16\) by its config.json"):
        compress_directory(tmp_path / "dense", tmp_path / "out", 0.3, at_random(0))


def test_weights_of_eight_bits(llama, tmp_path):
    """Quantised files need not say so in their configuration."""
    llama.save_pretrained(tmp_path / "dense")
    file = tmp_path / "dense/model.safetensors"
    save_file({name: value.to(torch.float8_e4m3fn) for name, value in load_file(file).items()}, file)
    with pytest.raises(UnsupportedModel, match="F8_E4M3 weights"):
        compress_directory(tmp_path / "dense", tmp_path / "out", 0.3, at_random(0))


def test_overwriting_spares_other_folders(llama, tmp_path):
    source = tmp_path / "home" / "dense"
    llama.save_pretrained(source)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").write_text("kept")
    (tmp_path / "file").write_text("kept")
    with pytest.raises(InputError, match="or a folder around it"):
        compress_directory(source, tmp_path / "home", 0.3, at_random(0), overwrite=True)
    for name in ("other", "file"):
        with pytest.raises(InputError, match="no model directory, so --overwrite leaves it alone"):
            compress_directory(source, tmp_path / name, 0.3, at_random(0), overwrite=True)
    assert source.exists()


def test_failure_leaves_what_was_there(model_dir, tmp_path, monkeypatch):
    compress_directory(model_dir, tmp_path / "out", 0.3, at_random(0))
    monkeypatch.setattr(directories, "save_file", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        compress_directory(model_dir, tmp_path / "out", 0.5, at_random(0), overwrite=True)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert ModelDirectory(tmp_path / "out").config.intermediate_size == 33

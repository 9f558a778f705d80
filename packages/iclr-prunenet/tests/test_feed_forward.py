from copy import deepcopy

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, BloomConfig, GPT2Config, MixtralConfig

from iclr_prunenet.architectures import tiny_models
from iclr_prunenet.feed_forward import (
    UnsupportedModel,
    find_feed_forwards,
    mask_block,
    scored_matrices,
    set_width,
    slice_block,
)
from iclr_prunenet.pruning import random_prune
from iclr_shared.errors import InputError

NAMES = list(tiny_models(0))
SCORED = {
    "opt": "fc1", "gpt2": "c_fc", "phi": "fc1", "phi3": "gate_up_proj", "gpt_neox": "dense_h_to_4h",
    "falcon": "dense_h_to_4h",
}  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_blocks_are_found(name, models):
    blocks = find_feed_forwards(models[name])
    n = 64 if name == "gpt2" else 40
    assert [(block.hidden_size, block.intermediate_size) for block in blocks] == [(16, n)] * 2
    assert blocks[0].scored.split(".")[-2] == SCORED.get(name, "gate_proj")
    assert [tuple(matrix.shape) for matrix in scored_matrices(models[name])] == [(n, 16)] * 2


@pytest.mark.parametrize("name", NAMES)
def test_sliced_is_masked(name, models):
    """Section 2.3: the same function, and untouched residual widths."""
    model = models[name]
    masked = deepcopy(model)
    report = random_prune(model, 0.5, seed=3)
    for block, rows in zip(find_feed_forwards(masked), report.rows, strict=True):
        mask_block(masked, block, rows)
    tokens = torch.arange(12).view(1, 12)
    with torch.no_grad():
        torch.testing.assert_close(model(input_ids=tokens).logits, masked(input_ids=tokens).logits, atol=1e-5, rtol=0)
    kept = report.intermediate_size[1]
    assert {block.intermediate_size for block in find_feed_forwards(model)} == {kept}
    assert model.get_parameter(find_feed_forwards(model)[0].scored).is_contiguous()


def test_fused_gate_loses_both_halves(models):
    model = models["phi3"]
    before = model.model.layers[0].mlp.gate_up_proj.weight.detach().clone()
    block = find_feed_forwards(model)[0]
    slice_block(model, block, torch.tensor([1, 5]))
    assert torch.equal(model.model.layers[0].mlp.gate_up_proj.weight, before[[1, 5, 41, 45]])


def test_module_sizes_follow(models):
    slice_block(models["gpt2"], find_feed_forwards(models["gpt2"])[0], torch.arange(7))
    mlp = models["gpt2"].transformer.h[0].mlp
    assert (mlp.c_fc.nf, mlp.c_proj.nx) == (7, 7)
    slice_block(models["opt"], find_feed_forwards(models["opt"])[1], torch.arange(7))
    layer = models["opt"].model.decoder.layers[1]
    assert (layer.fc1.out_features, layer.fc2.in_features, len(layer.fc1.bias)) == (7, 7, 7)


def test_name_or_path_does_not_decide(models):
    models["llama"].config._name_or_path = "opt-gpt2-falcon"
    assert find_feed_forwards(models["llama"])[0].scored.endswith("gate_proj.weight")


def test_mixture_of_experts():
    config = MixtralConfig(
        vocab_size=32, hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=2, num_local_experts=2, pad_token_id=None, bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    with pytest.raises(UnsupportedModel, match=r"model.layers.0.*mixture of experts"):
        find_feed_forwards(AutoModelForCausalLM.from_config(config))
    with pytest.raises(NotImplementedError):
        find_feed_forwards(AutoModelForCausalLM.from_config(config))


def test_quantised_weights(llama):
    llama.model.layers[1].mlp.up_proj.weight = torch.nn.Parameter(torch.zeros(48, 16, dtype=torch.int8), False)
    with pytest.raises(UnsupportedModel, match=r"layers.1.mlp.up_proj holds torch.int8"):
        find_feed_forwards(llama)


def test_adapters_are_no_linear_layers(llama):
    llama.model.layers[0].mlp.gate_proj = torch.nn.Identity()
    with pytest.raises(UnsupportedModel, match=r"layers.0.mlp.gate_proj is a Identity"):
        find_feed_forwards(llama)


def test_tied_matrices(llama):
    llama.model.layers[1].mlp.up_proj.weight = llama.model.layers[0].mlp.up_proj.weight
    with pytest.raises(UnsupportedModel, match=r"layers.0.mlp.up_proj.weight and .*layers.1.* one tied matrix"):
        find_feed_forwards(llama)


def test_layers_of_different_size(llama):
    slice_block(llama, find_feed_forwards(llama)[1], torch.arange(10))
    with pytest.raises(UnsupportedModel, match=r"mlp has \(16, 48\), .*layers.1.mlp has \(16, 10\)"):
        find_feed_forwards(llama)


def test_unknown_model():
    with pytest.raises(UnsupportedModel, match="Linear has no feed-forward block"):
        find_feed_forwards(torch.nn.Linear(2, 2))


def test_width_without_an_entry():
    config = BloomConfig(vocab_size=32, hidden_size=16, n_layer=1, n_head=2)
    with pytest.raises(UnsupportedModel, match=r"'bloom' does not hold the width 64"):
        set_width(config, 64, 40)


def test_width_left_at_none():
    config = GPT2Config(n_embd=16)
    set_width(config, 64, 40)
    assert config.n_inner == 40


def test_weights_that_are_no_numbers(llama):
    with torch.no_grad():
        llama.model.layers[2].mlp.gate_proj.weight[0, 0] = float("inf")
    with pytest.raises(InputError, match="Layer 2 holds NaN or infinite"):
        random_prune(llama, 0.3)
    assert llama.config.intermediate_size == 48


def test_on_the_meta_device(model_dir):
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(model_dir))
    assert len(find_feed_forwards(model)) == 3

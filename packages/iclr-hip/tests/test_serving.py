import pytest
import torch
from hip_inputs import padding, small
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from iclr_hip.cache import OffloadedCache, OffloadedLayer
from iclr_hip.controls import random_search
from iclr_hip.serving import disable_hip, enable_hip, hip_attention_forward, observing, padding_mask, searching_with


def ids(length=90, batch=2):
    return torch.randint(1, 260, (batch, length), generator=torch.Generator().manual_seed(1))


def generate(model, prompt, mask=None, new=10, **options):
    mask = torch.ones_like(prompt) if mask is None else mask
    return model.generate(prompt, attention_mask=mask, max_new_tokens=new, do_sample=False, pad_token_id=0, **options)


@torch.no_grad()
def logits(model, prompt, mask=None):
    return model(input_ids=prompt, attention_mask=mask, use_cache=False).logits


@pytest.mark.parametrize("padded", [False, True])
def test_greedy_tokens_are_those_of_sdpa(llama, padded):
    model, prompt = llama(), ids()
    mask = padding(2, 90, [0, 33]) if padded else None
    wanted, dense = generate(model, prompt, mask), logits(model, prompt, mask)
    enable_hip(model, small(mask_k=256, dense_layers=1))
    assert model.config._attn_implementation == "hip"
    assert torch.equal(generate(model, prompt, mask), wanted)
    real = slice(33, None) if padded else slice(None)
    torch.testing.assert_close(logits(model, prompt, mask)[:, real], dense[:, real], atol=1e-5, rtol=0)
    enable_hip(model, small(mask_k=8, dense_layers=0))
    assert not torch.allclose(logits(model, prompt, mask)[:, real], dense[:, real], atol=1e-5)
    disable_hip(model)
    assert (model.config._attn_implementation, hasattr(model.config, "hip")) == ("sdpa", False)
    assert torch.equal(generate(model, prompt, mask), wanted)


def test_padding_changes_nothing(llama):
    """A left-padded sequence gives the logits that it gives alone."""
    model = enable_hip(llama(), small(mask_k=16, block_size_q=1, block_stride_q=1))
    alone = logits(model, ids()[1:, 33:])
    together = logits(model, ids(), padding(2, 90, [0, 33]))
    torch.testing.assert_close(together[1, 33:], alone[0], atol=1e-5, rtol=0)


def test_from_a_folder(llama, tmp_path):
    model = enable_hip(llama(), small(mask_k=16))
    model.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation="hip").eval()
    assert loaded.config.hip == small(mask_k=16).to_dict()
    assert torch.equal(logits(loaded, ids()), logits(model, ids()))


@pytest.mark.parametrize("interval", [1, 4])
def test_searches_while_decoding(llama, interval):
    model = enable_hip(llama(), small(mask_k=16, refresh_interval=interval))
    generate(model, ids(), new=10)  # one prompt, nine single tokens
    states = [module.hip_decoding for module in model.modules() if hasattr(module, "hip_decoding")]
    assert len(states) == 2
    assert all(state.searches == 1 + -(-9 // interval) for state in states)


def test_other_sequences_force_a_search(llama):
    model = enable_hip(llama(), small(mask_k=16))
    first = generate(model, ids())
    other = generate(model, ids().flip(0))
    assert torch.equal(first.flip(0), other)


@pytest.mark.parametrize(
    ("cls", "config", "options"),
    [
        (MistralForCausalLM, MistralConfig, {"sliding_window": 20}),
        (Gemma2ForCausalLM, Gemma2Config, {"sliding_window": 20, "head_dim": 8, "attn_logit_softcapping": 5.0,
                                           "attn_implementation": "eager"}),
        (Qwen2ForCausalLM, Qwen2Config, {}),
    ],
)  # fmt: skip
def test_other_models(llama, cls, config, options):
    """Their own sliding windows and softcaps stay what they are."""
    model, prompt, mask = llama(cls, config, **options), ids(), padding(2, 90, [0, 33])
    wanted, dense = generate(model, prompt, mask), logits(model, prompt, mask)
    enable_hip(model, small(mask_k=128))
    torch.testing.assert_close(logits(model, prompt, mask)[0], dense[0], atol=1e-5, rtol=0)
    torch.testing.assert_close(logits(model, prompt, mask)[1, 33:], dense[1, 33:], atol=1e-5, rtol=0)
    cache = OffloadedCache.of(model)
    assert torch.equal(generate(model, prompt, mask, cache=cache), wanted)
    kinds = getattr(model.config, "layer_types", None) or ["full_attention"] * 3
    assert [isinstance(layer, OffloadedLayer) for layer in cache.layers[1:]] == [
        kind == "full_attention" and cls is not MistralForCausalLM for kind in kinds[1:]
    ]
    restored = OffloadedCache.of(model)
    restored.load_state_dict(cache.state_dict())
    assert restored.get_seq_length() == cache.get_seq_length() == 99
    disable_hip(model)
    assert model.config._attn_implementation == options.get("attn_implementation", "sdpa")


def test_watching_and_controls(llama):
    model, seen = enable_hip(llama(), small(mask_k=16)), []
    with observing(model, seen.append):
        searched = logits(model, ids())
    assert [layer.mask is None for layer in seen] == [True, False, False]
    assert seen[1].query.shape == (2, 4, 90, 8)
    with searching_with(model, random_search(torch.Generator().manual_seed(0))):
        drawn = logits(model, ids())
    assert not torch.allclose(searched, drawn)
    assert torch.equal(logits(model, ids()), searched)


def test_gradients_through_a_model(llama):
    model = enable_hip(llama(), small(mask_k=16))
    model.train()
    model(input_ids=ids(), labels=ids()).loss.backward()
    assert model.model.layers[2].self_attn.q_proj.weight.grad.abs().sum() > 0


def test_what_it_refuses(llama):
    model = enable_hip(llama(), small())
    with pytest.raises(NotImplementedError, match="packed sequences"):
        model(input_ids=ids(), position_ids=torch.arange(45).repeat(2)[None], use_cache=False)
    with pytest.raises(NotImplementedError, match="arbitrary mask"):
        model(input_ids=ids(), attention_mask=torch.zeros(2, 1, 90, 90), use_cache=False)
    with pytest.raises(NotImplementedError, match="room for more tokens"):
        generate(model, ids(), cache_implementation="static")
    module = model.model.layers[0].self_attn
    q = torch.zeros(1, 4, 8, 8)
    with pytest.raises(ValueError, match="causal attention only"):
        hip_attention_forward(module, q, q, q, None, is_causal=False)
    with pytest.raises(NotImplementedError, match="dropout"):
        hip_attention_forward(module, q, q, q, None, dropout=0.1)
    assert padding_mask(1, 8, 8, attention_mask=torch.ones(1, 8)) is None

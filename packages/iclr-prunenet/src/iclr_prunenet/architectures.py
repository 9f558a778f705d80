"""Small random models of the supported architectures, for exact checks."""

import torch
from transformers import (
    AutoModelForCausalLM,
    FalconConfig,
    GemmaConfig,
    GPT2Config,
    GPTNeoXConfig,
    LlamaConfig,
    MistralConfig,
    OPTConfig,
    Phi3Config,
    PhiConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen3Config,
)

_COMMON = {
    "vocab_size": 64, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
    "max_position_embeddings": 64, "pad_token_id": None, "bos_token_id": None, "eos_token_id": None,
}  # fmt: skip
_WIDE = {**_COMMON, "intermediate_size": 40, "num_key_value_heads": 2}
_CONFIGURATIONS = {
    "llama": (LlamaConfig, _WIDE | {"mlp_bias": True}),
    "mistral": (MistralConfig, _WIDE),
    "qwen2": (Qwen2Config, _WIDE),
    "qwen3": (Qwen3Config, _WIDE | {"head_dim": 8}),
    "gemma": (GemmaConfig, _WIDE | {"head_dim": 8}),
    "phi": (PhiConfig, _WIDE),
    "phi3": (Phi3Config, _WIDE),
    "opt": (OPTConfig, _COMMON | {"ffn_dim": 40, "word_embed_proj_dim": 16}),
    "gpt2": (GPT2Config, _COMMON),  # leaves n_inner at None
    "gpt_neox": (GPTNeoXConfig, _COMMON | {"intermediate_size": 40}),
    "falcon": (FalconConfig, _COMMON | {"ffn_hidden_size": 40, "bias": True}),
}


def tiny_models(seed: int) -> dict[str, PreTrainedModel]:
    """One model of two layers, h = 16 and n = 40 (GPT-2: 64) for each supported kind of block; biases are not zero."""
    models = {}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for name, (kind, options) in _CONFIGURATIONS.items():
            model = AutoModelForCausalLM.from_config(kind(**options)).eval()
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.add_(0.1 * torch.randn_like(parameter))
            models[name] = model
    return models

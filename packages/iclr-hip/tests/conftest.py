"""Small inputs, and a tiny Llama with a byte-level tokenizer in a folder."""

import os
import sys

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from iclr_hip.config import HiPConfig


def tensors(seed, b=1, h=2, g=None, tq=256, tk=None, d=16, dtype=torch.float32):
    """q, k, v of normal numbers."""
    generator = torch.Generator().manual_seed(seed)
    tk = tq if tk is None else tk
    shapes = (b, h, tq, d), (b, g or h, tk, d), (b, g or h, tk, d)
    return tuple(torch.randn(shape, generator=generator).to(dtype) for shape in shapes)


def small(**options):
    """The settings of the reference values: 16 keys of window, 4 sinks, 32 from the tree."""
    return HiPConfig(
        **{
            "mask_k": 32, "block_size_q": 16, "sliding_window_size": 16, "sink_token_size": 4, "backend": "torch",
            "dense_layers": 1,
        }
        | options
    )  # fmt: skip


def padding(b, length, first):
    """A (batch, tokens) mask."""
    return (torch.arange(length)[None] >= torch.tensor(first)[:b, None]).long()


@pytest.fixture(scope="session")
def llama():
    """A function that makes a tiny Llama of random weights."""

    def make(cls=LlamaForCausalLM, config=LlamaConfig, **options):
        torch.manual_seed(0)
        sizes = {
            "vocab_size": 260, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 3,
            "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 2048, "pad_token_id": 0,
            "bos_token_id": None, "eos_token_id": None, "attn_implementation": "sdpa",
        }  # fmt: skip
        return cls(config(**sizes | options)).eval()

    return make


@pytest.fixture(scope="session")
def model_dir(llama, tmp_path_factory):
    """A saved model with a byte-level tokenizer."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    folder = tmp_path_factory.mktemp("model")
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(folder)
    llama().save_pretrained(folder)
    return folder


sys.modules["hip_inputs"] = sys.modules[__name__]  # for the tests beside
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

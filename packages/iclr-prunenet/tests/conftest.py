"""Tiny models in memory and in folders, with a byte-level tokenizer."""

import os

import pytest
import torch

from iclr_prunenet.architectures import tiny_models
from iclr_prunenet.planted import tiny_llama

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
torch.manual_seed(0)


@pytest.fixture
def models():
    """A fresh model of each architecture."""
    return tiny_models(0)


@pytest.fixture
def llama():
    """A fresh byte-level Llama, h = 16, n = 48, 3 layers."""
    return tiny_llama(0, 16, 48, 3, heads=2)


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory):
    """That Llama in a folder, with a tokenizer."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    folder = tmp_path_factory.mktemp("model") / "dense"
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(folder)
    tiny_llama(0, 16, 48, 3, heads=2).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def text_file(tmp_path_factory):
    """A few thousand bytes of text."""
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text("The quick brown fox jumps over the lazy dog. " * 80, encoding="utf-8")
    return path

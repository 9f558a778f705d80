"""Small models of three families with a tokenizer trained on the spot; one model that has learned the typed story."""

import random

import pytest
import torch

from iclr_interp.orion import claims
from iclr_interp.orion.datasets import list_tasks
from iclr_interp.orion.language_model import LanguageModel
from iclr_interp.orion.tasks.typed_story import Grammar
from iclr_interp.orion.tiny import Recipe, story_dataset
from iclr_interp.orion.tokens import byte_level_tokenizer
from iclr_shared.testing import claim_run

LEARNED = Recipe(blocks=3, width=32, heads=2, steps=170, rate=4e-3)


@pytest.fixture(scope="session")
def texts():
    return [
        item.text + item.answer
        for task in list_tasks(paper_only=True)
        for item in task.generator(25, random.Random(0), lambda rows, *values: list(rows))
    ]


@pytest.fixture(scope="session")
def tokenizer(texts):
    return byte_level_tokenizer(texts, 2500)


@pytest.fixture(scope="session")
def pieces(texts):
    """A sentencepiece-style tokenizer: words begin with ▁, and one is put before the text."""
    from tokenizers import Tokenizer
    from tokenizers.decoders import Metaspace
    from tokenizers.models import BPE
    from tokenizers.normalizers import Prepend, Replace, Sequence
    from tokenizers.pre_tokenizers import Split
    from tokenizers.processors import TemplateProcessing
    from tokenizers.trainers import BpeTrainer
    from transformers import PreTrainedTokenizerFast

    raw = Tokenizer(BPE(unk_token="<unk>"))
    raw.normalizer = Sequence([Prepend("▁"), Replace(" ", "▁")])
    raw.pre_tokenizer, raw.decoder = Split("▁", "merged_with_next"), Metaspace()
    trainer = BpeTrainer(vocab_size=1500, special_tokens=["<unk>", "<s>", "</s>"], show_progress=False)
    raw.train_from_iterator(texts[::3], trainer)
    raw.post_processor = TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return PreTrainedTokenizerFast(
        tokenizer_object=raw, bos_token="<s>", eos_token="</s>", unk_token="<unk>", padding_side="left"
    )


def config(family, vocabulary, **options):
    import transformers as hf

    small = {"vocab_size": vocabulary, "hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 4}
    small |= {"max_position_embeddings": 512, "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}
    wide = small | {"intermediate_size": 32}
    return {
        "gpt2": lambda: hf.GPT2Config(**small, **options),
        "neox": lambda: hf.GPTNeoXConfig(**wide, **options),
        "llama": lambda: hf.LlamaConfig(**wide, num_key_value_heads=2, **options),
        "falcon": lambda: hf.FalconConfig(**small, new_decoder_architecture=False, **options),
        "opt": lambda: hf.OPTConfig(**small, ffn_dim=32, word_embed_proj_dim=24, **options),
        "mistral": lambda: hf.MistralConfig(**wide, num_key_value_heads=2, sliding_window=8, **options),
    }[family]()


def build(family, tokenizer, **options):
    from transformers import AutoModelForCausalLM

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = AutoModelForCausalLM.from_config(config(family, len(tokenizer), **options))
        with torch.no_grad():
            for weight in module.parameters():
                if weight.ndim == 2:
                    weight.mul_(5)  # logits that differ from prompt to prompt
    return LanguageModel(module, tokenizer, family)


@pytest.fixture(scope="session")
def make(tokenizer):
    """A model of a family by name, built once."""
    built = {}

    def get(family):
        if family not in built:
            built[family] = build(family, tokenizer)
        return built[family]

    return get


@pytest.fixture(scope="session")
def run_folder(tmp_path_factory):
    """One run of claims, so that they share their models with each other and with the other tests."""
    return tmp_path_factory.mktemp("run")


@pytest.fixture(scope="session")
def learned(run_folder):
    return claims._model(claim_run(run_folder, "C1b"), LEARNED, 0)


@pytest.fixture(scope="session")
def stories(learned):
    return story_dataset(learned, Grammar().sample(120, torch.Generator().manual_seed(0)))


@pytest.fixture(scope="session")
def directory(make, tmp_path_factory):
    """A model directory as Hugging Face writes it, by family."""

    def write(family):
        folder = tmp_path_factory.mktemp(family) / family
        make(family).module.save_pretrained(folder)
        make(family).tokenizer.save_pretrained(folder)
        return folder

    return write

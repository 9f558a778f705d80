import math

import pytest
import torch

from iclr_prunenet.evaluation import load_tokenizer, perplexity, read_tokens, tokens_per_second
from iclr_shared.errors import InputError


def test_perplexity_by_hand(llama):
    tokens = torch.arange(40) % 7
    logits = llama(input_ids=tokens[:32].view(2, 16)).logits.detach().log_softmax(-1)
    picked = [logits[w, t, tokens[16 * w + t + 1]].item() for w in range(2) for t in range(15)]
    assert perplexity(llama, tokens, context=16) == pytest.approx(math.exp(-sum(picked) / 30), rel=1e-5)


def test_uniform_model_has_the_vocabularys_perplexity(llama):
    with torch.no_grad():
        for parameter in llama.parameters():
            parameter.zero_()
    assert perplexity(llama, torch.arange(100), context=50) == pytest.approx(256)


def test_bad_tokens(llama):
    with pytest.raises(InputError, match="at least 2 tokens"):
        perplexity(llama, torch.arange(1))
    with pytest.raises(InputError, match="outside the model's vocabulary"):
        perplexity(llama, torch.tensor([1, 300]))


def test_speed(llama):
    assert tokens_per_second(llama, 1, 8, rounds=1) > 0


def test_speed_of_few_positions(models):
    assert tokens_per_second(models["gpt2"], 1, 4096, rounds=1) > 0


def test_texts(model_dir, tmp_path, text_file):
    tokenizer = load_tokenizer(model_dir)
    assert len(read_tokens(text_file, tokenizer)) == 45 * 80
    for content in (b"", b"\xff\xfe"):
        (tmp_path / "bad.txt").write_bytes(content)
        with pytest.raises(InputError, match=r"0 tokens|cannot be read as text"):
            read_tokens(tmp_path / "bad.txt", tokenizer)
    with pytest.raises(InputError, match="cannot be read as text"):
        read_tokens(tmp_path / "none.txt", tokenizer)
    with pytest.raises(InputError, match="no tokenizer"):
        load_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(InputError, match="cannot be loaded"):
        load_tokenizer(tmp_path)

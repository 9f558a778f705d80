import random

import numpy as np
import pytest
import torch
from transformers import Trainer

from iclr_prunenet.evaluation import perplexity
from iclr_prunenet.planted import corpus, tiny_llama, train_language_model
from iclr_prunenet.pruning import magnitude_prune
from iclr_prunenet.recovery import Recovery, recover
from iclr_shared.errors import InputError
from iclr_shared.testing import Killed

SHORT = Recovery(lr=1e-2, length=16, batch_size=2, accumulation=1, samples=14, eval_steps=2, warmup_steps=1)
TOKENS = torch.arange(400) % 11


@pytest.fixture(scope="module")
def trained():
    """A small trained model and its text."""
    tokens = corpus(200_000)
    model = tiny_llama(0, 16, 48, 2, heads=2)
    losses = train_language_model(model, tokens, torch.Generator().manual_seed(0), 60, batch=8, context=32, lr=1e-2)
    assert losses[-1] < losses[0] - 1
    return model, tokens


def test_recovery(trained, tmp_path):
    """LoRA is folded in: the same size, a better model on the text it saw."""
    model, tokens = trained
    magnitude_prune(model, 0.5)
    size, before = model.num_parameters(), perplexity(model, tokens[:4000], context=64)
    settings = Recovery(lr=1e-2, length=64, batch_size=4, accumulation=1, samples=64, eval_steps=5, warmup_steps=2)
    better = recover(model, tokens[:4000], tmp_path, settings)
    assert better.num_parameters() == size
    assert perplexity(better, tokens[:4000], context=64) < before
    assert not any("lora" in name for name, _ in better.named_parameters())


def test_recovery_needs_text(llama, tmp_path):
    with pytest.raises(InputError, match="two sequences of 1024"):
        recover(llama, torch.arange(100), tmp_path)


def test_killed_and_resumed(llama, tmp_path, monkeypatch):
    """Killed while a checkpoint is written: training goes on from the whole one before it, to the same weights."""
    weights = {name: value.clone() for name, value in llama.state_dict().items()}
    whole = recover(llama, TOKENS, tmp_path / "whole", SHORT).state_dict()
    original = Trainer._save_rng_state

    def dies(self, folder):
        if self.state.global_step == 4:
            raise Killed
        original(self, folder)

    monkeypatch.setattr(Trainer, "_save_rng_state", dies)
    again = tiny_llama(0, 16, 48, 3, heads=2)
    again.load_state_dict(weights)
    with pytest.raises(Killed):
        recover(again, TOKENS, tmp_path / "killed", SHORT)
    (work,) = (tmp_path / "killed").iterdir()
    assert sorted(path.name for path in work.iterdir()) == ["checkpoint-2", "checkpoint-4"]
    seen = []
    monkeypatch.setattr(
        Trainer, "_save_rng_state", lambda self, f: (seen.append(self.state.global_step), original(self, f))
    )
    fresh = tiny_llama(0, 16, 48, 3, heads=2)
    fresh.load_state_dict(weights)
    resumed = recover(fresh, TOKENS, tmp_path / "killed", SHORT).state_dict()
    assert seen[0] == 4
    assert all(torch.allclose(value, resumed[name], atol=1e-6) for name, value in whole.items())
    # Another text is another training.
    recover(tiny_llama(0, 16, 48, 3, heads=2), TOKENS.flip(0), tmp_path / "killed", SHORT)
    assert len(list((tmp_path / "killed").iterdir())) == 2


def test_leaves_the_process_and_the_model_as_they_were(models, tmp_path, capsys):
    model = models["gpt2"].bfloat16()
    model.transformer.wte.weight.requires_grad_(False)
    before = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()  # noqa: NPY002
    recovered = recover(model, TOKENS, tmp_path, SHORT)
    after = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()  # noqa: NPY002
    assert after == before
    frozen = {name for name, parameter in recovered.named_parameters() if not parameter.requires_grad}
    assert frozen == {"transformer.wte.weight"}
    assert recovered.dtype == torch.bfloat16
    assert capsys.readouterr().out == ""

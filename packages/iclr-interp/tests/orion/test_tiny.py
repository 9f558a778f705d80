import pytest
import torch

from iclr_interp.orion import Recipe, make_task, trained
from iclr_interp.orion.tasks.typed_story import ID, WORDS, Grammar, read, story_tokenizer


def test_fifty_words():
    assert len(WORDS) == len(set(WORDS)) == 50


@pytest.mark.parametrize(("first", "injectable", "length"), [(False, False, 12), (True, False, 12), (False, True, 14)])
def test_grammar(first, injectable, length):
    grammar = Grammar(first, injectable)
    sample = grammar.sample(50, torch.Generator().manual_seed(0))
    assert sample.ids.shape == (50, length) == (50, grammar.length)
    assert (sample.ids[:, -1] == ID[":"]).all()
    assert torch.equal(sample.labels, sample.answers)
    for item, row, label in zip(sample.prompts(), sample.ids.tolist(), sample.labels.tolist(), strict=True):
        assert item.text.split() == [WORDS[token] for token in row]
        assert item.answer == read(item.text) == f" {WORDS[label]}"
        assert item.text.split().index("Q") == (0 if first else length - 4)


def test_attacks():
    generator = torch.Generator().manual_seed(0)
    hijacked = Grammar(injectable=True).sample(400, generator, "request", 0.3)
    assert 0.2 < hijacked.attacked.float().mean() < 0.4
    for row, label, attacked in zip(
        hijacked.ids.tolist(), hijacked.labels.tolist(), hijacked.attacked.tolist(), strict=True
    ):
        words = [WORDS[token] for token in row]
        assert (words[8] == "!") == attacked
        if attacked:
            assert WORDS[label].startswith(words[9].removeprefix("ask-"))
            assert WORDS[label] in words
    told = Grammar(injectable=True).sample(50, generator, "value")
    assert (told.ids[:, 8] == ID["override"]).all()
    assert torch.equal(told.ids[:, 9], told.labels)


def test_models_are_kept(tmp_path):
    recipe = Recipe(steps=2, blocks=1, width=8, heads=2)
    state = torch.random.get_rng_state()
    one, two = (trained(recipe, 5, tmp_path) for _ in range(2))
    assert torch.equal(torch.random.get_rng_state(), state)
    assert len(list(tmp_path.iterdir())) == 1
    for a, b in zip(one.module.parameters(), two.module.parameters(), strict=True):
        torch.testing.assert_close(a, b)
    other = trained(recipe, 6, tmp_path)
    assert not torch.equal(next(other.module.parameters()), next(one.module.parameters()))


def test_grammars_are_tasks():
    for name in ("typed_story/request_last", "typed_story/request_first", "key_value/compiled"):
        reader = story_tokenizer()
        if name.startswith("typed"):
            assert len(make_task(name, reader, 5)) == 5

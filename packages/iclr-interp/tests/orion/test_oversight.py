import copy
import re

import pytest
import torch

from iclr_interp.orion import (
    PAPER_BLOCKS,
    LanguageModel,
    TrustedRequest,
    injected_prompts,
    oversee,
    paper_layer,
    soft_match,
    trusted_prompt,
)
from iclr_interp.orion.injections import distractor
from iclr_interp.orion.oversight import answer_kind
from iclr_interp.orion.tasks.question_answering import CITIES
from iclr_shared.errors import InputError


@pytest.fixture(scope="module")
def trusted(learned, stories):
    first = next(i for i, query in enumerate(stories.queries) if ("type", "city") in query.where)
    return TrustedRequest(learned, stories.items[first].text, 2)


def test_repair_answers_the_trusted_request_on_another_story(learned, stories, trusted):
    texts = [item.text for item in stories.items[:30]]
    found = trusted.inspect(texts)
    for item, text, seen in zip(stories.items, texts, found, strict=False):
        batch = learned.batch([text])
        said = learned.run(batch, 2, trusted.vector[None]).argmax(-1)
        assert seen.repaired == learned.tokenizer.decode(said)
        assert seen.plain == item.answer.strip()
        assert seen.changed == (seen.repaired != seen.plain)
        assert seen.altered == (seen.changed or seen.foreign)
    cities = [seen for item, seen in zip(stories.items, found, strict=False) if "city" in item.answer]
    others = [seen for item, seen in zip(stories.items, found, strict=False) if "city" not in item.answer]
    assert sum(s.altered for s in others) / len(others) > sum(s.altered for s in cities) / len(cities)
    assert [s.plain for s in found] == trusted.plain(texts)


def test_save_and_load(trusted, learned, stories, tmp_path, make):
    trusted.save(tmp_path / "trusted.safetensors")
    again = TrustedRequest.load(tmp_path / "trusted.safetensors", learned)
    torch.testing.assert_close(again.vector, trusted.vector)
    assert (again.answer, again.layer, again.text) == (trusted.answer, trusted.layer, trusted.text)
    texts = [item.text for item in stories.items[:5]]
    assert again.repair(texts) == trusted.repair(texts)
    assert again.trusted_outputs(texts) == trusted.trusted_outputs(texts)
    with pytest.raises(InputError, match=r"made for another model, tiny-last-3\. Its weights: .*, here"):
        TrustedRequest.load(tmp_path / "trusted.safetensors", make("gpt2"))
    twin = LanguageModel(copy.deepcopy(learned.module), learned.tokenizer, "renamed")
    assert TrustedRequest.load(tmp_path / "trusted.safetensors", twin).repair(texts) == trusted.repair(texts)
    with torch.no_grad():
        next(twin.module.parameters())[3].mul_(1.01)
    with pytest.raises(InputError, match="Its weights"):
        TrustedRequest.load(tmp_path / "trusted.safetensors", twin)
    (tmp_path / "other.safetensors").write_bytes(b"nothing")
    with pytest.raises(InputError, match="holds no trusted request"):
        TrustedRequest.load(tmp_path / "other.safetensors", learned)


def test_another_kind_of_answer_warns(make):
    model = make("gpt2")
    trusted = TrustedRequest(model, trusted_prompt()[0], 2)
    with pytest.warns(UserWarning, match="1 of 2 prompts seem to ask for a name, the trusted prompt for a place"):
        trusted.inspect(["Question: Where is it? Answer:", "Question: Who is the story about?\nAnswer: it is"])


def test_kinds_of_answers():
    assert answer_kind(trusted_prompt()[0]) == "place"
    assert answer_kind(injected_prompts("none", 1)[0].text) == "place"
    assert answer_kind("What is the occupation of the main character? A:") == "occupation"
    assert answer_kind("How many eggs are there? A:") == "number"
    assert answer_kind("No question here.") is None


def test_bad_trusted_requests(learned, trusted):
    with pytest.raises(ValueError, match="Layer 4 is not in 0 … N = 3"):
        TrustedRequest(learned, "Q ask-name . :", 4)
    with pytest.raises(InputError, match="no prompt to look at"):
        trusted.repair([])
    with pytest.raises(InputError, match="batch_size must be at least 1"):
        trusted.inspect(["Q ask-name . :"], 0)


def test_layers_of_the_paper():
    assert paper_layer("pythia-2.8b") == 20 == PAPER_BLOCKS["pythia-2.8b"] + 1
    assert paper_layer("pythia-1b-deduped") == 11
    assert paper_layer("gpt2") is None


@pytest.mark.parametrize("kind", ["none", "small", "big", "control"])
def test_injected_prompts(kind):
    items = injected_prompts(kind, 20)
    assert len(items) == 40
    assert len({re.search(r"Story: (.*)\n", item.text)[1] for item in items}) == 20
    assert all(item.city in CITIES and item.target != item.city for item in items)
    clean = injected_prompts("none", 20)
    for item, plain in zip(items, clean, strict=True):
        assert item.city == plain.city
        before, after = item.text.index("Story:"), item.text.index("Question:")
        inserted = distractor(kind, item.target)
        assert item.text.replace(inserted, "") == plain.text
        if kind != "none":
            assert before < item.text.index(inserted) < after
    assert all(item.target == item.city for item in injected_prompts(kind, 5, collide=True))


def test_more_stories_than_there_are():
    with pytest.raises(InputError, match=r"At most \d+ different stories can be drawn, not 9999999"):
        injected_prompts("none", 9_999_999)


def test_distractors():
    assert distractor("big", "Cairo").count("Cairo") == 7
    assert distractor("small", "Cairo").count("Cairo") == 1
    control = distractor("control", "Cairo")
    assert "Cairo" not in control
    assert "C a i r o" in control


def test_rates(learned, stories, trusted):
    texts, answers = [item.text for item in stories.items[:20]], stories.answers[:20]
    found = oversee(trusted, texts, answers, [None] * 10 + answers[10:], 8)
    assert found.accuracy == 1
    assert found.hijacked == 0.5
    assert found.altered >= max(found.changed, found.foreign)
    repaired = trusted.repair(texts)
    assert found.repaired == sum(soft_match(a, b) for a, b in zip(repaired, answers, strict=True)) / 20

import json
import string
from importlib import import_module
from pathlib import Path

import pytest
from tokenizers import Regex
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split

from iclr_interp.orion import (
    CollisionError,
    Entity,
    MisfitError,
    NoAnswerError,
    Prompt,
    Query,
    RetrievalDataset,
    UnfitError,
    list_tasks,
    make_task,
    register_task,
    value_ids,
    word_tokenizer,
)
from iclr_interp.orion.datasets import _REGISTER
from iclr_shared.errors import InputError

PAPER = [task.name for task in list_tasks(paper_only=True)]


def item(value, text="The city is", spaced=True):
    entity = Entity(value, {"type": "city", "value": f" {value}" if spaced else value})
    return Prompt((("context", text),), Query("value", {"type": "city"}), (entity,))


def test_six_domains():
    assert len(PAPER) == 18
    assert len({name.split("/")[0] for name in PAPER}) == 6


@pytest.mark.parametrize("name", PAPER)
def test_task(name, tokenizer):
    """The contract of §2.2, and a second parser that reads the text alone."""
    dataset = make_task(name, tokenizer, 12, seed=3)
    read = import_module(f"iclr_interp.orion.tasks.{name.split('/')[0]}").read
    assert [read(entry.text) for entry in dataset.items] == dataset.answers
    assert dataset.prompts[0].startswith(tokenizer.bos_token)
    assert [len(ids) - 1 for ids in dataset.tokens] == dataset.end_positions
    assert len({value_ids(tokenizer, value)[0] for value in dataset.values}) == len(dataset.values)
    assert make_task(name, tokenizer, 12, seed=3).prompts == dataset.prompts != make_task(name, tokenizer, 12).prompts
    assert 0 < dataset.random_guess() < 0.8
    if name == "question_answering/mixed":  # its forms differ in their build
        return
    chimera = dataset.items[0].with_request(dataset.items[1])
    assert read(chimera.text) == chimera.answer
    assert chimera.query == dataset.queries[1]


@pytest.mark.parametrize("name", PAPER)
def test_task_with_word_pieces(name, pieces):
    """A small sentencepiece-style vocabulary, whose first tokens are often single letters."""
    dataset = make_task(name, pieces, 8, on_bad="drop")
    assert len(dataset) >= 4
    assert len({value_ids(pieces, value)[0] for value in dataset.values}) == len(dataset.values)


def test_too_few_values_are_told_apart(pieces):
    """A vocabulary of letters: all values behind a space begin with it."""
    letters = word_tokenizer([*string.printable, "pad"])
    letters.backend_tokenizer.pre_tokenizer = Split(Regex("(?m)."), "isolated")
    letters.backend_tokenizer.model = WordLevel({c: i for i, c in enumerate(string.printable)}, "x")
    few = {
        "translation/french": "only 0 surnames of a role apart, and the task needs 1",
        "question_answering/base": "only 0 values of the city",
        "factual_recall/people": "only 0 entities",
    }
    for name, least in few.items():
        with pytest.raises(UnfitError, match=least):
            make_task(name, letters, 8)
    assert len(make_task("question_answering/uniform_prefix", letters, 8)) == 8


def test_forms_of_question_answering(tokenizer):
    base, uniform, first, mixed = (
        make_task(f"question_answering/{form}", tokenizer, 12)
        for form in ("base", "uniform_prefix", "question_first", "mixed")
    )
    assert len({ids[-1] for ids in base.tokens}) == 3  # the last token tells the question
    assert len({ids[-1] for ids in uniform.tokens}) == 1
    assert all(entry.text.index("Question") < entry.text.index("Story: ") for entry in first.items)
    assert sum(entry.text.endswith('"') for entry in mixed.items) == 8
    assert 110 < len(base.items[0].text.split()) < 200


def test_random_guess_of_three_queries():
    words = word_tokenizer(["a", "b", "c", "ask", "pad"])
    entities = tuple(Entity(v, {"type": t, "value": f" {v}"}) for t, v in zip("xyz", "abc", strict=True))
    items = [Prompt((("context", "ask"),), Query("value", {"type": t}), entities) for t in "xyz"]
    dataset = RetrievalDataset("three", words, items)
    assert dataset.random_guess() == pytest.approx(1 / 3)
    assert dataset.random_guess(samples=1000) == pytest.approx(1 / 3, abs=0.05)


def test_jsonl_round_trip(tokenizer, tmp_path):
    dataset = make_task("type_hints/animals", tokenizer, 5)
    dataset.to_jsonl(tmp_path / "animals.jsonl")
    again = RetrievalDataset.from_jsonl(tmp_path / "animals.jsonl", tokenizer)
    assert again.items == dataset.items
    assert again.name == "animals"
    assert json.loads(dataset.to_jsonl().splitlines()[0])["answer"] == dataset.answers[0]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 2 is no retrieval prompt"),
        ('{"parts": [["story", "x"]], "query": {"attribute": "a"}, "context": []}', "'context' or 'request'"),
        ("[]", "line 2"),
        ('{"parts": [["context", 5]], "query": {"attribute": "a"}, "context": []}', "'context' or 'request'"),
        ('{"parts": [], "query": {"attribute": "a"}, "context": [{"name": "x", "attributes": {"a": 5}}]}', "are texts"),
        (
            '{"parts": [], "query": {"attribute": "name"}, "context": [{"name": "x"}], "answer": "y"}',
            "given as 'y', but its query finds 'x'",
        ),
    ],
)
def test_bad_jsonl(line, message, tokenizer, tmp_path):
    file = tmp_path / "bad.jsonl"
    file.write_text("\n" + line)
    with pytest.raises(InputError, match=message):
        RetrievalDataset.from_jsonl(file, tokenizer)


def test_unreadable_jsonl(tokenizer, tmp_path):
    (tmp_path / "x.jsonl").write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match="no text in UTF-8"):
        RetrievalDataset.from_jsonl(tmp_path / "x.jsonl", tokenizer)
    with pytest.raises(InputError, match=r"no file nowhere\.jsonl"):
        RetrievalDataset.from_jsonl(Path("nowhere.jsonl"), tokenizer)


def test_bad_prompts_raise_or_are_dropped(tokenizer):
    good, misfit = [item("Paris"), item("London")], item("Paris", "The city is ", spaced=False)
    unanswered = Prompt((("context", "x"),), Query("value", {"type": "name"}), good[0].context)
    with pytest.raises(MisfitError, match="does not fit"):
        RetrievalDataset("t", tokenizer, [*good, misfit])
    with pytest.raises(NoAnswerError, match="no single answer"):
        RetrievalDataset("t", tokenizer, [*good, unanswered])
    with pytest.raises(CollisionError, match="' Paris' and ' Paris again'"):
        RetrievalDataset("t", tokenizer, [*good, item("Paris again")])
    dropped = RetrievalDataset("t", tokenizer, [*good, misfit, unanswered, item("Paris again")], on_bad="drop")
    assert (len(dropped), dropped.dropped) == (2, 3)
    assert dropped.answers == [" Paris", " London"]
    with pytest.raises(InputError, match=r"No prompt of t is left \(1 were dropped\)"):
        RetrievalDataset("t", tokenizer, [misfit], on_bad="drop")


def test_register(tokenizer):
    def generate(n, rng, thin):
        cities = thin(["Paris", "London", "Paris again"], lambda city: f" {city}")
        for _ in range(n):
            yield item(rng.choice(cities))

    register_task("mine/cities", generate, "cities")
    try:
        dataset = make_task("mine/cities", tokenizer, 20)
        assert set(dataset.answers) == {" Paris", " London"}  # the colliding one was left out
        assert list_tasks()[-1].domain == "mine"
        with pytest.raises(InputError, match="'mine/cities' is registered already"):
            register_task("mine/cities", generate)
    finally:
        del _REGISTER["mine/cities"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(("type_hint/geometry",), "Did you mean 'type_hints/geometry'"), (("type_hints/animals", 0), "n = 0")],
)
def test_bad_tasks(arguments, message, tokenizer):
    name, *rest = arguments
    with pytest.raises(InputError, match=message):
        make_task(name, tokenizer, *rest)


def test_prompts_of_different_build_have_no_chimera():
    one = Prompt((("context", "a"), ("request", "b")), Query("x"), ())
    two = Prompt((("request", "a"), ("request", "b")), Query("x"), ())
    with pytest.raises(InputError, match="built differently"):
        one.with_request(two)

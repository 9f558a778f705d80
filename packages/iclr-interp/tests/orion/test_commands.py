import json
import re

import pytest

from iclr_interp.orion import trusted_prompt
from iclr_shared.testing import run_cli


@pytest.fixture(scope="module")
def gpt2(directory):
    return directory("gpt2")


@pytest.fixture(scope="module")
def tiny(learned, tmp_path_factory):
    """The trained model as a directory."""
    folder = tmp_path_factory.mktemp("models") / "tiny"
    learned.module.save_pretrained(folder)
    learned.tokenizer.save_pretrained(folder)
    return folder


def test_tasks(gpt2, tmp_path):
    code, shown, error = run_cli("orion", "tasks")
    assert code == 0, error
    assert len(re.findall(r"  paper$", shown, flags=re.MULTILINE)) == 18
    code, shown, error = run_cli("orion", "tasks", "--tokenizer", gpt2, "--n", 5, "--out", tmp_path)
    assert code == 0, error
    assert len(list(tmp_path.glob("*.jsonl"))) == 18
    assert re.search(r"type_hints/geometry\s+5\s+0\s+\d+", shown)


@pytest.mark.parametrize("family", ["gpt2", "neox", "llama"])
def test_patch_any_directory(family, directory, tmp_path):
    arguments = ("--task", "variable_binding/bills", "--n", 6, "--n-inter", 8, "--quiet", "--out", tmp_path)
    code, shown, error = run_cli("orion", "patch", directory(family), *arguments)
    assert code == 0, error
    assert re.search(r"variable_binding/bills\s+\S+\s+no\s+-\s+-\s+-\s+-\s+-", shown)  # untrained: not eligible
    assert "No task is eligible" in shown
    assert "cached patching" in shown
    names = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    assert names == {
        "layers.csv", "summary.json", "scores/variable_binding-bills.jsonl", "variable_binding-bills.png"
    }  # fmt: skip


def test_patch_finds_layers_and_goes_on(tiny, tmp_path):
    arguments = ("--task", "typed_story/request_last", "--n", 60, "--n-inter", 80, "--distinct", "--quiet")
    code, shown, error = run_cli("orion", "patch", tiny, *arguments, "--layers", "0-1", "--out", tmp_path)
    assert code == 0, error
    record = tmp_path / "scores" / "typed_story-request_last.jsonl"
    first = record.read_text()
    code, shown, error = run_cli("orion", "patch", tiny, *arguments, "--out", tmp_path)
    assert code == 0, error
    assert record.read_text().startswith(first)
    assert {json.loads(line)["layer"] for line in record.read_text().splitlines()} == {0, 1, 2, 3}
    [summary] = json.loads((tmp_path / "summary.json").read_text())
    assert summary["eligible"]
    assert summary["L3"] in (2, 3)
    assert len((tmp_path / "layers.csv").read_text().splitlines()) == 1 + 4 * 4
    assert re.search(r"typed_story/request_last\s+1\s+yes", shown)


def test_patch_own_prompts(gpt2, tmp_path):
    run_cli("orion", "tasks", "--tokenizer", gpt2, "--task", "type_hints/animals", "--n", 5, "--out", tmp_path)
    data = tmp_path / "type_hints-animals.jsonl"
    code, shown, error = run_cli("orion", "patch", gpt2, "--data", data, "--n-inter", 4, "--layers", "1,3", "--quiet")
    assert code == 0, error
    assert "type_hints-animals" in shown


def test_oversee(tiny, stories, tmp_path):
    lines = [json.dumps({"prompt": item.text, "answer": item.answer, "target": None}) for item in stories.items[:6]]
    (tmp_path / "prompts.jsonl").write_text("\n".join(lines))
    (tmp_path / "trusted.txt").write_text(stories.items[0].text + "\n")
    common = ("--prompts", tmp_path / "prompts.jsonl", "--out", tmp_path / "found.json")
    code, shown, error = run_cli(
        "orion", "oversee", tiny, *common, "--trusted", tmp_path / "trusted.txt", "--layer", 2,
        "--save", tmp_path / "trusted.safetensors",
    )  # fmt: skip
    assert code == 0, error
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["layer"] == 2
    assert [entry["plain"] for entry in found["found"]] == [item.answer.strip() for item in stories.items[:6]]
    assert not found["found"][0]["altered"]
    assert shown.count("altered") == sum(entry["altered"] for entry in found["found"])
    assert re.search(r"rates over 6 prompts", shown)
    assert re.search(r"all\s+1\s", shown)
    code, again, error = run_cli("orion", "oversee", tiny, *common, "--trusted", tmp_path / "trusted.safetensors")
    assert code == 0, error
    assert again == shown
    code, _, error = run_cli(
        "orion", "oversee", tiny, *common, "--trusted", tmp_path / "trusted.safetensors", "--layer", 1
    )
    assert code == 2
    assert "has its own layer and answer" in error


def test_demonstration(gpt2, tmp_path):
    code, shown, error = run_cli(
        "orion", "oversee", gpt2, "--layer", 2, "--stories", 3, "--out", tmp_path / "found.json"
    )
    assert code == 0, error
    found = json.loads((tmp_path / "found.json").read_text())
    assert [entry["distractor"] for entry in found["found"]] == ["none", "small", "big", "control"]
    assert found["trusted answer"] == trusted_prompt()[1]
    assert "6 prompts of each kind" in shown


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("tasks", "--out", "x"), "name a model directory with --tokenizer"),
        (("tasks", "--tokenizer", "nowhere"), "nowhere is no model directory"),
        (("patch", "nowhere"), "no model directory"),
        (("patch", "{gpt2}", "--layers", "9"), "Layer 9 is not in 0 … N = 3"),
        (("patch", "{gpt2}", "--layers", "a"), "numbers such as 4,8,12"),
        (("patch", "{gpt2}", "--layers", "3-1"), "names no layer"),
        (("patch", "{gpt2}", "--layers", "1-2-3"), "numbers such as 4,8,12"),
        (("patch", "{gpt2}", "--task", "type_hint/animals"), "Did you mean 'type_hints/animals'"),
        (("patch", "{gpt2}", "--data", "nothing.jsonl"), "no file nothing.jsonl"),
        (("patch", "{gpt2}", "--device", "nonsense"), "cannot be loaded"),
        (("oversee", "{gpt2}", "--prompts", "x.jsonl"), "Name the trusted prompt"),
        (("oversee", "{gpt2}", "--trusted", "x.txt"), "Name the prompts to oversee"),
        (("oversee", "{gpt2}", "--trusted", "x.txt", "--prompts", "x.jsonl"), "no file x.jsonl"),
        (("oversee", "{gpt2}"), "Where shall gpt2 be patched"),
        (("oversee", "{gpt2}", "--stories", "0"), "at least 1"),
    ],
)
def test_bad_input(arguments, message, gpt2, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, _, error = run_cli("orion", *(argument.replace("{gpt2}", str(gpt2)) for argument in arguments))
    assert code == 2, error
    assert re.search(message, error)
    assert "Traceback" not in error
    assert list(tmp_path.iterdir()) == []


def test_tasks_that_do_not_fit_the_tokenizer(tiny):
    """A vocabulary of words: all values are unknown, and none can be told from another."""
    names = ("induction/vocabulary_1", "typed_story/request_last")
    options = ("--n", 4, "--n-inter", 4, "--layers", "0", "--quiet")
    code, shown, error = run_cli("orion", "patch", tiny, "--task", *names, *options)
    assert code == 0, error
    assert "cannot be made for this tokenizer: induction/vocabulary_1." in shown
    code, _, error = run_cli("orion", "patch", tiny, "--task", "all", *options)
    assert code == 2
    assert "No task can be made for the tokenizer of tiny" in error


@pytest.mark.parametrize("text", ["", '{"text": "x"}\n', "hello\n", '{"prompt": "x", "answer": 3}'])
def test_bad_prompts(text, gpt2, tmp_path):
    (tmp_path / "p.jsonl").write_text(text)
    (tmp_path / "t.txt").write_text("Where is it? In the city of")
    arguments = ("--prompts", tmp_path / "p.jsonl", "--trusted", tmp_path / "t.txt", "--layer", 1)
    code, _, error = run_cli("orion", "oversee", gpt2, *arguments)
    assert code == 2
    assert re.search("holds no prompts|line 1: each line must be an object", error)

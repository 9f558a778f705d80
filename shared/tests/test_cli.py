import html.parser
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest

from iclr_shared import records, registry
from iclr_shared.testing import assert_light_import, run_cli, timeless

GOOD = ("--claim", "C1")


def run_folder(out="runs"):
    return max(Path(out, "toy_method").iterdir())


def test_list_shows_each_method(toy):
    code, out, _ = run_cli("list")
    assert code == 0
    assert re.search(r"toy-method +Lovelace and Turing, ICLR 2025 +9 +A method made for tests", out)
    rows = json.loads(run_cli("list", "--json")[1])
    assert {"iclr-toy"} <= {row["distribution"] for row in rows}


def test_list_loads_nothing_heavy():
    assert_light_import("iclr_shared.cli")
    code = (
        "import sys; from iclr_shared.cli import main; main(['list']); print([m for m in sys.argv if m in sys.modules])"
    )
    heavy = ["numpy", "scipy", "matplotlib", "jax", "torch", "joblib", "pandas", "rich", "tyro"]
    done = subprocess.run([sys.executable, "-c", code, *heavy], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_a_broken_and_a_duplicate_plug_in_take_nothing_down(toy, install):
    install(toy, "iclr-bad", {"bad": "no_such_module_here:METHOD", "wrong": "json:dumps"})
    install(toy, "iclr-copy", {"toy_method": "toy_paper:METHOD"})
    code, out, _ = run_cli("list")
    assert code == 0
    assert "broken: ModuleNotFoundError" in out
    assert "iclr-toy:toy-method" in out
    assert "iclr-copy:toy-method" in out
    code, _, err = run_cli("run", "toy-method")
    assert code == 2
    assert "iclr-toy:toy_method" in err
    assert run_cli("run", "iclr-copy:toy-method", *GOOD, "--quiet")[0] == 0
    code, _, err = run_cli("run", "bad")
    assert code == 2
    assert "doctor" in err
    assert "Traceback" not in err
    code, out, _ = run_cli("doctor")
    assert code == 1
    assert "ModuleNotFoundError" in out
    assert "Traceback" in out
    assert "not a Method" in out
    assert "duplicate" in out


def test_doctor_without_a_problem(toy):
    code, out, _ = run_cli("doctor")
    assert "toy_method" in out
    assert code == int(any(entry.error for entry in registry.entries()))


@pytest.mark.parametrize("name", ["toy-method", "TOY_METHOD", "toy_Method"])
def test_names_match_whatever_their_case_and_joint(toy, name):
    assert registry.find(name).method.name == "toy_method"


def test_show(toy):
    code, out, _ = run_cli("show", "toy-method")
    assert code == 0
    for text in ("A <b>toy</b> paper", "Ada Lovelace", "value >= 0.5", "value in [0.9, 1.1] m", "double", "toy[gpu]"):
        assert text in out
    assert run_cli("show", "toy-method", "--bibtex")[1] == "@misc{toy}\n"
    run_cli("run", "toy-method", *GOOD, "--quiet")
    assert re.search(r"C1 .* pass", run_cli("show", "toy-method")[1])
    shown = json.loads(run_cli("show", "toy-method", "--json")[1])
    assert shown["last"]["C1"]["verdict"] == "pass"


@pytest.mark.parametrize(
    ("claims", "code"),
    [
        (("C1",), 0),
        (("C7",), 0),
        (("C1", "C2"), 1),
        (("C3",), 1),
        (("C2", "C4"), 3),
        (("C9",), 3),
        (("C1", "C5"), 4),
        (("C2", "C5"), 1),
        (("C6",), 4),
        (("C1", "C6"), 0),
    ],
)
def test_exit_codes(toy, claims, code):
    named = [word for claim in claims for word in ("--claim", claim)]
    assert run_cli("run", "toy-method", *named, "--quiet")[0] == code


def test_a_run_leaves_valid_records_and_a_report(toy):
    code, out, err = run_cli("run", "toy-method", "--full")
    assert code == 3
    folder = run_folder()
    schema = records.json_schema()
    found = {}
    for path in (folder / "claims").glob("*.json"):
        record = records.read(path)
        jsonschema.validate(record, schema)
        found[record["claim"]] = record
    assert [found[f"C{i}"]["verdict"] for i in range(1, 10)] == [
        "pass", "fail", "fail", "error", "skip", "skip", "reported", "pass", "error",
    ]  # fmt: skip
    assert found["C3"]["measured"] is None
    assert found["C3"]["nonfinite"] == {"measured": "nan", "series.x.1": "inf"}
    assert "pip install 'toy[gpu]'" in found["C5"]["reason"]
    assert found["C6"]["reason"] == "needs CUDA"
    assert "RuntimeError: it broke" in found["C4"]["reason"]
    assert "it broke" in (folder / "errors" / "C4.txt").read_text()
    assert found["C1"]["baseline"] == {"name": "half", "measured": 0.5}
    assert (folder / found["C1"]["artifacts"][0]["path"]).exists()
    state = json.loads((folder / "run.json").read_text())
    assert state["status"] == "finished"
    assert len(state["verdicts"]) == 9
    assert "C2: measured 0, wanted in [0.9, 1.1]" in out
    assert "C8: pass" in err


class Links(html.parser.HTMLParser):
    def __init__(self):
        super().__init__()
        self.tags, self.links = [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.links += [value for name, value in attrs if name in ("src", "href")]


def test_the_page_stands_alone_and_escapes(toy):
    run_cli("run", "toy-method", "--quiet", "--claim", "C1", "--claim", "C3")
    page = (run_folder() / "report.html").read_text()
    parser = Links()
    parser.feed(page)
    assert "script" not in parser.tags
    assert "&lt;script&gt;" in page
    assert not [link for link in parser.links if not link.startswith(("#", "data:"))]
    assert parser.tags.count("img") == 1
    assert "iclr run toy-method --seed 0" in page
    assert "compare Fig. 1 of the paper" in page


def test_report_over_seeds_and_in_markdown(toy):
    for seed in (0, 1, 2):
        assert run_cli("run", "toy-method", *GOOD, "--quiet", "--seed", seed)[0] == 0
    assert run_cli("report", "runs", "--format", "md", "-o", "all.md")[0] == 0
    text = Path("all.md").read_text()
    assert "1 (1 to 1, 3 seeds)" in text
    assert "<script>" not in text
    image = re.search(r"!\[.*\]\((.*)\)", text)[1]
    assert Path(image).exists()
    assert run_cli("report", "runs")[1].strip() == "report.html"
    code, _, err = run_cli("report", "nowhere")
    assert code == 2
    assert "nowhere" in err


def test_a_record_of_a_newer_schema_is_named_not_fatal(toy):
    run_cli("run", "toy-method", *GOOD, "--quiet")
    path = run_folder() / "claims" / "C1.json"
    record = json.loads(path.read_text())
    path.with_name("C2.json").write_text(json.dumps({**record, "schema": "iclr.claim/9"}))
    path.with_name("C3.json").write_text("{")
    path.with_name("C4.json").write_text(json.dumps({**record, "claim": "C4", "verdict": "fail"}))
    code, _, _ = run_cli("report", "runs", "-o", "r.html")
    page = Path("r.html").read_text()
    assert code == 0
    assert "unknown schema" in page
    assert "follows from the numbers" in page


def test_json_and_quiet(toy):
    code, out, err = run_cli("run", "toy-method", *GOOD, "--json")
    assert (code, err) == (0, "")
    assert json.loads(out)[0]["verdict"] == "pass"
    assert run_cli("run", "toy-method", *GOOD, "--quiet") == (0, "", "")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("run", "toy-methud"), "Did you mean 'toy-method'"),
        (("run", "toy-method", "--claim", "C11"), "Did you mean"),
        (("run",), "Name the methods to run"),
        (("run", "--all", "toy-method"), "not both"),
        (("run", "toy-method", "--jobs", "0"), "--jobs: must be at least 1"),
        (("run", "toy-method", "--seed", "-1"), "--seed: must be at least 0, got -1"),
        (("run", "toy-method", "--force"), "--resume"),
        (("run", "toy-method", "--resume"), "no unfinished run"),
        (("run", "toy-method", "--out", "/proc/nowhere"), "Choose another folder"),
        (("toy-methd", "double", "1"), "Did you mean 'toy-method'"),
        (("lisst",), "Did you mean 'list'"),
        (("toy-method", "dubble", "1"), "Did you mean 'double'"),
        (("toy-method", "double", "--number", "-1"), "must not be negative, got -1"),
        (("toy-method", "double"), "number"),
        (("show", "nothing-like-it"), "no method 'nothing-like-it'"),
        (("run", "toy-method", "--backend", "slurm"), "invalid choice"),
    ],
)
def test_bad_usage_is_one_message_and_code_2(toy, arguments, message):
    code, out, err = run_cli(*arguments)
    assert code == 2
    assert message in err + out
    assert "Traceback" not in err + out


def test_out_that_is_a_file_or_read_only(toy):
    Path("file").write_text("")
    code, _, err = run_cli("run", "toy-method", *GOOD, "--out", "file")
    assert code == 2
    assert "--out" in err


def test_a_full_disk_leaves_nothing_half_written(toy, monkeypatch):
    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    code, _, err = run_cli("run", "toy-method", *GOOD, "--quiet")
    assert code == 3
    assert err == "iclr: No space left on device\n"
    assert [path for path in Path("runs").rglob("*") if path.is_file() and not path.name.startswith("lock")] == []


def test_another_run_in_the_folder_is_named(toy, monkeypatch):
    killed = subprocess.run(
        [sys.executable, "-m", "iclr_shared", "run", "toy-method", "--claim", "C8"],
        env={**os.environ, "TOY_KILL_AT": "3"},
    )
    assert killed.returncode == -signal.SIGKILL
    from iclr_shared.files import locked

    with locked(run_folder()):
        code, _, err = run_cli("run", "toy-method", "--claim", "C8", "--resume")
    assert code == 2
    assert f"process {os.getpid()}" in err


@pytest.mark.parametrize("how", ["TOY_KILL_AT", "TOY_INT_AT"])
def test_a_killed_or_interrupted_run_resumes_to_the_same_records(toy, how):
    command = [sys.executable, "-m", "iclr_shared", "run", "toy-method", "--claim", "C1", "--claim", "C8", "--quiet"]
    whole = subprocess.run([*command, "--out", "whole"])
    assert whole.returncode == 0
    cut = subprocess.run([*command, "--out", "cut"], env={**os.environ, how: "7"}, capture_output=True, text=True)
    assert cut.returncode == (-signal.SIGKILL if how == "TOY_KILL_AT" else 130)
    if how == "TOY_INT_AT":
        assert "--resume" in cut.stderr
    resumed = subprocess.run([*command, "--out", "cut", "--resume"])
    assert resumed.returncode == 0
    for claim in ("C1", "C8"):
        one, other = (timeless(records.read(run_folder(out) / "claims" / f"{claim}.json")) for out in ("whole", "cut"))
        assert one == other
    assert not list(Path("cut").rglob("*.tmp"))


def test_resume_refuses_other_settings_unless_forced(toy):
    command = [sys.executable, "-m", "iclr_shared", "run", "toy-method", "--claim", "C8", "--quiet"]
    subprocess.run(command, env={**os.environ, "TOY_KILL_AT": "3"})
    code, _, err = run_cli("run", "toy-method", "--claim", "C8", "--seed", "5", "--resume")
    assert code == 2
    assert "another seed" in err
    assert run_cli("run", "toy-method", "--claim", "C8", "--seed", "5", "--resume", "--force", "--quiet")[0] == 0


def test_verbs(toy):
    assert run_cli("toy-method", "double", "--number", "2")[:2] == (0, "4.0\n")
    assert run_cli("TOY_METHOD", "broken_verb")[0] == 7
    code, out, _ = run_cli("toy-method", "--help")
    assert code == 0
    assert "iclr toy-method double" in out
    code, out, _ = run_cli("toy-method", "double", "--help")
    assert code == 0
    assert "to be doubled" in out


def test_a_terminal_without_unicode(toy):
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run([sys.executable, "-m", "iclr_shared", "show", "toy-method"], env=environment)
    assert done.returncode == 0


def test_a_closed_pipe_is_no_error(toy):
    done = subprocess.run(f"{sys.executable} -m iclr_shared list | true", shell=True, capture_output=True, text=True)
    assert "Traceback" not in done.stderr

"""The verbs, on files."""

import json
import re
import signal
import subprocess
import sys
import time

import numpy as np
import pandas as pd
import pytest

from iclr_shared.testing import run_cli

NAMES = "oak,elm,fir,ash,yew"


@pytest.fixture
def program(tmp_path, monkeypatch):
    """A cost as a shell program: the length of the names."""
    monkeypatch.chdir(tmp_path)
    script = tmp_path / "cost.sh"
    script.write_text('#!/bin/sh\necho "$@" >> paid\nlength="$*"\necho "the cost is ${#length}"\n')
    script.chmod(0o755)
    return str(script)


def paid(tmp_path):
    return (tmp_path / "paid").read_text().splitlines() if (tmp_path / "paid").exists() else []


def test_select(program, tmp_path):
    names = tmp_path / "names.txt"
    names.write_text("oaken\nelm\nfirs\nas\nyewtree\n")
    options = ("--command", program, "--items", names, "-k", 2, "--budget", 8, "--jobs", 2, "--quiet")
    code, shown, error = run_cli("subset", "select", *options, "--out", tmp_path / "out")
    assert code == 0, error
    assert re.search(r"chosen\s+elm as", shown)
    result = json.loads((tmp_path / "out" / "result.json").read_text())
    assert (result["names"], result["cost"]) == (["elm", "as"], 6.0)
    assert len(paid(tmp_path)) == result["evaluations"] <= 8
    assert {file.name for file in (tmp_path / "out").iterdir()} == {
        "evaluations.csv", "result.json", "search.png", "state.json", "state.jsonl", "weights.csv"
    }  # fmt: skip
    table = pd.read_csv(tmp_path / "out" / "evaluations.csv")
    assert len(table) == result["evaluations"]
    code, _, error = run_cli("subset", "select", *options, "--out", tmp_path / "out")
    assert (code, "go on with --resume" in error) == (2, True)
    before = len(paid(tmp_path))
    code, _, error = run_cli("subset", "select", *options, "--out", tmp_path / "out", "--resume")
    assert code == 0, error
    assert len(paid(tmp_path)) == before


@pytest.mark.parametrize("strategy", ["random", "greedy", "enumerate", "first", "last", "random-k", "cma"])
def test_controls(program, tmp_path, strategy):
    options = ("--items", 4, "-k", 2, "--budget", 10, "--strategy", strategy, "--quiet")
    code, shown, error = run_cli("subset", "select", "--command", program, *options, "--out", tmp_path / "out")
    assert code == 0, error
    assert "evaluations" in shown


def test_expected_and_placeholders(program, tmp_path):
    command = f"{program} --seed={{seed}} --names={{subset}}"
    options = ("--items", "a,b,c,d", "-k", 1.5, "--method", "expected", "--empty", 30, "--budget", 6, "--quiet")
    code, _, error = run_cli("subset", "select", "--command", command, *options, "--out", tmp_path / "out")
    assert code == 0, error
    assert re.fullmatch(r"--seed=\d+ --names=\w(,\w)*", paid(tmp_path)[0])


def test_sigkill_and_resume(tmp_path, monkeypatch):
    """No evaluation is paid for twice but those under way; the result is that of a run that nobody killed."""
    monkeypatch.chdir(tmp_path)
    script = tmp_path / "slow.sh"
    script.write_text('#!/bin/sh\nsleep 0.05\necho "$@" >> "$PWD/paid"\necho $1\n')
    script.chmod(0o755)
    options = ["--command", str(script), "--items", "9", "-k", "3", "--budget", "40", "--jobs", "2", "--quiet", "--out"]
    code = "import sys; from iclr_shared.cli import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", code, "subset", "select", *options, "out"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    ledger, deadline = tmp_path / "out" / "state.jsonl", time.monotonic() + 90
    while (not ledger.exists() or ledger.read_bytes().count(b"\n") < 9) and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()
    kept = ledger.read_bytes().count(b"\n")
    time.sleep(0.3)  # a program under way ends by itself
    before = len(paid(tmp_path))
    assert 9 <= kept <= before <= kept + 4
    script.write_text(script.read_text().replace("sleep 0.05\n", ""))
    with ledger.open("ab") as file:
        file.write(b'{"step": 3, "samp')  # a torn line
    exit_code, _, error = run_cli("subset", "select", *options, "out", "--resume")
    assert exit_code == 0, error
    result = json.loads((tmp_path / "out" / "result.json").read_text())
    assert len(paid(tmp_path)) - before == result["evaluations"] - kept
    exit_code, _, error = run_cli("subset", "select", *options, "whole")
    assert exit_code == 0, error
    assert json.loads((tmp_path / "whole" / "result.json").read_text()) == result


def test_failing_programs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    script = tmp_path / "fails.sh"
    script.write_text("#!/bin/sh\nif [ $1 = 0 ]; then echo broken >&2; exit 3; fi\necho $1\n")
    script.chmod(0o755)
    common = ("--items", 5, "-k", 2, "--budget", 8, "--quiet", "--out")
    code, _, error = run_cli("subset", "select", "--command", script, *common, "a")
    assert code == 2
    assert re.search(r"The cost of \[0, \d\] failed: .*ended with code 3: broken", error)
    code, shown, error = run_cli(
        "subset", "select", "--command", script, *common, "b", "--on-error", "penalise", "--penalty", 10
    )
    assert code == 0, error
    assert re.search(r"failed\s+[1-9]", shown)
    for command, message in (
        ("sleep 5", "took over 0.1 s"), ("sh -c 'sleep 5; echo 1'", "took over 0.1 s"),
        ("sh -c 'sleep 5 & echo 1'", "took over 0.1 s"), ("echo {subset}", "printed no number"),
        ("true", "printed no number at the end, but ''"), ("sh -c 'echo nan'", "is nan; costs must be finite"),
        ("sh -c 'kill -9 $$'", "killed by SIGKILL"),
        ("no-such-program", "cannot be started"), ("'open", "cannot be split"), (" ", "is empty"),
    ):  # fmt: skip
        code, _, error = run_cli("subset", "select", "--command", command, "--timeout", 0.1, *common, "c")
        assert (code, message in error) == (2, True), error


@pytest.fixture
def table(tmp_path, rng):
    X = rng.standard_normal((80, 6))
    frame = pd.DataFrame(X, columns=list("abcdef"))
    frame["y"] = 2 * X[:, 1] - X[:, 4] + 0.1 * rng.standard_normal(80)
    frame["class"] = np.where(frame.y > 0, "high", "low")
    path = tmp_path / "data.csv"
    frame.drop(columns="class").to_csv(path, index=False)
    frame.drop(columns="y").to_csv(tmp_path / "classes.csv", index=False)
    return path


def test_features(table, tmp_path):
    options = ("-k", 2, "--budget", 14, "--cv", 3, "--quiet")
    code, shown, error = run_cli("subset", "features", table, "--target", "y", *options, "--out", tmp_path / "out")
    assert code == 0, error
    assert re.search(r"chosen\s+b e", shown)
    assert list(pd.read_csv(tmp_path / "out" / "selected.csv").columns) == ["b", "e", "y"]
    code, shown, error = run_cli(
        "subset", "features", tmp_path / "classes.csv", "--target", "class", *options, "--estimator", "logistic",
        "--method", "expected", "--out", tmp_path / "classes",
    )  # fmt: skip
    assert code == 0, error
    code, shown, error = run_cli(
        "subset", "features", table, "--target", "y", *options, "--strategy", "greedy", "--out", tmp_path / "greedy"
    )
    assert (code, bool(re.search(r"chosen\s+b e", shown))) == (0, True), error


def test_layers(tmp_path):
    options = (
        "--blocks",
        4,
        "--width",
        8,
        "-k",
        2,
        "--labels",
        40,
        "--steps",
        5,
        "--pretrain-steps",
        20,
        "--budget",
        4,
    )
    code, _, error = run_cli("subset", "layers", *options, "--out", tmp_path)
    assert code == 0, error
    rows = {row["strategy"]: row for row in json.loads((tmp_path / "layers.json").read_text())["rows"]}
    assert rows["enumerate"]["runs"] == 6
    assert rows["mirror"]["runs"] <= 4
    assert rows["last"]["blocks"] == "2 3"
    assert rows["enumerate"]["validation"] == min(row["validation"] for row in rows.values() if row["validation"])
    assert (tmp_path / "layers.png").stat().st_size > 5000


def test_layers_of_tables(table, tmp_path):
    options = ("--blocks", 3, "--width", 4, "-k", 1, "--labels", 20, "--steps", 3, "--pretrain-steps", 3, "--budget", 3)
    files = ("--source", tmp_path / "classes.csv", "--target-data", tmp_path / "classes.csv", "--label", "class")
    code, _, error = run_cli("subset", "layers", *options, *files, "--out", tmp_path / "out")
    assert code == 0, error
    code, _, error = run_cli("subset", "layers", *files[:2], "--out", tmp_path / "out")
    assert (code, "all of --source" in error) == (2, True)


def test_ask_and_tell(tmp_path):
    state, asked = tmp_path / "state.json", tmp_path / "asked.csv"
    options = ("--items", NAMES, "-k", 2, "--steps", 30)
    code, shown, error = run_cli("subset", "ask", state, "-n", 4, *options, "--out", asked)
    assert code == 0, error
    again = run_cli("subset", "ask", state)[1]
    assert again == shown
    weights = {"oak": 3, "elm": 1, "fir": 4, "ash": 1.5, "yew": 9}
    for step in range(12):
        frame = pd.read_csv(asked, dtype={"subset": str})
        frame["cost"] = [sum(weights[name] for name in names.split()) for names in frame["items"]]
        frame.sample(frac=1, random_state=step).to_csv(tmp_path / "results.csv", index=False)
        code, shown, error = run_cli("subset", "tell", state, tmp_path / "results.csv")
        assert code == 0, error
        code, _, error = run_cli("subset", "ask", state, "-n", 3 + step % 2, "--out", asked)
        assert code == 0, error
    assert re.search(r"best seen\s+elm ash", shown)
    code, _, error = run_cli("subset", "ask", state, "-n", 7)
    assert (code, "still wait for their costs" in error) == (2, True)
    code, _, error = run_cli("subset", "tell", state, tmp_path / "results.csv")
    assert code == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("select", "--command", "true", "--items", "x", "-k", 1, "--out", "o"), "--items is a number"),
        (("select", "--command", "true", "--items", "a,a", "-k", 1, "--out", "o"), "given twice: a"),
        (("select", "--command", "true", "--items", 5, "-k", 5.5, "--out", "o"), "whole number"),
        (("select", "--command", "true", "--items", 5, "-k", 6, "--out", "o"), "below n = 5"),
        (("select", "--command", "true", "--items", 5, "-k", 2, "--out", "o", "--method", "expected"), "empty="),
        (("select", "--command", "true", "--items", 5, "-k", 2, "--out", "o", "--resume"), "no search to resume"),
        (("select", "--command", "true", "--items", 5, "-k", 2, "--out", "o", "--timeout", -1), "positive number"),
        (("select", "--command", "true", "--items", 5, "-k", "nan", "--out", "o"), "whole number"),
        (("select", "--command", "true", "--items", 5, "-k", 2, "--out", "o", "--seed", -1), "not be negative"),
        (
            ("select", "--command", "true", "--items", 5, "-k", 2, "--out", "o", "--batch", 0),
            "batch must be at least 1",
        ),
        (("select", "--command", "true", "--items", "a,,b", "-k", 1, "--out", "o"), "has no name"),
        (("select", "--command", "touch paid", "--items", 5, "-k", 2, "--out", "data.csv"), "Cannot write"),
        (("ask", "s.json", "--items", 5, "-k", 2, "--seed", -1), "not be negative"),
        (("layers", "--out", "o", "--steps", -1, "--pretrain-steps", 0), "An inner run takes"),
        (("features", "absent.csv", "--target", "y", "-k", 2, "--out", "o"), "absent.csv cannot be read"),
        (("features", "data.csv", "--target", "z", "-k", 2, "--out", "o"), "no column 'z'"),
        (("features", "data.csv", "--target", "y", "-k", 9, "--out", "o"), "below n = 6"),
        (("features", "data.csv", "--target", "y", "-k", 1.5, "--out", "o"), "whole number here"),
        (("features", "classes.csv", "--target", "class", "-k", 2, "--out", "o"), "Ridge regression needs numbers"),
        (("features", "classes.csv", "--target", "a", "-k", 2, "--out", "o"), "class are not"),
        (("layers", "--shift", "none", "--labels", 5, "--out", "o"), "10 to 400 labels"),
        (("ask", "absent.json"), "does not exist yet"),
        (("tell", "absent.json", "data.csv"), "Start a search with ask"),
        (("tell", "data.csv", "data.csv"), "no state of ask and tell"),
    ],
)
def test_bad_input(arguments, message, table, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, _, error = run_cli("subset", *arguments)
    assert code == 2, error
    assert message in error
    assert "Traceback" not in error
    assert not (tmp_path / "o").exists()
    assert not (tmp_path / "paid").exists()  # before anything was paid for


def test_failing_program_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, _, error = run_cli("subset", "select", "--command", "false", "--items", 5, "-k", 2, "--out", "a/b")
    assert code == 2
    assert "ended with code 1" in error
    assert list(tmp_path.iterdir()) == []

"""A stand-in plug-in: a distribution on the import path, as if it had been installed."""

import sys
import textwrap

import pytest

PAPER = """
from iclr_shared.spec import Claim, Command, Method, Paper

METHOD = Method(
    name="toy_method",
    title="Toy",
    summary="A method made for tests",
    paper=Paper("A <b>toy</b> paper", ("Ada Lovelace", "Alan Turing"), 2025, "ICLR 2025", bibtex="@misc{toy}"),
    claims=(
        Claim("C1", "One is at least one half & <script>alert(1)</script>", "Fig. 1", "value", ">=", 0.5, None, "exact",
              "toy_claims:one", 1),
        Claim("C2", "Zero is one", None, "value", "in", (0.9, 1.1), "m", "exact", "toy_claims:zero", 1),
        Claim("C3", "Not a number", None, "value", "<=", 1, None, "laptop", "toy_claims:nan", 1),
        Claim("C4", "Raises", None, "value", "<=", 1, None, "laptop", "toy_claims:raises", 1),
        Claim("C5", "Lacks an extra", None, "value", "<=", 1, None, "laptop", "toy_claims:extra", 1),
        Claim("C6", "Lacks a GPU", None, "value", "<=", 1, None, "full", "toy_claims:gpu", 1),
        Claim("C7", "Open", None, "value", "report", None, None, "laptop", "toy_claims:one", 1),
        Claim("C8", "Slow", None, "value", ">=", 0, None, "laptop", "toy_claims:slow", 1),
        Claim("C9", "Gives what no record can hold", None, "value", ">=", 0, None, "laptop", "toy_claims:odd", 1),
    ),
    commands=(
        Command("double", "Twice a number", "toy_commands:double"),
        Command("broken-verb", "Raises", "toy_commands:broken"),
    ),
    extras=("toy[gpu]",),
)
"""

CLAIMS = '''
import os
import signal
import time

from iclr_shared.claims import Measurement
from iclr_shared.errors import Unavailable, require
from iclr_shared.plots import new_figure


def one(run):
    figure, axes = new_figure()
    axes.plot([0, 1], [0, 1])
    run.figure("line", figure)
    draw = run.seeds.child("x").numpy().random()
    return Measurement(1.0, ("half", 0.5), (0.9, 1.1), 3, {"x": [1.0, 2.0]}, {"draw": draw, "text": "<i>"}, "A note.")


def zero(run):
    return Measurement(0.0)


def nan(run):
    return Measurement(float("nan"), series={"x": [1.0, float("inf")]})


def raises(run):
    raise RuntimeError("it broke")


def extra(run):
    require("no_such_module_anywhere", "toy[gpu]")


def gpu(run):
    raise Unavailable("needs CUDA")


def square(x):
    return {"square": x * x, "pid": 0}


def odd(run):
    return Measurement(1.0, details={"object": object()})


def slow(run):
    """Sums numbers with a checkpoint after each; TOY_KILL_AT kills the process, TOY_INT_AT interrupts it, once."""
    checkpoint = run.checkpoint("sum")
    start, state = checkpoint.latest() or (0, {"total": 0})
    total = state["total"]
    for step in run.progress(range(start, 20), desc="summing"):
        total += step
        checkpoint.save(step + 1, {"total": total})
        if str(step) == os.environ.get("TOY_KILL_AT") and start == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        if str(step) == os.environ.get("TOY_INT_AT") and start == 0:
            os.kill(os.getpid(), signal.SIGINT)
    squares = run.sweep(square, [{"x": x} for x in range(3)])
    return Measurement(float(total + sum(s["square"] for s in squares)))
'''

COMMANDS = '''
from pathlib import Path

from iclr_shared.errors import InputError


def double(number: float, out: Path | None = None) -> None:
    """Print twice a number.

    Args:
        number: to be doubled.
        out: file to write.
    """
    if number < 0:
        raise InputError(f"number must not be negative, got {number}. Give its magnitude.")
    print(2 * number)


def broken() -> int:
    """Return a code."""
    return 7
'''


def install(folder, distribution, points, **modules):
    """Lay out a distribution in `folder` with entry points and modules."""
    info = folder / f"{distribution.replace('-', '_')}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n")
    lines = "".join(f"{name} = {reference}\n" for name, reference in points.items())
    (info / "entry_points.txt").write_text("[iclr.methods]\n" + lines)
    for name, text in modules.items():
        (folder / f"{name}.py").write_text(textwrap.dedent(text))


@pytest.fixture
def toy(tmp_path, monkeypatch):
    """The folder of an installed toy method; the current folder is empty."""
    site = tmp_path / "site"
    install(
        site, "iclr-toy", {"toy_method": "toy_paper:METHOD"}, toy_paper=PAPER, toy_claims=CLAIMS, toy_commands=COMMANDS
    )
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.setenv("PYTHONPATH", str(site))
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    yield site
    for name in ("toy_paper", "toy_claims", "toy_commands"):
        sys.modules.pop(name, None)


@pytest.fixture(name="install")
def _install():
    """The function that lays out a further distribution."""
    return install

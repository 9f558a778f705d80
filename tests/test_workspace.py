"""Rules that only the whole can show."""

import ast
import shutil
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import catalogue
import changed
import check_distribution
import pytest

from iclr_shared.testing import readme_blocks

ROOT = Path(__file__).parent.parent
DISTRIBUTIONS = sorted(path.name for path in (ROOT / "packages").iterdir() if path.is_dir())


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_anatomy(name):
    assert check_distribution.faults(ROOT / "packages" / name) == []


def test_the_anatomy_check_finds_faults(tmp_path):
    copy = tmp_path / DISTRIBUTIONS[0]
    shutil.copytree(ROOT / "packages" / DISTRIBUTIONS[0], copy, ignore=shutil.ignore_patterns("__pycache__"))
    package = copy / "src" / DISTRIBUTIONS[0].replace("-", "_")
    (package / "utils.py").write_text("import iclr_other, distributed\nx = 1\n\ndef f(): print(1)\n")
    (package / "long.py").write_text('"""Long."""\n' + "x = 1\n" * 600)
    paper = next(package.rglob("paper.py"))
    paper.write_text(paper.read_text() + "\nimport numpy\n")
    (copy / "README.md").write_text("nothing")
    found = "\n".join(check_distribution.faults(copy))
    for text in (
        "name a module after what it holds",
        "utils.py has no docstring",
        "utils.py: f has no docstring",
        "utils.py prints",
        "imports iclr_other",
        "imports distributed, which",
        "long.py has over",
        "must import iclr_shared.spec only",
        "no section 'claims'",
        "no BibTeX",
    ):
        assert text in found
    shutil.rmtree(copy / "benchmarks")
    assert check_distribution.faults(copy) == [f"{copy.name}: benchmarks is missing"]


def test_shared_depends_on_nothing_of_ours_and_declares_what_it_imports():
    project = tomllib.loads((ROOT / "shared" / "pyproject.toml").read_text())
    assert list(check_distribution._dependencies(ROOT / "shared" / "src" / "iclr_shared", project)) == []


def test_the_readme_lists_what_the_methods_say():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert catalogue.updated(text) == text, "run: python .ci/catalogue.py"


def test_the_readme_names_the_commands_that_ci_runs():
    blocks = " ".join(code for _, code in readme_blocks(ROOT / "README.md"))
    assert "uv run --package iclr-dynamics iclr run uv-model" in blocks
    assert "uv run --all-packages pytest" in blocks
    assert "uv run --all-packages pytest" in (ROOT / ".ci" / "run").read_text()


def test_the_shared_distribution_is_thin():
    """At most 1,500 lines of code, docstrings and comments aside, and what only its extras llm and test use."""
    lines = 0
    for file in (ROOT / "shared" / "src").rglob("*.py"):
        if file.name not in ("llm.py", "testing.py"):
            bare = ast.parse(file.read_text(encoding="utf-8"))
            documented = (n for n in ast.walk(bare) if isinstance(n, ast.Module | ast.ClassDef | ast.FunctionDef))
            strings = [n.body[0] for n in documented if n.body and ast.get_docstring(n) is not None]
            dropped = {line for string in strings for line in range(string.lineno, string.end_lineno + 1)}
            text = enumerate(file.read_text(encoding="utf-8").splitlines(), 1)
            lines += sum(bool(t.strip()) and not t.strip().startswith("#") and i not in dropped for i, t in text)
    assert lines <= 1500


def test_one_version_for_all():
    files = [ROOT / "shared" / "pyproject.toml", *ROOT.glob("packages/*/pyproject.toml")]
    assert len({tomllib.loads(file.read_text())["project"]["version"] for file in files}) == 1


def test_changed_paths_choose_the_distributions():
    names = ["iclr-a", "iclr-b"]
    assert changed.affected(["packages/iclr-a/src/x.py", "README.md"], names) == ["iclr-a"]
    assert changed.affected(["packages/iclr-gone/x.py"], names) == []
    assert changed.affected(["shared/src/x.py"], names) == names
    assert changed.affected(["pyproject.toml"], names) == names
    assert changed.affected([".github/workflows/ci.yml"], names) == names
    assert changed.affected(["CONTRIBUTING.md"], names) == []


def test_listing_starts_within_its_budget():
    """0.3 s beyond a bare interpreter on an idle machine; the fastest of several, since this one may be busy."""

    def fastest(*command):
        times = []
        for _ in range(7):
            start = time.perf_counter()
            subprocess.run([sys.executable, *command], check=True, capture_output=True)
            times.append(time.perf_counter() - start)
        return min(times)

    code = "import sys; from iclr_shared.cli import main; sys.exit(main(['list']))"
    beyond = fastest("-c", code) - fastest("-c", "pass")
    # Speed is shown, not tested; what is tested is that no heavy import crept in, which costs more than this.
    assert beyond < 1.0

"""Check the anatomy of distributions: `python .ci/check_distribution.py packages/iclr-foo ...` prints what is wrong.

Without a folder, all of `packages/` is checked. The rules are those of CONTRIBUTING.md.
"""

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
GROUP = "iclr.methods"
MAX_LINES = 550
VAGUE = {"utils.py", "helpers.py", "base.py", "core.py", "common.py", "misc.py"}
HEADINGS = ("install", "claims", "departures", "limits")


def faults(folder: Path) -> list[str]:
    """What is wrong with the distribution in `folder`, one line each, relative to the workspace."""
    return [f"{folder.name}: {fault}" for fault in _faults(folder.resolve())]


def imports(file: Path) -> Iterator[str]:
    """Top-level names that a Python file imports, wherever it does; those for type checkers only included."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.module.split(".")[0]


def declared(project: dict) -> set[str]:
    """Names of all that a pyproject's dependencies and extras require."""
    table = project["project"]
    lines = [*table.get("dependencies", []), *(x for e in table.get("optional-dependencies", {}).values() for x in e)]
    return {_normal(re.match(r"[\w.-]+", line)[0]) for line in lines}


def _faults(folder: Path) -> Iterator[str]:
    for name in ("pyproject.toml", "README.md", "src", "tests", "benchmarks"):
        if not (folder / name).exists():
            yield f"{name} is missing"
            return
    project = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))
    name = project["project"]["name"]
    package = folder / "src" / name.replace("-", "_")
    if name != folder.name or not package.is_dir():
        yield f"pyproject.toml is called {name!r}; the folder and src/{package.name}/ must bear the same name"
        return
    if project["project"].get("requires-python") != ">=3.12":
        yield "requires-python must be '>=3.12'"
    if "test" not in project.get("dependency-groups", {}):
        yield "pyproject.toml has no dependency group 'test'"
    yield from _layout(folder, package, project)
    yield from _modules(folder, package)
    yield from _dependencies(package, project)
    text = (folder / "README.md").read_text(encoding="utf-8")
    headings = " ".join(re.findall(r"^#+ (.*)$", text, flags=re.MULTILINE)).lower()
    for heading in HEADINGS:
        if heading not in headings:
            yield f"README.md has no section {heading!r}"
    if "@inproceedings" not in text.lower() and "@misc" not in text.lower() and "@article" not in text.lower():
        yield "README.md has no BibTeX entry"


def _layout(folder: Path, package: Path, project: dict) -> Iterator[str]:
    """The entry points, and for each method its paper.py, claims.py, commands.py, tests and benchmark."""
    points = project["project"].get("entry-points", {}).get(GROUP, {})
    if not points:
        yield f"pyproject.toml has no entry point in the group {GROUP!r}"
    for method, reference in points.items():
        # One method may have the package to itself, or a subpackage where others will join it.
        alone = len(points) == 1 and not (package / method).is_dir()
        home = package if alone else package / method
        expected = ".".join([*home.relative_to(package.parent).parts, "paper:METHOD"])
        if reference != expected:
            yield f"the entry point {method} must be {expected!r}, not {reference!r}"
        for file in ("__init__.py", "__init__.pyi", "paper.py", "claims.py", "commands.py"):
            if not (home / file).exists():
                yield f"{(home / file).relative_to(folder)} is missing"
        if (home / "paper.py").exists() and set(imports(home / "paper.py")) - {"iclr_shared"}:
            yield f"{(home / 'paper.py').relative_to(folder)} must import iclr_shared.spec only"
        if (home / "__init__.py").exists() and "attach_stub" not in (home / "__init__.py").read_text(encoding="utf-8"):
            yield f"{(home / '__init__.py').relative_to(folder)} must export lazily with lazy_loader.attach_stub"
        tests = folder / "tests" if alone else folder / "tests" / method
        if not list(tests.glob("test_*.py")):
            yield f"{tests.relative_to(folder)} has no tests"
        if not alone and not (folder / "benchmarks" / f"{method}.py").exists():
            yield f"benchmarks/{method}.py is missing"
    if not list((folder / "benchmarks").glob("*.py")):
        yield "benchmarks/ has no benchmark"


def _modules(folder: Path, package: Path) -> Iterator[str]:
    """Names and lengths of modules; docstrings; no prints in the library."""
    for file in sorted(package.rglob("*.py")):
        where, text = file.relative_to(folder), file.read_text(encoding="utf-8")
        if file.name in VAGUE:
            yield f"{where}: name a module after what it holds"
        if len(text.splitlines()) > MAX_LINES:
            yield f"{where} has over {MAX_LINES} lines"
        tree = ast.parse(text)
        if file.name != "__init__.py" and not ast.get_docstring(tree):
            yield f"{where} has no docstring"
        for node in tree.body:
            public = isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_")
            if public and not ast.get_docstring(node):
                yield f"{where}: {node.name} has no docstring"
        calls = (node.func for node in ast.walk(tree) if isinstance(node, ast.Call))
        if file.name != "commands.py" and any(isinstance(call, ast.Name) and call.id == "print" for call in calls):
            yield f"{where} prints; use logging"


def _dependencies(package: Path, project: dict) -> Iterator[str]:
    """No import of another distribution of ours, and every third-party import declared."""
    known, providers = declared(project), packages_distributions()
    used = {name for file in sorted(package.rglob("*.py")) for name in imports(file)}
    for name in sorted(used - set(sys.stdlib_module_names) - {package.name}):
        if name.startswith("iclr_") and name != "iclr_shared":
            yield f"imports {name}: a distribution imports iclr_shared and nothing else of ours"
        elif not known & ({_normal(provider) for provider in providers.get(name, [])} | {_normal(name)}):
            yield f"imports {name}, which its pyproject.toml does not declare"


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


if __name__ == "__main__":
    folders = [Path(argument) for argument in sys.argv[1:]] or sorted((ROOT / "packages").iterdir())
    found = [fault for folder in folders for fault in faults(folder)]
    print("\n".join(found) or f"{len(folders)} distributions: no faults")
    sys.exit(bool(found))

"""Each distribution, built without the workspace, works alone in an empty environment."""

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
DISTRIBUTIONS = sorted(path.name for path in (ROOT / "packages").iterdir() if path.is_dir())

pytestmark = pytest.mark.slow


def call(*command, **options):
    environment = {name: value for name, value in os.environ.items() if name not in ("VIRTUAL_ENV", "PYTHONPATH")}
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, env=environment, **options)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def uv(*arguments, **options):
    program = [os.environ.get("UV") or shutil.which("uv")]
    return call(*(program if program[0] else [sys.executable, "-m", "uv"]), *arguments, **options)


@pytest.fixture(scope="module")
def wheels(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheels")
    for place in (ROOT / "shared", *(ROOT / "packages" / name for name in DISTRIBUTIONS)):
        uv("build", "--wheel", "--no-sources", "--out-dir", folder, place)
    return folder


@pytest.fixture
def environment(tmp_path):
    uv("venv", "--python", sys.executable, tmp_path / "env")
    return tmp_path / "env"


def install(environment, wheels, requirement):
    uv(
        "pip",
        "install",
        "--python",
        environment / "bin" / "python",
        "--find-links",
        wheels,
        requirement,
        cwd=environment,
    )
    assert "iclr-shared" in uv("pip", "list", "--python", environment / "bin" / "python", cwd=environment)


def test_shared_alone(environment, wheels):
    install(environment, wheels, "iclr-shared")
    assert "No method is installed" in call(environment / "bin" / "iclr", "list", cwd=environment)


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_a_distribution_alone(environment, wheels, name):
    install(environment, wheels, name)
    project = tomllib.loads((ROOT / "packages" / name / "pyproject.toml").read_text())
    methods = list(project["project"]["entry-points"]["iclr.methods"])
    listed = call(environment / "bin" / "iclr", "list", cwd=environment)
    assert all(method.replace("_", "-") in listed for method in methods)
    module = name.replace("-", "_")
    # Every public name that the package announces can be had.
    code = f"import {module}; [getattr({module}, name) for name in {module}.__all__]"
    call(environment / "bin" / "python", "-c", code, cwd=environment)
    for method in methods:
        code = (
            f"from iclr_shared.registry import find; claims = find({method!r}).method.claims;"
            "print(min((c for c in claims if c.tier == 'exact'), key=lambda c: c.seconds).id)"
        )
        claim = call(environment / "bin" / "python", "-c", code, cwd=environment).strip()
        call(environment / "bin" / "iclr", "run", method, "--claim", claim, "--out", "runs", cwd=environment)
    assert list(Path(environment / "runs").rglob("report.html"))

"""The portable form of a lock, made from a real one with extras, markers and several Python versions."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from portable_lock import portable

SCRIPT = Path(__file__).parent.parent / ".ci" / "portable_lock.py"

PROJECT = """
[project]
name = "example"
version = "1"
requires-python = ">=3.10"
dependencies = [
    "numpy<2.3; python_version < '3.11'",
    "numpy>=2.3; python_version >= '3.11'",
    "colorama; sys_platform == 'win32'",
    "rich[jupyter]<14",
]

[project.optional-dependencies]
tables = ["tabulate>=0.9"]

[dependency-groups]
dev = ["iniconfig"]
"""


def uv(*arguments, cwd):
    command = [os.environ.get("UV") or shutil.which("uv") or sys.executable, *arguments]
    if command[0] == sys.executable:
        command[1:1] = ["-m", "uv"]
    environment = {name: value for name, value in os.environ.items() if name != "VIRTUAL_ENV"}
    return subprocess.run(command, cwd=cwd, check=True, capture_output=True, text=True, env=environment)


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """A project with its complete lock, in which one version is older than the newest."""
    folder = tmp_path_factory.mktemp("project")
    (folder / "pyproject.toml").write_text(PROJECT)
    uv("lock", "--upgrade-package", "iniconfig==2.0.0", cwd=folder)
    return folder


def test_uv_restores_the_complete_lock(project):
    complete = (project / "uv.lock").read_text()
    assert 'name = "iniconfig"\nversion = "2.0.0"' in complete
    assert complete.count('name = "numpy"\nversion') >= 2  # one for each fork
    small = portable(complete)
    assert "://" not in small
    assert "package.metadata" not in small
    assert small.count("sha256:") == complete.count("sha256:")
    (project / "uv.lock").write_text(small)
    uv("lock", cwd=project)
    assert (project / "uv.lock").read_text() == complete


def test_once_is_enough(project):
    small = portable((project / "uv.lock").read_text())
    assert portable(small) == small


def test_the_modes(project, tmp_path):
    complete = (project / "uv.lock").read_text()
    small = portable(complete)
    filtered = subprocess.run([sys.executable, SCRIPT, "--filter"], input=complete, text=True, capture_output=True)
    assert filtered.stdout == small

    # The script works on the lock beside its own folder.
    (tmp_path / ".ci").mkdir()
    script = shutil.copy(SCRIPT, tmp_path / ".ci")
    lock = tmp_path / "uv.lock"
    lock.write_text(complete)
    subprocess.run([sys.executable, script], check=True)
    assert lock.read_text() == small

    def git(*arguments):
        subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", *arguments], cwd=tmp_path, check=True)

    def check():
        return subprocess.run([sys.executable, script, "--check"], capture_output=True, text=True)

    git("init", "-q")
    git("add", ".")
    git("commit", "-qm", "portable")
    lock.write_text(complete)
    assert check().returncode == 0
    lock.write_text(complete.replace('version = "2.0.0"', 'version = "2.1.0"'))
    assert check().returncode == 1
    assert "out of date" in check().stderr
    lock.write_text(complete)
    git("commit", "-qam", "complete")
    assert check().returncode == 1
    assert "not portable" in check().stderr

    # As a clean filter, the complete lock never enters a commit.
    git("config", "filter.portable-lock.clean", f"{sys.executable} .ci/portable_lock.py --filter")
    (tmp_path / ".git" / "info" / "attributes").write_text("uv.lock filter=portable-lock\n")
    lock.write_text(complete + "\n")
    git("commit", "-qam", "filtered")
    shown = subprocess.run(["git", "show", "HEAD:uv.lock"], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert shown.stdout == small

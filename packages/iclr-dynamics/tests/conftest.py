import re
from pathlib import Path

import jax
import pytest

from iclr_shared.testing import run_cli

README = Path(__file__).parents[1] / "README.md"
BLOCK = re.compile(r"^```(python|bash)\n(.*?)^```", re.MULTILINE | re.DOTALL)


@pytest.fixture
def x64():
    """float64 for the duration of one test, as the claims themselves run."""
    with jax.enable_x64(True):
        yield


def pytest_generate_tests(metafunc):
    """One test for each code block in the README's sections that the test's module names."""
    if "readme_block" in metafunc.fixturenames:
        sections = dict(part.split("\n", 1) for part in README.read_text(encoding="utf-8").split("\n## ")[1:])
        blocks = [block for name in metafunc.module.SECTIONS for block in BLOCK.findall(sections[name])]
        names = [f"{language}-{index}" for index, (language, _) in enumerate(blocks)]
        metafunc.parametrize("readme_block", blocks, ids=names, indirect=True)


@pytest.fixture(scope="module")
def readme_folder(tmp_path_factory):
    """One for all blocks of a section: a command may read what an earlier one wrote."""
    return tmp_path_factory.mktemp("readme")


@pytest.fixture
def readme_block(request, readme_folder, monkeypatch, capsys):
    """Runs a block: Python as it is, and each `iclr` command through the command line."""
    language, code = request.param
    monkeypatch.chdir(readme_folder)

    def run():
        if language == "python":
            exec(compile(code, str(README), "exec"), {"__name__": "__main__"})
            return
        for line in code.replace("\\\n", " ").splitlines():
            # The claims have their own tests; `iclr run` would repeat them at full size.
            if line.startswith("iclr ") and not line.startswith("iclr run"):
                status, _, error = run_cli(*line.split("#")[0].split()[1:])
                assert status == 0, error

    return run

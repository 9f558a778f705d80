"""Every code block of the README runs: Python as it is, and each `iclr` command through the command line."""

from pathlib import Path

import pytest

from iclr_shared.testing import readme_blocks, run_cli

README = Path(__file__).parents[1] / "README.md"
BLOCKS = [
    pytest.param(language, code, id=f"{language}-{index}")
    for index, (language, code) in enumerate(readme_blocks(README))
    if language in ("python", "bash")
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """One for all blocks: a command may read what an earlier one wrote."""
    return tmp_path_factory.mktemp("readme")


@pytest.mark.parametrize(("language", "code"), BLOCKS)
def test_block_runs(language, code, folder, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    if language == "python":
        exec(compile(code, str(README), "exec"), {"__name__": "__main__"})
        return
    for line in code.replace("\\\n", " ").splitlines():
        # The claims have their own tests; `iclr run` would repeat them at full size.
        if line.startswith("iclr ") and not line.startswith("iclr run"):
            status, _, error = run_cli(*line.split("#")[0].split()[1:])
            assert status == 0, error

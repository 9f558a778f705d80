from pathlib import Path

import pytest

from iclr_shared.testing import readme_blocks, run_cli

README = Path(__file__).parents[1] / "README.md"
BLOCKS = [
    (i, language, code) for i, (language, code) in enumerate(readme_blocks(README)) if language in ("python", "bash")
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("readme")


def test_blocks_run_in_order(folder, monkeypatch):
    monkeypatch.chdir(folder)
    names: dict[str, object] = {}
    ran = 0
    for _, language, code in BLOCKS:
        if language == "python":
            exec(compile(code, str(README), "exec"), names)
            ran += 1
            continue
        for line in code.replace("\\\n", " ").splitlines():
            if line.startswith("iclr prunenet "):
                code_, _, error = run_cli(*line.split()[1:])
                assert code_ == 0, error
                ran += 1
    assert ran >= 4

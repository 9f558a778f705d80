from pathlib import Path

from iclr_shared.testing import readme_blocks, run_cli

README = Path(__file__).parents[1] / "README.md"


def test_blocks_run_in_order(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    ran = 0
    for language, code in readme_blocks(README):
        if language == "python":
            exec(compile(code, str(README), "exec"), names)
            ran += 1
        elif language == "bash":
            import shlex

            for line in code.replace("\\\n", " ").splitlines():
                if line.startswith("iclr subset "):
                    exit_code, _, error = run_cli(*shlex.split(line)[1:])
                    assert exit_code == 0, error
                    ran += 1
    assert ran >= 6

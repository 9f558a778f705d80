import shutil
from pathlib import Path

from iclr_shared.testing import readme_blocks, run_cli

README = Path(__file__).parents[1] / "README.md"


def test_blocks_run_in_order(model_dir, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(model_dir, "MODEL_DIR")
    Path("prompt.txt").write_text("Keys that lie near each other have similar scores. " * 10)
    names: dict[str, object] = {}
    ran = 0
    for language, code in readme_blocks(README):
        if language == "python":
            exec(compile(code, str(README), "exec"), names)
            ran += 1
        elif language == "bash":
            for line in code.replace("\\\n", " ").splitlines():
                if line.startswith("iclr hip "):
                    exit_code, _, error = run_cli(*line.split()[1:])
                    assert exit_code == 0, error
                    ran += 1
    assert ran >= 5

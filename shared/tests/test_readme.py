from pathlib import Path

from iclr_shared.testing import readme_blocks


def test_the_examples_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    blocks = [
        code for language, code in readme_blocks(Path(__file__).parent.parent / "README.md") if language == "python"
    ]
    assert len(blocks) == 2
    for code in blocks:
        exec(compile(code, "README.md", "exec"), {})
    assert capsys.readouterr().out == "('pass', None)\n"

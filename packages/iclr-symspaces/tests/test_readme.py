from pathlib import Path

import numpy as np

from iclr_shared.testing import readme_blocks, run_cli
from iclr_symspaces.covariances import covariances
from iclr_symspaces.simulation import simulate_eeg

README = Path(__file__).parents[1] / "README.md"


def test_blocks_run_in_order(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    data = simulate_eeg(0, 0.0, 0.5, channels=4, time=64, classes=2, train=15, test=10)
    np.savez("epochs.npz", X=data.train, y=data.train_labels)
    np.savez("test.npz", X=data.test, y=data.test_labels)
    np.savez("covariances.npz", X=covariances(data.train), y=data.train_labels)
    np.savez("xi.npz", k=np.eye(4)[None], a=np.array([[2.0, 1.0, 0.0, -1.0]]), p=np.eye(4)[None])
    names, ran = {}, 0
    for language, code in readme_blocks(README):
        if language == "python":
            exec(compile(code, str(README), "exec"), names)
            ran += 1
        elif language == "bash":
            for line in code.replace("\\\n", " ").splitlines():
                if line.startswith("iclr symspaces "):
                    status, _, error = run_cli(*line.split()[1:])
                    assert status == 0, error
                    ran += 1
    assert ran >= 6

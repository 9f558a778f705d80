import os
import signal
import subprocess
import sys

import numpy as np
import pytest

from iclr_shared.checkpoints import Checkpoint, save_arrays
from iclr_shared.errors import InputError, Interrupted, MissingExtra, require
from iclr_shared.files import atomic_path, atomic_write, locked
from iclr_shared.progress import interruptible, progress, raise_if_stopped


def test_atomic_write_replaces_whole(tmp_path):
    path = tmp_path / "new" / "file.txt"
    atomic_write(path, "one λ")
    atomic_write(path, b"two")
    assert path.read_bytes() == b"two"
    assert os.listdir(path.parent) == ["file.txt"]


def test_a_failed_write_leaves_the_old_file_and_no_other(tmp_path):
    path = tmp_path / "file.npz"
    path.write_text("old")
    with pytest.raises(RuntimeError), atomic_path(path) as temporary:  # noqa: PT012
        assert temporary.suffix == ".npz"
        temporary.write_text("half")
        raise RuntimeError
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["file.npz"]


@pytest.mark.parametrize("place", ["file/x", "folder", "a" * 300])
def test_a_place_that_cannot_be_written_says_so(tmp_path, place):
    (tmp_path / "file").write_text("")
    (tmp_path / "folder").mkdir()
    with pytest.raises(InputError, match="Choose another output place"):
        atomic_write(tmp_path / place, "")
    assert sorted(os.listdir(tmp_path)) == ["file", "folder"]


def test_no_name_to_write():
    with pytest.raises(InputError, match="no file's name"):
        atomic_write("", "")


def test_a_lock_names_its_holder_and_is_released(tmp_path):
    with locked(tmp_path):
        code = (
            "import pathlib, sys; from iclr_shared.files import locked; locked(pathlib.Path(sys.argv[1])).__enter__()"
        )
        done = subprocess.run([sys.executable, "-c", code, tmp_path], capture_output=True, text=True)
        assert f"process {os.getpid()}" in done.stderr
    with locked(tmp_path):
        pass


@pytest.fixture
def checkpoint(tmp_path):
    return Checkpoint(tmp_path / "c")


def test_checkpoint_round_trip(checkpoint):
    assert checkpoint.latest() is None
    state = {
        "array": np.arange(6.0).reshape(2, 3),
        "scalar": np.float32(2.5),
        "tree": {"['a']/b c": np.ones(2), "other": np.zeros((0, 3), dtype=np.int8)},
        "raw": b"\x00\x01",
        "json": {"lr": 0.1, "names": ["x", None]},
    }
    checkpoint.save(3, state)
    step, loaded = checkpoint.latest()
    assert step == 3
    np.testing.assert_array_equal(loaded["array"], state["array"])
    assert loaded["scalar"] == 2.5
    assert loaded["scalar"].dtype == np.float32
    assert list(loaded["tree"]) == list(state["tree"])
    assert loaded["tree"]["other"].dtype == np.int8
    assert loaded["raw"] == state["raw"]
    assert loaded["json"] == state["json"]


def test_checkpoint_keeps_the_newest(checkpoint):
    for step in (1, 2, 10):
        checkpoint.save(step, {"x": step})
    assert sorted(os.listdir(checkpoint.folder)) == ["step-10", "step-2"]


@pytest.mark.parametrize("damage", ["flip", "cut", "remove", "manifest"])
def test_a_damaged_checkpoint_is_passed_over(checkpoint, damage):
    checkpoint.save(1, {"x": np.ones(3)})
    checkpoint.save(2, {"x": np.zeros(3)})
    file = checkpoint.folder / "step-2" / ("manifest.json" if damage == "manifest" else "x.npy")
    data = file.read_bytes()
    if damage == "remove":
        file.unlink()
    else:
        file.write_bytes({"flip": bytes([data[0] ^ 1]) + data[1:], "cut": data[:-3], "manifest": b"{"}[damage])
    assert checkpoint.latest()[0] == 1


def test_a_half_written_checkpoint_does_not_count(checkpoint):
    checkpoint.save(1, {"x": 1})
    (checkpoint.folder / "step-2.tmp").mkdir()
    assert checkpoint.steps() == [1]
    assert checkpoint.latest()[0] == 1
    checkpoint.save(2, {"x": 2})
    assert checkpoint.latest() == (2, {"x": 2})


def test_checkpoint_refuses_what_it_cannot_keep(checkpoint):
    with pytest.raises(TypeError):
        checkpoint.save(1, {"x": object()})
    with pytest.raises(InputError, match="must be a word"):
        checkpoint.save(1, {"../x": 1})
    with pytest.raises(InputError, match="at least 1"):
        Checkpoint(checkpoint.folder, keep=0)
    assert checkpoint.latest() is None


def test_due(tmp_path):
    assert Checkpoint(tmp_path, every_s=0).due()
    assert not Checkpoint(tmp_path, every_s=1000).due()


def test_save_arrays(tmp_path):
    save_arrays(tmp_path / "a.npz", x=np.arange(3))
    assert np.load(tmp_path / "a.npz")["x"].tolist() == [0, 1, 2]


def test_progress_prints_lines_where_there_is_no_terminal(capsys):
    assert list(progress([1, 2], desc="work", every=0.0)) == [1, 2]
    assert "work: 2/2" in capsys.readouterr().err
    assert list(progress(iter([1]), desc="work", every=0.0)) == [1]
    assert "work: 1/?" in capsys.readouterr().err
    assert list(progress([1, 2], desc="work", quiet=True)) == [1, 2]
    assert capsys.readouterr().err == ""


def test_progress_on_a_terminal(monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    assert list(progress([1, 2], desc="work")) == [1, 2]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_stops_between_items(number, capsys):
    done = []
    before = signal.getsignal(signal.SIGINT)
    with interruptible() as stop:
        with pytest.raises(Interrupted):  # noqa: PT012
            for item in progress(range(5), desc="x", quiet=True):
                done.append(item)
                if item == 2:
                    signal.raise_signal(number)
        assert stop.is_set()
    assert done == [0, 1, 2]
    assert "again to stop at once" in capsys.readouterr().err
    assert signal.getsignal(signal.SIGINT) is before
    raise_if_stopped()  # asked for, heeded, forgotten


def test_the_second_signal_stops_at_once():
    code = (
        "import signal, time\nfrom iclr_shared.progress import interruptible\n"
        "with interruptible():\n for _ in range(2): signal.raise_signal(signal.SIGTERM)\n time.sleep(30)"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=20).returncode == -signal.SIGTERM


def test_require():
    assert require("json", "x").loads("1") == 1
    with pytest.raises(MissingExtra, match=r"pip install 'iclr-shared\[llm\]'"):
        require("no_such_module", "iclr-shared[llm]")


def test_require_does_not_hide_faults_inside_a_module(tmp_path, monkeypatch):
    (tmp_path / "faulty_module.py").write_text("import not_there_at_all")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ModuleNotFoundError):
        require("faulty_module", "x")

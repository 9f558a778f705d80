import numpy as np
import pytest

from iclr_dynamics.late_sam.images import read, read_cifar, read_npz
from iclr_shared.errors import InputError

RNG = np.random.default_rng(0)


def write_cifar(folder, hundred=False, count=3):
    files = ["train.bin", "test.bin"] if hundred else [f"data_batch_{i}.bin" for i in range(1, 6)] + ["test_batch.bin"]
    head = 2 if hundred else 1
    written = {}
    for name in files:
        records = RNG.integers(0, 256, (count, head + 3072), dtype=np.uint8)
        records[:, :head] %= 10
        records.tofile(folder / name)
        written[name] = records
    return written


def test_cifar10_binary(tmp_path):
    written = write_cifar(tmp_path)
    data = read(tmp_path)
    assert data.x.shape == (15, 32, 32, 3)
    assert data.y_test.shape == (3, 10)
    record = written["data_batch_2.bin"][1]
    assert data.y[4].argmax() == record[0]
    # Red plane first, row by row.
    np.testing.assert_allclose(data.x[4, 2, 5], record[1:].reshape(3, 32, 32)[:, 2, 5] / 255, rtol=1e-6)


def test_cifar100_takes_the_fine_label(tmp_path):
    written = write_cifar(tmp_path, hundred=True)
    data = read_cifar(tmp_path)
    assert data.y.shape == (3, 100)
    assert data.y.argmax(1).tolist() == written["train.bin"][:, 1].tolist()


def arrays(**changes):
    parts = {
        "x_train": RNG.integers(0, 256, (4, 6, 6, 3), dtype=np.uint8),
        "y_train": np.array([0, 1, 2, 1]),
        "x_test": RNG.integers(0, 256, (2, 6, 6, 3), dtype=np.uint8),
        "y_test": np.array([0, 2]),
    }
    return {name: value for name, value in (parts | changes).items() if value is not None}


def test_npz_round_trip(tmp_path):
    parts = arrays()
    np.savez(tmp_path / "data.npz", **parts)
    data = read(tmp_path / "data.npz")
    np.testing.assert_allclose(np.asarray(data.x) * 255, parts["x_train"], atol=1e-4)
    assert data.y.argmax(1).tolist() == [0, 1, 2, 1]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"y_test": None}, "no array y_test"),
        ({"y_train": np.array([0, 1])}, "4 train inputs and 2 labels"),
        ({"y_train": np.array([0, 1, -2, 0])}, "Label -2 of sample 2"),
        ({"y_train": np.array([0.0, 1, 2, 0])}, "one integer for each row"),
        ({"x_test": np.zeros((2, 5, 5, 3))}, "test inputs"),
        ({"x_train": np.full((4, 6, 6, 3), np.nan)}, "finite"),
        ({"y_train": np.array(list("abca"))}, "one integer for each row"),
        ({"y_train": np.array([0, 1, 10**9, 2])}, "number the classes from 0"),
        ({"x_train": np.float32(3)}, "one integer for each row"),
        ({"x_train": np.array([None] * 4)}, "cannot be read"),
    ],
)
def test_bad_npz(tmp_path, changes, message):
    np.savez(tmp_path / "data.npz", **arrays(**changes))
    with pytest.raises(InputError, match=message):
        read_npz(tmp_path / "data.npz")


def test_damaged_npz(tmp_path):
    np.savez(tmp_path / "data.npz", **arrays())
    whole = (tmp_path / "data.npz").read_bytes()
    for damaged in (b"", b"junk", whole[:700]):
        (tmp_path / "data.npz").write_bytes(damaged)
        with pytest.raises(InputError, match="cannot be read"):
            read_npz(tmp_path / "data.npz")


def test_bad_folders(tmp_path):
    with pytest.raises(InputError, match="neither a"):
        read(tmp_path / "nothing")
    with pytest.raises(InputError, match="has neither"):
        read_cifar(tmp_path)
    (tmp_path / "data_batch_1").write_bytes(b"")
    with pytest.raises(InputError, match="pickles are not read for safety"):
        read_cifar(tmp_path)
    write_cifar(tmp_path)
    (tmp_path / "test_batch.bin").write_bytes(b"123")
    with pytest.raises(InputError, match="3 bytes, no multiple of 3073"):
        read_cifar(tmp_path)

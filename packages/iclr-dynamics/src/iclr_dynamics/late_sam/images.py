"""Image data from the user's own files: NumPy archives, and CIFAR-10 and CIFAR-100 in their binary version.

The Python version of CIFAR is made of pickles, which may run code when they are read; it is refused.
"""

from pathlib import Path
from typing import Any, NamedTuple
from zipfile import BadZipFile

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from iclr_dynamics.late_sam.objective import one_hot
from iclr_shared.errors import InputError


class Images(NamedTuple):
    """Training and test data.

    Args:
        x, x_test: (samples, ...) inputs; images are (samples, height, width, channels) in [0, 1].
        y, y_test: (samples, classes) one-hot.
    """

    x: Float[Array, "train ..."]
    y: Float[Array, "train classes"]
    x_test: Float[Array, "test ..."]
    y_test: Float[Array, "test classes"]


#: Files, bytes of labels before each image, and position of the label that counts.
_BINARY = {
    "CIFAR-10": ([f"data_batch_{i}.bin" for i in range(1, 6)], ["test_batch.bin"], 1, 10),
    "CIFAR-100": (["train.bin"], ["test.bin"], 2, 100),
}
_PIXELS = 3 * 32 * 32


def read(path: Path) -> Images:
    """Data from a path: a ``.npz`` file (`read_npz`), or a folder with CIFAR's binary version (`read_cifar`).

    Raises:
        InputError: if it is neither.
    """
    path = Path(path)
    if path.is_dir():
        return read_cifar(path)
    if path.suffix == ".npz" and path.exists():
        return read_npz(path)
    raise InputError(f"{path} is neither a .npz file nor a folder with CIFAR's binary version.")


def read_npz(path: Path) -> Images:
    """A NumPy archive with ``x_train y_train x_test y_test``; labels are integers, 8-bit images are divided by 255.

    Raises:
        InputError: naming what is missing or does not fit.
    """
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
    except (OSError, TypeError, ValueError, EOFError, BadZipFile):
        raise InputError(
            f"{path} cannot be read: it is no NumPy archive, is damaged, or holds pickled objects."
        ) from None
    missing = [name for name in ("x_train", "y_train", "x_test", "y_test") if name not in arrays]
    if missing:
        raise InputError(f"{path} has no array {', '.join(missing)}; it needs x_train, y_train, x_test and y_test.")
    return _images(arrays["x_train"], arrays["y_train"], arrays["x_test"], arrays["y_test"], None, path)


def read_cifar(folder: Path) -> Images:
    """CIFAR-10 or CIFAR-100 (fine labels) from the unpacked archive of the binary version.

    Raises:
        InputError: if the files are not there, are the pickled version, or have a wrong length.
    """
    folder = Path(folder)
    for train, test, labels, classes in _BINARY.values():
        if all((folder / name).is_file() for name in (*train, *test)):
            parts = [_records([folder / name for name in names], labels) for names in (train, test)]
            (x, y), (x_test, y_test) = parts
            return _images(x, y, x_test, y_test, classes, folder)
    if any((folder / name).exists() for name in ("data_batch_1", "train")):
        raise InputError(
            f"{folder} holds the Python version of CIFAR, whose pickles are not read for safety; get the binary one "
            "(data_batch_1.bin ... or train.bin), or convert it to a .npz file."
        )
    raise InputError(
        f"{folder} has neither data_batch_1.bin ... test_batch.bin (CIFAR-10) nor train.bin, test.bin (100)."
    )


def _records(paths: list[Path], labels: int) -> tuple[np.ndarray, np.ndarray]:
    records = []
    for path in paths:
        data = np.fromfile(path, np.uint8)
        if data.size == 0 or data.size % (labels + _PIXELS):
            raise InputError(f"{path} has {data.size} bytes, no multiple of {labels + _PIXELS}: it is damaged.")
        records.append(data.reshape(-1, labels + _PIXELS))
    records = np.concatenate(records)
    images = records[:, labels:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    return images, records[:, labels - 1].astype(np.int64)


def _images(x: Any, y: Any, x_test: Any, y_test: Any, classes: int | None, source: Path) -> Images:
    for name, inputs, labels in (("train", x, y), ("test", x_test, y_test)):
        if inputs.ndim < 2 or labels.ndim != 1 or not np.issubdtype(labels.dtype, np.integer):
            raise InputError(
                f"{source}: y_{name} must hold one integer for each row of x_{name}; they have shapes {labels.shape} "
                f"({labels.dtype}) and {inputs.shape}."
            )
        if len(inputs) != len(labels) or not len(inputs):
            raise InputError(f"{source}: {len(inputs)} {name} inputs and {len(labels)} labels; they must be as many.")
    if x.shape[1:] != x_test.shape[1:]:
        raise InputError(f"{source}: training inputs have shape {x.shape[1:]}, test inputs {x_test.shape[1:]}.")
    classes = classes or int(max(np.max(y), np.max(y_test))) + 1
    if classes > max(len(x), 1000):
        raise InputError(f"{source}: label {classes - 1} would mean {classes} classes; number the classes from 0.")
    scaled = [inputs / np.float32(255) if inputs.dtype == np.uint8 else inputs for inputs in (x, x_test)]
    if not all(np.issubdtype(inputs.dtype, np.floating) and np.isfinite(inputs).all() for inputs in scaled):
        raise InputError(f"{source}: inputs must be 8-bit images or finite floating-point numbers.")
    inputs, test = (jnp.asarray(array, jnp.result_type(float)) for array in scaled)
    return Images(inputs, one_hot(y, classes), test, one_hot(y_test, classes))

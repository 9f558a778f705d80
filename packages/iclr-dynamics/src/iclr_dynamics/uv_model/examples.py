"""The user's files: training examples and network weights, both as ``.npz`` without pickled objects."""

from pathlib import Path
from zipfile import BadZipFile

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from iclr_shared.checkpoints import save_arrays
from iclr_shared.errors import InputError


def read_examples(path: Path) -> tuple[Float[Array, "samples features"], Float[Array, "samples outputs"]]:
    """Inputs and targets of a ``.npz`` file with arrays ``x`` (or ``x_train``) and ``y`` (or ``y_train``).

    Inputs of more than two dimensions are flattened; integer labels become one-hot targets, real ones stay.

    Raises:
        InputError: naming what is missing, of unequal length, or not finite.
    """
    held = _read(path)
    x, y = (held[name] if name in held else held.get(f"{name}_train") for name in ("x", "y"))
    if x is None or y is None:
        raise InputError(f"{path} holds {', '.join(held) or 'nothing'}; arrays named x and y are needed.")
    if x.ndim < 2 or len(x) != len(y) or len(x) == 0:
        raise InputError(
            f"{path}: x has shape {x.shape} and y {y.shape}; as many rows of both are needed, x (rows, ...)."
        )
    if y.ndim > 2:
        raise InputError(f"{path}: y has shape {y.shape}; (rows,) or (rows, outputs) is needed.")
    if np.issubdtype(y.dtype, np.integer) and y.ndim == 1:
        if y.min() < 0:
            raise InputError(f"{path}: the label {y.min()} is negative; labels count from 0.")
        if y.max() >= 100_000:
            raise InputError(f"{path}: the label {y.max()} is too large; labels count from 0, real targets are floats.")
        y = np.eye(int(y.max()) + 1)[y]
    return jnp.asarray(x.reshape(len(x), -1), float), jnp.asarray(y.reshape(len(y), -1), float)


def write_weights(path: Path, params: PyTree) -> None:
    """Save the parameters of `iclr_dynamics.networks.MLP` as arrays ``w0, b0, w1, ...``."""
    save_arrays(path, **{name: np.asarray(value) for name, value in params["params"].items()})


def read_weights(path: Path) -> tuple[PyTree, tuple[int, ...], bool]:
    """Parameters of a fully connected network: ``w0 (inputs, width), b0 (width,), w1, ...`` of a ``.npz`` file.

    Returns:
        The parameters as `iclr_dynamics.networks.MLP` takes them, the output width of each layer, and whether there are
        biases.

    Raises:
        InputError: if a layer is missing, does not fit the one before it, or is not finite.
    """
    held = _read(path)
    depth = sum(name.startswith("w") for name in held)
    if depth == 0 or any(f"w{index}" not in held for index in range(depth)):
        raise InputError(f"{path} holds {', '.join(held) or 'nothing'}; weights named w0, w1, ... are needed.")
    shapes = [held[f"w{index}"].shape for index in range(depth)]
    for index, here in enumerate(shapes):
        if len(here) != 2 or 0 in here:
            raise InputError(f"{path}: w{index} has shape {here}; (inputs, outputs) is needed.")
        if index and shapes[index - 1][1] != here[0]:
            raise InputError(f"{path}: w{index} of shape {here} does not follow w{index - 1} of {shapes[index - 1]}.")
    bias = "b0" in held
    names = [f"{kind}{index}" for index in range(depth) for kind in ("wb" if bias else "w")]
    if missing := [name for name in names if name not in held]:
        raise InputError(f"{path} lacks {', '.join(missing)}.")
    for index in range(depth if bias else 0):
        if held[f"b{index}"].shape != shapes[index][1:]:
            raise InputError(f"{path}: b{index} has shape {held[f'b{index}'].shape}, w{index} {shapes[index]}.")
    params = {"params": {name: jnp.asarray(held[name], float) for name in names}}
    return params, tuple(int(shape[1]) for shape in shapes), bias


def _read(path: Path) -> dict[str, np.ndarray]:
    try:
        with np.load(path, allow_pickle=False) as file:
            held = {name: file[name] for name in file.files}
    except FileNotFoundError:
        raise InputError(f"There is no file {path}.") from None
    except (ValueError, OSError, AttributeError, TypeError, BadZipFile) as error:
        raise InputError(f"{path} is not an .npz file of plain arrays: {error}.") from error
    for name, array in held.items():
        if array.dtype.kind not in "biuf":
            raise InputError(f"{path}: {name} holds {array.dtype}; real numbers are needed.")
        if not np.isfinite(array).all() or np.abs(array).max(initial=0) > np.finfo(np.float32).max:
            raise InputError(f"{path}: {name} holds values that are not finite in single precision.")
    return held

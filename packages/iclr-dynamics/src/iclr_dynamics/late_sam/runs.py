"""Trained networks on disk: a folder with ``model.npz`` (weights by name) and ``run.json`` (how they came about)."""

import json
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from zipfile import BadZipFile

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from iclr_dynamics.late_sam.architectures import architecture
from iclr_dynamics.late_sam.images import Images, read
from iclr_dynamics.late_sam.objective import Model, flax_model
from iclr_dynamics.networks import ACTIVATIONS, MLP, digits
from iclr_shared.adapters import pytree_arrays, pytree_restore
from iclr_shared.checkpoints import save_arrays
from iclr_shared.errors import InputError

#: scikit-learn's digits in [0, 1], 1,000 of them for training, by the key of the split.
unit_digits = partial(digits, train=1000, scale="unit")


class SavedRun(NamedTuple):
    """A trained network: `model` with `params` and `extra`, and the `settings` that it was trained with."""

    model: Model
    params: PyTree
    extra: PyTree
    settings: dict[str, Any]


def read_dataset(name: str) -> Images:
    """Data by name, ``"digits"`` (scikit-learn's in [0, 1], 1,000 for training), or by path (`images.read`)."""
    if name == "digits":
        return Images(*unit_digits(jax.random.key(0)))
    return read(Path(name).expanduser())


def build(network: str, hidden: tuple[int, ...], activation: str, shape: tuple[int, ...], classes: int) -> Model:
    """The network for inputs of one shape.

    Args:
        network: ``"mlp"`` for vectors, else see `architectures.architecture`.
        hidden: widths of the hidden layers of an MLP.
        activation: of an MLP.
        shape: of one input.
        classes: outputs.

    Raises:
        InputError: if the network does not take such inputs.
    """
    if not all(width >= 1 for width in hidden):
        raise InputError(f"The hidden widths {hidden} must be at least 1.")
    if network == "mlp":
        if len(shape) != 1:
            raise InputError(
                f"The network 'mlp' takes vectors, the inputs have shape {shape}; take resnet20, for example."
            )
        if activation not in ACTIVATIONS:
            raise InputError(f"The activation {activation!r} is unknown; take one of {', '.join(ACTIVATIONS)}.")
        return flax_model(MLP((*hidden, classes), activation=activation, sigma_w=3**-0.5))
    if len(shape) != 3:
        raise InputError(
            f"The network {network!r} takes images (height, width, channels), the inputs have shape {shape}."
        )
    return flax_model(architecture(network, classes, normalize=shape[-1] == 3))


def save(folder: Path, params: PyTree, extra: PyTree, settings: dict[str, Any]) -> None:
    """Write ``model.npz`` and ``run.json``."""
    from iclr_shared.files import atomic_write

    save_arrays(folder / "model.npz", **pytree_arrays({"params": params, "extra": extra}))
    atomic_write(folder / "run.json", json.dumps(settings, indent=2) + "\n")


def load(folder: Path) -> SavedRun:
    """A network that `save` wrote.

    Raises:
        InputError: if the folder holds none, or the two files do not fit each other.
    """
    folder = Path(folder)
    try:
        settings = json.loads((folder / "run.json").read_text(encoding="utf-8"))
        with (folder / "model.npz").open("rb") as file, np.load(file, allow_pickle=False) as archive:
            arrays = dict(archive)
        shape, classes = tuple(settings["shape"]), settings["classes"]
        model = build(settings["network"], tuple(settings["hidden"]), settings["activation"], shape, classes)
    except InputError:
        raise
    except (OSError, KeyError, TypeError, ValueError, EOFError, BadZipFile) as error:
        raise InputError(
            f"{folder} holds no trained network, or a damaged one (model.npz and run.json): {error}"
        ) from None
    params, extra = model.init(jax.random.key(0), jnp.zeros((1, *shape)))
    restored = pytree_restore({"params": params, "extra": extra}, arrays)
    return SavedRun(model, restored["params"], restored["extra"], settings)

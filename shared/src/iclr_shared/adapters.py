"""Models in and out of checkpoints: JAX pytrees as named arrays, PyTorch states as bytes."""

import io
from typing import TYPE_CHECKING, Any

from iclr_shared.errors import InputError

if TYPE_CHECKING:
    import numpy as np


def pytree_arrays(tree: Any) -> "dict[str, np.ndarray]":
    """The leaves of a JAX pytree by path, such as ``{"['params']['kernel']": array}``; typed keys as their data."""
    import jax
    import numpy as np

    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {jax.tree_util.keystr(path): np.asarray(_key_data(leaf)) for path, leaf in leaves}


def pytree_restore(template: Any, arrays: "dict[str, np.ndarray]") -> Any:
    """Fill a pytree of the structure, shapes and dtypes of `template` with `arrays` from `pytree_arrays`.

    Raises:
        InputError: naming the first leaf that is missing or has another shape.
    """
    import jax
    import jax.numpy as jnp

    def restore(path, leaf):
        name = jax.tree_util.keystr(path)
        if name not in arrays:
            raise InputError(f"The checkpoint has no entry {name}: it belongs to another model.")
        data, value = _key_data(leaf), arrays[name]
        if jnp.shape(data) != value.shape:
            raise InputError(f"Checkpoint entry {name} has shape {value.shape}, the model wants {jnp.shape(data)}.")
        value = jnp.asarray(value, dtype=jnp.result_type(data))
        return value if data is leaf else jax.random.wrap_key_data(value, impl=jax.random.key_impl(leaf))

    return jax.tree_util.tree_map_with_path(restore, template)


def torch_bytes(state: Any) -> bytes:
    """A PyTorch state dict (or nested containers of tensors and numbers) as bytes."""
    import torch

    buffer = io.BytesIO()
    torch.save(state, buffer)
    return buffer.getvalue()


def torch_restore(data: bytes, device: str = "cpu") -> Any:
    """What `torch_bytes` wrote; loads tensors and plain containers only."""
    import torch

    return torch.load(io.BytesIO(data), map_location=device, weights_only=True)


def _key_data(leaf: Any) -> Any:
    import jax

    is_key = isinstance(leaf, jax.Array) and jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    return jax.random.key_data(leaf) if is_key else leaf

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from iclr_shared.adapters import pytree_arrays, pytree_restore, torch_bytes, torch_restore
from iclr_shared.checkpoints import Checkpoint
from iclr_shared.errors import InputError


def test_a_pytree_with_a_key_goes_through_a_checkpoint(tmp_path):
    tree = {"w": jnp.arange(3.0), "opt": (jnp.int32(4), [jnp.ones((2, 2), jnp.bfloat16)]), "key": jax.random.key(7)}
    tree["opt"][1][0] = tree["opt"][1][0].astype(jnp.float32)
    Checkpoint(tmp_path).save(1, {"tree": pytree_arrays(tree)})
    template = jax.tree.map(lambda leaf: leaf if leaf.dtype == tree["key"].dtype else jnp.zeros_like(leaf), tree)
    restored = pytree_restore(template, Checkpoint(tmp_path).latest()[1]["tree"])
    assert jax.tree.structure(restored) == jax.tree.structure(tree)
    np.testing.assert_array_equal(restored["w"], tree["w"])
    assert restored["opt"][0].dtype == jnp.int32
    assert jax.random.normal(restored["key"]) == jax.random.normal(tree["key"])


def test_another_model_is_refused():
    arrays = pytree_arrays({"w": jnp.ones(3)})
    with pytest.raises(InputError, match=r"shape \(3,\)"):
        pytree_restore({"w": jnp.ones(4)}, arrays)
    with pytest.raises(InputError, match="no entry"):
        pytree_restore({"v": jnp.ones(3)}, arrays)


def test_torch_state(tmp_path):
    model = torch.nn.Linear(2, 3)
    Checkpoint(tmp_path).save(1, {"model": torch_bytes({"model": model.state_dict(), "step": 3})})
    state = torch_restore(Checkpoint(tmp_path).latest()[1]["model"])
    assert state["step"] == 3
    assert torch.equal(state["model"]["weight"], model.weight)

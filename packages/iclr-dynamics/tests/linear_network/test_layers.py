from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from iclr_dynamics.linear_network import kernel_similarity, layer_alignment, layer_changes, tangent_kernel
from iclr_shared.errors import InputError


def chain(seed=0, widths=(6, 5, 4, 3)):
    rng = np.random.default_rng(seed)
    return {f"layer_{i + 8}": rng.standard_normal(shape) for i, shape in enumerate(pairwise(widths))}


def test_alignment_is_that_of_the_leading_singular_vectors():
    params = chain()
    pairs = layer_alignment(params)
    # layer_10 comes after layer_9.
    assert [(p.first, p.second) for p in pairs] == [("layer_8", "layer_9"), ("layer_9", "layer_10")]
    W1, W2 = params["layer_8"].T, params["layer_9"].T  # (outputs, inputs)
    cosine = abs(np.linalg.svd(W2)[2][0] @ np.linalg.svd(W1)[0][:, 0])
    rows, columns = np.linalg.norm(W1, axis=1), np.linalg.norm(W2, axis=0)
    np.testing.assert_allclose(pairs[0].alignment, cosine, rtol=1e-5)
    np.testing.assert_allclose(
        pairs[0].neuron_alignment, rows @ columns / np.linalg.norm(rows) / np.linalg.norm(columns), rtol=1e-6
    )
    np.testing.assert_allclose(pairs[0].first_norm, np.linalg.norm(W1), rtol=1e-6)


def test_layouts_and_nesting_are_the_same_network():
    params = chain()
    torch_like = {name: w.T for name, w in params.items()}
    nested = {"params": {name: {"kernel": jnp.asarray(w), "bias": jnp.zeros(w.shape[1])} for name, w in params.items()}}
    ours = layer_alignment(params)
    for other in (layer_alignment(torch_like, "out-in"), layer_alignment(nested)):
        np.testing.assert_allclose([p.alignment for p in other], [p.alignment for p in ours], rtol=1e-5)
    assert layer_alignment(nested)[0].first == "params/layer_8/kernel"


def test_convolutions_count_channels_as_neurons():
    rng = np.random.default_rng(0)
    flax = {"a": rng.standard_normal((3, 3, 2, 4)), "b": rng.standard_normal((3, 3, 4, 5))}  # h, w, in, out
    torch_like = {name: w.transpose(3, 2, 0, 1) for name, w in flax.items()}  # out, in, h, w
    one, other = layer_alignment(flax)[0], layer_alignment(torch_like, "out-in")[0]
    np.testing.assert_allclose(one[2:], other[2:], rtol=1e-5)
    incoming = np.sqrt((flax["a"] ** 2).sum((0, 1, 2)))
    outgoing = np.sqrt((flax["b"] ** 2).sum((0, 1, 3)))
    expected = incoming @ outgoing / np.linalg.norm(incoming) / np.linalg.norm(outgoing)
    np.testing.assert_allclose(one.neuron_alignment, expected, rtol=1e-5)


def test_changes_are_labelled():
    before = chain()
    aligned = dict(before)
    u1 = np.linalg.svd(before["layer_8"].T)[0][:, 0]
    v = np.random.default_rng(1).standard_normal(4)
    aligned["layer_9"] = before["layer_9"] + 20 * np.outer(u1, v)
    labels = [c.label for c in layer_changes(before, aligned)]
    assert labels[0] == "alignment"
    assert layer_changes(aligned, before)[0].label == "disalignment"
    assert [c.label for c in layer_changes(before, before)] == ["kernel", "kernel"]
    grown = layer_changes(before, {name: 1.1 * w for name, w in before.items()})
    assert [c.label for c in grown] == ["rescaling", "rescaling"]
    np.testing.assert_allclose(grown[0].log_rescaling, 2 * np.log(1.1), rtol=1e-5)


def test_an_output_layer_may_start_at_zero():
    after = chain()
    before = {**after, "layer_10": np.zeros((4, 3))}
    change = layer_changes(before, after)[-1]
    assert (change.before.alignment, change.before.neuron_alignment, change.log_rescaling) == (0, 0, np.inf)
    assert change.label == "alignment"
    assert [c.label for c in layer_changes(before, before)] == ["kernel", "kernel"]


def test_tangent_kernel_is_the_gram_matrix_of_the_jacobian():
    params = {"a": jnp.full((3, 4), 0.3), "b": jnp.asarray(np.arange(8, dtype=np.float32).reshape(4, 2) / 8)}

    def apply(p, x):
        return jnp.tanh(x @ p["a"]) @ p["b"]

    x = jnp.asarray(np.random.default_rng(0).standard_normal((5, 3)), jnp.float32)
    leaves = jax.tree.leaves(jax.jit(jax.jacrev(apply))(params, x))
    jacobian = np.concatenate([np.asarray(j).reshape(5, 2, -1) for j in leaves], axis=-1)
    K = tangent_kernel(apply, params, x)
    np.testing.assert_allclose(K, np.einsum("iop,jop->ij", jacobian, jacobian), rtol=1e-5)
    np.testing.assert_allclose(kernel_similarity(K, 3 * K), 1, rtol=1e-6)
    assert kernel_similarity(K, jnp.asarray(np.diag(np.arange(5, dtype=np.float32)))) < 0.999


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"a": np.ones((3, 4)), "b": np.ones((5, 2))}, r"No two consecutive layers fit .*a 3→4, b 5→2"),
        ({"bias": np.ones(3)}, "Weights found: none"),
        ({"a": np.ones((2, 2)), "b": np.full((2, 2), np.nan)}, "weights b are not finite"),
        ({"a": np.full((2, 2), "x")}, "weights a are no numbers"),
    ],
)
def test_bad_networks(params, message):
    with pytest.raises(InputError, match=message):
        layer_alignment(params)


def test_two_different_networks_are_no_change():
    with pytest.raises(InputError, match="differ in layer_9"):
        layer_changes(chain(), {**chain(), "layer_9": np.ones((5, 2))})

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from iclr_dynamics.late_sam.connectivity import linear_mode_connectivity, reestimate_batch_norm, with_batch_norm
from iclr_dynamics.late_sam.objective import flax_model
from iclr_shared.errors import InputError


def test_barrier_of_a_double_well():
    path = linear_mode_connectivity(
        {"w": jnp.array(-1.0)}, {"w": jnp.array(1.0)}, lambda p: (p["w"] ** 2 - 1) ** 2, np.linspace(-0.2, 1.2, 29)
    )
    assert path.barrier == pytest.approx(1)
    assert path.ends == (0, 0)
    assert not path.same_valley()
    assert path.losses[0] == pytest.approx(0.9216, rel=1e-5)  # w = -1.4 lies outside, and does not count


def test_convex_loss_has_no_barrier():
    path = linear_mode_connectivity(jnp.array(0.0), jnp.array(2.0), lambda w: w**2 + 1)
    assert path.barrier == 0
    assert path.same_valley()
    assert len(path.alphas) == 40


def test_other_shapes_are_refused():
    with pytest.raises(InputError, match="differ in structure or shapes"):
        linear_mode_connectivity(jnp.ones(2), jnp.ones(3), jnp.sum)


class Small(nn.Module):
    @nn.compact
    def __call__(self, x, train: bool = False):
        x = nn.Conv(4, (3, 3), use_bias=False)(x)
        return nn.BatchNorm(use_running_average=not train, momentum=0.9)(x).mean((1, 2))


def test_batch_norm_is_the_mean_of_the_batches():
    model = flax_model(Small())
    images = jnp.asarray(np.random.default_rng(0).random((6, 8, 8, 3), np.float32))
    params, extra = model.init(jax.random.key(1), images)
    fresh = reestimate_batch_norm(model, params, extra, [images[:3], images[3:]])
    first_layer = params["Conv_0"]["kernel"]
    layout = ("NHWC", "HWIO", "NHWC")
    outputs = jax.lax.conv_general_dilated(images, first_layer, (1, 1), "SAME", dimension_numbers=layout)
    statistics = fresh["batch_stats"]["BatchNorm_0"]
    np.testing.assert_allclose(statistics["mean"], outputs.mean((0, 1, 2)), rtol=2e-4, atol=1e-5)
    halves = jnp.stack([outputs[:3].var((0, 1, 2)), outputs[3:].var((0, 1, 2))])
    np.testing.assert_allclose(statistics["var"], halves.mean(0), rtol=2e-4, atol=1e-5)

    seen = []
    score = with_batch_norm(model, lambda params, extra: seen.append(extra) or 0.0, [images[:3], images[3:]])
    score((params, extra))
    jax.tree.map(np.testing.assert_allclose, seen[0], fresh)
    with pytest.raises(InputError, match="No batches"):
        reestimate_batch_norm(model, params, extra, [])
    assert reestimate_batch_norm(model, params, {}, []) == {}

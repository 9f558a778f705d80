from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.flatten_util import ravel_pytree

from iclr_dynamics.networks import MLP, digits, gradient_descent, network_loss
from iclr_dynamics.uv_model import tracking
from iclr_dynamics.uv_model.tracking import train_and_track
from iclr_shared.checkpoints import Checkpoint
from iclr_shared.errors import InputError
from iclr_shared.testing import Killed, fault_inject

MODEL = MLP((6, 10), "tanh")
MOMENTUM = partial(optax.sgd, momentum=0.9)


@pytest.fixture(scope="module")
def data():
    return digits(jax.random.key(0), train=40)


@pytest.fixture(scope="module")
def params(data):
    return jax.jit(MODEL.init)(jax.random.key(1), data.x)


def test_records_are_those_of_plain_training_and_of_the_dense_hessian(data, params):
    track = train_and_track(
        MODEL, params, data.x, data.y, eta=0.02, steps=40, every=10, trace_samples=60, ntk=True, key=jax.random.key(5)
    )
    loss = network_loss(MODEL)
    plain = gradient_descent(loss, params, data.x, data.y, learning_rate=0.02, steps=40)
    np.testing.assert_array_equal(track.step, [0, 10, 20, 30, 40])
    np.testing.assert_allclose(track.loss[:-1], plain.losses[::10], rtol=1e-4)
    flat, unravel = ravel_pytree(track.params)
    dense = np.asarray(jax.jit(jax.hessian(lambda w: loss(unravel(w), data.x, data.y)))(flat))
    assert track.sharpness[-1] == pytest.approx(np.linalg.eigvalsh(dense)[-1], rel=2e-3)
    assert track.trace[-1] == pytest.approx(np.trace(dense), rel=0.3)
    jacobian = jax.jit(jax.jacobian(lambda w: MODEL.apply(unravel(w), data.x).ravel()))(flat)
    kernel = np.linalg.eigvalsh(np.asarray(jacobian @ jacobian.T))[-1] / len(data.x)
    assert track.ntk[-1] == pytest.approx(kernel, rel=2e-3)
    assert track.diverged == -1
    assert len(track.late()) == 1


def test_divergence_stops_the_run_and_names_it(data, params):
    track = train_and_track(MODEL, params, data.x, data.y, eta=50.0, steps=100, every=10)
    assert 0 < track.diverged < 100
    assert track.step[-1] == track.diverged
    assert track.regimes().label == "divergent"


@pytest.mark.parametrize("options", [{}, {"optimizer": MOMENTUM}, {"batch_size": 8}])
def test_a_killed_run_resumes_to_the_same_numbers(data, params, options, tmp_path, monkeypatch):
    def train(folder):
        checkpoint = Checkpoint(folder, every_s=0)
        return train_and_track(
            MODEL, params, data.x, data.y, eta=0.02, steps=40, every=10, key=jax.random.key(2), checkpoint=checkpoint,
            **options,
        )  # fmt: skip

    whole = train(tmp_path / "whole")
    monkeypatch.setattr(tracking, "gradient_descent", fault_inject(gradient_descent, 2))
    with pytest.raises(Killed):
        train(tmp_path / "cut")
    monkeypatch.setattr(tracking, "gradient_descent", gradient_descent)
    resumed = train(tmp_path / "cut")
    np.testing.assert_array_equal(resumed.loss, whole.loss)
    np.testing.assert_allclose(resumed.sharpness, whole.sharpness, rtol=1e-6)
    again = train(tmp_path / "cut")  # finished: nothing left to do
    np.testing.assert_array_equal(again.loss, whole.loss)


def test_another_run_in_the_same_folder_is_refused(data, params, tmp_path):
    fixed = {"params": params, "x": data.x, "y": data.y, "steps": 10, "every": 10}
    go = partial(train_and_track, MODEL, **fixed, checkpoint=Checkpoint(tmp_path))
    go(eta=0.02)
    other = jax.tree.map(lambda leaf: leaf + 1, params)
    for changed in ({"eta": 0.03}, {"batch_size": 8, "key": jax.random.key(0)}, {"params": other}, {"y": data.y + 1}):
        with pytest.raises(InputError, match="holds another run"):
            go(**{"eta": 0.02, **changed})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"steps": 15}, "multiple of every=10"),
        ({"eta": -1.0}, "eta=-1 must be positive"),
        ({"batch_size": 4}, "give a key"),
        ({"trace_samples": 4}, "give a key"),
        ({"batch_size": 100, "key": jnp.zeros(2, jnp.uint32)}, "batch_size=100: there are 40 samples"),
    ],
)
def test_bad_input(data, params, options, message):
    options = {"eta": 0.1, "steps": 20, "every": 10, **options}
    with pytest.raises(InputError, match=message):
        train_and_track(MODEL, params, data.x, data.y, **options)

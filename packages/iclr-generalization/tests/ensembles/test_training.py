import jax
import numpy as np
import pytest

from iclr_generalization.ensembles import training
from iclr_generalization.ensembles.training import MLP, Training, digits, predict, train_ensemble
from iclr_shared.errors import InputError
from iclr_shared.testing import Killed, fault_inject

SHORT = Training(epochs=5, group=2)
NET = MLP((12, 10))


@pytest.fixture(scope="module")
def data():
    return digits(np.random.default_rng(0), 200)


def test_members_learn_and_differ(data):
    params = train_ensemble(NET, data.x, data.y, 4, jax.random.key(0), training=Training(epochs=150, group=2))
    preds = predict(NET, params, data.x_test)
    assert preds.shape == (4, len(data.y_test), 10)
    np.testing.assert_allclose(preds.sum(2), 1)
    assert ((preds.argmax(2) == data.y_test).mean(1) > 0.6).all()
    assert np.abs(preds[0] - preds[1]).max() > 0.01


def test_a_member_does_not_depend_on_the_others(data):
    few = train_ensemble(NET, data.x, data.y, 2, jax.random.key(0), training=SHORT)
    more = train_ensemble(NET, data.x, data.y, 4, jax.random.key(0), training=SHORT)
    jax.tree.map(lambda one, other: np.testing.assert_array_equal(one, other[:2]), few, more)


def test_a_killed_training_trains_the_missing_members_only(data, tmp_path, monkeypatch):
    whole = train_ensemble(NET, data.x, data.y, 4, jax.random.key(1), training=SHORT)
    real = training._train_group
    calls = []
    monkeypatch.setattr(training, "_train_group", fault_inject(real, 1))
    with pytest.raises(Killed):
        train_ensemble(NET, data.x, data.y, 4, jax.random.key(1), training=SHORT, folder=tmp_path)
    monkeypatch.setattr(training, "_train_group", lambda *a: calls.append(1) or real(*a))
    resumed = train_ensemble(NET, data.x, data.y, 4, jax.random.key(1), training=SHORT, folder=tmp_path)
    assert len(calls) == 1
    jax.tree.map(np.testing.assert_array_equal, resumed, whole)
    train_ensemble(NET, data.x, data.y, 2, jax.random.key(2), training=SHORT, folder=tmp_path)
    assert len(calls) == 2  # another key is not mistaken for this one
    short = train_ensemble(NET, data.x, data.y, 1, jax.random.key(1), training=SHORT, folder=tmp_path / "more")
    train_ensemble(NET, data.x[:, ::-1].copy(), data.y, 2, jax.random.key(1), training=SHORT, folder=tmp_path / "more")
    assert len(calls) == 4  # nor are other data
    more = train_ensemble(NET, data.x, data.y, 2, jax.random.key(1), training=SHORT, folder=tmp_path / "more")
    assert len(calls) == 5
    jax.tree.map(lambda one, other: np.testing.assert_array_equal(one[0], other[0]), short, more)


def test_bad_input(data):
    key = jax.random.key(0)
    for message, arguments in {
        "at least 1": (data.x, data.y, 0, key),
        "labels for": (data.x, data.y[:-1], 2, key),
    }.items():
        with pytest.raises(InputError, match=message):
            train_ensemble(NET, *arguments)
    with pytest.raises(InputError, match="batch_size"):
        train_ensemble(NET, data.x[:9], data.y[:9], 2, key)
    with pytest.raises(InputError, match="positive"):
        train_ensemble(NET, data.x, data.y, 2, key, training=Training(epochs=0))
    with pytest.raises(InputError, match="1797 digits"):
        digits(np.random.default_rng(0), 1797)

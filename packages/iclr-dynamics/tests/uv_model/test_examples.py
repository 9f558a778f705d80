import jax
import numpy as np
import pytest

from iclr_dynamics.networks import MLP
from iclr_dynamics.uv_model.examples import read_examples, read_weights, write_weights
from iclr_shared.errors import InputError


def test_weights_round_trip(tmp_path):
    model = MLP((4, 3, 2), "tanh")
    params = jax.jit(model.init)(jax.random.key(0), np.ones((1, 5), np.float32))
    write_weights(tmp_path / "w.npz", params)
    back, features, bias = read_weights(tmp_path / "w.npz")
    assert (features, bias) == ((4, 3, 2), True)
    x = jax.random.normal(jax.random.key(1), (6, 5))
    np.testing.assert_array_equal(model.apply(back, x), model.apply(params, x))


def test_examples_are_flattened_and_labels_become_one_hot(tmp_path):
    np.savez(tmp_path / "a.npz", x_train=np.ones((3, 2, 2)), y_train=np.array([0, 2, 1]))
    x, y = read_examples(tmp_path / "a.npz")
    assert x.shape == (3, 4)
    np.testing.assert_array_equal(y, np.eye(3)[[0, 2, 1]])
    np.savez(tmp_path / "b.npz", x=np.ones((3, 4)), y=np.array([0.5, 1.5, 2.5]))
    assert read_examples(tmp_path / "b.npz")[1].shape == (3, 1)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x": np.ones((3, 2))}, "holds x; arrays named x and y are needed"),
        ({"x": np.ones((3, 2)), "y": np.ones(2)}, "as many rows of both"),
        ({"x": np.ones(3), "y": np.ones(3)}, "as many rows of both"),
        ({"x": np.full((3, 2), "a"), "y": np.ones(3)}, "x holds <U1; real numbers"),
        ({"x": np.ones((3, 2)), "y": 1j * np.ones(3)}, "y holds complex128; real numbers"),
        ({"x": np.full((3, 2), 1e300), "y": np.ones(3)}, "x holds values that are not finite in single"),
        ({"x": np.ones((3, 2)), "y": np.ones((3, 2, 2))}, "rows, outputs"),
        ({"x": np.ones((3, 2)), "y": np.array([10**9, 1, 2])}, "label 1000000000 is too large"),
        ({"x": np.full((3, 2), np.nan), "y": np.ones(3)}, "not finite"),
        ({"x": np.ones((3, 2)), "y": np.array([-1, 0, 1])}, "label -1 is negative"),
    ],
)
def test_bad_examples(tmp_path, arrays, message):
    np.savez(tmp_path / "a.npz", **arrays)
    with pytest.raises(InputError, match=message):
        read_examples(tmp_path / "a.npz")


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"kernel": np.ones((3, 2))}, "weights named w0"),
        ({"w0": np.ones((3, 2)), "w2": np.ones((2, 2))}, "weights named w0"),
        ({"w0": np.ones((3, 2)), "w1": np.ones((3, 2))}, r"w1 of shape \(3, 2\) does not follow"),
        ({"w0": np.ones((3, 2)), "b0": np.ones(2), "w1": np.ones((2, 2))}, "lacks b1"),
        ({"w0": np.array(1.0)}, r"w0 has shape \(\)"),
        ({"w0": np.ones((3, 2)), "b0": np.ones(7)}, r"b0 has shape \(7,\)"),
        ({"w0": np.full((3, 2), np.nan)}, "w0 holds values that are not finite"),
    ],
)
def test_bad_weights(tmp_path, arrays, message):
    np.savez(tmp_path / "a.npz", **arrays)
    with pytest.raises(InputError, match=message):
        read_weights(tmp_path / "a.npz")


def test_files_that_are_none(tmp_path):
    with pytest.raises(InputError, match="There is no file"):
        read_examples(tmp_path / "none.npz")
    (tmp_path / "text.npz").write_text("hello")
    with pytest.raises(InputError, match=r"not an \.npz file"):
        read_examples(tmp_path / "text.npz")

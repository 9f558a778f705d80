from dataclasses import replace

import jax
import numpy as np
import pytest

from iclr_dynamics.linear_network import DeepRun, ridge_accuracy, train
from iclr_dynamics.networks import digits
from iclr_shared.errors import InputError

RUN = DeepRun(hidden=(64, 64), epochs=300)  # as in test_claims.py, so that nothing compiles twice


@pytest.fixture(scope="module")
def data():
    return digits(jax.random.key(0), train=200)


def test_small_and_large_starts_differ_as_feature_learning_and_lazy(data):
    key = jax.random.key(1)
    small, lazy = (train(replace(RUN, init_scale=scale), data, key) for scale in (0.3, 10.0))
    assert small.kernel_change > 100 * abs(lazy.kernel_change)
    assert abs(lazy.alignment - lazy.alignment0) < 0.01
    assert abs(lazy.log_rescaling) < 0.01 < small.log_rescaling
    assert [c.label for c in lazy.changes] == ["kernel", "kernel"]
    assert abs(small.alignment0 - lazy.alignment0) < 1e-4  # the same directions at every scale
    assert np.isclose(small.losses[0], 0.5)  # the output starts at zero, the labels are one-hot
    assert lazy.train_loss < 0.45
    assert lazy.train_accuracy > 0.8


def test_layer_rates_move_the_last_layer_more(data):
    ratios = {}
    for ratio in (0.1, 10.0):
        change = train(replace(RUN, rate_ratio=ratio, epochs=5), data, jax.random.key(1)).changes[-1]
        ratios[ratio] = abs(np.log(change.after.second_norm / change.before.second_norm))
    assert ratios[10.0] > 10 * ratios[0.1]


def test_ridge_regression_is_a_fair_baseline(data):
    assert 0.8 < ridge_accuracy(data) < 0.97


def test_a_diverging_run_says_so(data):
    with pytest.raises(InputError, match=r"diverged at init_scale=1\.0: take a smaller step than 1e\+30"):
        train(replace(RUN, step=1e30), data, jax.random.key(0))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"init_scale": 0.0}, "init_scale must be positive and finite"),
        ({"step": float("inf")}, "step must be positive and finite"),
        ({"kernel_samples": 1}, "kernel_samples must be at least 2"),
        ({"hidden": (4, 0)}, "at least one neuron"),
        ({"rate_ratio": -1.0}, "rate_ratio must be positive"),
        ({"epochs": 0}, "at least one epoch and one hidden layer"),
        ({"hidden": ()}, "one hidden layer, each"),
    ],
)
def test_bad_runs(options, message):
    with pytest.raises(InputError, match=message):
        DeepRun(**options)

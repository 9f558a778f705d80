import math

import numpy as np
import pytest

from iclr_dynamics.linear_network import LinearNet, classify, integrate_flow, mechanism, prototypes, rate, unit_data


@pytest.fixture(autouse=True)
def _double(x64):
    """Everything here is in double precision."""


@pytest.mark.parametrize("name", ["alignment", "disalignment", "rescaling"])
def test_prototypes_have_their_labels(name):
    net, data, layers = prototypes(np.random.default_rng(1), 100)[name]
    found = mechanism(net, data, *layers)
    assert found.label == name
    assert abs(found.log_alignment + found.log_rescaling - math.log(abs(found.F / found.F0))) < 1e-9
    assert abs(found.alignment_share + found.rescale_share - 1) < 1e-12
    assert abs(found.F - 1) < 1e-12


def test_the_numbers_are_those_of_the_integrated_weights():
    net, data, layers = prototypes(np.random.default_rng(1), 100)["disalignment"]
    t = 1.0 / rate(net, data, *layers)
    found = mechanism(net, data, *layers, t)
    u, w = (x[0] for x in integrate_flow(net, data, *layers, [t]))
    layers = [np.asarray(layer) for layer in layers]
    norms = np.linalg.norm(u) * np.linalg.norm(w)
    norms0 = np.linalg.norm(layers[0]) * np.linalg.norm(layers[1])
    kernels = [net.eta_w * a @ a + net.eta_u * np.sum(b**2) for a, b in ((u, w), layers)]
    np.testing.assert_allclose(found.F, net.gamma * u @ w[:, 0], rtol=1e-8)
    np.testing.assert_allclose(found.zeta, u @ w[:, 0] / norms, rtol=1e-8)
    np.testing.assert_allclose(found.log_rescaling, np.log(norms / norms0), rtol=1e-8)
    np.testing.assert_allclose(found.K_ratio, kernels[0] / kernels[1], rtol=1e-8)


def test_one_neuron_only_rescales():
    found = mechanism(LinearNet(1.0), unit_data(), np.array([0.3]), np.array([[0.1]]))
    assert found.labels == ("rescaling",)
    assert found.alignment_share == 0


def test_a_sign_flip_is_reported():
    found = mechanism(LinearNet(0.5), unit_data(1, 2.0), np.array([1.0, 0.5, -0.3]), np.array([[0.2], [-0.4], [0.8]]))
    assert found.sign_flip
    assert found.label == "alignment"


def test_degenerate_starts_and_ends():
    silent = mechanism(LinearNet(1.0), unit_data(), np.array([1.0, 1.0, 0.0]), np.array([[1.0], [-1.0], [0.0]]))
    assert silent.log_alignment == math.inf
    assert silent.alignment_share == 1
    with pytest.warns(RuntimeWarning, match="it stops at F=0"):
        stuck = mechanism(LinearNet(1.0), unit_data(1, -1.0), np.array([0.3]), np.array([[0.3]]))
    assert (stuck.F, stuck.zeta, stuck.log_rescaling) == (0, 1, -math.inf)  # aligned to the end
    assert stuck.labels == ("rescaling",)
    with pytest.warns(RuntimeWarning, match="stays at zero for ever"):
        saddle = mechanism(LinearNet(1.0), unit_data(), np.zeros(3), np.zeros((3, 1)))
    assert (saddle.F, saddle.K_ratio, saddle.label) == (0, 1, "kernel")
    nothing = mechanism(LinearNet(1.0), unit_data(1, 0.0), np.array([1.0, 0.3, 0.0]), np.array([[0.2], [1.0], [0.0]]))
    assert (nothing.F, nothing.sign_flip) == (0, False)
    with pytest.raises(ValueError, match="finite numbers >= 0"):
        mechanism(LinearNet(1.0), unit_data(), np.ones(1), np.ones((1, 1)), -1.0)


@pytest.mark.parametrize(
    ("numbers", "labels"),
    [
        ((0.04, 0.5, 1.0), ("kernel",)),
        ((0.5, 0.06, 0.04), ("alignment",)),
        ((0.5, 0.06, -0.06), ("alignment", "rescaling")),
        ((-0.5, -0.06, 3.0), ("disalignment", "rescaling")),
        ((0.5, 0.04, 0.0), ("rescaling",)),
    ],
)
def test_labels_follow_the_thresholds(numbers, labels):
    assert classify(*numbers) == labels

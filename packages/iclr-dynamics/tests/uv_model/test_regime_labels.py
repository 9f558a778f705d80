import numpy as np
import pytest

from iclr_dynamics.uv_model.regime_labels import regimes
from iclr_shared.errors import InputError

FLAT = np.ones(40)


def test_each_regime_and_their_thresholds():
    falling = np.concatenate([[10.0], np.full(39, 9.0)])
    assert regimes(falling, FLAT, 0.01).label == "reduction"
    assert regimes(np.concatenate([[10.0], np.full(39, 9.6)]), FLAT, 0.01).label == "steady"
    assert regimes(np.linspace(1, 1.06, 40), FLAT, 0.01).label == "sharpening"
    assert regimes(np.linspace(1, 1.04, 40), FLAT, 0.01).label == "steady"
    valley = np.concatenate([[10.0], np.full(19, 5.0), np.full(20, 6.0)])
    assert regimes(valley, FLAT, 0.01).label == "reduction, sharpening"


def test_edge_needs_the_band_and_a_crossing_or_a_loss_that_stays():
    around, loss = np.tile([19.0, 23.0], 20), np.full(40, 1e-3)
    assert regimes(around, loss, 0.1).edge
    assert not regimes(around, loss, 0.05).edge
    assert regimes(around, np.full(40, 1e-12), 0.1).edge
    assert not regimes(np.full(40, 19.0), np.full(40, 1e-12), 0.1).edge
    assert regimes(np.full(40, 19.0), loss, 0.1).edge


def test_divergence():
    for bad in (np.full(40, 2e6), np.full(40, np.nan)):
        assert regimes(FLAT, bad, 0.1).label == "divergent"
    assert regimes(np.full(40, np.inf), FLAT, 0.1).divergent


def test_bad_input():
    with pytest.raises(InputError, match="40 records of sharpness and 3 of loss"):
        regimes(FLAT, np.ones(3), 0.1)
    with pytest.raises(InputError, match="3 records are too few"):
        regimes(np.ones(3), np.ones(3), 0.1)

import numpy as np
import pytest

from iclr_generalization.modular.recovery import module_recovery, principal_cosines
from iclr_shared.errors import InputError


def test_cosines_of_known_planes():
    angle = 0.3
    B = np.array([[1.0, 0, 0], [0, np.cos(angle), np.sin(angle)]])
    np.testing.assert_allclose(principal_cosines(np.eye(3)[:2], B), [1, np.cos(angle)])


def test_signs_order_and_rotations_mean_nothing():
    rng = np.random.default_rng(0)
    true = rng.normal(size=(3, 2, 8))
    turned = np.array([[0.6, 0.8], [-0.8, 0.6]]) @ true[[2, 0, 1]]
    assert module_recovery(-turned, true) == pytest.approx(1)


def test_a_module_counts_once():
    true = np.eye(4)[:3, None]
    assert module_recovery(np.repeat(true[:1], 3, 0), true) == pytest.approx(1 / 3)


def test_missing_modules_count_nothing():
    true = np.eye(4)[:3, None]
    assert module_recovery(true[:2], true) == pytest.approx(2 / 3)
    assert module_recovery(np.zeros((0, 1, 4)), true) == 0


def test_other_inputs_cannot_be_compared():
    with pytest.raises(InputError, match="4 and 5 inputs"):
        module_recovery(np.ones((1, 1, 4)), np.ones((1, 1, 5)))

import numpy as np
import pytest

from iclr_generalization.modular.dictionaries import (
    grid_features,
    interpolation_error,
    modular_features,
    monolithic_features,
    smallest_sample,
)
from iclr_shared.errors import InputError


@pytest.mark.parametrize("C", [1, 2, 3, 5])
def test_features_are_orthonormal(C):
    t = (np.arange(2000) + 0.5) / 1000 - 1  # midpoint rule, exact for these waves
    phi = grid_features(t, C)
    np.testing.assert_allclose(phi.T @ phi / len(t), np.eye(C), atol=1e-12)


def test_sizes_and_constant():
    x = np.random.default_rng(0).uniform(-1, 1, (400, 4))
    assert monolithic_features(x).shape == (400, 81)
    modular = modular_features(x, 3, 1)
    # The constant occurs once: rank 7, not 9.
    assert modular.shape == (400, 7)
    assert np.linalg.matrix_rank(modular) == 7
    assert modular_features(x, 2, 2).shape == (400, 17)
    np.testing.assert_array_equal(modular[:, 0], 1)


def test_modular_features_are_among_all_products():
    x = np.random.default_rng(0).uniform(-1, 1, (100, 3))
    rest = np.linalg.lstsq(monolithic_features(x), modular_features(x, 3, 1), rcond=None)[1]
    assert np.all(rest < 1e-20)


def test_a_module_too_many():
    with pytest.raises(InputError, match="need 6"):
        modular_features(np.zeros((5, 4)), 3, 2)


def test_minimum_norm_error_is_one_minus_the_ratio():
    rng = np.random.default_rng(0)
    error = interpolation_error(monolithic_features, monolithic_features, 3, 12, rng, 200)
    assert error == pytest.approx(1 - 12 / 27, abs=0.08)


def test_exact_and_measured_errors_agree():
    rng = np.random.default_rng(0)
    exact = interpolation_error(monolithic_features, monolithic_features, 2, 5, rng, 300)
    measured = interpolation_error(lambda x: monolithic_features(x), monolithic_features, 2, 5, rng, 300)
    assert measured == pytest.approx(exact, rel=0.2)


def test_bisection():
    rng = np.random.default_rng(0)
    assert smallest_sample(monolithic_features, monolithic_features, 2, rng, most=30) == 9
    assert smallest_sample(monolithic_features, monolithic_features, 3, rng, most=10, repeats=10) is None

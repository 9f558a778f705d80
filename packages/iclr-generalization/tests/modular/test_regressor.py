import numpy as np
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

from iclr_generalization.modular import ModularRegressor, NoModuleFound, Search, Training
from iclr_shared.errors import InputError

SETTINGS = {
    "hidden": 16,
    "restarts": 8,
    "search": Search(steps=60, learning_rate=0.1, null=16, group=4),
    "training": Training(steps=300, learning_rate=5e-3),
}


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(250, 6)) * np.array([1, 10, 0.1, 1, 1, 1]) + 3
    y = 100 + 20 * np.sin(1.5 * (X[:, 0] - 3)) + 15 * np.cos(0.15 * (X[:, 1] - 3))
    return X[:150], y[:150], X[150:], y[150:]


@pytest.fixture(scope="module")
def fitted(data):
    return ModularRegressor(2, 1, **SETTINGS).fit(data[0], data[1])


def test_it_predicts(fitted, data):
    assert fitted.predict(data[2]).shape == (100,)
    assert fitted.score(data[2], data[3]) > 0.8
    assert len(fitted.losses_) == 300
    assert fitted.projections_.shape == (2, 1, 6)


def test_contributions_add_up(fitted, data):
    parts = fitted.contributions(data[2])
    np.testing.assert_allclose(parts.sum(0)[:, 0] + data[1].mean(), fitted.predict(data[2]), rtol=1e-4)


def test_round_trip(fitted, data, tmp_path):
    fitted.save(tmp_path / "model.npz")
    loaded = ModularRegressor.load(tmp_path / "model.npz")
    np.testing.assert_array_equal(loaded.predict(data[2]), fitted.predict(data[2]))
    np.testing.assert_array_equal(loaded.modules_.U, fitted.modules_.U)
    assert loaded.n_modules == 2
    np.savez(tmp_path / "other.npz", a=1)
    for name in ("other.npz", "none.npz"):
        with pytest.raises(InputError, match="no regressor"):
            ModularRegressor.load(tmp_path / name)


def test_columns_of_targets(data, fitted):
    both = np.stack([data[1], data[1] ** 2], 1)
    model = ModularRegressor(2, 1, **SETTINGS).fit(data[0], both)
    assert model.predict(data[2]).shape == (100, 2)


def test_sklearn_manners(data, fitted):
    model = clone(fitted)
    assert model.get_params()["n_modules"] == 2
    with pytest.raises(NotFittedError):
        model.predict(data[2])
    with pytest.raises(ValueError, match="6 features"):
        fitted.predict(data[2][:, :4])
    with pytest.raises(ValueError, match="NaN"):
        model.fit(np.where(data[0] > 5, np.nan, data[0]), data[1])


def test_noise_is_refused(data):
    with pytest.raises(NoModuleFound):
        ModularRegressor(2, 1, **SETTINGS).fit(data[0], np.random.default_rng(1).normal(size=150))

"""Feature selection within scikit-learn."""

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.datasets import load_diabetes, make_classification
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline

from iclr_shared.errors import InputError
from iclr_subset.baselines import search
from iclr_subset.selector import FeatureCost, SubsetSelector


@pytest.fixture(scope="module")
def data():
    X, y = load_diabetes(return_X_y=True)
    return X[:200, :8], y[:200]


def test_finds_the_best_features(data):
    X, y = data
    selector = SubsetSelector(Ridge(0.1), 2, cv=3, budget=25).fit(X, y)
    assert selector.transform(X).shape == (200, 2)
    assert selector.get_support().sum() == 2
    chosen = np.flatnonzero(selector.support_)
    assert selector.cost_ == pytest.approx(-cross_val_score(Ridge(0.1), X[:, chosen], y, cv=3).mean())
    every = SubsetSelector(Ridge(0.1), 2, cv=3, strategy="enumerate", budget=28).fit(X, y)
    assert selector.cost_ <= np.quantile([e.cost for e in every.result_.calls], 0.1)
    assert selector.inclusion_.sum() == pytest.approx(2)


def test_clone_pipeline_and_grid(data):
    X, y = data
    selector = SubsetSelector(Ridge(), 3, cv=2, budget=6, batch=2)
    assert clone(selector).get_params()["budget"] == 6
    pipeline = make_pipeline(selector, Ridge()).fit(X, y)
    assert pipeline.predict(X).shape == y.shape
    grid = GridSearchCV(pipeline, {"subsetselector__k": [1, 2]}, cv=2).fit(X, y)
    assert grid.best_params_["subsetselector__k"] in (1, 2)
    frame = pd.DataFrame(X, columns=[f"x{i}" for i in range(8)])
    named = clone(selector).set_output(transform="pandas").fit(frame, y)
    assert list(named.get_feature_names_out()) == named.chosen_ == list(named.transform(frame).columns)


def test_classes_and_formulation_b():
    X, y = make_classification(120, 8, n_informative=3, n_redundant=0, shuffle=False, random_state=0)
    selector = SubsetSelector(LogisticRegression(), 3.5, cv=3, method="expected", budget=30).fit(X, y)
    assert 1 <= selector.get_support().sum() <= 8
    assert selector.cost_ < -0.7


def test_cost_against_search(data):
    X, y = data
    folds = [(np.arange(100), np.arange(100, 200))]
    cost = FeatureCost(Ridge(), X, y, folds)
    found = search("greedy", cost, 8, 2)
    assert found.cost == -Ridge().fit(X[:100, found.subset], y[:100]).score(X[100:, found.subset], y[100:])


def test_bad_input(data):
    X, y = data
    with pytest.raises(InputError, match="below n = 8"):
        SubsetSelector(Ridge(), 9).fit(X, y)
    with pytest.raises(ValueError, match="NaN"):
        SubsetSelector(Ridge(), 2).fit(np.full_like(X, np.nan), y)
    with pytest.raises(InputError, match=r"The cost of .* failed: ValueError"):
        SubsetSelector(Ridge(), 2, scoring="accuracy").fit(X, y)

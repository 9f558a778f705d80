"""Feature selection as a scikit-learn transformer: the cost of a subset is the estimator's cross-validated loss on
it."""

from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, MetaEstimatorMixin, clone, is_classifier
from sklearn.dummy import DummyClassifier, DummyRegressor
from sklearn.feature_selection import SelectorMixin
from sklearn.metrics import check_scoring
from sklearn.model_selection import check_cv, cross_val_score
from sklearn.utils.validation import check_is_fitted, validate_data

from iclr_shared.errors import InputError
from iclr_subset.baselines import search
from iclr_subset.minimize import minimize


class SubsetSelector(MetaEstimatorMixin, SelectorMixin, BaseEstimator):
    """Choose k features for an estimator (Greenstein et al., ICLR 2025).

    Args:
        estimator: classifier or regressor; cloned for every fit.
        k: features to keep; in formulation B about that many.
        cv: folds, a number or splitter of scikit-learn, fixed once for all subsets.
        scoring: of scikit-learn; None is the estimator's own. The cost is minus the mean score.
        method: ``"exact"`` or ``"expected"``.
        strategy: ``"mirror"``, or one of `baselines.STRATEGIES`, with the same evaluations.
        budget: subsets to evaluate.
        batch: subsets drawn in a step; they are evaluated in parallel.
        eta, c: step length and floor; None are the defaults.
        n_jobs: workers.
        random_state: seed, or None for an unpredictable one.

    Attributes:
        support_: chosen features, shape (n_features,).
        cost_: minus their mean cross-validated score.
        result_: all else: a `Result`, or a `Found`.
        inclusion_: probability of each feature in the end, where the strategy is mirror.
    """

    def __init__(
        self,
        estimator,
        k=5,
        *,
        cv=5,
        scoring=None,
        method="exact",
        strategy="mirror",
        budget=200,
        batch=4,
        eta=None,
        c=None,
        n_jobs=None,
        random_state=0,
    ):
        self.estimator = estimator
        self.k = k
        self.cv = cv
        self.scoring = scoring
        self.method = method
        self.strategy = strategy
        self.budget = budget
        self.batch = batch
        self.eta = eta
        self.c = c
        self.n_jobs = n_jobs
        self.random_state = random_state

    def fit(self, X, y, progress=None, checkpoint=None, resume=True):
        """Search. `progress`, `checkpoint` and `resume` as for `minimize`.

        Args:
            X: shape (samples, features).
            y: targets, shape (samples,).

        Raises:
            InputError: if k or another setting cannot be used.
        """
        columns = getattr(X, "columns", None)
        X, y = validate_data(self, X, y, dtype="numeric")
        classes = is_classifier(self.estimator)
        splits = list(check_cv(self.cv, y, classifier=classes).split(X, y))
        cost = FeatureCost(self.estimator, X, y, splits, self.scoring)
        seed = int(np.random.default_rng().integers(2**31)) if self.random_state is None else self.random_state
        common: dict[str, Any] = {
            "n": X.shape[1], "k": self.k, "budget": self.budget, "seed": seed, "n_jobs": self.n_jobs or 1,
            "progress": progress, "checkpoint": checkpoint, "resume": resume,
        }  # fmt: skip
        if self.strategy != "mirror":
            found = search(self.strategy, cost, **common)
        else:
            dummy = DummyClassifier() if classes else DummyRegressor()
            empty = FeatureCost(dummy, X, y, splits, check_scoring(self.estimator, self.scoring))
            options = {"eta": self.eta, "c": self.c} if self.eta is not None else {"c": self.c}
            found = minimize(
                cost, method=self.method, batch=self.batch, normalise=True,
                empty=empty(np.arange(X.shape[1])) if self.method == "expected" else None, **common, **options,
            )  # fmt: skip
            self.inclusion_ = found.inclusion
        self.result_, self.cost_ = found, found.cost
        self.support_ = np.zeros(X.shape[1], dtype=bool)
        self.support_[list(found.subset)] = True
        if columns is not None:
            self.chosen_ = [str(name) for name in np.asarray(columns)[self.support_]]
        return self

    def _get_support_mask(self):
        check_is_fitted(self, "support_")
        return self.support_

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        return tags


class FeatureCost:
    """Minus the mean cross-validated score of an estimator on the chosen columns.

    Args:
        estimator: cloned for every fit.
        X, y: data.
        splits: pairs of training and test indices.
        scoring: of scikit-learn.
    """

    def __init__(self, estimator, X, y, splits, scoring=None):
        self.estimator, self.X, self.y, self.splits, self.scoring = estimator, X, y, splits, scoring

    def __call__(self, chosen: np.ndarray) -> float:
        """Cost of these columns."""
        scores = cross_val_score(
            clone(self.estimator), self.X[:, chosen], self.y, cv=self.splits, scoring=self.scoring, error_score="raise"
        )
        return -float(scores.mean())


def feature_names(columns: Any, target: str) -> list[str]:
    """All columns but the target.

    Raises:
        InputError: if the target is not there, or nothing else is.
    """
    names = [str(name) for name in columns]
    if target not in names:
        raise InputError(f"There is no column {target!r}; the columns are {', '.join(names[:20])}.")
    if len(names) < 3:
        raise InputError("There must be at least two columns beside the target.")
    return [name for name in names if name != target]

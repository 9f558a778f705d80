"""A scikit-learn regressor: find the modules, then train a modular network that starts from them."""

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from iclr_generalization.modular.networks import ModularNet, Training, fit, initialise, with_projections
from iclr_generalization.modular.search import Modules, Search, find_modules
from iclr_shared.adapters import pytree_arrays, pytree_restore
from iclr_shared.checkpoints import save_arrays
from iclr_shared.errors import InputError


class ModularRegressor(RegressorMixin, BaseEstimator):
    """Regression by a sum of small networks, each on a low-dimensional projection that the kernel rule has found.

    Inputs and targets are standardised. Where fewer modules are found than asked for, the network has only those.

    Args:
        n_modules: modules to look for, at most.
        module_dim: b, dimension of each module's input.
        hidden: width of each module's two hidden layers.
        kernel: of the rule: ``"rbf"``, ``"arccos"`` or ``"ntk"``.
        lam: the rule's ridge, relative to the variance of the targets.
        restarts: starts of each round; ``max(20, 2 n_modules)`` if None.
        search: see `Search`; defaults if None.
        training: see `Training`; defaults if None.
        random_state: seed.

    Attributes:
        modules_: what was found, a `Modules`.
        losses_: training loss of each step.
        n_features_in_: m.

    References:
        Boopathy et al., ICLR 2025.
    """

    def __init__(
        self,
        n_modules: int = 3,
        module_dim: int = 1,
        *,
        hidden: int = 64,
        kernel: str = "rbf",
        lam: float = 1.0,
        restarts: int | None = None,
        search: Search | None = None,
        training: Training | None = None,
        random_state: int = 0,
    ):
        self.n_modules = n_modules
        self.module_dim = module_dim
        self.hidden = hidden
        self.kernel = kernel
        self.lam = lam
        self.restarts = restarts
        self.search = search
        self.training = training
        self.random_state = random_state

    def fit(
        self,
        X: Any,
        y: Any,
        *,
        folder: Path | None = None,
        progress: Callable[[Iterable[Any]], Iterable[Any]] = lambda groups: groups,
    ) -> "ModularRegressor":
        """Find the modules and train.

        Args:
            X: inputs (n, m), an array or a data frame.
            y: targets (n,) or (n, c).
            folder, progress: as in `find_modules`.

        Raises:
            NoModuleFound: if no projection explains y better than random ones.
            InputError: see `find_modules`.
        """
        X, y = validate_data(self, X, y, multi_output=True, y_numeric=True, dtype=np.float64)
        if self.hidden < 1:
            raise InputError(f"hidden must be at least 1, got {self.hidden}.")
        self._flat = y.ndim == 1
        y = y.reshape(len(y), -1)
        key = jax.random.key(self.random_state)
        self.modules_ = find_modules(
            X, y, self.n_modules, self.module_dim, self.kernel, self.lam, self.restarts or max(20, 2 * self.n_modules),
            key, search=self.search or Search(), standardize=True, folder=folder, progress=progress,
        )  # fmt: skip
        self._y_mean, self._y_scale = y.mean(0), np.where(y.std(0) > 0, y.std(0), 1.0)
        x, target = jnp.asarray(self._inputs(X)), jnp.asarray((y - self._y_mean) / self._y_scale)
        self._net = self._network(y.shape[1])
        start = initialise(self._net, X.shape[1], jax.random.fold_in(key, 1))
        start = with_projections(start, self.modules_.U)
        settings = self.training or Training()
        self._params, losses = fit(self._net, start, x, target, jax.random.fold_in(key, 2), training=settings)
        self.losses_ = np.asarray(losses)
        return self

    def predict(self, X: Any) -> Float[np.ndarray, "..."]:
        """Predictions at X, shape (n,) or (n, c) as y was."""
        X = self._validated(X)
        out = np.asarray(self._net.apply(self._params, jnp.asarray(self._inputs(X))), dtype=np.float64)
        out = out * self._y_scale + self._y_mean
        return out[:, 0] if self._flat else out

    def contributions(self, X: Any) -> Float[np.ndarray, "K n c"]:
        """Each module's share of the prediction, in the units of y; with the mean of y they add up to `predict`."""
        X = self._validated(X)
        parts = self._net.apply(self._params, jnp.asarray(self._inputs(X)), method="parts")
        return np.asarray(parts, dtype=np.float64) * self._y_scale

    @property
    def projections_(self) -> Float[np.ndarray, "K b m"]:
        """Projections after training, of standardised inputs; rows are no longer exactly orthonormal."""
        check_is_fitted(self)
        return np.asarray(self._params["params"]["U"], dtype=np.float64)

    def save(self, path: str | Path) -> None:
        """Write everything that `predict` needs to an ``.npz`` file."""
        check_is_fitted(self)
        names = ("U", "J", "null", "round", "trace", "starts", "mean", "scale")
        arrays = {f"modules/{name}": np.asarray(getattr(self.modules_, name)) for name in names}
        arrays |= {f"params/{name}": leaf for name, leaf in pytree_arrays(self._params).items()}
        about = {
            "n_modules": self.n_modules, "module_dim": self.module_dim, "hidden": self.hidden, "kernel": self.kernel,
            "lam": self.lam, "random_state": self.random_state, "flat": self._flat, "found_lam": self.modules_.lam,
            "note": self.modules_.note, "features": list(map(str, getattr(self, "feature_names_in_", []))),
        }  # fmt: skip
        save_arrays(
            path,
            y_mean=self._y_mean,
            y_scale=self._y_scale,
            losses=self.losses_,
            about=np.array(json.dumps(about)),
            **arrays,
        )

    @classmethod
    def load(cls, path: str | Path) -> "ModularRegressor":
        """Read what `save` wrote.

        Raises:
            InputError: if there is no such file, or it is another kind of file.
        """
        try:
            with np.load(path, allow_pickle=False) as file:
                arrays = {name: file[name] for name in file.files}
            about = json.loads(str(arrays["about"]))
            parts = {name[8:]: value for name, value in arrays.items() if name.startswith("modules/")}
            saved = {name[7:]: value for name, value in arrays.items() if name.startswith("params/")}
            settings = {
                name: about[name] for name in ("n_modules", "module_dim", "hidden", "kernel", "lam", "random_state")
            }
            model = cls(settings.pop("n_modules"), settings.pop("module_dim"), **settings)
            model.modules_ = Modules(**parts, lam=about["found_lam"], note=about["note"])
            model.losses_, model._flat = arrays["losses"], about["flat"]
            model._y_mean, model._y_scale = arrays["y_mean"], arrays["y_scale"]
        except (OSError, KeyError, ValueError) as error:
            raise InputError(f"{path} is no regressor saved by ModularRegressor.save: {error}") from None
        model.n_features_in_ = parts["U"].shape[2]
        if about["features"]:
            model.feature_names_in_ = np.array(about["features"], dtype=object)
        model._net = model._network(len(model._y_mean))
        template = initialise(model._net, model.n_features_in_, jax.random.key(0))
        model._params = pytree_restore(template, saved)
        return model

    def _network(self, outputs: int) -> ModularNet:
        return ModularNet(len(self.modules_.U), self.module_dim, (self.hidden, self.hidden, outputs))

    def _validated(self, X: Any) -> np.ndarray:
        check_is_fitted(self)
        return validate_data(self, X, reset=False, dtype=np.float64)

    def _inputs(self, X: np.ndarray) -> np.ndarray:
        return (X - self.modules_.mean) / self.modules_.scale

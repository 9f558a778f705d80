"""The heads as scikit-learn classifiers, for pipelines and cross-validation."""

import numbers
import pickle
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from iclr_shared.adapters import torch_bytes, torch_restore
from iclr_shared.errors import InputError
from iclr_shared.files import atomic_write
from iclr_symspaces.classifiers import BusemannMLR, GeodesicMLR
from iclr_symspaces.covariances import real_numbers
from iclr_symspaces.flat import SPDLogCholesky, SPDLogEuclidean
from iclr_symspaces.hyperbolic import Lorentz, PoincareBall
from iclr_symspaces.space import SymmetricSpace
from iclr_symspaces.spd import SPD
from iclr_symspaces.training import Settings, fit, plain_state

_UNREADABLE = (
    RuntimeError, pickle.UnpicklingError, zipfile.BadZipFile, zlib.error, EOFError, OSError, ValueError, LookupError,
    TypeError, AttributeError, ImportError, NotImplementedError,
)  # fmt: skip
"""What torch, pickle and zipfile raise on files that are damaged or something else."""

SPACES = ("spd", "spd-log-euclidean", "spd-log-cholesky", "ball", "lorentz")
_HEADS = {"busemann": BusemannMLR, "geodesic": GeodesicMLR}


class BusemannClassifier(ClassifierMixin, BaseEstimator):
    """Classifier with hyperplanes of a symmetric space (Nguyen et al., ICLR 2025), in scikit-learn's terms.

    Args:
        manifold: "spd" (covariances, GL-invariant metric), "spd-log-euclidean", "spd-log-cholesky", "ball" or
            "lorentz".
        head: "busemann", or "geodesic" as baseline.
        alpha, beta: of the SPD metric.
        transvection: of SPD: "symmetric" or "triangular".
        c: minus the curvature of "ball" and "lorentz".
        norm: "riemannian", or "gyro" as the official hyperbolic head.
        clip: "ball", "lorentz": X holds Euclidean features, cut at this norm and mapped by exp_o; None: X holds points.
        scale: a learned positive scale for each class.
        shared_flag: SPD: one flag and point for all classes (faster).
        recenter: SPD: move the geometric mean of the training data to the identity first, an isometry that makes the
            start independent of the unit of measurement.
        parametrization: "tangent" or "riemannian" (geoopt parameters).
        optimizer, epochs, batch, lr: of training.
        dtype: "float64" or "float32".
        device: of training.
        random_state: seed of initial values and the order of samples; None for another one at each fit, or a
            `numpy.random.RandomState` to draw it from.

    Attributes:
        classes_: the labels.
        module_: the trained `BusemannMLR` or `GeodesicMLR`.
        losses_: mean loss of each epoch.
        seed_: the seed that was used.
    """

    def __init__(
        self,
        manifold: str = "spd",
        head: str = "busemann",
        *,
        alpha: float = 1.0,
        beta: float = 0.0,
        transvection: str = "symmetric",
        c: float = 1.0,
        norm: str = "riemannian",
        clip: float | None = None,
        scale: bool = True,
        shared_flag: bool = False,
        recenter: bool = True,
        parametrization: str = "tangent",
        optimizer: str = "adam",
        epochs: int = 40,
        batch: int = 60,
        lr: float = 0.01,
        dtype: str = "float64",
        device: str = "cpu",
        random_state: Any = 0,
    ):
        self.manifold = manifold
        self.head = head
        self.alpha = alpha
        self.beta = beta
        self.transvection = transvection
        self.c = c
        self.norm = norm
        self.clip = clip
        self.scale = scale
        self.shared_flag = shared_flag
        self.recenter = recenter
        self.parametrization = parametrization
        self.optimizer = optimizer
        self.epochs = epochs
        self.batch = batch
        self.lr = lr
        self.dtype = dtype
        self.device = device
        self.random_state = random_state

    def fit(self, X: Any, y: Any, checkpoint: str | Path | None = None, quiet: bool = True) -> "BusemannClassifier":
        """Train on samples X (trials, n, n) or (trials, d) with labels y (trials,).

        Args:
            X: covariances, points or features.
            y: labels of any kind.
            checkpoint: folder from which an interrupted training goes on.
            quiet: no progress bar.

        Raises:
            InputError: for points that are not of the space, or options that do not fit.
        """
        samples = self._samples(X)
        self.classes_, index = np.unique(checked_labels(y, len(samples)), return_inverse=True)
        if len(self.classes_) < 2:
            raise InputError(f"Training needs at least two classes; all labels are {self.classes_[0]}.")
        self.seed_ = checked_seed(self.random_state)
        self.shape_ = tuple(samples.shape[1:])
        self.module_ = self._module()
        if self.clip is None:
            samples = self.module_.space.check(samples)
        self.center_ = self._center(samples)
        samples = self._lifted(samples)
        settings = Settings(epochs=self.epochs, batch=self.batch, lr=self.lr, optimizer=self.optimizer, seed=self.seed_)
        labels = torch.as_tensor(index, device=samples.device)
        self.losses_ = fit(self.module_, samples, labels, settings, checkpoint=checkpoint, quiet=quiet)
        return self

    def decision_function(self, X: Any) -> np.ndarray:
        """Logits (trials, classes)."""
        check_is_fitted(self)
        samples = self._samples(X)
        if tuple(samples.shape[1:]) != self.shape_:
            raise InputError(
                f"The model was trained on samples of shape {self.shape_}, got {tuple(samples.shape[1:])}."
            )
        with torch.no_grad():
            return self.module_(self._lifted(samples)).cpu().numpy()

    def predict_proba(self, X: Any) -> np.ndarray:
        """Softmax of the logits."""
        return torch.softmax(torch.as_tensor(self.decision_function(X)), -1).numpy()

    def predict(self, X: Any) -> np.ndarray:
        """The likeliest label of each sample."""
        return self.classes_[self.decision_function(X).argmax(-1)]

    def save(self, path: str | Path) -> None:
        """Write parameters and options to one file, whole or not at all."""
        check_is_fitted(self)
        content = {
            "format": "iclr-symspaces/1",
            "options": {k: v.item() if isinstance(v, np.generic) else v for k, v in self.get_params().items()}
            | {"random_state": self.seed_},
            "classes": self.classes_.tolist(),
            "shape": list(self.shape_),
            "losses": self.losses_,
            "center": self.center_,
            "state": plain_state(self.module_),
        }
        atomic_write(path, torch_bytes(content))

    @classmethod
    def load(cls, path: str | Path, device: str = "cpu") -> "BusemannClassifier":
        """Read what `save` wrote; only tensors and plain values are loaded.

        Raises:
            InputError: if there is no such file, or it is none of ours, or damaged.
        """
        path, device = Path(path), usable_device(device)
        if not path.is_file():
            raise InputError(f"There is no model {path}; train one with `fit`.")
        try:
            with zipfile.ZipFile(path) as file:
                damaged = file.testzip()  # torch verifies no checksums
            if damaged is not None:
                raise InputError(f"{path} is damaged: {damaged} does not match its checksum. Train it again.")
            content = torch_restore(path.read_bytes(), device)
            if not isinstance(content, dict) or content.get("format") != "iclr-symspaces/1":
                raise InputError(f"{path} is no model of this package.")
            self = cls(**{**content["options"], "device": device})
            self.classes_, self.shape_ = np.asarray(content["classes"]), tuple(content["shape"])
            self.losses_, self.center_, self.seed_ = content["losses"], content["center"], self.random_state
            self.module_ = self._module()
            self.module_.load_state_dict(content["state"])
        except InputError:
            raise
        except _UNREADABLE as error:
            raise InputError(f"{path} is no model of this package, or a damaged one.") from error
        return self

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = self.manifold.startswith("spd")
        return tags

    def _space(self) -> SymmetricSpace:
        n = self.shape_[-1]
        if self.manifold == "spd":
            return SPD(n, self.alpha, self.beta, self.transvection)
        if self.manifold == "spd-log-euclidean":
            return SPDLogEuclidean(n)
        if self.manifold == "spd-log-cholesky":
            return SPDLogCholesky(n)
        return PoincareBall(n, self.c) if self.manifold == "ball" else Lorentz(n - (self.clip is None), self.c)

    def _module(self) -> BusemannMLR | GeodesicMLR:
        if self.head not in _HEADS:
            raise InputError(f"head must be one of {', '.join(_HEADS)}, got {self.head!r}.")
        options: dict[str, Any] = {"scale": self.scale, "parametrization": self.parametrization, "norm": self.norm}
        if self.manifold.startswith("spd") and self.clip is not None:
            raise InputError("clip is for the hybrid hyperbolic heads; leave it None for SPD matrices.")
        if self.shared_flag:
            options["shared_flag"] = True
        generator = torch.Generator().manual_seed(self.seed_)
        dtype = getattr(torch, self.dtype)
        return _HEADS[self.head](
            self._space(), len(self.classes_), generator, clip=self.clip, dtype=dtype, device=self.device, **options
        )

    def _samples(self, X: Any) -> Tensor:
        if self.manifold not in SPACES:
            raise InputError(f"manifold must be one of {', '.join(SPACES)}, got {self.manifold!r}.")
        if self.dtype not in ("float32", "float64"):
            raise InputError(f"dtype must be 'float32' or 'float64', got {self.dtype!r}.")
        dims = 3 if self.manifold.startswith("spd") else 2
        wanted = "(trials, n, n); see pyriemann Covariances('oas')" if dims == 3 else "(samples, d)"
        array = real_numbers(X, "X", wanted)
        if array.ndim != dims or (dims == 3 and array.shape[1] != array.shape[2]):
            raise InputError(f"manifold {self.manifold!r} needs X of shape {wanted}, got {array.shape}.")
        return torch.as_tensor(array.astype(self.dtype), device=usable_device(self.device))

    def _center(self, samples: Tensor) -> Tensor | None:
        """Inverse root of the geometric mean of the training data."""
        if not (self.manifold == "spd" and self.recenter):
            return None
        from pyriemann.geometry.mean import mean_riemann

        w, v = np.linalg.eigh(mean_riemann(samples.double().cpu().numpy()))
        return torch.as_tensor((v / np.sqrt(w)) @ v.T).to(samples)

    def _lifted(self, samples: Tensor) -> Tensor:
        if self.center_ is None:
            return samples
        samples = self.module_.space.check(samples)
        moved = self.center_ @ samples @ self.center_.mT
        return (moved + moved.mT) / 2


def checked_labels(y: Any, count: int) -> np.ndarray:
    """Labels as an array (count,).

    Raises:
        InputError: for another number of them, missing ones (NaN, None), or kinds that cannot be sorted together.
    """
    y = np.asarray(y)
    if y.shape != (count,):
        raise InputError(f"y must hold one label for each of the {count} samples, got shape {y.shape}.")
    if y.dtype.kind == "c":
        raise InputError("y holds complex numbers: labels must be integers, strings or the like.")
    missing = np.array([v is None or (isinstance(v, numbers.Real) and not np.isfinite(v)) for v in y.tolist()], bool)
    if missing.any():
        raise InputError(f"y has no label for sample {int(missing.argmax())} (NaN or None); drop the sample.")
    try:
        np.unique(y)
    except TypeError as error:
        raise InputError(f"The labels in y are of kinds that cannot be sorted together: {error}.") from error
    return y


def usable_device(name: str | torch.device) -> str:
    """The name of a device that tensors can be made on.

    Raises:
        InputError: if there is none of this name.
    """
    try:
        torch.zeros(1, device=name).item()
    except (RuntimeError, AssertionError, NotImplementedError, ImportError) as error:
        raise InputError(f"There is no device {str(name)!r} here; use 'cpu'.") from error
    return str(name)


def checked_seed(random_state: Any) -> int:
    """What scikit-learn takes as a random state, as a seed of torch's generators."""
    if isinstance(random_state, numbers.Integral):
        if not 0 <= random_state < 2**32:
            raise InputError(f"The seed must be from 0 to 2**32 - 1, got {random_state}.")
        return int(random_state)
    try:
        return int(check_random_state(random_state).randint(2**31 - 1))
    except ValueError as error:
        raise InputError(
            f"random_state must be an integer, None or a numpy RandomState, got {random_state!r}."
        ) from error

"""Find modules: descend the kernel rule from random starts, keep what beats the null level, deflate, repeat."""

import hashlib
import json
import warnings
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, PRNGKeyArray

from iclr_generalization.modular.kernel_rule import (
    KERNELS,
    additive_residual,
    generator,
    objective,
    objectives,
    orthonormal,
)
from iclr_generalization.modular.recovery import principal_cosines
from iclr_shared.checkpoints import Checkpoint
from iclr_shared.errors import InputError


class NoModuleFound(InputError):
    """No projection explains the labels better than random ones do."""


@dataclass(frozen=True)
class Search:
    """How `find_modules` searches. Defaults are this package's, because the paper's are not known.

    Args:
        length: unit of length of the kernel.
        steps: Adam steps from each start.
        learning_rate: of Adam.
        batch: rows of each step, drawn afresh; all rows if None and there are at most 2,000, else 512.
        accept: a projection is accepted if it gains at least this part of what the best one gains over the null level.
        overlap: largest principal cosine of two projections that still count as two modules.
        null: random projections whose median objective is the null level.
        improve: the search ends where even the best objective exceeds this times the null level.
        doubtful: where the best objective of the first round exceeds this times the null level, shuffled labels must
            gain less than two thirds as much: with few samples a descent finds something in noise as well.
        group: starts in one compiled call; also what is lost at most when a search is killed. Fewer are taken where
            their Gram matrices would exceed 1 GiB.
    """

    length: float = 1.0
    steps: int = 500
    learning_rate: float = 0.05
    batch: int | None = None
    accept: float = 0.15
    overlap: float = 0.9
    null: int = 64
    improve: float = 0.9
    doubtful: float = 0.7
    group: int = 5

    def __post_init__(self):
        counts = self.steps, self.null, self.group, self.batch or 1
        if min(counts) < 1 or not all(0 < value < np.inf for value in (self.length, self.learning_rate)):
            raise InputError(
                f"Steps, sizes, length and learning rate of a search must be positive and finite; got {self}."
            )


@dataclass(frozen=True, eq=False)
class Modules:
    """What a search found, in the order in which it was found.

    Args:
        U: projections with orthonormal rows, shape (K, b, m), of inputs ``(x - mean) / scale``.
        J: objective of each, shape (K,), on the (deflated) labels of its round.
        null: null level of each one's round, shape (K,).
        round: number of the round that found each, shape (K,).
        trace: objective along each start's descent, shape (rounds, R, steps).
        starts: objective of each start after its descent, on all rows, shape (rounds, R).
        lam: ridge that was used; larger than the one asked for if the factorisation had failed.
        mean, scale: of the inputs, shape (m,); 0 and 1 unless they were standardised.
        note: why fewer modules than asked for were found, or "".
    """

    U: Float[np.ndarray, "K b m"]
    J: Float[np.ndarray, " K"]
    null: Float[np.ndarray, " K"]
    round: Any
    trace: Float[np.ndarray, "rounds R steps"]
    starts: Float[np.ndarray, "rounds R"]
    lam: float
    mean: Float[np.ndarray, " m"]
    scale: Float[np.ndarray, " m"]
    note: str = ""

    def project(self, X: Any) -> Float[np.ndarray, "n K b"]:
        """Inputs of the modules at X, shape (n, m)."""
        x = (np.asarray(X, dtype=np.float64) - self.mean) / self.scale
        return np.einsum("kbm,nm->nkb", self.U, x)


def find_modules(
    X: Any,
    Y: Any,
    n_modules: int,
    b: int = 1,
    kernel: str = "rbf",
    lam: float = 1.0,
    restarts: int = 20,
    key: PRNGKeyArray | None = None,
    *,
    search: Search = Search(),
    standardize: bool = False,
    folder: Path | None = None,
    progress: Callable[[Iterable[Any]], Iterable[Any]] = lambda groups: groups,
) -> Modules:
    """Discover the projections on which labels depend, one kernel machine for each module.

    Args:
        X: inputs (n, m), an array or a data frame; columns should be on one scale.
        Y: labels (n,) or (n, c); centred and scaled to mean square 1 here, as `lam` refers to that scale.
        n_modules: K, modules to look for.
        b: dimension of each module's input.
        kernel: ``"rbf"``, ``"arccos"`` or ``"ntk"``.
        lam: ridge. Multiplied by 10, up to three times, where the factorisation fails.
        restarts: random starts in each round, at least 2 K.
        key: of the starts; ``jax.random.key(0)`` if None.
        search: see `Search`.
        standardize: centre and scale the columns of X first.
        folder: finished groups of starts are kept here; a repeated call with the same data and settings goes on.
        progress: wraps the iteration over groups of starts.

    Returns:
        At most K modules. Objectives of different b or different lam must not be compared.

    Raises:
        InputError: too few samples (n < 10 or n <= b), b > m, values that are not finite, labels that do not
            vary, unknown kernel, or a ridge with which no factorisation succeeded.
        NoModuleFound: if not even the first round beats random projections.

    References:
        Boopathy et al., ICLR 2025, Algorithm 1; null level, accept rule and deflation are this package's.
    """
    x, y, mean, scale = _prepared(X, Y, n_modules, b, restarts, kernel, lam, standardize)
    key = jax.random.key(0) if key is None else key
    store = _Store(folder, x, y, {"kernel": kernel, "lam": lam, "b": b, "restarts": restarts, **asdict(search)}, key)
    found: list[tuple[np.ndarray, float, float, int]] = []
    traces, finals = [], []
    residual, note = y, ""
    for number in range(max(3, n_modules)):
        round_key = jax.random.fold_in(key, number)
        V, J, null, trace, lam = _round(
            x, residual, b, kernel, lam, restarts, round_key, search, store, number, progress
        )
        traces.append(trace)
        finals.append(J)
        if J.min() > search.improve * null:
            note = (
                f"No further module: in round {number + 1} the best objective is {J.min():.4g}, and random projections "
                f"give {null:.4g}."
            )
            break
        if number == 0 and J.min() > search.doubtful * null:
            _hold_against_chance(
                x, residual, b, kernel, lam, restarts, round_key, search, store, progress, J.min() / null
            )
        before = len(found)
        for index in np.argsort(J):
            kept = [u for u, *_ in found]
            if len(found) == n_modules or J[index] >= null - search.accept * (null - J.min()):
                break
            if all(principal_cosines(V[index], u)[0] < search.overlap for u in kept):
                found.append((V[index], float(J[index]), null, number))
        if len(found) == n_modules:
            break
        if len(found) == before:
            note = f"No further module: round {number + 1} finds only those that are known."
            break
        accepted = jnp.asarray(np.stack([u for u, *_ in found]), x.dtype)
        residual = additive_residual(accepted, x, y, lam, kernel, search.length)
        residual = residual / jnp.sqrt(jnp.square(residual).mean())
    if not found:
        raise NoModuleFound(
            f"No module found: the best of {restarts} starts reaches an objective of {finals[0].min():.4g}, and random "
            f"projections give {note.split()[-1].rstrip('.')}. The labels may be noise, or depend on more than {b} "
            "dimensions at once; try another b, a longer kernel length, or more samples."
        )
    U, J, null, rounds = zip(*found, strict=True)
    return Modules(
        np.stack(U), np.array(J), np.array(null), np.array(rounds), np.stack(traces), np.stack(finals), float(lam),
        mean, scale, note,
    )  # fmt: skip


def _prepared(
    X: Any, Y: Any, K: int, b: int, restarts: int, kernel: str, lam: float, standardize: bool
) -> tuple[Array, Array, np.ndarray, np.ndarray]:
    try:
        x, y = np.asarray(X, dtype=np.float64), np.asarray(Y, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"X and Y must hold numbers: {error}") from None
    y = y[:, None] if y.ndim == 1 else y
    if x.ndim != 2 or y.ndim != 2 or len(x) != len(y):
        raise InputError(f"X must be (n, m) and Y (n,) or (n, c), got shapes {x.shape} and {y.shape}.")
    n, m = x.shape
    if kernel not in KERNELS:
        raise InputError(f"There is no kernel {kernel!r}; choose one of {', '.join(KERNELS)}.")
    if K < 1 or b < 1:
        raise InputError(f"Modules and their dimension must be at least 1, got {K} modules of dimension {b}.")
    if b > m:
        raise InputError(f"A module cannot have {b} dimensions where the input has {m}.")
    if n < 10 or n <= b:
        raise InputError(f"{n} samples are too few; at least {max(10, b + 1)} are needed.")
    if restarts < 2 * K:
        raise InputError(f"Take at least twice as many restarts as modules, {2 * K}; got {restarts}.")
    if not lam >= 0:
        raise InputError(f"lam must not be negative, got {lam:g}.")
    for name, values in (("X", x), ("Y", y)):
        if not np.isfinite(values).all():
            row, column = np.argwhere(~np.isfinite(values))[0]
            raise InputError(f"{name} is not finite (NaN or infinity) in row {row}, column {column}.")
    y = y - y.mean(0)
    if np.square(y).mean() <= 1e-24 * max(1.0, float(np.square(np.asarray(Y, dtype=np.float64)).mean())):
        raise InputError("There is nothing to explain: the labels are constant.")
    y = y / np.sqrt(np.square(y).mean())
    if K * b > m:
        warnings.warn(f"{K} modules of {b} dimensions overlap in {m} inputs.", stacklevel=3)
    mean, scale = np.zeros(m), np.ones(m)
    spread = x.std(0)
    if standardize:
        mean, scale = x.mean(0), np.where(spread > 0, spread, 1.0)
    elif spread.max() > 1e3 * spread[spread > 0].min(initial=np.inf):
        warnings.warn(
            "Columns of X are on scales that differ by over 1,000; pass standardize=True, or the largest decide alone.",
            stacklevel=3,
        )
    return jnp.asarray((x - mean) / scale), jnp.asarray(y), mean, scale


def _round(
    x: Array, y: Array, b: int, kernel: str, lam: float, restarts: int, key: Array, search: Search, store: "_Store",
    number: int | str, progress: Callable[[Iterable[Any]], Iterable[Any]],
) -> tuple[np.ndarray, np.ndarray, float, np.ndarray, float]:  # fmt: skip
    """One round of starts: projections (R, b, m), objectives (R,), null level, traces (R, steps), ridge used."""
    n, m = x.shape
    batch = search.batch or (n if n <= 2000 else 512)
    batch = min(batch, n)
    group = int(np.clip(2**30 // (6 * x.dtype.itemsize * batch**2), 1, min(search.group, restarts)))
    group = -(-restarts // -(-restarts // group))  # as even as can be: groups of one size compile once
    judged = x[:2000], y[:2000]
    rng = generator(key)
    starts = rng.normal(size=(restarts, b, m)).astype(x.dtype)
    random = np.linalg.qr(rng.normal(size=(search.null, m, b)))[0].swapaxes(1, 2)

    def descend(A: np.ndarray, lam: float) -> dict[str, np.ndarray]:
        V, trace = _descend(A, x, y, key, lam, search.learning_rate, kernel, search.length, search.steps, batch)
        J = objectives(np.asarray(V), *judged, lam, kernel, search.length)
        return {"V": np.asarray(V), "J": J, "trace": np.asarray(trace)}

    for attempt in range(4):
        null = float(np.median(objectives(random, *judged, lam, kernel, search.length)))
        parts = []
        for first in progress(range(0, restarts, group)) if np.isfinite(null) else ():
            name = f"round-{number}-{first}-{lam:g}"
            parts.append(store.kept(name, partial(descend, starts[first : first + group], lam)))
        if parts and all(np.isfinite(part["J"]).all() for part in parts):
            V, J, trace = (np.concatenate([part[name] for part in parts]) for name in ("V", "J", "trace"))
            return V.astype(np.float64), J, null, trace.astype(np.float64), lam
        if attempt < 3:
            lam = 10 * lam if lam > 0 else 1e-8
    raise InputError(f"The Gram matrix could not be factorised, even with lam={lam:g}. Choose a larger lam.")


def _hold_against_chance(
    x: Array, y: Array, b: int, kernel: str, lam: float, restarts: int, key: Array, search: Search, store: "_Store",
    progress: Callable[[Iterable[Any]], Iterable[Any]], ratio: float,
) -> None:  # fmt: skip
    """One group of starts on shuffled labels: a gain of the same size there means that nothing was found."""
    shuffled = y[generator(key, 1).permutation(len(y))]
    _, J, null, _, _ = _round(
        x, shuffled, b, kernel, lam, min(search.group, restarts), key, search, store, "shuffled", progress
    )
    chance = J.min() / null
    if 1 - ratio < 1.5 * (1 - chance):
        raise NoModuleFound(
            f"No module found: the best start reaches {ratio:.3g} of the objective of random projections, and "
            f"{chance:.3g} with shuffled labels. The labels may be noise, or depend on more than {b} dimensions at "
            "once; try another b, a longer kernel length, or more samples."
        )


@partial(jax.jit, static_argnums=(6, 7, 8, 9))
def _descend(
    A: Float[Array, "R b m"] | Float[np.ndarray, "R b m"], x: Array, y: Array, key: Array, lam: float | Array,
    rate: float | Array, kernel: str, length: float, steps: int, batch: int,
) -> tuple[Array, Array]:  # fmt: skip
    """Adam on the objective from all starts side by side; rows are normalised inside the objective."""
    adam = optax.adam(rate)
    gradient = jax.vmap(jax.value_and_grad(objective), in_axes=(0, None, None, None, None, None))

    def step(state, number):
        A, moments = state
        if batch == len(x):
            part = x, y
        else:
            rows = jax.random.choice(jax.random.fold_in(key, number), len(x), (batch,), replace=False)
            part = x[rows], y[rows]
        value, slope = gradient(A, *part, lam, kernel, length)
        updates, moments = adam.update(slope, moments, A)
        return (optax.apply_updates(A, updates), moments), value

    (A, _), trace = jax.lax.scan(step, (A, adam.init(A)), jnp.arange(steps))
    return jax.vmap(orthonormal)(A), trace.T


class _Store:
    """Finished groups of starts on disk, in a folder named after the data and settings they belong to."""

    def __init__(self, folder: Path | None, x: Array, y: Array, settings: dict[str, Any], key: Array):
        if folder is None:
            self.folder = None
            return
        digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode())
        for part in (x, y, jax.random.key_data(key)):
            digest.update(np.asarray(part).tobytes())
        self.folder = Path(folder) / digest.hexdigest()[:16]

    def kept(self, name: str, work: Callable[[], dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
        if self.folder is None:
            return work()
        checkpoint = Checkpoint(self.folder / name, keep=1)
        if (saved := checkpoint.latest()) is not None:
            return saved[1]
        result = work()
        checkpoint.save(1, result)
        return result

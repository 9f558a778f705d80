"""What a simulation gives back: trajectories, who was helped, late slopes, and when one policy overtakes another."""

import dataclasses
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from iclr_shared.errors import InputError


@dataclasses.dataclass(frozen=True, eq=False)
class Result:
    """What a simulation gives back. Leading axes: populations (`simulate_many` only), then seeds (unless None).

    Args:
        policy: its name.
        M: interventions per step.
        T: horizon, steps.
        times: recorded times, shape (K,), from 0 to T.
        mean: mean welfare at these times, shape (..., K).
        average: mean over s = 1..t of mean welfare, shape (..., K); the heat map's criterion. None if not recorded.
        min: lowest welfare, shape (..., K), or None.
        gini: Gini coefficient, shape (..., K), NaN where someone's welfare is negative; or None.
        welfare: everyone's welfare, shape (..., K, N), or None: N times as much memory as the rest.
        U0: initial welfare, shape (..., N).
        U_half: welfare at T // 2, shape (..., N).
        U_T: welfare at T, shape (..., N).
        selected_counts: how often each person was helped, shape (..., N); sums to M T.
        late_counts: the same, from T // 2 on; sums to M (T - T // 2).
        parameters: everything that is needed to repeat the run.
    """

    policy: str
    M: int
    T: int
    times: Int[np.ndarray, " K"]
    mean: Float[np.ndarray, "*batch K"]
    average: Float[np.ndarray, "*batch K"] | None
    min: Float[np.ndarray, "*batch K"] | None
    gini: Float[np.ndarray, "*batch K"] | None
    welfare: Float[np.ndarray, "*batch K N"] | None
    U0: Float[np.ndarray, "*populations N"]
    U_half: Float[np.ndarray, "*batch N"]
    U_T: Float[np.ndarray, "*batch N"]
    selected_counts: Int[np.ndarray, "*batch N"]
    late_counts: Int[np.ndarray, "*batch N"]
    parameters: dict[str, Any]

    @property
    def growth(self) -> Float[np.ndarray, "*batch K"]:
        """R(t) = (mean welfare at t - mean welfare at 0)/t, welfare per step, at `times`; NaN at t = 0."""
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.where(self.times > 0, (self.mean - self.mean[..., :1]) / np.float64(self.times), np.nan)

    def growth_at(self, t: int) -> Float[np.ndarray, "*batch"]:
        """R(t) at one recorded time.

        Raises:
            InputError: if t was not recorded.
        """
        where = np.flatnonzero(self.times == t)
        if not where.size or t <= 0:
            raise InputError(f"Time {t} was not recorded; choose among 1 to {self.T} in the steps of record_every.")
        return np.asarray(self.growth[..., where[0]])

    @property
    def rates(self) -> Float[np.ndarray, "*batch N"]:
        """Everyone's own growth per step over the second half of the horizon; the transient from U(0) is left out."""
        return (self.U_T - self.U_half) / (self.T - self.T // 2)

    def late_slope(self, burn_in: int = 0) -> Float[np.ndarray, "*batch"]:
        """Growth of mean welfare per step over the second half of the horizon, the estimate of the long-run rate.

        Args:
            burn_in: steps before the long run begins (see `iclr_welfare.conditions.burn_in`).

        Raises:
            InputError: if the first half of the horizon is shorter than `burn_in`: no long-run statement then.
        """
        if burn_in > self.T // 2:
            raise InputError(
                f"The horizon T = {self.T} says nothing about the long run: its first half must cover the burn-in of "
                f"about {burn_in} steps. Simulate at least {2 * burn_in} steps."
            )
        return np.asarray(self.rates.mean(axis=-1))

    @property
    def locked_set(self) -> Int[np.ndarray, "*batch M"]:
        """The M people helped most often in the second half, in ascending order."""
        return np.sort(np.argsort(-self.late_counts, axis=-1, kind="stable")[..., : self.M], axis=-1)

    @property
    def is_locked(self) -> Bool[np.ndarray, "*batch"]:
        """Whether these M people, and nobody else, were helped throughout the second half."""
        most = np.sort(self.late_counts, axis=-1)[..., -self.M]
        return np.asarray(most == self.T - self.T // 2)

    def __getitem__(self, index: int) -> "Result":
        """One population or seed: the entry `index` of the leading axis."""
        if self.mean.ndim < 2:
            raise InputError("This result holds one trajectory; there is nothing to index.")
        drop = {
            name: None if (value := getattr(self, name)) is None else value[index]
            for name in ("mean", "average", "min", "gini", "welfare", "U_half", "U_T", "selected_counts", "late_counts")
        }
        return dataclasses.replace(self, **drop, U0=self.U0[index] if self.U0.ndim > 1 else self.U0)


def crossing_time(first: Result, second: Result, lasting: bool = False) -> Int[np.ndarray, "*batch"]:
    """T*: the first recorded time at which R(T) of `first` exceeds that of `second`.

    Args:
        first: such as the Rawlsian result.
        second: such as the utilitarian one, same times and seeds.
        lasting: whether the lead must last to the end of the horizon (then: since when it does).

    Returns:
        Shape of the batch; -1 where it never happens.

    Raises:
        InputError: if the two were not recorded at the same times.
    """
    if not np.array_equal(first.times, second.times) or first.mean.shape != second.mean.shape:
        raise InputError("The two results must have the same recorded times and seeds.")
    ahead = (first.growth > second.growth)[..., 1:]
    if lasting:
        ahead = np.flip(np.logical_and.accumulate(np.flip(ahead, axis=-1), axis=-1), axis=-1)
    return np.where(ahead.any(axis=-1), first.times[1:][np.argmax(ahead, axis=-1)], -1)

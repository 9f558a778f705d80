"""The populations of the paper's figures, with the official code's parameters.

References:
    Wu, Abebe, Hardt, Stoica, Policy Design in Long-Run Welfare Dynamics, ICLR 2025; parameters as in the scripts of
    https://github.com/wujiduan/Rawls_vs_Utils.
"""

from typing import Literal, get_args

import numpy as np
from jaxtyping import Float

from iclr_shared.errors import InputError
from iclr_welfare.incomes import TURNING_POINTS
from iclr_welfare.population import PerPerson, Population, check_budget, finite_welfare
from iclr_welfare.response import Concave, Constant, LinearClipped, Parameter, Response

_MIDDLE = np.array([TURNING_POINTS[name] for name in ("f_x_minus", "f_x_plus", "g_x_plus", "g_x_minus")])
_RANGES = np.array([[-2100, -2000], [400, 800], [-1900, -1850], [-1600, -1500]])
"""x_L and x_R of f, x of g^+ and of g^-: integers uniform in [low, high)."""

REFERENCE_TURNS = np.array([-2000.0, 600.0, -1900.0, -1500.0])
"""Turning points of the reference values: f from -2000 to 600, g from -1900 to -1500, the same for all."""


def turning_points(
    N: int, rng: np.random.Generator, f_rise: Float[np.ndarray, " N"], g_fall: Float[np.ndarray, " N"], tries: int = 200
) -> Float[np.ndarray, "4 N"]:
    """Where each person's f and g turn: official ranges, drawn again until f + g rises (slope of f > -slope of g).

    Args:
        N: people.
        rng: NumPy generator.
        f_rise: f^+ - f^-, shape (N,).
        g_fall: g^+ - g^-, shape (N,).
        tries: draws before giving up on a person.

    Returns:
        x of f^-, f^+, g^+, g^-, shape (4, N).

    Raises:
        InputError: naming a person for whom no draw is accepted.
    """
    x = np.empty((4, N))
    open_ = np.ones(N, bool)
    for _ in range(tries):
        n = int(open_.sum())
        x[:, open_] = rng.integers(_RANGES[:, :1], _RANGES[:, 1:], (4, n))
        open_ &= ~(f_rise / (x[1] - x[0]) > g_fall / (x[3] - x[2]))
        if not open_.any():
            return x
    who = int(np.argmax(open_))
    raise InputError(
        f"No turning points make f + g rise for person {who}: f rises by {f_rise[who]:g}, g falls by {g_fall[who]:g}. "
        "Raise f^+ - f^-; with the limits of Fig. 1 about 12 people are enough."
    )


def linear(
    U0: PerPerson,
    f_minus: Parameter,
    f_plus: Parameter,
    g_plus: Parameter,
    g_minus: Parameter,
    x: Float[np.ndarray, "4 *N"] = REFERENCE_TURNS,
    **options: bool,
) -> Population:
    """People whose f and g are straight lines between their limits, reached at the welfare levels `x`.

    Args:
        U0: initial welfare, shape (N,).
        f_minus: return at low welfare.
        f_plus: return at high welfare.
        g_plus: decay at low welfare.
        g_minus: decay at high welfare.
        x: welfare at which f^-, f^+, g^+, g^- are reached, shape (4,) or (4, N).
        options: of `Population`.

    Returns:
        The population, float64; U0 and limits in the units given.

    Raises:
        InputError: as `Population` and `LinearClipped`.
    """
    f = LinearClipped(f_minus, f_plus, x[0], x[1])
    return Population(np.float64(U0), f, LinearClipped(g_plus, g_minus, x[2], x[3]), **options)


def official_returns(
    N: int, g_plus: float, g_minus: float, f_minus: float | None = None, f_plus: float | None = None
) -> tuple[float, float]:
    """(f^-, f^+), where not given, as in Fig. 1: f^- = 4 g^+ N, f^+ = f^- + (g^- + g^+) N/2."""
    low = 4.0 * g_plus * N if f_minus is None else f_minus
    return low, low + (g_minus + g_plus) * N / 2 if f_plus is None else f_plus


def homogeneous(
    U0: PerPerson,
    M: int = 1,
    *,
    rng: np.random.Generator | None = None,
    g_plus: float = 60.0,
    g_minus: float = 10.0,
    f_minus: float | None = None,
    f_plus: float | None = None,
) -> Population:
    """Everyone has the same limits (Fig. 1): g^+ = 60, g^- = 10, f^- = 4 g^+ N, f^+ = f^- + (g^- + g^+) N/2.

    Args:
        U0: initial welfare, shape (N,).
        M: interventions per step; the official returns do not depend on it (a variant with /M is commented out there).
        rng: draws each person's turning points as the official code; None takes `REFERENCE_TURNS` for all.
        g_plus: decay at low welfare.
        g_minus: decay at high welfare.
        f_minus: return at low welfare; None for the official one.
        f_plus: return at high welfare; None for the official one.

    Returns:
        The population, float64; U0 and limits in the units given.

    Raises:
        InputError: if M is out of range, or the limits do not fit the Matthew effect.
    """
    U0 = finite_welfare(U0)
    N = U0.size
    low, high = official_returns(N, g_plus, g_minus, f_minus, f_plus)
    x = REFERENCE_TURNS
    if rng is not None:
        x = turning_points(N, rng, np.full(N, high - low), np.full(N, g_plus - g_minus))
    population = linear(U0, low, high, g_plus, g_minus, x)
    population.check_budget(M)
    return population


def heterogeneous(U0: PerPerson, M: int = 1, *, rng: np.random.Generator, sigma2: float = 10.0) -> Population:
    """Everyone has limits of their own (Fig. 2): g^- ~ N(10, σ²) >= 1, g^+ ~ N(60, σ²) >= g_i^-,
    f^- ~ N(240 N/M, (4 N/M)² σ²), f^+ ~ N(275 N/M, ((4 + 7/12) N/M)² σ²) >= f_i^-.

    Args:
        U0: initial welfare, shape (N,).
        M: interventions per step.
        rng: NumPy generator (the official figure uses seed 2024).
        sigma2: spread σ² of the limits, welfare squared.

    Returns:
        The population, float64; U0 and limits in the units given.

    Raises:
        InputError: as `Population`.
    """
    return _spread(U0, M, rng, 10.0, 1.0, sigma2, sum_check=False)


def heat_map_cell(U0: PerPerson, b: float, sigma2: float, *, rng: np.random.Generator) -> Population:
    """One cell of the heat map (Fig. 3), M = 1: as `heterogeneous` but g^- ~ N(60 b, b² σ²) >= 1.

    Args:
        U0: initial welfare, shape (N,).
        b: decay at high relative to low welfare, in (0, 1]; small b is a strong Matthew effect.
        sigma2: spread σ² of the limits.
        rng: NumPy generator.

    Returns:
        The population, float64; U0 and limits in the units given.

    Raises:
        InputError: as `Population`.
    """
    if not 0 < b <= 1:
        raise InputError(f"The ratio b of decays at high and at low welfare must lie in (0, 1], not be {b}.")
    return _spread(U0, 1, rng, 60.0 * b, b, sigma2, sum_check=False)


def _spread(U0, M: int, rng, g_mean: float, g_factor: float, sigma2: float, **options) -> Population:
    U0 = finite_welfare(U0)
    N = U0.size
    check_budget(M, N)
    if not (np.isfinite(sigma2) and sigma2 >= 0):
        raise InputError(f"The spread σ² of the limits must be a number >= 0, not {sigma2}.")
    sigma, k = np.sqrt(sigma2), N / M
    g_minus = np.maximum(rng.normal(g_mean, g_factor * sigma, N), 1.0)
    g_plus = np.maximum(rng.normal(60.0, sigma, N), g_minus)
    f_minus = np.maximum(rng.normal(240.0 * k, 4.0 * k * sigma, N), 1.0)
    f_plus = np.maximum(rng.normal(275.0 * k, (4.0 + 7.0 / 12.0) * k * sigma, N), f_minus)
    # Turning points come from the homogeneous experiment; f + g may then fall for a few people (f_i^+ = f_i^-).
    x = turning_points(N, rng, np.full(N, 35.0 * N), np.full(N, 50.0))
    return linear(U0, f_minus, f_plus, g_plus, g_minus, x, **options)


def ruin_example(
    U0: PerPerson, *, rng: np.random.Generator | None = None, g_plus: float = 70.0, g_minus: float = 20.0
) -> Population:
    """Help never suffices (Fig. 5), M = 1: g^+ = 70, g^- = 20, f^- = g^- (N - 150), f^+ = g^- (N - 2).

    Args:
        U0: initial welfare, shape (N,), N > 150.
        rng: draws turning points; None takes `REFERENCE_TURNS`.
        g_plus: decay at low welfare.
        g_minus: decay at high welfare.

    Returns:
        The population, float64.

    Raises:
        InputError: if N <= 150, where f^- would not be positive.
    """
    U0 = finite_welfare(U0)
    N = U0.size
    if N <= 150:
        raise InputError(f"The ruin example needs more than 150 people, not {N}.")
    low, high = g_minus * (N - 150), g_minus * (N - 2)
    x = REFERENCE_TURNS
    if rng is not None:
        x = turning_points(N, rng, np.full(N, high - low), np.full(N, g_plus - g_minus))
    return linear(U0, low, high, g_plus, g_minus, x)


def concave(
    U0: PerPerson, M: int = 1, *, rng: np.random.Generator | None = None, g_plus: float = 60.0, g_minus: float = 10.0
) -> Population:
    """Returns that rise, then fall half of the way back (Fig. 6): f^- = 6 g^+ N/M, peak f^- + (2/7)(g^+ + g^-) N/M,
    right limit half way between; the peak lies half way between the turning points of f.

    Args:
        U0: initial welfare, shape (N,).
        M: interventions per step.
        rng: draws turning points; None takes `REFERENCE_TURNS`.
        g_plus: decay at low welfare.
        g_minus: decay at high welfare.

    Returns:
        The population, float64, without the Matthew effect.

    Raises:
        InputError: as `Population` and `Concave`.
    """
    U0 = finite_welfare(U0)
    N = U0.size
    check_budget(M, N)
    low = 6.0 * g_plus * N / M
    peak = low + 2.0 / 7.0 * (g_plus + g_minus) * N / M
    x = REFERENCE_TURNS
    if rng is not None:
        x = turning_points(N, rng, np.full(N, peak - low), np.full(N, g_plus - g_minus))
    f = Concave(low, peak, (low + peak) / 2, x[0], (x[0] + x[1]) / 2, x[1])
    g = LinearClipped(g_plus, g_minus, x[2], x[3])
    return Population(np.float64(U0), f, g, matthew=False, sum_check=False)


Trend = Literal["increasing", "decreasing", "constant"]


def monotonicity(U0: PerPerson, f_trend: Trend, g_trend: Trend) -> Population:
    """One of the nine combinations of rising, falling and constant f and g (Fig. 4), between the levels of Fig. 1.

    f and g turn at the middles of the official ranges.

    Args:
        U0: initial welfare, shape (N,).
        f_trend: of the return between f^- = 240 N and f^+ = 275 N; constant means half way.
        g_trend: of the decay between 10 and 60; constant means 35. The paper's Matthew effect is rising f, falling g.

    Returns:
        The population, float64; U0 and limits in the units given.

    Raises:
        InputError: as `Population`.
    """
    U0 = finite_welfare(U0)
    N = U0.size
    f = _trend(f_trend, 240.0 * N, 275.0 * N, _MIDDLE[0], _MIDDLE[1])
    g = _trend(g_trend, 10.0, 60.0, _MIDDLE[2], _MIDDLE[3])
    return Population(np.float64(U0), f, g, matthew=False, sum_check=False)


def _trend(trend: Trend, low: float, high: float, x_left: float, x_right: float) -> Response:
    if trend not in get_args(Trend):
        raise InputError(f"There is no trend {trend!r}; choose among {', '.join(get_args(Trend))}.")
    if trend == "constant":
        return Constant((low + high) / 2)
    return (
        LinearClipped(low, high, x_left, x_right)
        if trend == "increasing"
        else LinearClipped(low, high, x_right, x_left)
    )

"""Long-run growth in closed form: what the mean welfare gains per step as T → ∞ under each kind of policy.

Derived here from the conservation argument (the paper's own derivation may differ); the official code's heterogeneous
rate sums f/(f+g) over all people instead of using the budget M, which the simulation does not bear out.
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from iclr_shared.errors import InputError
from iclr_welfare.population import PerPerson, Population, check_budget, finite_welfare, name_people, per_person


def equalized_rate(F: PerPerson, G: PerPerson, M: int) -> float:
    """The common growth rate r(F, G) when M interventions per step keep everyone level.

    r solves Σ_i π_i = M with π_i F_i - (1 - π_i) G_i = r, so π_i = (r + G_i)/(F_i + G_i) and, while all π_i are in
    [0, 1], r = (M - Σ_i G_i/(F_i + G_i)) / Σ_i 1/(F_i + G_i). Someone with F_i < r cannot keep up even if always
    helped: π_i = 1; someone with -G_i > r stays ahead without any help: π_i = 0. Those leave the sums and r is the
    level at which the others share what remains (water-filling), found exactly from the sorted kinks of Σ_i π_i(r).

    Args:
        F: return when helped, welfare per step, shape (N,), positive.
        G: decay when not helped, welfare per step, shape (N,), positive.
        M: interventions per step, 1 <= M < N.

    Returns:
        r, welfare per step.

    Raises:
        InputError: if shapes differ, a value is not positive or M is out of range.
    """
    F, G = _returns_and_decays(F, G)
    check_budget(M, F.size)
    weight = 1.0 / (F + G)
    kinks = np.concatenate([-G, F])
    order = np.argsort(kinks, kind="stable")
    kinks = kinks[order]
    slope = np.cumsum(np.concatenate([weight, -weight])[order])
    demand = np.concatenate([[0.0], np.cumsum(slope[:-1] * np.diff(kinks))])  # Σ π_i at each kink, from 0 to N
    k = int(np.searchsorted(demand, M))
    middle = 0.5 * (kinks[k - 1] + kinks[k])
    always, shared = middle >= F, (middle > -G) & (middle < F)
    return float((M - always.sum() - np.sum(G[shared] * weight[shared])) / np.sum(weight[shared]))


def equalized_shares(F: PerPerson, G: PerPerson, M: int) -> Float[np.ndarray, " N"]:
    """Long-run share of steps π_i in which each person is helped when everyone is kept level; they sum to M.

    Args:
        F: return when helped, welfare per step, shape (N,), positive.
        G: decay when not helped, welfare per step, shape (N,), positive.
        M: interventions per step, 1 <= M < N.

    Returns:
        π, shape (N,), each in [0, 1].

    Raises:
        InputError: as `equalized_rate`.
    """
    F, G = _returns_and_decays(F, G)
    return np.clip((equalized_rate(F, G, M) + G) / (F + G), 0.0, 1.0)


def equalized_mean(F: PerPerson, G: PerPerson, M: int) -> float:
    """Mean over people of their own rates when everyone who can is kept level: r, unless someone is at π = 0 or 1.

    Args:
        F: return when helped, welfare per step, shape (N,), positive.
        G: decay when not helped, welfare per step, shape (N,), positive.
        M: interventions per step, 1 <= M < N.

    Returns:
        Mean of clip(r, -G_i, F_i), welfare per step.

    Raises:
        InputError: as `equalized_rate`.
    """
    F, G = _returns_and_decays(F, G)
    return float(np.mean(np.clip(equalized_rate(F, G, M), -G, F)))


def _returns_and_decays(F: PerPerson, G: PerPerson) -> tuple[Float[np.ndarray, " N"], Float[np.ndarray, " N"]]:
    F, G = np.float64(per_person(F, "Returns F")), np.float64(per_person(G, "Decays G"))
    if F.size != G.size:
        raise InputError(f"Returns F and decays G must have one length, but have {F.size} and {G.size}.")
    for values, what in ((F, "Returns F"), (G, "Decays G")):
        bad = np.flatnonzero(~((values > 0) & np.isfinite(values)))
        if bad.size:
            raise InputError(f"{what} must be positive and finite, but are not for {name_people(bad)}.")
    return F, G


def rate_rawls_up(population: Population, M: int) -> float:
    """Rawlsian long-run rate if everyone's welfare → +∞: r(f^+, g^-). Homogeneous: (M f^+ - (N - M) g^-)/N.

    Args:
        population: the people.
        M: interventions per step, 1 <= M < N.

    Returns:
        Mean over people, welfare per step.

    Raises:
        InputError: if M is out of range.
    """
    return equalized_mean(population.f_plus, population.g_minus, M)


def rate_rawls_down(population: Population, M: int) -> float:
    """Rawlsian long-run rate if everyone's welfare → -∞: r(f^-, g^+). Homogeneous: (M f^- - (N - M) g^+)/N.

    Args:
        population: the people.
        M: interventions per step, 1 <= M < N.

    Returns:
        Mean over people, welfare per step.

    Raises:
        InputError: if M is out of range.
    """
    return equalized_mean(population.f_minus, population.g_plus, M)


def rate_locked(population: Population, S: Sequence[int] | np.ndarray) -> float:
    """Long-run rate when the same set S is helped for ever: R_S = (Σ_{i in S} f_i^+ - Σ_{i not in S} g_i^+)/N.

    `util_gain`, `util_return` and `max_welfare` come to this; which S they reach depends on the start and the noise.
    Homogeneous: (M f^+ - (N - M) g^+)/N for every S.

    Args:
        population: the people.
        S: indices of those helped, M of them, each once.

    Returns:
        R_S, welfare per step.

    Raises:
        InputError: if S is empty, everyone, or holds an index twice or out of range.
    """
    inside = mask_of(population, S)
    return float((population.f_plus[inside].sum() - population.g_plus[~inside].sum()) / population.N)


def mask_of(population: Population, S: Sequence[int] | np.ndarray) -> np.ndarray:
    """Indices as a mask, checked.

    Args:
        population: the people.
        S: indices of those helped.

    Returns:
        Mask, shape (N,).

    Raises:
        InputError: if S is empty, everyone, or holds an index twice or out of range.
    """
    members = np.asarray(S)
    if not np.issubdtype(members.dtype, np.integer) or members.ndim != 1:
        raise InputError(f"The helped set S must be a list of people's indices (0 to {population.N - 1}).")
    if members.size != np.unique(members).size or not (1 <= members.size < population.N):
        raise InputError(f"The helped set S must hold between 1 and {population.N - 1} different people.")
    if members.min() < 0 or members.max() >= population.N:
        raise InputError(
            f"The helped set S names person {members.max()}, but the last is {population.N - 1} and the first is 0."
        )
    inside = np.zeros(population.N, bool)
    inside[members] = True
    return inside


def best_locked_set(population: Population, M: int) -> np.ndarray:
    """The S of M people with the largest R_S = (Σ_S (f^+ + g^+) - Σ g^+)/N: those with the largest f_i^+ + g_i^+.

    Args:
        population: the people.
        M: size of S, 1 <= M < N.

    Returns:
        Indices, shape (M,).

    Raises:
        InputError: if M is out of range.
    """
    population.check_budget(M)
    return np.argsort(-(population.f_plus + population.g_plus), kind="stable")[:M]


def worst_locked_set(population: Population, M: int) -> np.ndarray:
    """The S of M people with the smallest R_S: those with the smallest f_i^+ + g_i^+.

    Args:
        population: the people.
        M: size of S, 1 <= M < N.

    Returns:
        Indices, shape (M,).

    Raises:
        InputError: if M is out of range.
    """
    population.check_budget(M)
    return np.argsort(population.f_plus + population.g_plus, kind="stable")[:M]


def rate_random(population: Population, M: int) -> float:
    """Long-run rate when M people are drawn at random at each step, so that each is helped a share M/N of the time.

    r_i = (M/N) f_i^± - (1 - M/N) g_i^∓, the sign being the one that is consistent: the upper one if even the worst
    values give growth, the lower one if even the best give decline.

    Args:
        population: the people.
        M: interventions per step.

    Returns:
        Mean of r_i, welfare per step. Homogeneous with M f^- > (N - M) g^+: equal to the Rawlsian rate.

    Raises:
        InputError: if for someone both signs are consistent, so that the outcome depends on the start.
    """
    population.check_budget(M)
    share = M / population.N
    rates = [share * f - (1 - share) * g for f, g in (population.worst, population.best)]
    up, down = rates[0] > 0, rates[1] < 0
    if not np.all(up | down):
        raise InputError(
            f"Under the random policy the long-run rate of person {int(np.argmin(up | down))} depends on the start: "
            f"helped {share:.3g} of the time, welfare can both grow for ever and fall for ever. Simulate instead."
        )
    rising = share * population.f_plus - (1 - share) * population.g_minus
    falling = share * population.f_minus - (1 - share) * population.g_plus
    return float(np.mean(np.where(up, rising, falling)))


def one_step_gain(population: Population, U: PerPerson, S: Sequence[int] | np.ndarray) -> float:
    """Expected change of mean welfare in one step when S is helped: (-Σ_i g_i(U_i) + Σ_{i in S} (f_i + g_i)(U_i))/N.

    Args:
        population: the people.
        U: welfare now, shape (N,).
        S: indices of those helped.

    Returns:
        Welfare per step. `util_gain` chooses the S of its size that maximises this.

    Raises:
        InputError: if S is empty, everyone, or holds an index twice or out of range, or U is not finite or of
            another size.
    """
    inside, U = mask_of(population, S), finite_welfare(U)
    if U.size != population.N:
        raise InputError(f"Welfare U holds {U.size} values for {population.N} people.")
    return float(np.mean(np.where(inside, population.f(U), -population.g(U))))

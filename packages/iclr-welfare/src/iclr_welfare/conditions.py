"""The exact conditions: when Rawlsian help saves everyone, when it ruins everyone, and who wins in the long run."""

import dataclasses
from collections.abc import Sequence
from typing import Literal

import numpy as np

from iclr_shared.errors import InputError
from iclr_welfare.growth import best_locked_set, mask_of, rate_locked, rate_rawls_down, rate_rawls_up, worst_locked_set
from iclr_welfare.policies import LOCKING
from iclr_welfare.population import Population, name_people

Regime = Literal["survival", "ruin", "indeterminate"]


def survival_margin(population: Population, M: int) -> float:
    """M - Σ_i g_i^+/(f_i^- + g_i^+): interventions to spare when all values are at their worst.

    Positive ⇔ r(f^-, g^+) > 0. Homogeneous: the sign of M f^- - (N - M) g^+. Without the Matthew effect the worst
    values are inf f and sup g.

    Args:
        population: the people.
        M: interventions per step, 1 <= M < N.

    Returns:
        Interventions per step.

    Raises:
        InputError: if M is out of range.
    """
    population.check_budget(M)
    f, g = population.worst
    return float(M - np.sum(g / (f + g)))


def ruin_margin(population: Population, M: int) -> float:
    """Σ_i g_i^-/(f_i^+ + g_i^-) - M: interventions missing when all values are at their best.

    Positive ⇔ r(f^+, g^-) < 0. Homogeneous: the sign of (N - M) g^- - M f^+.

    Args:
        population: the people.
        M: interventions per step, 1 <= M < N.

    Returns:
        Interventions per step.

    Raises:
        InputError: if M is out of range.
    """
    population.check_budget(M)
    f, g = population.best
    return float(np.sum(g / (f + g)) - M)


def survival(population: Population, M: int) -> bool:
    """Whether the survival condition Σ_i g_i^+/(f_i^- + g_i^+) < M holds: under the Rawlsian policy everyone's welfare
    → +∞, from any start.

    Args:
        population: the people.
        M: interventions per step, 1 <= M < N.

    Returns:
        `survival_margin` > 0.

    Raises:
        InputError: if M is out of range.
    """
    return survival_margin(population, M) > 0


def ruin(population: Population, M: int) -> bool:
    """Whether the ruin condition Σ_i g_i^-/(f_i^+ + g_i^-) > M holds: under the Rawlsian policy everyone's welfare
    → -∞, from any start.

    Args:
        population: the people.
        M: interventions per step, 1 <= M < N.

    Returns:
        `ruin_margin` > 0.

    Raises:
        InputError: if M is out of range.
    """
    return ruin_margin(population, M) > 0


def regime(population: Population, M: int) -> Regime:
    """Which of the two conditions holds, if any.

    Args:
        population: the people.
        M: interventions per step, 1 <= M < N.

    Returns:
        ``"survival"``, ``"ruin"``, or ``"indeterminate"`` in between, where the outcome depends on the start.

    Raises:
        InputError: if M is out of range.
    """
    if survival(population, M):
        return "survival"
    return "ruin" if ruin(population, M) else "indeterminate"


@dataclasses.dataclass(frozen=True)
class Assumption:
    """One assumption of the comparison theorem.

    Args:
        name: what is assumed.
        holds: whether it does.
        detail: the numbers, or the people for whom it fails.
        needed: whether the closed forms need it. They do not need f + g to rise, only that the utilitarian policy has
            come to help a fixed set; the paper assumes it since otherwise that set may keep changing.
    """

    name: str
    holds: bool
    detail: str
    needed: bool = True


def assumptions(population: Population, M: int) -> tuple[Assumption, ...]:
    """What the exact comparison assumes, each with whether it holds for these people and this budget.

    Args:
        population: the people.
        M: interventions per step, 1 <= M < N.

    Returns:
        The Matthew effect of f and of g, f + g rising, and one of the two conditions, in this order.

    Raises:
        InputError: if M is out of range.
    """
    rows = []
    for name, bad in (
        ("Matthew effect: the return f does not fall with welfare", population.f_falls),
        ("Matthew effect: the decay g does not rise with welfare", population.g_rises),
        ("f + g does not fall with welfare", population.sum_falls),
    ):
        who = np.flatnonzero(bad)
        detail = f"fails for {name_people(who)}" if who.size else "all people"
        rows.append(Assumption(name, not who.size, detail, needed=name.startswith("Matthew")))
    spare, missing = survival_margin(population, M), ruin_margin(population, M)
    rows.append(
        Assumption(
            "survival condition or ruin condition",
            spare > 0 or missing > 0,
            f"survival: Σ g⁺/(f⁻+g⁺) = {M - spare:.6g} {'<' if spare > 0 else '≥'} M = {M}; "
            f"ruin: Σ g⁻/(f⁺+g⁻) = {M + missing:.6g} {'>' if missing > 0 else '≤'} M",
        )
    )
    return tuple(rows)


def _demand(population: Population, M: int, which: slice) -> None:
    failed = [a for a in assumptions(population, M)[which] if a.needed and not a.holds]
    if failed:
        reasons = "; ".join(f"{a.name} ({a.detail})" for a in failed)
        raise InputError(f"No closed form here, because an assumption fails: {reasons}. Simulate instead.")


def rate_rawls(population: Population, M: int) -> float:
    """Long-run growth of mean welfare under the Rawlsian policy: r(f^+, g^-) under survival, r(f^-, g^+) under ruin.

    Args:
        population: the people.
        M: interventions per step, 1 <= M < N.

    Returns:
        R, welfare per step. Everyone grows at this rate, except people who are capped (see `equalized_rate`).

    Raises:
        InputError: if neither condition holds: then both limits are consistent and the start decides.
    """
    _demand(population, M, slice(3, 4))
    return rate_rawls_up(population, M) if survival(population, M) else rate_rawls_down(population, M)


def is_absorbing(population: Population, S: Sequence[int] | np.ndarray, policy: str = "util_gain") -> bool:
    """Whether a policy that has come to help exactly S, with S far up and the rest far down, does so for ever.

    util_gain: min_S (f^+ + g^-) > max_{not S} (f^- + g^+); util_return: min_S f^+ > max_{not S} f^-; max_welfare:
    always.

    Args:
        population: the people.
        S: indices of those helped.
        policy: ``"util_gain"``, ``"util_return"`` or ``"max_welfare"``.

    Returns:
        Whether S stays; False only says that the limits alone do not guarantee it.

    Raises:
        InputError: if the policy does not lock, or S is not a proper subset of the people.
    """
    inside = mask_of(population, S)
    keys = {
        "util_gain": (population.f_plus + population.g_minus, population.f_minus + population.g_plus),
        "util_return": (population.f_plus, population.f_minus),
    }
    if policy == "max_welfare":
        return True
    if policy not in keys:
        raise InputError(f"The policy {policy!r} does not lock on to a set; choose among {', '.join(LOCKING)}.")
    up, down = keys[policy]
    return bool(up[inside].min() > down[~inside].max())


@dataclasses.dataclass(frozen=True)
class Verdict:
    """Who wins in the long run.

    Args:
        winner: policy with the larger long-run rate.
        gap: R_rawls - R_S, welfare per step and person.
        rawls: R_rawls.
        locked: R_S.
        regime: which condition holds.
    """

    winner: Literal["rawlsian", "utilitarian", "tie"]
    gap: float
    rawls: float
    locked: float
    regime: Regime


def who_wins(population: Population, M: int, S: Sequence[int] | np.ndarray) -> Verdict:
    """The exact comparison of the Rawlsian policy with a utilitarian one that has locked on to S.

    Under survival Rawlsian wins iff N r(f^+, g^-) > Σ_S f_i^+ - Σ_{not S} g_i^+; under ruin with r(f^-, g^+) instead.
    Homogeneous under survival: always, by (N - M)(g^+ - g^-)/N; under ruin utilitarian wins by M (f^+ - f^-)/N.
    Strong heterogeneity reverses the order even under survival.

    Args:
        population: the people, who must show the Matthew effect.
        M: interventions per step.
        S: indices of the M people whom the utilitarian policy has come to help for ever.

    Returns:
        The verdict.

    Raises:
        InputError: naming each assumption that fails, or if S does not hold M people.
    """
    _demand(population, M, slice(None))
    if len(S) != M:
        raise InputError(f"The helped set S holds {len(S)} people but the budget is M = {M}.")
    rawls, locked = rate_rawls(population, M), rate_locked(population, S)
    gap = rawls - locked
    tie = abs(gap) <= 1e-12 * max(abs(rawls), abs(locked))
    return Verdict(
        "tie" if tie else "rawlsian" if gap > 0 else "utilitarian", gap, rawls, locked, regime(population, M)
    )


def wins_whatever_happens(population: Population, M: int) -> Literal["rawlsian", "utilitarian", "depends on S"]:
    """Whether one side wins for every set S that the utilitarian policy might lock on to.

    It compares R_rawls with the largest and the smallest R_S, that is with the M largest and smallest f_i^+ + g_i^+.

    Args:
        population: the people, who must show the Matthew effect.
        M: interventions per step, 1 <= M < N.

    Returns:
        The winner for every S, or ``"depends on S"``.

    Raises:
        InputError: naming each assumption that fails.
    """
    best = who_wins(population, M, best_locked_set(population, M))
    worst = who_wins(population, M, worst_locked_set(population, M))
    if best.winner == "rawlsian":
        return "rawlsian"
    return "utilitarian" if worst.winner == "utilitarian" else "depends on S"


def burn_in(population: Population) -> int:
    """Order of magnitude of the steps until the long run begins: the time that the neglected take to reach low welfare.

    max_i (U_i(0) - lowest knot of g_i)/g_i^-: a neglected person loses at least g_i^- per step until the decay has
    reached its full size. A heuristic of ours, not of the paper.

    Args:
        population: the people.

    Returns:
        Steps; 0 where g is constant.
    """
    if not population.g.knots:
        return 0
    lowest = np.min([np.broadcast_to(np.float64(k), (population.N,)) for k in population.g.knots], axis=0)
    return int(np.ceil(np.max(np.maximum(population.U0 - lowest, 0) / population.best[1])))

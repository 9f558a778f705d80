"""Which minima each optimiser can hold (Zhou et al., theory section): linear stability of GD, SGD and SAM.

Full batch, one direction of curvature h: the exact factors. Minibatches: the loss-stability bounds on the Frobenius
norm of the Gauss-Newton matrix, in the form of the paper's result (its exact constants were not available to us).
"""

import math

from iclr_shared.errors import InputError


def gd_stability_threshold(eta: float) -> float:
    """Largest curvature that gradient descent holds: ``h_SGD = 2 / eta``."""
    _positive(eta=eta)
    return 2 / eta


def sam_stability_threshold(eta: float, rho: float) -> float:
    """Largest curvature that full-batch USAM holds: ``h_SAM = (sqrt(1 + 8 rho/eta) - 1) / (2 rho)``, below 2/eta.

    It solves ``eta h (1 + rho h) = 2``; computed in the form ``4 / (eta (1 + sqrt(1 + 8 rho/eta)))``, which is exact
    at ``rho = 0`` too.

    Args:
        eta: learning rate.
        rho: radius of USAM, at least 0.
    """
    _positive(eta=eta)
    _not_negative(rho=rho)
    return 4 / (eta * (1 + math.sqrt(1 + 8 * rho / eta)))


def usam_factor(eta: float, rho: float, h: float) -> float:
    """Factor of the loss per step of USAM along a direction of curvature h: ``(1 - eta h (1 + rho h))^2``.

    Above 1 the minimum is left exponentially, with the displacement growing by its square root per step.
    """
    _positive(eta=eta)
    _not_negative(rho=rho, h=h)
    return (1 - eta * h * (1 + rho * h)) ** 2


def sam_amplitude(eta: float, rho: float, h: float) -> float:
    """Amplitude of the 2-cycle of normalised SAM on ``h w^2 / 2``: ``eta h rho / (2 - eta h)``; infinite from 2/eta on.

    Normalised SAM has no fixed point on a quadratic, however small the learning rate.
    """
    return eta * h * rho / (2 - eta * h) if eta * h < 2 else math.inf


def sgd_frobenius_bound(eta: float, batch_size: int, gamma: float = 1.0) -> float:
    """Loss-stable minima of SGD: ``|G|_F^2 <= B / (gamma eta^2)``; returns the right-hand side.

    Args:
        eta: learning rate.
        batch_size: B.
        gamma: noise alignment, see `alignment.noise_alignment`.
    """
    _positive(eta=eta, batch_size=batch_size, gamma=gamma)
    return batch_size / (gamma * eta**2)


def usam_frobenius_bound(eta: float, rho: float, batch_size: int, gamma: float = 1.0) -> float:
    """Loss-stable minima of USAM: the largest X = |G|_F^2 with ``X (1 + rho^2 gamma X / B) <= B / (gamma eta^2)``.

    ``X_SAM = B / (2 rho^2 gamma) (sqrt(1 + 4 rho^2 / eta^2) - 1)``, computed in the form that is exact at ``rho = 0``;
    never above `sgd_frobenius_bound`.

    Args:
        eta: learning rate.
        rho: radius, at least 0.
        batch_size: B.
        gamma: noise alignment.
    """
    _not_negative(rho=rho)
    return sgd_frobenius_bound(eta, batch_size, gamma) * 2 / (1 + math.sqrt(1 + 4 * (rho / eta) ** 2))


def _positive(**values: float) -> None:
    for name, value in values.items():
        if not 0 < value < math.inf:
            raise InputError(f"{name} is {value}; it must be positive and finite.")


def _not_negative(**values: float) -> None:
    for name, value in values.items():
        if not 0 <= value < math.inf:
            raise InputError(f"{name} is {value}; it must be finite and at least 0.")

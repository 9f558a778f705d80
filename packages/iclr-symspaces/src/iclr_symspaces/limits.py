"""What the closed forms are held against: the limit d(x, γ_ξ(t)) − t in many digits, optimised distances.

In float64 e^{ta} is useless beyond t of about 15, and in rank ≥ 2 the limit is approached as 1/t only: hence mpmath.
"""

import mpmath
import numpy as np
import torch
from jaxtyping import Float
from scipy.optimize import minimize
from torch import Tensor

from iclr_symspaces.spd import SPD, Flag

DIGITS = 80


def spd_ray(
    space: SPD, x: Float[np.ndarray, "n n"], k: Float[np.ndarray, "n n"], a: Float[np.ndarray, "n"], t: float
) -> mpmath.mpf:
    """d(x, γ_ξ(t)) − t with γ_ξ(t) = k diag(e^{ta}) kᵀ, by the eigenvalues of e^{−ta/2} kᵀxk e^{−ta/2} in many digits.

    Args:
        space: with its metric.
        x: point.
        k: orthogonal to float64; made orthogonal in as many digits.
        a: spectrum of unit length in the metric.
        t: how far along the ray.
    """
    with mpmath.workdps(DIGITS + int(t * float(np.ptp(a)))):  # the eigenvalues are e^{t(a_1 − a_n)} apart
        n = len(a)
        frame = _orthonormal(mpmath.matrix(k.tolist()))
        a = [mpmath.mpf(float(value)) for value in a]
        length = mpmath.sqrt(space.alpha * mpmath.fsum(v**2 for v in a) + space.beta * mpmath.fsum(a) ** 2)
        half = [mpmath.exp(-t * v / (2 * length)) for v in a]
        m = frame.T * mpmath.matrix(x.tolist()) * frame
        for i in range(n):
            for j in range(n):
                m[i, j] *= half[i] * half[j]
        logs = [mpmath.log(value) for value in mpmath.eigsy((m + m.T) / 2, eigvals_only=True)]
        square = space.alpha * mpmath.fsum(v**2 for v in logs) + space.beta * mpmath.fsum(logs) ** 2
        return mpmath.sqrt(square) - t


def hyperbolic_ray(z: Float[np.ndarray, "d"], u: Float[np.ndarray, "d"], t: float, c: float = 1.0) -> mpmath.mpf:
    """d(x, γ_u(t)) − t on the hyperboloid in 80 digits, z = √c x the point in the unit ball."""
    with mpmath.workdps(DIGITS):
        z, u = [mpmath.mpf(float(v)) for v in z], [mpmath.mpf(float(v)) for v in u]
        size = mpmath.sqrt(mpmath.fsum(v**2 for v in u))
        along = mpmath.fsum(p * q for p, q in zip(z, u, strict=True)) / size
        square, root = mpmath.fsum(v**2 for v in z), mpmath.sqrt(c)
        cosh = ((1 + square) * mpmath.cosh(root * t) - 2 * along * mpmath.sinh(root * t)) / (1 - square)
        return mpmath.acosh(cosh) / root - t


def product_ray(distances: list[mpmath.mpf], weights: Float[np.ndarray, "m"], t: float) -> mpmath.mpf:
    """√Σ d_i² − t of the factors' distances from points to γ_i(w_i t)."""
    with mpmath.workdps(DIGITS):
        size = mpmath.sqrt(mpmath.fsum(mpmath.mpf(float(w)) ** 2 for w in weights))
        return mpmath.sqrt(mpmath.fsum(d**2 for d in distances)) - t * size


def second_order(space: SPD, x: Float[Tensor, "n n"], xi: Flag) -> float:
    """lim t·(d(x, γ_ξ(t)) − t − B_ξ(x)) = (‖A‖² − ⟨H, A⟩²)/2 in the metric's norm, for one regular ray."""
    logs = space.composite(x, xi.k[0])
    length = space.alpha * logs.square().sum() + space.beta * logs.sum().square()
    return float((length - space.busemann(x, xi)[0].square()) / 2)


def wrong_busemann(space: SPD, x: Float[Tensor, "*batch n n"], xi: Flag) -> Float[Tensor, "*batch k"]:
    """The control: log D from the ordinary Cholesky factor, kᵀxk = N D Nᵀ with N **lower** triangular."""
    lower = torch.linalg.cholesky(xi.k.mT @ x.unsqueeze(-3) @ xi.k)
    logs = 2 * lower.diagonal(dim1=-2, dim2=-1).log()
    weights = space.alpha * xi.a + space.beta * xi.a.sum(-1, keepdim=True)
    return -(weights * logs).sum(-1)


def horosphere_distance(
    space: SPD, x: Float[Tensor, "n n"], xi: Flag, level: float, starts: int = 1, seed: int = 0
) -> float:
    """min d(x, y) over {y : B_ξ(y) = level} by BFGS: y = k N D Nᵀkᵀ, N unit upper and ⟨a, log D⟩ = −level.

    Args:
        space: with its metric.
        x: point.
        xi: one boundary point.
        level: value of the Busemann function on the horosphere.
        starts: how many starting points; the least minimum is taken.
        seed: of the starting points after the first, which is zero.
    """
    n, k, a = space.n, xi.k[0], xi.a[0]
    weights = space.alpha * a + space.beta * a.sum()
    fixed = -level * weights / weights.square().sum()
    across = torch.linalg.svd(weights[None]).Vh[1:]

    def objective(free: np.ndarray) -> tuple[float, np.ndarray]:
        v = torch.tensor(free, dtype=torch.float64, requires_grad=True)
        y = space.iwasawa(torch.cat([fixed + v[: n - 1] @ across, v[n - 1 :]]))
        d = space.dist(x, k @ y @ k.T)
        (gradient,) = torch.autograd.grad(d, v)
        return float(d.detach()), gradient.numpy()

    rng, best = np.random.default_rng(seed), np.inf
    for i in range(starts):
        start = np.zeros(space.dim - 1) if i == 0 else rng.standard_normal(space.dim - 1)
        best = min(best, minimize(objective, start, jac=True, method="BFGS", options={"gtol": 1e-9}).fun)
    return float(best)


def _orthonormal(m: mpmath.matrix) -> mpmath.matrix:
    """Gram and Schmidt, in the working precision."""
    q = m.copy()
    for j in range(m.cols):
        for i in range(j):
            along = mpmath.fsum(q[r, i] * q[r, j] for r in range(m.rows))
            for r in range(m.rows):
                q[r, j] -= along * q[r, i]
        size = mpmath.sqrt(mpmath.fsum(q[r, j] ** 2 for r in range(m.rows)))
        for r in range(m.rows):
            q[r, j] /= size
    return q

"""The kernel rule: a projection is good if a kernel machine that sees nothing else explains the labels smoothly."""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import cho_factor, cho_solve
from jaxtyping import Array, Float, PRNGKeyArray

Kernel = Callable[[Float[Array, "n b"], float], Float[Array, "n n"]]


def _rbf(z: Float[Array, "n b"], length: float) -> Float[Array, "n n"]:
    """``exp(-|z - z'|² / (2 l²))``, from differences where b is small: exact zeros on the diagonal."""
    if z.shape[1] <= 4:
        squares = jnp.square(z[:, None, :] - z[None, :, :]).sum(-1)
    else:
        norms = jnp.square(z).sum(1)
        squares = jnp.maximum(norms[:, None] + norms[None, :] - 2 * z @ z.T, 0.0)
    return jnp.exp(-squares / (2 * length**2))


def _angle(z: Float[Array, "n b"]) -> tuple[Array, Array, Array, Array]:
    """With a bias coordinate of 1: norm products, cosines, and arc-cosine kernels of order 0 and 1."""
    z = jnp.concatenate([z, jnp.ones_like(z[:, :1])], 1)
    norm = jnp.sqrt(jnp.square(z).sum(1))
    product = norm[:, None] * norm[None, :]
    # Kept off ±1, where the angle's derivative is infinite.
    edge = 1 - 10 * jnp.finfo(z.dtype).eps
    cosine = jnp.clip(z @ z.T / product, -edge, edge)
    angle = jnp.arccos(cosine)
    zeroth = (jnp.pi - angle) / jnp.pi
    first = (jnp.sqrt(1 - cosine**2) + (jnp.pi - angle) * cosine) / jnp.pi
    return product, cosine, zeroth, first


def _arccos(z: Float[Array, "n b"], length: float) -> Float[Array, "n n"]:
    """Arc-cosine kernel of order 1, ``|z||z'| (sin t + (pi - t) cos t) / pi``, of ``(z / l, 1)``."""
    product, _, _, first = _angle(z / length)
    return product * first


def _ntk(z: Float[Array, "n b"], length: float) -> Float[Array, "n n"]:
    """Tangent kernel of a two-layer ReLU network on ``(z / l, 1)``: ``|z||z'| (k1 + cos t k0)``."""
    product, cosine, zeroth, first = _angle(z / length)
    return product * (first + cosine * zeroth)


#: Kernels by name: functions of projected inputs (n, b) and a length.
KERNELS: dict[str, Kernel] = {"rbf": _rbf, "arccos": _arccos, "ntk": _ntk}


def generator(key: PRNGKeyArray, *number: int) -> np.random.Generator:
    """NumPy's generator from the bits of a key (and numbers below it): draws of any shape without compilation."""
    return np.random.default_rng([*np.asarray(jax.random.key_data(key)).tolist(), *number])


def orthonormal(A: Float[Array, "b m"]) -> Float[Array, "b m"]:
    """Rows orthonormalised: divided by the norm for b = 1, by QR otherwise."""
    if A.shape[0] == 1:
        return A / jnp.linalg.norm(A)
    return jnp.linalg.qr(A.T)[0].T


def gram(
    V: Float[Array, "b m"], x: Float[Array, "n m"], kernel: str = "rbf", length: float = 1.0
) -> Float[Array, "n n"]:
    """``G_ij = kappa(V x_i, V x_j)``.

    Args:
        V: projection, shape (b, m).
        x: inputs, shape (n, m).
        kernel: a name in `KERNELS`.
        length: unit of length of the projected inputs.
    """
    return KERNELS[kernel](x @ V.T, length)


def objective(
    A: Float[Array, "b m"],
    x: Float[Array, "n m"],
    y: Float[Array, "n c"],
    lam: float | Float[Array, ""] = 1.0,
    kernel: str = "rbf",
    length: float = 1.0,
) -> Float[Array, ""]:
    """``J(V) = tr(Y^T (G(V) + lam I)^-1 Y) / n`` with V the orthonormalised A: the learning rule's objective.

    It is the optimal value of ridge regression, ``min_h sum |h(x_i) - y_i|² + lam ||h||²``, over ``lam n``; without
    lam, the squared norm of the interpolating function over n. Small where the projection makes the target smooth.

    The gradient uses ``dJ = -tr(a^T dG a) / n`` with ``a = (G + lam I)^-1 Y``, so that the Cholesky factor need not be
    differentiated. Second derivatives are not meant to be taken.

    Args:
        A: any basis of the projection's row space, shape (b, m).
        x: inputs, shape (n, m).
        y: centred labels, shape (n, c).
        lam: ridge, in units of the labels' variance.
        kernel, length: as in `gram`.

    Returns:
        A scalar; NaN if the Cholesky factorisation fails.

    References:
        Boopathy et al., ICLR 2025, Algorithm 1 (objective as in section 2.5 of this package's specification).
    """
    G = gram(orthonormal(A), x, kernel, length)
    ridge = G + lam * jnp.eye(len(x), dtype=G.dtype)
    a = jax.lax.stop_gradient(cho_solve(cho_factor(jax.lax.stop_gradient(ridge), lower=True), y))
    # Stationary in a, with the value y^T (G + lam I)^-1 y there: the gradient in G is exact.
    return (2 * jnp.vdot(y, a) - jnp.vdot(a, ridge @ a)) / len(x)


_objective = jax.jit(objective, static_argnums=(4, 5))


def objectives(
    V: Float[np.ndarray, "R b m"],
    x: Float[Array, "n m"],
    y: Float[Array, "n c"],
    lam: float,
    kernel: str,
    length: float,
) -> Float[np.ndarray, " R"]:
    """`objective` of each projection, one after the other: memory stays at that of one Gram matrix."""
    return np.array([float(_objective(one, x, y, lam, kernel, length)) for one in V.astype(x.dtype)])


@partial(jax.jit, static_argnums=(4, 5))
def additive_residual(
    V: Float[Array, "K b m"],
    x: Float[Array, "n m"],
    y: Float[Array, "n c"],
    lam: Float[Array, ""] | float,
    kernel: str = "rbf",
    length: float = 1.0,
) -> Float[Array, "n c"]:
    """What kernel ridge regression with the mean of the modules' kernels leaves of y: deflation.

    ``y - G (G + lam I)^-1 y = lam (G + lam I)^-1 y``, with ``G`` the mean over the K projections.

    Args:
        V: found projections, shape (K, b, m).
        x, y, lam, kernel, length: as in `objective`.
    """
    G = jax.lax.map(lambda one: gram(one, x, kernel, length), V).mean(0)
    return lam * cho_solve(cho_factor(G + lam * jnp.eye(len(x), dtype=G.dtype), lower=True), y)

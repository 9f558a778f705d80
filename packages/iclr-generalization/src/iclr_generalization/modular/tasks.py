"""Tasks made of modules: sums of sine waves of projections, and several images side by side."""

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from iclr_generalization.modular.kernel_rule import generator
from iclr_shared.errors import InputError


@dataclass(frozen=True, eq=False)
class SineTask:
    """``y(x) = sum_kj a_kj sin(w_kj . (U_k x) + s_kj) / sqrt(K J / 2)``: a sum of K functions of b-dimensional inputs.

    Amplitudes are standard normal, wave vectors have lengths uniform on [1, 3] and random directions, phases are
    uniform, and each module's projection has random orthonormal rows (those of different modules are independent).

    Args:
        m: input dimension.
        modules: K, true modules (3: this package's choice, as are the other constants).
        b: dimension of each module's input.
        waves: J, waves in each module.
        key: of the task; samples have keys of their own.

    Raises:
        InputError: unless 1 <= b <= m and all sizes are positive.

    References:
        Boopathy et al., ICLR 2025, sine wave regression.
    """

    m: int
    modules: int = 3
    b: int = 1
    waves: int = 4
    key: PRNGKeyArray | None = None

    def __post_init__(self):
        if not 1 <= self.b <= self.m or min(self.modules, self.waves) < 1:
            raise InputError(f"A sine task needs 1 <= b <= m, modules and waves >= 1; got {self}.")
        if self.key is None:
            object.__setattr__(self, "key", jax.random.key(0))

    @cached_property
    def U(self) -> Float[Array, "K b m"]:
        """The true projections."""
        draws = generator(self.key, 0).normal(size=(self.modules, self.m, self.b))
        return jnp.asarray(np.linalg.qr(draws)[0].swapaxes(1, 2))

    @cached_property
    def _waves(self) -> tuple[Array, Array, Array]:
        """Amplitudes (K, J), wave vectors (K, J, b), phases (K, J)."""
        rng, shape = generator(self.key, 1), (self.modules, self.waves)
        direction = rng.normal(size=(*shape, self.b))
        direction /= np.linalg.norm(direction, axis=2, keepdims=True)
        w = rng.uniform(1, 3, (*shape, 1)) * direction
        return jnp.asarray(rng.normal(size=shape)), jnp.asarray(w), jnp.asarray(rng.uniform(0, 2 * np.pi, shape))

    def __call__(self, x: Float[Array, "n m"]) -> Float[Array, "n 1"]:
        """The target at x, without noise."""
        return _sines(self.U, *self._waves, x)

    def sample(self, n: int, key: PRNGKeyArray, scale: float = 1.0) -> tuple[Float[Array, "n m"], Float[Array, "n 1"]]:
        """Inputs from N(0, scale² I) and their targets; scale 2 is this package's test out of distribution.

        Args:
            n: samples.
            key: of the sample.
            scale: standard deviation of the inputs.
        """
        x = jnp.asarray(scale * generator(key).normal(size=(n, self.m)))
        return x, self(x)


@jax.jit
def _sines(U: Array, a: Array, w: Array, s: Array, x: Array) -> Array:
    angles = jnp.einsum("kjb,nkb->nkj", w, jnp.einsum("kbm,nm->nkb", U, x)) + s
    return (a * jnp.sin(angles)).sum((1, 2))[:, None] / np.sqrt(a.size / 2)


@dataclass(frozen=True, eq=False)
class Compositional:
    """k images side by side, whose classes are to be told all at once; mixed, so that the parts must be discovered.

    Args:
        images: flat images, shape (N, D), on a common scale.
        labels: their classes, shape (N,) as well, integers from 0.
        k: images in each input.
        key: of the mixing and of the held-out pairs.
        holdout: fraction of the pairs of classes, at adjacent positions, that never occur in training.
        mix: multiply inputs by a fixed random orthogonal matrix of R^(kD).

    Raises:
        InputError: for sizes that do not fit, k < 1, or a holdout outside [0, 1).

    References:
        Boopathy et al., ICLR 2025, Compositional CIFAR-10 (the split out of distribution is this package's choice).
    """

    images: Float[np.ndarray, "N D"]
    labels: Int[np.ndarray, " L"]
    k: int
    key: PRNGKeyArray
    holdout: float = 0.2
    mix: bool = True

    def __post_init__(self):
        if len(self.images) != len(self.labels):
            raise InputError(f"There are {len(self.labels)} labels for {len(self.images)} images.")
        if self.k < 1 or not 0 <= self.holdout < 1:
            raise InputError(f"k must be at least 1 and holdout in [0, 1), got k={self.k}, holdout={self.holdout:g}.")

    @property
    def classes(self) -> int:
        """Number of classes at each position."""
        return int(self.labels.max()) + 1

    @cached_property
    def mixing(self) -> Float[np.ndarray, "M M"]:
        """The orthogonal matrix Q; inputs are ``Q`` times the images side by side."""
        size = self.k * self.images.shape[1]
        if not self.mix:
            return np.eye(size)
        return np.linalg.qr(generator(self.key, 0).normal(size=(size, size)))[0]

    @cached_property
    def held_out(self) -> Bool[np.ndarray, "c c"]:
        """Which pairs of classes are kept for the test out of distribution."""
        pairs = self.classes**2
        chosen = np.zeros(pairs, dtype=bool)
        chosen[generator(self.key, 1).permutation(pairs)[: round(self.holdout * pairs)]] = True
        return chosen.reshape(self.classes, self.classes)

    def U(self, b: int) -> Float[np.ndarray, "k b M"]:
        """The true modules, cut to the b leading principal directions of an image at each position.

        Args:
            b: dimension of each module's input, at most D.
        """
        D = self.images.shape[1]
        if not 1 <= b <= D:
            raise InputError(f"b must lie in 1..{D}, the size of an image, got {b}.")
        directions = np.linalg.svd(self.images - self.images.mean(0), full_matrices=False)[2][:b]
        return np.stack([directions @ self.mixing[:, i * D : (i + 1) * D].T for i in range(self.k)])

    def sample(
        self, n: int, rng: np.random.Generator, *, held_out: bool = False, among: Int[np.ndarray, " A"] | None = None
    ) -> tuple[Float[np.ndarray, "n M"], Int[np.ndarray, "n k"]]:
        """Random compositions.

        Args:
            n: samples.
            rng: generator.
            held_out: compositions with at least one held-out pair, in place of those without any.
            among: indices of the images to use, so that test images can be kept apart.

        Returns:
            Inputs (n, k D) and classes (n, k).

        Raises:
            InputError: if compositions of a kind are asked for that does not occur.
        """
        if held_out and (self.k == 1 or not self.held_out.any()):
            raise InputError("There are no held-out pairs with k = 1 or holdout = 0.")
        among = np.arange(len(self.images)) if among is None else among
        chosen, rounds = np.empty((0, self.k), dtype=np.int64), 0
        while len(chosen) < n:
            drawn = rng.choice(among, (4 * n, self.k))
            unseen = np.zeros(len(drawn), dtype=bool)
            for left, right in pairwise(self.labels[drawn].T):
                unseen |= self.held_out[left, right]
            chosen, rounds = np.concatenate([chosen, drawn[unseen == held_out]]), rounds + 1
            if not len(chosen) and rounds == 20:
                which = "with" if held_out else "without"
                raise InputError(f"Of {20 * len(drawn)} random compositions none is {which} held-out pairs.")
        chosen = chosen[:n]
        return self.images[chosen].reshape(n, -1) @ self.mixing.T, self.labels[chosen]


def digit_images() -> tuple[Float[np.ndarray, "N D"], Int[np.ndarray, " N"]]:
    """scikit-learn's 1,797 digits (8×8), flat, centred and scaled as a whole to mean square 1."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    images = images - images.mean(0)
    return images / np.sqrt(np.square(images).mean()), labels.astype(np.int64)

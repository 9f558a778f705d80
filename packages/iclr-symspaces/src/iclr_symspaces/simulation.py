"""The artificial data sets of C6 and C7: EEG-like covariances under a subject shift, a noisy tree in a ball."""

from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from scipy.linalg import expm

from iclr_symspaces.hyperbolic import PoincareBall


class Recordings(NamedTuple):
    """Epochs of one simulated subject for training and of a shifted one for testing."""

    train: Float[np.ndarray, "trials channels time"]
    train_labels: Int[np.ndarray, "trials"]
    test: Float[np.ndarray, "tests channels time"]
    test_labels: Int[np.ndarray, "tests"]


def simulate_eeg(
    seed: int,
    shift: float,
    delta: float,
    *,
    channels: int = 8,
    time: int = 256,
    classes: int = 4,
    train: int = 150,
    test: int = 100,
) -> Recordings:
    """Trials A_c·noise + 0.3·noise, A_c = expm(δ sym N) R diag(e^{0.6η}); test trials times g = expm(shift sym N).

    Args:
        seed: of one generator, from which R, η, the N of the classes and of g, training and test trials are
            drawn in this order.
        shift: between the subjects.
        delta: between the classes.
        channels: number of sensors.
        time: samples of a trial.
        classes: number of classes.
        train: training trials a class.
        test: test trials a class.
    """
    rng = np.random.default_rng(seed)
    q, r = np.linalg.qr(rng.standard_normal((channels, channels)))
    base = q * np.sign(np.diag(r)) * np.exp(0.6 * rng.standard_normal(channels))
    mixings = [expm(delta * _symmetric(rng, channels)) @ base for _ in range(classes)]
    moved = expm(shift * _symmetric(rng, channels))
    parts = []
    for count in (train, test):
        trials = [
            m @ rng.standard_normal((count, channels, time)) + 0.3 * rng.standard_normal((count, channels, time))
            for m in mixings
        ]
        parts.append((np.concatenate(trials), np.repeat(np.arange(classes), count)))
    return Recordings(*parts[0], moved @ parts[1][0], parts[1][1])


def noisy_tree(
    generator: torch.Generator, d: int, *, depth: int = 5, step: float = 1.2, noise: float = 0.3, copies: int = 10
) -> tuple[Float[torch.Tensor, "points d"], Int[torch.Tensor, "points"]]:
    """A binary tree in the ball (c = 1): children x⊕exp_o(step · N(0, I)) from o on; noisy points of each node.

    Nodes of depth ≥ 3 are used; the label of a point is its ancestor at depth 2, so there are four.

    Args:
        generator: source of the draws.
        d: dimension of the ball.
        depth: of the leaves, at least 3.
        step: of an edge.
        noise: around a node.
        copies: points of each node.
    """
    ball = PoincareBall(d)

    def around(x: torch.Tensor, scale: float, count: int) -> torch.Tensor:
        centres = x.repeat_interleave(count, 0)
        v = torch.randn(len(centres), d, generator=generator, dtype=torch.float64)
        return ball.project(ball.mobius(centres, ball.exp0(scale * v)))

    level, points, labels = torch.zeros(1, d, dtype=torch.float64), [], []
    for at in range(1, depth + 1):
        level = around(level, step, 2)
        if at >= 3:
            points.append(around(level, noise, copies))
            labels.append(torch.arange(4).repeat_interleave(len(level) // 4 * copies))
    return torch.cat(points), torch.cat(labels)


def _symmetric(rng: np.random.Generator, n: int) -> np.ndarray:
    free = rng.standard_normal((n, n))
    return (free + free.T) / 2

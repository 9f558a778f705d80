"""Attention locality: near tokens have similar scores, and that is why halving finds the best (Theorem 1)."""

import numpy as np
import torch
from jaxtyping import Float
from scipy.signal import lfilter
from scipy.stats import spearmanr
from torch import Tensor

from iclr_hip.tree import search_scores


def smooth(rng: np.random.Generator, shape: tuple[int, ...], length: float) -> Float[Tensor, "..."]:
    """Stationary Gaussian (Ornstein-Uhlenbeck) values along the last axis, covariance exp(−distance / length).

    Args:
        rng: of the noise.
        shape: the last axis is the token.
        length: ℓ, tokens; towards 0 it is white noise.
    """
    keep = np.exp(-1.0 / length)
    noise = rng.standard_normal(shape)
    noise[..., 1:] *= np.sqrt(1 - keep**2)
    return torch.from_numpy(lfilter([1.0], [1.0, -keep], noise, axis=-1).astype(np.float32))


def top_found(scores: Float[Tensor, "x t"], m: int) -> tuple[float, float]:
    """Share of draws whose highest score the search finds, and mean share of the m highest that it finds.

    Args:
        scores: a draw to a row.
        m: nodes kept.
    """
    found, _ = search_scores(scores, m)
    kept = torch.zeros_like(scores, dtype=torch.bool).scatter_(1, found, True)
    best = scores.topk(m, dim=1).indices
    hits = kept.gather(1, best)
    return float(hits[:, 0].double().mean()), float(hits.double().mean())


def random_found(scores: Float[Tensor, "x t"], m: int, generator: torch.Generator) -> float:
    """The same share for m blocks drawn at random: m / t in expectation."""
    kept = torch.rand(scores.shape, generator=generator).argsort(dim=1)[:, :m]
    return float((kept == scores.argmax(1, keepdim=True)).any(1).double().mean())


def score_differences(
    q: Float[Tensor, "h q d"], k: Float[Tensor, "h k d"], farthest: int = 32
) -> Float[np.ndarray, "h n"]:
    """E |s_i − s_{i+δ}| for δ = 1 … farthest over causal pairs, scores s = q · k / √d, for each head.

    Args:
        q, k: of one sequence, Tq = Tk, kv heads repeated.
        farthest: largest distance δ.
    """
    t = q.shape[1]
    scores = q.float() @ k.float().transpose(1, 2) / q.shape[2] ** 0.5
    seen = torch.ones(t, t, dtype=torch.bool).tril()
    means = []
    for delta in range(1, farthest + 1):
        gaps = (scores[:, :, delta:] - scores[:, :, :-delta]).abs()
        means.append(gaps[:, seen[:, delta:]].mean(1))
    return torch.stack(means, 1).numpy()


def rank_correlations(differences: Float[np.ndarray, "h n"]) -> Float[np.ndarray, " h"]:
    """Spearman correlation of E |s_i − s_{i+δ}| with δ, for each head."""
    distance = np.arange(differences.shape[1])
    return np.array([spearmanr(distance, row).statistic for row in differences])


def needle(
    rng: np.random.Generator, length: int, width: float, d: int = 64, shape: str = "gaussian", strength: float = 10.0
) -> tuple[Float[Tensor, "1 1 1 d"], Float[Tensor, "1 1 t d"], int]:
    """A query at the end, and keys of noise among which those around one place point its way.

    Args:
        rng: of place, query and noise.
        length: T.
        width: σ of the bump, or the length of a "box", tokens.
        d: width of a head.
        shape: "gaussian" or "box".
        strength: score of the needle's centre, in standard deviations of the other keys' scores.

    Returns:
        q, k, and the needle's place, uniform between sinks and window of the default settings.
    """
    query = rng.standard_normal(d)
    place = int(rng.integers(16 + 256, length - 512))
    keys = rng.standard_normal((length, d))
    distance = np.arange(length) - place
    bump = np.exp(-0.5 * (distance / width) ** 2) if shape == "gaussian" else 2 * np.abs(distance) <= width
    keys += np.outer(strength * bump, query / np.linalg.norm(query))
    as_tensor = (torch.from_numpy(x.astype(np.float32))[None, None] for x in (query[None], keys))
    return *as_tensor, place

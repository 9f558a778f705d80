"""REINFORCE over the layers of a model: a few episodes, no text (section 2.5)."""

import hashlib
import json
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers import PreTrainedModel

from iclr_prunenet.feed_forward import all_finite, scored_matrices
from iclr_prunenet.policy import PruneNetPolicy, draw_rows, rows_kept
from iclr_prunenet.spectra import Spectrum
from iclr_shared.adapters import torch_bytes, torch_restore
from iclr_shared.checkpoints import Checkpoint
from iclr_shared.errors import InputError
from iclr_shared.progress import progress

OFFICIAL_REWARD = 99999.0
"""What the official code pays for D = 0."""
GRAM_BYTES = 2 << 30
"""Gram matrices of all layers are kept while they take no more than this."""


@dataclass(frozen=True)
class Settings:
    """How the policy is learned; defaults of the official code unless said otherwise.

    Args:
        ratio: r, share of rows removed while training.
        episodes: passes over the layers.
        lr: of AdamW, whose weight decay is 0.01.
        gamma: discount over layers.
        seed: of initial values, noise and draws.
        reward: ``"inverse_ks"`` 1/D, or ``"neg_ks"`` -D.
        cap: ``"resolution"`` bounds 1/D by min(n, h) (ours: one lucky draw otherwise destroys the policy); None pays
            99999 for D = 0, as the official code does.
        returns: ``"per_layer"`` G_l = gamma^l R_l, or ``"cumulative"`` G_l = sum_(j >= l) gamma^(j-l) R_j.
        baseline: ``"none"``, or ``"mean_std"``: returns standardised over the layers of an episode.
        logprob: ``"surrogate"`` sum of log z over the kept rows, or ``"plackett_luce"``: of the draws in their order.
        kl: adds the KL term.
        clip: largest norm of a gradient, taken before the step.
    """

    ratio: float = 0.3
    episodes: int = 20
    lr: float = 1e-3
    gamma: float = 0.99
    seed: int = 42
    reward: str = "inverse_ks"
    cap: str | None = "resolution"
    returns: str = "per_layer"
    baseline: str = "none"
    logprob: str = "surrogate"
    kl: bool = False
    clip: float = 1.0

    def __post_init__(self):
        choices = {
            "reward": ("inverse_ks", "neg_ks"), "cap": ("resolution", None), "returns": ("per_layer", "cumulative"),
            "baseline": ("none", "mean_std"), "logprob": ("surrogate", "plackett_luce"),
        }  # fmt: skip
        for name, allowed in choices.items():
            if getattr(self, name) not in allowed:
                raise InputError(f"{name} must be one of {', '.join(map(str, allowed))}, got {getattr(self, name)!r}.")
        if self.episodes < 1:
            raise InputError(f"episodes must be at least 1, got {self.episodes}.")
        if not (self.lr > 0 and self.clip > 0):
            raise InputError(f"lr and clip must be positive, got {self.lr:g} and {self.clip:g}.")
        if not 0 <= self.gamma <= 1:
            raise InputError(f"gamma must lie in [0, 1], got {self.gamma:g}.")
        if self.seed < 0:
            raise InputError(f"seed must be at least 0, got {self.seed}.")


@dataclass(frozen=True)
class Episode:
    """What one episode saw, a number for each layer: KS distances, rewards and losses."""

    ks: tuple[float, ...]
    reward: tuple[float, ...]
    loss: tuple[float, ...]


def train_policy(
    model: PreTrainedModel | Sequence[Tensor],
    ratio: float = 0.3,
    episodes: int = 20,
    lr: float = 1e-3,
    gamma: float = 0.99,
    seed: int = 42,
    *,
    checkpoint: Checkpoint | None = None,
    device: str | torch.device | None = None,
    quiet: bool = True,
    **options: Any,
) -> tuple[PruneNetPolicy, list[Episode]]:
    """Learn which rows to keep from the weights alone.

    Args:
        model: a causal language model, or its scored matrices, (n, h) each; a lazy sequence is read layer by layer.
        ratio, episodes, lr, gamma, seed: see `Settings`.
        checkpoint: where to keep the state after each episode; training goes on from its last one.
        device: of the policy and of the computation; that of the first matrix if None.
        quiet: no progress bar.
        **options: the other fields of `Settings`.

    Returns:
        The policy of the episode with the largest sum of rewards (as the official code stores it: after that episode's
        updates), and the history.

    Raises:
        InputError: for settings out of range, weights that are no numbers, matrices of different shapes, or a
            checkpoint of another model, of other settings or of more episodes.
        UnsupportedModel: see `find_feed_forwards`.
    """
    settings = Settings(ratio, episodes, lr, gamma, seed, **options)
    matrices = scored_matrices(model) if isinstance(model, PreTrainedModel) else model
    return _Training(matrices, settings, device).run(checkpoint, quiet)


def discounted(rewards: Sequence[float], gamma: float, kind: str = "per_layer") -> Float[Tensor, " l"]:
    """G_l for each layer (section 2.5, step 2)."""
    values = torch.tensor(rewards, dtype=torch.float64)
    powers = gamma ** torch.arange(len(values), dtype=torch.float64)
    if kind == "per_layer":
        return powers * values
    # weights[l, j] = gamma^(j - l) for j >= l
    exponents = torch.arange(len(values))[None] - torch.arange(len(values))[:, None]
    weights = torch.where(exponents >= 0, gamma ** exponents.clamp_min(0).double(), 0.0)
    return weights @ values


def reward_of(ks: float, settings: Settings, resolution: int) -> float:
    """R_l from D_l (section 2.4); `resolution` = min(n, h)."""
    if settings.reward == "neg_ks":
        return -ks
    if settings.cap is None:
        return OFFICIAL_REWARD if ks == 0 else 1 / ks
    return 1 / max(ks, 1 / resolution)


def log_probability(log_mask: Float[Tensor, " n"], rows: Int[Tensor, " m"], kind: str) -> Float[Tensor, ""]:
    """Of having drawn `rows` in their order, from log z: the surrogate sum of log z, or Plackett-Luce's."""
    rows = rows.to(log_mask.device)
    chosen = log_mask[rows]
    if kind == "surrogate":
        return chosen.sum()
    left = torch.ones(len(log_mask), dtype=torch.bool, device=log_mask.device)
    left[rows] = False
    # log of the weight not yet drawn before draw t: a running logsumexp from the last draw to the first.
    rest = torch.cat([log_mask[left], chosen.flip(0)]).logcumsumexp(0)[int(left.sum()) :].flip(0)
    return (chosen - rest).sum()


class _Training:
    """The state of one training: policy, optimiser, generator, best policy and history."""

    def __init__(self, matrices: Sequence[Tensor], settings: Settings, device: str | torch.device | None):
        if len(matrices) == 0:
            raise InputError("There is no matrix to learn from.")
        first = matrices[0]
        n, h = first.shape
        self.matrices, self.settings = matrices, settings
        self.kept = rows_kept(n, settings.ratio)
        self.device = torch.device(device) if device is not None else first.device
        self.generator = torch.Generator().manual_seed(settings.seed)
        self.policy = PruneNetPolicy(h, n, self.generator).to(self.device)
        self.optimiser = torch.optim.AdamW(self.policy.parameters(), lr=settings.lr)
        self.history: list[Episode] = []
        self.best, self.best_reward = torch_bytes(self.policy.state_dict()), float("-inf")
        keep_gram = len(matrices) * min(n, h) ** 2 * 8 <= GRAM_BYTES
        digest = hashlib.sha256(json.dumps([asdict(settings) | {"episodes": 0}, n, h, len(matrices)]).encode())
        self.spectra = []
        for layer in range(len(matrices)):
            matrix = self.matrix(layer)
            if tuple(matrix.shape) != (n, h):
                raise InputError(f"Layer {layer} is {tuple(matrix.shape)}, layer 0 is {(n, h)}: all must be alike.")
            all_finite(f"Layer {layer}", matrix)
            self.spectra.append(Spectrum.of(matrix, keep_gram))
            if self.spectra[-1].values[0] == 0:
                warnings.warn(f"Layer {layer} is all zero: every choice of its rows is paid the same.", stacklevel=4)
            digest.update(matrix.cpu().contiguous().numpy())
        self.digest = digest.hexdigest()

    def matrix(self, layer: int) -> Float[Tensor, "n h"]:
        return self.matrices[layer].to(device=self.device, dtype=torch.float32)

    def run(self, checkpoint: Checkpoint | None, quiet: bool) -> tuple[PruneNetPolicy, list[Episode]]:
        if checkpoint is not None:
            self.restore(checkpoint)
        left = range(len(self.history), self.settings.episodes)
        for episode in progress(left, desc="episodes", quiet=quiet):
            self.episode()
            if checkpoint is not None:
                checkpoint.save(episode + 1, self.state())
        self.policy.load_state_dict(torch_restore(self.best))
        return self.policy, self.history

    def episode(self) -> None:
        settings, resolution = self.settings, min(self.policy.hidden_size, self.policy.intermediate_size)
        drawn, distances = [], []
        for layer, spectrum in enumerate(self.spectra):
            matrix = self.matrix(layer)
            with torch.no_grad():
                rows = draw_rows(self.policy(matrix, self.generator), self.kept, self.generator)
            drawn.append(rows)
            distances.append(spectrum.ks(matrix, rows.sort().values))
        rewards = [reward_of(ks, settings, resolution) for ks in distances]
        returns = discounted(rewards, settings.gamma, settings.returns)
        if settings.baseline == "mean_std":
            returns = (returns - returns.mean()) / (returns.std(correction=0) + 1e-8)
        losses = [
            self.update(layer, rows, float(g)) for layer, (rows, g) in enumerate(zip(drawn, returns, strict=True))
        ]
        self.history.append(Episode(tuple(distances), tuple(rewards), tuple(losses)))
        if sum(rewards) > self.best_reward:
            self.best, self.best_reward = torch_bytes(self.policy.state_dict()), sum(rewards)

    def update(self, layer: int, rows: Int[Tensor, " m"], weight: float) -> float:
        """One step of the optimiser on -G_l log p(S_l), with fresh noise (section 2.5, step 3)."""
        matrix = self.matrix(layer)
        log_mask = self.policy.log_mask(matrix, self.generator)
        loss = -weight * log_probability(log_mask, rows, self.settings.logprob)
        if self.settings.kl:
            loss = loss + self.policy.kl(matrix)
        self.optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.policy.parameters(), self.settings.clip)
        self.optimiser.step()
        return loss.item()

    def state(self) -> dict[str, Any]:
        return {
            "policy": torch_bytes(self.policy.state_dict()), "optimiser": torch_bytes(self.optimiser.state_dict()),
            "generator": self.generator.get_state(), "best": self.best, "best_reward": self.best_reward,
            "history": [asdict(episode) for episode in self.history], "digest": self.digest,
        }  # fmt: skip

    def restore(self, checkpoint: Checkpoint) -> None:
        found = checkpoint.latest()
        if found is None:
            return
        _, state = found
        if state["digest"] != self.digest:
            raise InputError(
                f"{checkpoint.folder} holds the training of another model or of other settings: "
                f"choose another folder, or remove it."
            )
        if len(state["history"]) > self.settings.episodes:
            raise InputError(
                f"{checkpoint.folder} has seen {len(state['history'])} episodes already, more than the "
                f"{self.settings.episodes} asked for: ask for as many, or remove the folder."
            )
        self.policy.load_state_dict(torch_restore(state["policy"], str(self.device)))
        self.optimiser.load_state_dict(torch_restore(state["optimiser"], str(self.device)))
        self.generator.set_state(torch.from_numpy(state["generator"]))
        self.best, self.best_reward = state["best"], state["best_reward"]
        self.history = [
            Episode(*(tuple(episode[name]) for name in ("ks", "reward", "loss"))) for episode in state["history"]
        ]

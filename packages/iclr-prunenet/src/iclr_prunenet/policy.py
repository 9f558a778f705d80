"""The policy: one linear score for the rows of every layer, sampled by a relaxed Bernoulli (section 2.2)."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from iclr_shared.errors import InputError
from iclr_shared.files import atomic_path, atomic_write

CLAMP = 1e-6
"""alpha and epsilon stay this far from 0 and 1."""
_LOGIT = float(torch.logit(torch.tensor(1 - CLAMP, dtype=torch.float64)))
_FILES = "policy.safetensors", "policy.json"


class PruneNetPolicy(nn.Module):
    """alpha = sigmoid((W Aᵀ + 1 bᵀ) u), the importance of each row of a scored matrix W (section 2.2).

    One network for all layers: n (h + 2) parameters. The two layers are one linear score of a row,
    w_i · (Aᵀu) + b·u, which is how it is computed: O(n h) where the product W Aᵀ takes O(n² h). It can prefer
    directions that layers share, but cannot see a row's norm.

    Args:
        hidden_size: h.
        intermediate_size: n.
        generator: for the initial values (A and b as in `torch.nn.Linear`, u uniform on [0, 1)).
    """

    def __init__(self, hidden_size: int, intermediate_size: int, generator: torch.Generator | None = None):
        super().__init__()
        self.hidden_size, self.intermediate_size = hidden_size, intermediate_size
        bound = hidden_size**-0.5
        # Made without values: PyTorch's own would be drawn from the process's generator.
        self.proj_intermediate = nn.utils.skip_init(nn.Linear, hidden_size, intermediate_size)
        self.row_sparsities = nn.Parameter(torch.empty(intermediate_size, 1))
        with torch.no_grad():
            self.proj_intermediate.weight.uniform_(-bound, bound, generator=generator)
            self.proj_intermediate.bias.uniform_(-bound, bound, generator=generator)
            self.row_sparsities.uniform_(generator=generator)

    def logits(self, matrix: Float[Tensor, "n h"]) -> Float[Tensor, " n"]:
        """logit(alpha) in float32, kept within the logits of `CLAMP` and 1 - `CLAMP`.

        Raises:
            InputError: if `matrix` has another shape than the policy's (n, h).
        """
        if tuple(matrix.shape) != (self.intermediate_size, self.hidden_size):
            raise InputError(
                f"The policy scores matrices of (n, h) = {(self.intermediate_size, self.hidden_size)}, "
                f"this one is {tuple(matrix.shape)}: train a policy for this model."
            )
        direction = self.proj_intermediate.weight.T @ self.row_sparsities[:, 0]
        shift = self.proj_intermediate.bias @ self.row_sparsities[:, 0]
        return (matrix.to(direction) @ direction + shift).clamp(-_LOGIT, _LOGIT)

    def scores(self, matrix: Float[Tensor, "n h"]) -> Float[Tensor, " n"]:
        """alpha in (0, 1): the importance of each row."""
        return torch.sigmoid(self.logits(matrix))

    def log_mask(self, matrix: Float[Tensor, "n h"], generator: torch.Generator | None = None) -> Float[Tensor, " n"]:
        """log z, where z = sigmoid(logit(epsilon) + logit(alpha)) is a binary concrete variable of temperature 1.

        P(z > 1/2) = alpha. Noise is drawn on the CPU, so that a seed means the same on every device.
        """
        logits = self.logits(matrix)
        noise = torch.rand(len(logits), generator=generator).clamp(CLAMP, 1 - CLAMP)
        return nn.functional.logsigmoid(torch.logit(noise).to(logits.device) + logits)

    def forward(self, matrix: Float[Tensor, "n h"], generator: torch.Generator | None = None) -> Float[Tensor, " n"]:
        """One sample of z in (0, 1)."""
        return self.log_mask(matrix, generator).exp()

    def kl(self, matrix: Float[Tensor, "n h"]) -> Float[Tensor, ""]:
        """sum_i -(1 - alpha_i) log alpha_i - alpha_i log(1 - alpha_i) - log 2: zero and least at alpha = 1/2."""
        logits = self.logits(matrix)
        alpha = torch.sigmoid(logits)
        inside, outside = nn.functional.logsigmoid(logits), nn.functional.logsigmoid(-logits)
        return (-(1 - alpha) * inside - alpha * outside - torch.log(torch.tensor(2.0))).sum()

    def save_pretrained(self, folder: Path | str, record: Mapping[str, Any] | None = None) -> None:
        """Write ``policy.safetensors`` and ``policy.json`` (h, n and the training record) into `folder`."""
        tensors, described = (Path(folder) / name for name in _FILES)
        with atomic_path(tensors) as temporary:
            save_file({name: value.detach().cpu().contiguous() for name, value in self.state_dict().items()}, temporary)
        sizes = {"hidden_size": self.hidden_size, "intermediate_size": self.intermediate_size}
        atomic_write(described, json.dumps({**sizes, "training": dict(record or {})}, indent=2))

    @classmethod
    def from_pretrained(cls, folder: Path | str) -> "PruneNetPolicy":
        """What `save_pretrained` wrote.

        Raises:
            InputError: if the files are missing, damaged or do not fit together.
        """
        tensors, described = (Path(folder) / name for name in _FILES)
        try:
            sizes = json.loads(described.read_text(encoding="utf-8"))
            policy = cls(int(sizes["hidden_size"]), int(sizes["intermediate_size"]), torch.Generator())
            policy.load_state_dict(load_file(tensors))
        except FileNotFoundError as error:
            raise InputError(f"{folder} holds no policy: {Path(error.filename or tensors).name} is missing.") from None
        except (OSError, ValueError, KeyError, TypeError, RuntimeError, SafetensorError) as error:
            raise InputError(f"The policy in {folder} is damaged: {str(error).splitlines()[0]}.") from error
        if not all(bool(torch.isfinite(parameter).all()) for parameter in policy.parameters()):
            raise InputError(f"The policy in {folder} is damaged: it holds NaN or infinite values.")
        return policy


def rows_kept(intermediate_size: int, ratio: float) -> int:
    """m = floor((1 - r) n), safe against the rounding of 1 - r.

    Raises:
        InputError: if the ratio is outside [0, 1) or leaves no row.
    """
    if not 0 <= ratio < 1:
        raise InputError(f"The compression ratio must be at least 0 and below 1, got {ratio:g}.")
    kept = int((1 - ratio) * intermediate_size + 1e-9)
    if kept < 1:
        raise InputError(f"A compression ratio of {ratio:g} leaves none of {intermediate_size} hidden units.")
    return kept


def draw_rows(mask: Float[Tensor, " n"], count: int, generator: torch.Generator | None = None) -> Int[Tensor, " m"]:
    """`count` rows without replacement with weights z, in the order drawn (section 2.2, step 4)."""
    # Exponential races: the order of E_i / z_i is the order of successive draws.
    weights = mask.detach().cpu().double().clamp_min(1e-12)
    races = torch.empty_like(weights).exponential_(generator=generator) / weights
    return races.argsort()[:count]


def top_rows(scores: Float[Tensor, " n"], count: int) -> Int[Tensor, " m"]:
    """The `count` rows of largest score, ascending; ties go to the lower index."""
    return scores.detach().cpu().sort(descending=True, stable=True).indices[:count].sort().values

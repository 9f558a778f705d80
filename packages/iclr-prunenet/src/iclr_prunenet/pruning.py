"""Cut a model to a ratio, with a learned policy or with the baselines (section 2.6)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers import PreTrainedModel

from iclr_prunenet.feed_forward import (
    FeedForward,
    all_finite,
    find_feed_forwards,
    scored_matrices,
    set_width,
    slice_block,
)
from iclr_prunenet.policy import PruneNetPolicy, draw_rows, rows_kept, top_rows
from iclr_prunenet.spectra import Spectrum
from iclr_shared.errors import InputError

Chooser = Callable[[Float[Tensor, "n h"], int], Int[Tensor, " m"]]


@dataclass(frozen=True)
class PruneReport:
    """What was cut.

    Args:
        ratio: r, share of hidden units asked for.
        intermediate_size: n before and m after.
        rows: kept hidden units of each layer, ascending.
        ks: D between the spectra of each layer's scored matrix before and after.
        parameters: of the whole model before and after.
    """

    ratio: float
    intermediate_size: tuple[int, int]
    rows: tuple[Int[Tensor, " m"], ...]
    ks: tuple[float, ...]
    parameters: tuple[int, int]

    @property
    def parameter_reduction(self) -> float:
        """Share of the whole model's parameters that is gone: r times the share of the feed-forward blocks."""
        return 1 - self.parameters[1] / self.parameters[0]

    @property
    def mean_ks(self) -> float:
        """Mean of D over layers."""
        return sum(self.ks) / len(self.ks)

    def record(self) -> dict[str, Any]:
        """The report as JSON-able values."""
        return {
            "ratio": self.ratio, "intermediate_size": list(self.intermediate_size), "ks": list(self.ks),
            "parameters": list(self.parameters), "parameter_reduction": self.parameter_reduction,
            "rows": [rows.tolist() for rows in self.rows],
        }  # fmt: skip


def by_policy(policy: PruneNetPolicy, mode: str = "topk", seed: int = 42) -> Chooser:
    """Keep the rows of largest alpha, or draw them with weights z as the official code does."""
    if mode not in ("topk", "sample"):
        raise InputError(f"mode must be 'topk' or 'sample', got {mode!r}.")
    generator = torch.Generator().manual_seed(seed)
    device = policy.row_sparsities.device

    @torch.no_grad()
    def choose(matrix: Tensor, count: int) -> Tensor:
        matrix = matrix.to(device)
        if mode == "topk":
            return top_rows(policy.logits(matrix), count)
        return draw_rows(policy(matrix, generator), count, generator).sort().values

    return choose


def at_random(seed: int = 42) -> Chooser:
    """Keep rows drawn uniformly: the baseline of the official code."""
    generator = torch.Generator().manual_seed(seed)

    def choose(matrix: Tensor, count: int) -> Tensor:
        return torch.randperm(len(matrix), generator=generator)[:count].sort().values

    return choose


def by_magnitude() -> Chooser:
    """Keep the rows of largest Euclidean norm."""

    def choose(matrix: Tensor, count: int) -> Tensor:
        return top_rows(matrix.float().norm(dim=1), count)

    return choose


def choose_rows(
    matrices: Sequence[Float[Tensor, "n h"]], ratio: float, choose: Chooser, device: torch.device | None = None
) -> tuple[list[Int[Tensor, " m"]], list[float]]:
    """Rows to keep and D for each layer, in order; a lazy sequence is read layer by layer.

    Args:
        device: where to compute; that of each matrix if None.

    Raises:
        InputError: for a ratio out of range, a policy of another shape, or weights that are no numbers.
    """
    rows, distances = [], []
    for layer in range(len(matrices)):
        matrix = matrices[layer].to(device)
        all_finite(f"Layer {layer}", matrix)
        rows.append(choose(matrix, rows_kept(len(matrix), ratio)))
        distances.append(Spectrum.of(matrix).ks(matrix, rows[-1]))
    return rows, distances


def prune_model(
    model: PreTrainedModel, policy: PruneNetPolicy, ratio: float, mode: str = "topk", seed: int = 42
) -> PruneReport:
    """Cut `model` in place: every layer keeps floor((1 - ratio) n) hidden units.

    The ratio may differ from that of the training: scores do not depend on it. The configuration is changed too, so
    that ``save_pretrained`` writes a directory that ``AutoModelForCausalLM.from_pretrained`` loads.

    Args:
        mode: ``"topk"`` keeps the largest alpha, ``"sample"`` draws as the official code does.
        seed: of the draws.

    Raises:
        InputError: for a ratio out of range, a policy of another (h, n), or weights that are no numbers.
        UnsupportedModel: see `find_feed_forwards`.
    """
    return prune(model, ratio, by_policy(policy, mode, seed))


def random_prune(model: PreTrainedModel, ratio: float, seed: int = 42) -> PruneReport:
    """The same with uniformly random rows."""
    return prune(model, ratio, at_random(seed))


def magnitude_prune(model: PreTrainedModel, ratio: float) -> PruneReport:
    """The same with the rows of largest norm."""
    return prune(model, ratio, by_magnitude())


def prune(model: PreTrainedModel, ratio: float, choose: Chooser) -> PruneReport:
    """The same with any rule; nothing is changed where it raises."""
    blocks = find_feed_forwards(model)
    for name in (part.parameter for block in blocks for part in block.cuts if part.parameter != block.scored):
        all_finite(name, model.get_parameter(name))
    rows, distances = choose_rows(scored_matrices(model), ratio, choose)
    before, width = model.num_parameters(), blocks[0].intermediate_size
    kept = len(rows[0])
    if kept < width:
        set_width(model.config, width, kept)
        for block, index in zip(blocks, rows, strict=True):
            slice_block(model, block, index)
            _set_module_width(model, block, width, kept)
    return PruneReport(ratio, (width, kept), tuple(rows), tuple(distances), (before, model.num_parameters()))


def _set_module_width(model: PreTrainedModel, block: FeedForward, before: int, after: int) -> None:
    """Blocks note their width as an attribute (Llama's `intermediate_size`); keep it true."""
    module = model.get_submodule(block.name)
    for name, value in vars(module).items():
        if name in ("intermediate_size", "ffn_dim") and value == before:
            setattr(module, name, after)

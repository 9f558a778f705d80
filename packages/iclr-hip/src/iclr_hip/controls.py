"""What a search must beat at the same budget: random blocks, and sinks with a longer window."""

from collections.abc import Callable
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from iclr_hip.config import HiPConfig
from iclr_hip.layout import KeyValues, QueryBlocks
from iclr_hip.mask import HiPMask


def random_mask(
    q: Float[Tensor, "b h q d"],
    key_length: int,
    config: HiPConfig,
    generator: torch.Generator,
    first: Tensor | None = None,
) -> HiPMask:
    """m random key blocks for each query block and head, between sinks and window (the BigBird-like control).

    Args:
        q: queries, for their shape.
        key_length: Tk.
        config: settings.
        generator: of the choice.
        first: (batch,) first real token of each sequence.
    """
    b, h, length, _ = q.shape
    first = torch.zeros(b, dtype=torch.int64) if first is None else first.cpu()
    query_blocks = QueryBlocks.of(length, key_length, first, config)
    count = -(-query_blocks.searchable // config.block_size_k)[:, None]
    n, m = query_blocks.count, config.nodes
    most = max(int(count.max()), 1)
    draws = torch.rand(b, h, n, most, generator=generator)
    draws = draws.masked_fill(torch.arange(most) >= count[..., None], torch.inf)
    chosen = draws.argsort(dim=3)[..., :m]
    found = torch.where(draws.gather(3, chosen).isinf(), most, chosen).sort(dim=3).values
    tokens = found * config.block_size_k + config.sink_token_size + first[:, None, None, None]
    blocks = torch.full((b, h, n, m), -1, dtype=torch.int32)
    blocks[..., : found.shape[3]] = tokens.masked_fill(found == most, -1).int()
    return HiPMask(
        blocks.to(q.device), first.to(q.device), length, key_length, config,
        torch.zeros(b, h, n, dtype=torch.int32, device=q.device),
    )  # fmt: skip


def window_config(config: HiPConfig) -> HiPConfig:
    """Sinks and a window of the same budget, without a search (the StreamingLLM-like control)."""
    return replace(config, mask_k=0, sliding_window_size=config.sliding_window_size + config.mask_k)


def random_search(generator: torch.Generator) -> Callable[..., HiPMask]:
    """A stand-in for `iclr_hip.mask.search` that draws blocks: for `iclr_hip.serving.searching_with`."""

    def drawn(q: Tensor, memory: KeyValues, *, config: HiPConfig, first: Tensor | None = None, **_: object) -> HiPMask:
        return random_mask(q, memory.length, config, generator, first)

    return drawn

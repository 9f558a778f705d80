"""Decoding: one search serves several steps, and the window grows in between so that no token is lost (section 2.4)."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from iclr_hip.attention import attend
from iclr_hip.config import HiPConfig
from iclr_hip.layout import KeyValues
from iclr_hip.mask import HiPMask, search
from iclr_shared.errors import InputError


@dataclass
class DecodingState:
    """What one layer remembers between steps.

    Args:
        mask: of the last search, or None.
        steps: tokens since that search.
        length: keys at the last step.
        tail: (batch, kv heads, d) the last key at the last step: a step that does not continue it has other sequences.
        searches: how many there were, prefill included.
    """

    mask: HiPMask | None = None
    steps: int = 0
    length: int = 0
    tail: Tensor | None = None
    searches: int = 0

    def continues(self, previous: Float[Tensor, "b h d"] | None, length: int, config: HiPConfig) -> bool:
        """Whether one more token of the same batch is there, and the last search may still be used."""
        return (
            self.mask is not None
            and self.mask.config == config
            and length == self.length + 1
            and self.steps + 1 < config.refresh_interval
            and self.tail is not None
            and previous is not None
            and self.tail.shape == previous.shape
            and torch.equal(self.tail, previous)
        )

    def state_dict(self) -> dict[str, Any]:
        """Everything, as tensors and plain values, for `torch.save`."""
        if self.mask is None:
            return {"length": self.length, "searches": self.searches}
        mask = {
            name: getattr(self.mask, name) for name in ("blocks", "first", "query_length", "key_length", "evaluations")
        }
        config = self.mask.config.to_dict()
        return {"mask": mask | {"config": config}, "steps": self.steps, "length": self.length, "tail": self.tail,
                "searches": self.searches}  # fmt: skip

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The inverse of `state_dict`."""
        stored = state.get("mask")
        self.mask = None if stored is None else HiPMask(**stored | {"config": HiPConfig.from_dict(stored["config"])})
        self.steps, self.length = state.get("steps", 0), state["length"]
        self.tail, self.searches = state.get("tail"), state["searches"]


def step(
    state: DecodingState,
    q: Float[Tensor, "b h q d"],
    memory: KeyValues,
    tails: tuple[Tensor | None, Tensor],
    *,
    config: HiPConfig,
    scale: float | None = None,
    first: Int[Tensor, " b"] | None = None,
    softcap: float | None = None,
    find: Callable[..., HiPMask] = search,
) -> tuple[Float[Tensor, "b h q dv"], HiPMask]:
    """Attention of one forward pass: a search for prompts, and for every r_m-th single query.

    Args:
        state: of this layer; changed in place once the result is there.
        q: queries, the last positions of the keys.
        memory: keys and values.
        tails: last key but one, (batch, kv heads, d) or None, and last key.
        config, scale, first, softcap: see `iclr_hip.attention.hip_attention`.
        find: the search, or a control in its place.

    Returns:
        out, and the mask that was used.
    """
    decoding, previous = q.shape[2] == 1, tails[0]
    if decoding and state.continues(previous, memory.length, config):
        mask, steps, searches = state.mask, state.steps + 1, state.searches
    else:
        mask, steps, searches = find(q, memory, config=config, first=first), 0, state.searches + 1
    out = attend(q, memory, mask, scale=scale, softcap=softcap)
    state.mask = mask if decoding else None  # prompts are not continued from: their last block has older queries
    state.steps, state.length, state.searches = steps, memory.length, searches
    state.tail = tails[1].detach().clone()
    return out, mask


def capacity(length: int, config: HiPConfig, group: int = 1, scale: float = 4.0) -> int:
    """C(T) = ⌊log2(T / mask_k + 1) · mask_k · s · G⌋: tokens of a kv head that stay on the device, O(log T).

    Args:
        length: T.
        config: for mask_k.
        group: G, query heads to a kv head.
        scale: s.

    Raises:
        InputError: for a scale that is not positive.
    """
    if not scale > 0:
        raise InputError(f"The capacity's scale must be positive, got {scale}.")
    if not config.mask_k:
        return 0
    return int(
        torch.log2(torch.tensor(length / config.mask_k + 1, dtype=torch.float64)) * config.mask_k * scale * group
    )

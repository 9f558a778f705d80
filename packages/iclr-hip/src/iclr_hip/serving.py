"""HiP as an attention function of transformers, for any model that uses its attention interface."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.masking_utils import causal_mask_function

from iclr_hip.attention import attend, dense_attention
from iclr_hip.config import HiPConfig
from iclr_hip.decoding import DecodingState, step
from iclr_hip.layout import Resident, check, first_tokens
from iclr_hip.mask import HiPMask, search
from iclr_shared.errors import InputError

logger = logging.getLogger(__name__)

NAME = "hip"


def register() -> None:
    """Make "hip" an attention implementation of transformers: ``from_pretrained(dir, attn_implementation="hip")``."""
    AttentionInterface.register(NAME, hip_attention_forward)
    AttentionMaskInterface.register(NAME, padding_mask)


def padding_mask(
    batch_size: int,
    q_length: Any,
    kv_length: Any,
    *,
    q_offset: Any = None,
    kv_offset: Any = 0,
    mask_function: Callable = causal_mask_function,
    attention_mask: Tensor | None = None,
    local_size: int | None = None,
    use_vmap: bool = False,
    **kwargs: Any,
) -> Tensor | None:
    """The mask builder that goes with the attention function: (batch, keys) where there is padding, else nothing.

    A mask of Tq · Tk entries, which others build, would break O(T).

    Raises:
        NotImplementedError: for packed sequences, mask functions that models add, and caches that give back more keys
            than there are tokens.
    """
    if use_vmap or (mask_function is not causal_mask_function and local_size is None):
        raise NotImplementedError(
            "HiP attends causally, with padding on the left at most; packed sequences and other mask functions need "
            'another attention implementation, such as "sdpa".'
        )
    if q_offset is not None and int(kv_offset) + int(kv_length) > int(q_offset) + int(q_length):
        raise NotImplementedError(
            "HiP takes the last keys for those of the queries, so a cache with room for more tokens than it holds "
            '(cache_implementation="static") does not fit; use the default one, or iclr_hip.OffloadedCache.'
        )
    if attention_mask is None:
        return None
    attention_mask = attention_mask[:, -kv_length:]
    return None if bool(attention_mask.all()) else attention_mask


def enable_hip(model: PreTrainedModel, config: HiPConfig | None = None) -> PreTrainedModel:
    """Swap the attention function of a live model; weights stay as they are.

    Args:
        model: any causal model of transformers that uses the attention interface.
        config: settings, stored as ``model.config.hip`` for `save_pretrained`.

    Returns:
        The model.
    """
    register()
    config = HiPConfig() if config is None else config
    for part in _configs(model):
        part.hip = config.to_dict()
    if model.config._attn_implementation != NAME:
        model.hip_instead_of = model.config._attn_implementation
    model.set_attn_implementation(NAME)
    forget(model)
    return model


def disable_hip(model: PreTrainedModel) -> PreTrainedModel:
    """Back to the attention function from before `enable_hip`; the settings go."""
    for part in _configs(model):
        if hasattr(part, "hip"):
            del part.hip
    model.set_attn_implementation(getattr(model, "hip_instead_of", "sdpa"))
    forget(model)
    return model


def forget(model: PreTrainedModel) -> None:
    """Drop what layers remember of the sequence they decode."""
    for module in model.modules():
        if hasattr(module, "hip_decoding"):
            del module.hip_decoding


def _configs(model: PreTrainedModel) -> list[Any]:
    text = model.config.get_text_config()
    return [model.config] if text is model.config else [model.config, text]


def hip_attention_forward(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attention in transformers' form; see `iclr_hip.attention.hip_attention`.

    Layers with an index below `HiPConfig.dense_layers` attend everything; those with a sliding window of their own keep
    it, exactly.

    Args:
        module: the attention layer, with `layer_idx`, `config.hip` and `is_causal`.
        query: (batch, heads, Tq, d).
        key, value: (batch, kv heads, Tk, d).
        attention_mask: from `padding_mask`.
        dropout, scaling, is_causal, sliding_window, softcap: as transformers gives them.

    Returns:
        (batch, Tq, heads, d), None.
    """
    if not (getattr(module, "is_causal", True) if is_causal is None else is_causal):
        raise InputError("HiP is defined for causal attention only; load this model with another implementation.")
    if dropout:
        raise NotImplementedError("HiP has no attention dropout: call model.eval(), or set attention_dropout to 0.")
    config = HiPConfig.from_dict(getattr(module.config, "hip", None) or {})
    memory = getattr(key, "hip_memory", None)
    first = first_tokens(attention_mask, key.shape[0], key.shape[2])
    first = None if first is None else first.to(query.device)
    new = (key, value) if memory is None else (part[:, :, -query.shape[2] :] for part in memory.recent)
    check(query, *new, config.check_finite)
    mask, find = None, getattr(module, "hip_search", search)
    if sliding_window is not None:
        _log_once(module, sliding_window)
        # A window alone is a mask without tree and sinks, exactly: no T · T mask as sdpa would need.
        local = HiPConfig(mask_k=0, sink_token_size=0, sliding_window_size=sliding_window, block_size_q=64,
                          backend=config.backend)  # fmt: skip
        resident = Resident(key, value)
        mask = search(query, resident, config=local, first=first)
        out = attend(query, resident, mask, scale=scaling, softcap=softcap)
    elif module.layer_idx < config.dense_layers:
        out = dense_attention(query, key, value, scale=scaling, first=first, softcap=softcap)
    elif memory is None:
        if not hasattr(module, "hip_decoding"):
            module.hip_decoding = DecodingState()
        tails = key[:, :, -2] if key.shape[2] > 1 else None, key[:, :, -1]
        out, mask = step(
            module.hip_decoding, query, Resident(key, value), tails, config=config, scale=scaling, first=first,
            softcap=softcap, find=find,
        )  # fmt: skip
    else:
        memory.prepare(first)
        whole = memory.whole()
        out, mask = step(
            memory.decoding, query, memory if whole is None else whole, memory.tails(), config=config, scale=scaling,
            first=memory.first, softcap=softcap, find=find,
        )  # fmt: skip
        memory.trim()
    if (observer := getattr(module, "hip_observer", None)) is not None:
        observer(Seen(module.layer_idx, query.detach(), key.detach(), mask, scaling))
    return out.transpose(1, 2).contiguous(), None


@dataclass(frozen=True)
class Seen:
    """One layer's attention of one forward pass.

    Args:
        layer: its index.
        query: (batch, heads, Tq, d).
        key: (batch, kv heads, Tk, d).
        mask: which keys were attended; None in a dense layer.
        scale: of q · k, None for d^(−1/2).
    """

    layer: int
    query: Tensor
    key: Tensor
    mask: HiPMask | None
    scale: float | None


@contextmanager
def _attached(model: nn.Module, name: str, value: Any) -> Iterator[None]:
    modules = [module for module in model.modules() if hasattr(module, "layer_idx")]
    for module in modules:
        setattr(module, name, value)
    try:
        yield
    finally:
        for module in modules:
            delattr(module, name)


@contextmanager
def observing(model: nn.Module, observer: Callable[[Seen], None]) -> Iterator[None]:
    """Within this context `observer` is called with what every layer of a model with HiP did in every pass."""
    with _attached(model, "hip_observer", observer):
        yield


@contextmanager
def searching_with(model: nn.Module, find: Callable[..., HiPMask]) -> Iterator[None]:
    """Within this context a model with HiP takes its key blocks from `find`, called like `iclr_hip.mask.search`."""
    with _attached(model, "hip_search", find):
        yield


_logged: set[int] = set()


def _log_once(module: nn.Module, window: int) -> None:
    if id(module.config) not in _logged:
        _logged.add(id(module.config))
        logger.info("Layers with a sliding window of %d tokens keep it; HiP prunes the others.", window)

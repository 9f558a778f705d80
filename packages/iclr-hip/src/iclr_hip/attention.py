"""Attention over few keys: softmax(scale · q kᵀ + M) v with M = 0 on the pairs of a `HiPMask`, −∞ elsewhere."""

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from iclr_hip.config import HiPConfig
from iclr_hip.layout import KeyValues, QueryBlocks, Resident, Scratch, check, chunk_rows, first_tokens, rows_of
from iclr_hip.mask import HiPMask, candidates, load_triton, pad_rows, search
from iclr_shared.errors import InputError

#: Queries at a time in dense attention over more keys than queries.
DENSE_CHUNK = 512


def hip_attention(
    q: Float[Tensor, "..."],
    k: Float[Tensor, "..."],
    v: Float[Tensor, "..."],
    *,
    config: HiPConfig,
    scale: float | None = None,
    causal: bool = True,
    block_mask: HiPMask | None = None,
    attention_mask: Tensor | None = None,
    softcap: float | None = None,
    generator: torch.Generator | None = None,
    chunk_bytes: int | None = None,
) -> tuple[Float[Tensor, "b h q dv"], HiPMask]:
    """Hierarchically pruned attention (Lee et al., arXiv 2406.09827), a stand-in for scaled_dot_product_attention.

    Args:
        q: (batch, query heads, Tq, d), positions applied, not scaled; the last Tq of Tk positions.
        k, v: (batch, kv heads, Tk, d) and (batch, kv heads, Tk, dv).
        config: settings.
        scale: factor of q · k; d^(−1/2) by default.
        causal: must be true: the method is defined for causal attention.
        block_mask: an earlier search to use again, of the same query or of one a few tokens before.
        attention_mask: (batch, Tk) of a left-padded batch, 1 for real tokens.
        softcap: c of logits c · tanh(s / c), torch backend.
        generator: for ``sample="random"``.
        chunk_bytes: of keys gathered at a time; 4 MiB on a CPU, 256 MiB elsewhere.

    Returns:
        out: (batch, query heads, Tq, dv) in q's dtype, zeros in rows that are padding; and the mask.

    Raises:
        InputError: for shapes that do not fit, named, and non-causal use.
        NotImplementedError: for masks with other axes than (batch, Tk).
        RuntimeError: if the backend cannot run here, or cannot give the gradient that is asked for.
    """
    if not causal:
        raise InputError("HiP is defined for causal attention only; use scaled_dot_product_attention.")
    check(q, k, v, config.check_finite)
    first = first_tokens(attention_mask, k.shape[0], k.shape[2])
    memory = Resident(k, v)
    if block_mask is None:
        block_mask = search(q, memory, config=config, first=first, generator=generator, chunk_bytes=chunk_bytes)
    out = attend(q, memory, block_mask, scale=scale, softcap=softcap, chunk_bytes=chunk_bytes)
    return out, block_mask


def block_sparse_attention(
    q: Float[Tensor, "..."],
    k: Float[Tensor, "..."],
    v: Float[Tensor, "..."],
    mask: HiPMask,
    *,
    scale: float | None = None,
    softcap: float | None = None,
    chunk_bytes: int | None = None,
) -> Float[Tensor, "b h q dv"]:
    """Attention over the pairs of `mask`; see `hip_attention`."""
    check(q, k, v)
    return attend(q, Resident(k, v), mask, scale=scale, softcap=softcap, chunk_bytes=chunk_bytes)


def attend(
    q: Float[Tensor, "b h q d"],
    memory: KeyValues,
    mask: HiPMask,
    *,
    scale: float | None = None,
    softcap: float | None = None,
    chunk_bytes: int | None = None,
) -> Float[Tensor, "b h q dv"]:
    """`block_sparse_attention` over keys and values that may live anywhere.

    Args:
        q: queries.
        memory: keys and values; at most a few tokens longer than when `mask` was searched, and then for one query.
        mask: see `HiPMask`.
        scale, softcap, chunk_bytes: see `hip_attention`.
    """
    b, h, length, d = q.shape
    config, extension = mask.config, memory.length - mask.key_length
    if extension and (length != 1 or extension < 0):
        raise InputError(
            f"The mask was searched for {mask.key_length} keys and cannot serve {length} queries at {memory.length}: "
            "only single queries may come after it."
        )
    if not extension and length != mask.query_length:
        raise InputError(f"The mask was searched for {mask.query_length} queries, not {length}.")
    if mask.blocks.shape[:2] != (b, h):
        raise InputError(f"The mask is for (batch, heads) {tuple(mask.blocks.shape[:2])}, the queries are {(b, h)}.")
    scale = d**-0.5 if scale is None else scale
    reached = mask.after(extension) if extension else mask
    query_blocks = QueryBlocks.of(length, memory.length, mask.first, config)
    gradient = torch.is_grad_enabled() and (q.requires_grad or _differentiable(memory))
    backend = ("triton" if q.is_cuda else "torch") if config.backend == "auto" else config.backend
    if backend == "triton" and isinstance(memory, Resident):
        kernels = load_triton()
        kernels.check_device(q)
        if gradient:
            raise RuntimeError('The Triton kernels have no backward pass; use backend="torch" for gradients.')
        if softcap is not None:
            raise NotImplementedError('The Triton kernels have no softcap; use backend="torch".')
        return kernels.attend(q, memory.key, memory.value, reached, query_blocks, extension, scale)
    out = _attend(q, memory, reached, query_blocks, extension, scale, softcap, gradient, chunk_bytes)
    memory.settle()
    return out


def _attend(
    q: Tensor, memory: KeyValues, mask: HiPMask, query_blocks: QueryBlocks, extension: int, scale: float,
    softcap: float | None, gradient: bool, chunk_bytes: int | None,
) -> Tensor:  # fmt: skip
    b, h, length, d = q.shape
    n, rows = query_blocks.count, query_blocks.size
    padded = pad_rows(q, n * rows).reshape(b * h, n, rows, d)
    chosen = mask.blocks.flatten(0, 1)
    keys = mask.config.mask_k + mask.config.sink_token_size + mask.config.sliding_window_size + extension + rows
    chunk = chunk_rows(keys * (2 * d + rows) * max(4, q.element_size()), q.device, chunk_bytes)
    scratch, parts = Scratch(reuse=not gradient), []
    out = None
    for flat in torch.arange(b * h * n, device=q.device).split(chunk):
        batch, row, kv_row, block = rows_of(flat, h, memory.heads, n)
        found = candidates(query_blocks, batch, block, chosen[row, block], extension)
        key, value = memory.attended(kv_row, found.tokens, scratch)
        query = padded[row, block]
        if query.dtype != torch.float64:
            query, key, value = query.float(), key.float(), value.float()
        held = scratch.take("weights", (len(flat), rows, key.shape[1]), query)
        query, key = query * scale, key.transpose(1, 2)
        scores = torch.bmm(query, key) if held is None else torch.bmm(query, key, out=held)
        if softcap is not None:
            scores = softcap * torch.tanh(scores / softcap)
        lowest, window = torch.finfo(scores.dtype).min, found.high.shape[1]
        at = found.positions[:, :, None]
        if gradient:
            weights = scores.masked_fill(~found.allowed, lowest).softmax(2)
        else:
            scores.masked_fill_(at < found.low[:, None], lowest)
            scores[:, :, -window:].masked_fill_(at >= found.high[:, None], lowest)
            weights = torch.softmax(scores, 2, out=scores) if softcap is None else scores.softmax(2)
        result = torch.bmm(weights, value).to(q.dtype)
        if bool((found.positions < 0).any()):
            result = result.masked_fill(at < 0, 0.0)
        if gradient:
            parts.append(result)
            continue
        if out is None:
            out = result.new_empty(b * h, n, rows, value.shape[2])
        out[row, block] = result
    if gradient:
        out = torch.cat(parts)
    return out.reshape(b, h, n * rows, -1)[:, :, :length]


def _differentiable(memory: KeyValues) -> bool:
    return isinstance(memory, Resident) and (memory.key.requires_grad or memory.value.requires_grad)


def dense_attention(
    q: Float[Tensor, "b h q d"],
    k: Float[Tensor, "b g k d"],
    v: Float[Tensor, "b g k dv"],
    *,
    scale: float | None = None,
    first: Int[Tensor, " b"] | None = None,
    softcap: float | None = None,
) -> Float[Tensor, "b h q dv"]:
    """Causal attention over all keys, in O(T) memory also for left-padded batches: what the first layers do.

    Args:
        q, k, v, scale, softcap: see `hip_attention`.
        first: (batch,) first real token of each sequence.
    """
    if first is not None and bool((first > 0).any()):
        out = q.new_zeros(*q.shape[:3], v.shape[3])
        for i, start in enumerate(first.tolist()):
            rows = min(q.shape[2], k.shape[2] - start)
            if rows > 0:
                parts = q[i : i + 1, :, q.shape[2] - rows :], k[i : i + 1, :, start:], v[i : i + 1, :, start:]
                out[i : i + 1, :, q.shape[2] - rows :] = dense_attention(*parts, scale=scale, softcap=softcap)
        return out
    length, total = q.shape[2], k.shape[2]
    grouped = q.shape[1] != k.shape[1]
    if softcap is None and length == total:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale, enable_gqa=grouped)
    if softcap is None and length == 1:
        return F.scaled_dot_product_attention(q, k, v, scale=scale, enable_gqa=grouped)
    positions, parts = torch.arange(total - length, total, device=q.device), []
    for rows in torch.arange(length, device=q.device).split(DENSE_CHUNK):
        seen = int(positions[rows[-1]]) + 1
        mask = torch.arange(seen, device=q.device) <= positions[rows][:, None]
        part = q[:, :, rows[0] : rows[-1] + 1], k[:, :, :seen], v[:, :, :seen]
        parts.append(
            _capped(*part, mask, scale, softcap)
            if softcap is not None
            else F.scaled_dot_product_attention(*part, attn_mask=mask, scale=scale, enable_gqa=grouped)
        )
    return torch.cat(parts, 2)


def _capped(q: Tensor, k: Tensor, v: Tensor, mask: Bool[Tensor, "q k"], scale: float | None, cap: float) -> Tensor:
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    scores = q.float() @ k.float().transpose(2, 3) * (q.shape[3] ** -0.5 if scale is None else scale)
    scores = (cap * torch.tanh(scores / cap)).masked_fill(~mask, -torch.inf)
    return (scores.softmax(3) @ v.float()).to(q.dtype)

"""The two Triton kernels: scores of a level's representatives, and block-sparse attention in one streaming softmax.

Plain Triton, so that they also run on a CPU in its interpreter (``TRITON_INTERPRET=1`` set before Triton is imported).
Branching and the choice of the best m are integer work that all backends share (`iclr_hip.tree`).
"""

from typing import Any, no_type_check

import torch
import triton
import triton.language as tl
from jaxtyping import Float, Int
from torch import Tensor
from triton.runtime.interpreter import InterpretedFunction

from iclr_hip.config import HiPConfig
from iclr_hip.layout import NEVER, QueryBlocks
from iclr_hip.mask import HiPMask, pad_rows
from iclr_shared.errors import InputError, Unavailable

_LOWEST = tl.constexpr(torch.finfo(torch.float32).min)
_NEVER = tl.constexpr(NEVER)

#: Keys to a tile of the matrix products.
TILE = 64


def check_device(q: Tensor) -> None:
    """Refuse what the kernels cannot run on.

    Raises:
        Unavailable: a RuntimeError, for a CPU without the interpreter.
        InputError: for float64, and in the interpreter for bfloat16, whose bit patterns its ``tl.dot`` multiplies.
    """
    interpreted = isinstance(_scores, InterpretedFunction)
    if not q.is_cuda and not interpreted:
        raise Unavailable(
            'backend="triton" needs a CUDA device; on a CPU use backend="torch", or set TRITON_INTERPRET=1 '
            "before Python starts (slow, for tests)."
        )
    if q.dtype == torch.float64:
        raise InputError('The Triton kernels compute in float32; use backend="torch" for float64.')
    if interpreted and q.dtype == torch.bfloat16:
        raise InputError("Triton's interpreter has no products of bfloat16; use float16 or float32 there.")


def block_scores(
    queries: Float[Tensor, "x s d"],
    positions: Int[Tensor, "x s"],
    key: Float[Tensor, "b h t d"],
    kv_row: Int[Tensor, " x"],
    first: Int[Tensor, " x"],
    searchable: Int[Tensor, " x"],
    chosen: Int[Tensor, "x n"],
    config: HiPConfig,
) -> Float[Tensor, "x n"]:
    """Max over scoring queries i and scoring keys u of q_i · k_u for chosen key blocks (section 3).

    Args:
        queries: scoring rows of each query block.
        positions: of those rows, −1 for padding.
        key: all keys.
        kv_row: batch · kv heads + kv head that each query block reads.
        first: first real token of its sequence.
        searchable: keys between its sinks and its window.
        chosen: key blocks, counted from the first searchable key.
        config: settings.

    Returns:
        Scores; the lowest float32 where no query may see a scoring key.
    """
    x, s, d = queries.shape
    n = chosen.shape[1]
    out = torch.empty(x, n, dtype=torch.float32, device=key.device)
    _scores[(x, triton.cdiv(n, TILE))](
        queries.contiguous(), positions.int().contiguous(), key, kv_row.int(), first.int(), searchable.int(),
        chosen.int().contiguous(), out, s, n, key.shape[2], config.sink_token_size, d,
        config.block_size_k, config.block_stride_k,
        max(16, triton.next_power_of_2(s)), max(16, triton.next_power_of_2(d)), TILE, **options(key.dtype),
    )  # fmt: skip
    return out


def attend(
    q: Float[Tensor, "b h q d"],
    key: Float[Tensor, "b g t d"],
    value: Float[Tensor, "b g t dv"],
    mask: HiPMask,
    query_blocks: QueryBlocks,
    extension: int,
    scale: float,
) -> Float[Tensor, "b h q dv"]:
    """See `iclr_hip.attention.attend`; inference only."""
    b, h, length, d = q.shape
    n, rows, dv = query_blocks.count, query_blocks.size, value.shape[3]
    config, m = mask.config, mask.blocks.shape[3]
    chosen = mask.blocks.contiguous()
    q = pad_rows(q, n * rows).contiguous()
    out = torch.empty(b, h, n * rows, dv, dtype=q.dtype, device=q.device)
    _attend[(n, b * h)](
        q, key, value, chosen, (chosen >= 0).sum(3, dtype=torch.int32), mask.first.int(), query_blocks.last.int(), out,
        h, key.shape[1], length, key.shape[2], n, rows, m, d, dv, scale,
        config.sink_token_size, config.sliding_window_size + extension, config.block_size_k,
        max(16, triton.next_power_of_2(rows)), max(16, triton.next_power_of_2(d)), max(16, triton.next_power_of_2(dv)),
        TILE, **options(key.dtype),
    )  # fmt: skip
    return out[:, :, :length]


def options(dtype: torch.dtype) -> dict[str, Any]:
    """How Triton compiles: of float32 one tile at a time, since several would not fit into most GPUs' shared memory."""
    return {"num_stages": 1 if dtype == torch.float32 else 3, "enable_fp_fusion": True}


# Triton compiles what it finds under the decorators: a type checker's wrapper there would hide the kernel's names.
@triton.jit
@no_type_check
def _scores(
    Q, P, K, ROW, FIRST, COUNT, CHOSEN, OUT, rows, n, length, sinks, width, block_k, stride_k,
    S: tl.constexpr, D: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    x = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * N + tl.arange(0, N)
    row, first, count = tl.load(ROW + x), tl.load(FIRST + x), tl.load(COUNT + x)
    chosen = tl.load(CHOSEN + x * n + at, mask=at < n, other=0)
    i, c = tl.arange(0, S), tl.arange(0, D)
    query = tl.load(
        Q + (x * rows + i[None, :]) * width + c[:, None], mask=(i < rows)[None, :] & (c < width)[:, None], other=0.0
    )
    position = tl.load(P + x * rows + i, mask=i < rows, other=-1)
    best = tl.full((N,), _LOWEST, tl.float32)
    for u in range(stride_k - 1, block_k, stride_k):
        token = chosen * block_k + u
        place = tl.minimum(token + sinks + first, length - 1)
        address = K + (row.to(tl.int64) * length + place[:, None]) * width + c[None, :]
        key = tl.load(address, mask=(at < n)[:, None] & (c < width)[None, :], other=0.0)
        score = tl.dot(key, query, input_precision="ieee")
        score = tl.where((token + sinks)[:, None] <= position[None, :], score, _LOWEST)
        highest = tl.where(token < count, tl.max(score, 1), _LOWEST)
        best = tl.maximum(best, highest)
    tl.store(OUT + x * n + at, best, mask=at < n)


@triton.jit
@no_type_check
def _stream(
    query, position, token, low, high, K, V, base, length, first, width, width_v, scale, top, total, acc,
    D: tl.constexpr, DV: tl.constexpr,
):  # fmt: skip
    """One tile of keys into the running softmax: maximum, sum and weighted values, all float32."""
    c, cv = tl.arange(0, D), tl.arange(0, DV)
    place = tl.minimum(tl.maximum(token + first, 0), length - 1)
    address = base + place.to(tl.int64)
    key = tl.load(K + address[None, :] * width + c[:, None], mask=(c < width)[:, None], other=0.0)
    value = tl.load(V + address[:, None] * width_v + cv[None, :], mask=(cv < width_v)[None, :], other=0.0)
    score = tl.dot(query, key, input_precision="ieee") * scale
    seen = (position[:, None] >= low[None, :]) & (position[:, None] < high[None, :])
    score = tl.where(seen, score, _LOWEST)
    highest = tl.maximum(top, tl.max(score, 1))
    weight = tl.where(seen, tl.exp(score - highest[:, None]), 0.0)
    rescale = tl.exp(top - highest)
    total = total * rescale + tl.sum(weight, 1)
    acc = acc * rescale[:, None] + tl.dot(weight.to(value.dtype), value, input_precision="ieee")
    return highest, total, acc


@triton.jit
@no_type_check
def _attend(
    Q, K, V, BLOCKS, USED, FIRST, LAST, OUT, heads, kv_heads, queries, length, n, rows, m, width, width_v, scale,
    sinks, window, block_k, R: tl.constexpr, D: tl.constexpr, DV: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    block, line = tl.program_id(0), tl.program_id(1)
    b, head = line // heads, line % heads
    row = line.to(tl.int64) * n + block
    base = (b * kv_heads + head // (heads // kv_heads)).to(tl.int64) * length
    first, last, used = tl.load(FIRST + b), tl.load(LAST + b * n + block), tl.load(USED + row)
    r, c, cv, at = tl.arange(0, R), tl.arange(0, D), tl.arange(0, DV), tl.arange(0, N)
    place = block * rows + r
    query = tl.load(
        Q + (row * rows + r[:, None]) * width + c[None, :], mask=(r < rows)[:, None] & (c < width)[None, :], other=0.0
    )
    position = length - queries + place - first
    position = tl.where((r < rows) & (place < queries) & (position >= 0), position, -1)
    top = tl.full((R,), _LOWEST, tl.float32)
    total = tl.zeros((R,), tl.float32)
    acc = tl.zeros((R, DV), tl.float32)
    never = tl.full((N,), _NEVER, tl.int32)
    for begin in range(0, sinks, N):  # phase one: sinks and tree
        token = begin + at
        low = tl.where(token < sinks, token, _NEVER)
        top, total, acc = _stream(
            query, position, token, low, never, K, V, base, length, first, width, width_v, scale, top, total, acc, D, DV
        )
    for begin in range(0, used * block_k, N):
        entry = begin + at
        kept = entry < used * block_k
        token = tl.load(BLOCKS + row * m + entry // block_k, mask=kept, other=0) - first + entry % block_k
        low = tl.where(kept, token + window, _NEVER)
        top, total, acc = _stream(
            query, position, token, low, never, K, V, base, length, first, width, width_v, scale, top, total, acc, D, DV
        )
    span = window + rows - 1
    for begin in range(0, span, N):  # phase two: window
        token = last - span + 1 + begin + at
        low = tl.where((begin + at < span) & (token >= sinks), token, _NEVER)
        top, total, acc = _stream(
            query, position, token, low, token + window, K, V, base, length, first, width, width_v, scale, top, total,
            acc, D, DV,
        )  # fmt: skip
    result = acc / tl.where(total > 0, total, 1.0)[:, None]
    address = OUT + (row * rows + r[:, None]) * width_v + cv[None, :]
    tl.store(address, result.to(OUT.dtype.element_ty), mask=(r < rows)[:, None] & (cv < width_v)[None, :])

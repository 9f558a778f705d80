"""Who is where: shapes, blocks of queries, positions from the first real token on, and where keys come from."""

from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from iclr_hip.config import HiPConfig
from iclr_shared.errors import InputError

DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)

#: Bytes of gathered keys at a time: on a CPU what stays in its cache, elsewhere what keeps the device busy.
CPU_CHUNK_BYTES, DEVICE_CHUNK_BYTES = 4 * 2**20, 256 * 2**20

#: Later than every position.
NEVER = 2**30


@runtime_checkable
class KeyValues(Protocol):
    """Keys and values of one layer, wherever they are kept. Rows are batch · kv heads."""

    batch: int
    heads: int
    length: int

    def search_keys(self, rows: Tensor, tokens: Tensor, scratch: "Scratch") -> Tensor:
        """Keys that the search looks at: rows (x,), tokens (x, n) -> (x, n, d)."""
        ...

    def attended(self, rows: Tensor, tokens: Tensor, scratch: "Scratch") -> tuple[Tensor, Tensor]:
        """Keys and values that are attended: rows (x,), tokens (x, n) -> (x, n, d), (x, n, dv)."""
        ...

    def settle(self) -> None:
        """Called when the step's result is there."""
        ...


@dataclass
class Scratch:
    """Memory that is used again from chunk to chunk, since fresh pages cost more than the work done on them.

    Args:
        reuse: off while gradients are recorded.
    """

    reuse: bool = True
    buffers: dict[str, Tensor] = field(default_factory=dict)

    def take(self, name: str, shape: tuple[int, ...], like: Tensor) -> Tensor | None:
        """A buffer for an ``out=`` argument, or None."""
        if not self.reuse:
            return None
        size = 1
        for extent in shape:
            size *= extent
        held = self.buffers.get(name)
        if held is None or held.numel() < size or held.dtype != like.dtype:
            held = self.buffers[name] = torch.empty(size, dtype=like.dtype, device=like.device)
        return held[:size].view(shape)


class Resident:
    """Keys and values in the memory of the device that computes.

    Args:
        key, value: (batch, kv heads, tokens, width).
    """

    def __init__(self, key: Float[Tensor, "b h t d"], value: Float[Tensor, "b h t dv"]):
        self.batch, self.heads, self.length, _ = key.shape
        self.key, self.value = key.contiguous(), value.contiguous()

    def search_keys(
        self, rows: Int[Tensor, " x"], tokens: Int[Tensor, "x n"], scratch: Scratch
    ) -> Float[Tensor, "x n d"]:
        """See `KeyValues`."""
        return self._take("keys", self.key, rows, tokens, scratch)

    def attended(self, rows: Int[Tensor, " x"], tokens: Int[Tensor, "x n"], scratch: Scratch) -> tuple[Tensor, Tensor]:
        """See `KeyValues`."""
        return self._take("keys", self.key, rows, tokens, scratch), self._take(
            "values", self.value, rows, tokens, scratch
        )

    def settle(self) -> None:
        """Nothing to do."""

    def _take(self, name: str, data: Tensor, rows: Tensor, tokens: Tensor, scratch: Scratch) -> Tensor:
        index = (rows[:, None] * self.length + tokens).flatten()
        out = scratch.take(name, (len(index), data.shape[3]), data)
        data = data.view(-1, data.shape[3])
        taken = data.index_select(0, index) if out is None else torch.index_select(data, 0, index, out=out)
        return taken.view(*tokens.shape, -1)


@dataclass(frozen=True)
class QueryBlocks:
    """Query rows in blocks. Positions count from the first real token of each sequence; padding is at −1.

    Args:
        query_length, key_length: Tq and Tk; queries are the last Tq positions.
        size: rows of a block: b_q, or Tq if that is less.
        first: (batch,) where each sequence starts.
        last: (batch, blocks) position of each block's last row, −1 if all of it is padding.
        config: settings.
    """

    query_length: int
    key_length: int
    size: int
    first: Int[Tensor, " b"]
    last: Int[Tensor, "b n"]
    config: HiPConfig

    @classmethod
    def of(cls, query_length: int, key_length: int, first: Int[Tensor, " b"], config: HiPConfig) -> "QueryBlocks":
        """The blocks of the last `query_length` of `key_length` positions."""
        size = max(1, min(config.block_size_q, query_length))
        count = -(-query_length // size)
        ends = torch.clamp((torch.arange(count, device=first.device) + 1) * size, max=query_length) - 1
        last = key_length - query_length + ends[None] - first[:, None]
        return cls(query_length, key_length, size, first, last.clamp(min=-1), config)

    @property
    def count(self) -> int:
        """Query blocks."""
        return self.last.shape[1]

    @property
    def searchable(self) -> Int[Tensor, "b n"]:
        """n: keys between sinks and window, E − n_sink with E = p_max + 1 − w."""
        end = (self.last + 1 - self.config.sliding_window_size).clamp(min=0)
        return (end - self.config.sink_token_size).clamp(min=0)

    def positions(self, batch: Int[Tensor, " x"], block: Int[Tensor, " x"]) -> Int[Tensor, "x r"]:
        """Position of every row of the given blocks; −1 for rows that are padding or past the end."""
        rows = block[:, None] * self.size + torch.arange(self.size, device=block.device)
        positions = self.key_length - self.query_length + rows - self.first[batch][:, None]
        return positions.masked_fill((rows >= self.query_length) | (positions < 0), -1).int()

    def scoring_rows(self, block: Int[Tensor, " x"]) -> Int[Tensor, "x s"]:
        """Rows that take part in scoring: the last of each group of s_q; of a block with fewer rows its last."""
        stride = self.config.block_stride_q
        groups = torch.arange(max(1, self.size // stride), device=block.device)
        rows = ((groups + 1) * stride - 1)[None].expand(len(block), -1).clamp(max=self.size - 1)
        present = (self.query_length - block * self.size).clamp(max=self.size)
        short = (present < stride)[:, None] & (groups == 0)
        return torch.where(short, present[:, None] - 1, rows)


def check(
    q: Float[Tensor, "..."], k: Float[Tensor, "..."], v: Float[Tensor, "..."] | None, check_finite: bool = False
) -> None:
    """Refuse tensors that do not fit each other.

    Args:
        q: (batch, query heads, query tokens, width).
        k, v: (batch, kv heads, key tokens, width).

    Raises:
        InputError: naming the shapes.
    """
    named = {"q": q, "k": k} | ({} if v is None else {"v": v})
    shapes = ", ".join(f"{name} {tuple(tensor.shape)}" for name, tensor in named.items())
    layout = f"Tensors are (batch, heads, tokens, width); got {shapes}"
    if any(tensor.ndim != 4 for tensor in named.values()):
        raise InputError(f"{layout}.")
    if not q.numel() or not k.numel():
        raise InputError(f"{layout}: there is nothing in them.")
    if any(tensor.shape[0] != q.shape[0] for tensor in named.values()):
        raise InputError(f"{layout}: the batches differ.")
    if v is not None and (k.shape[1] != v.shape[1] or k.shape[2] != v.shape[2]):
        raise InputError(f"{layout}: k and v differ in heads or tokens.")
    if q.shape[3] != k.shape[3]:
        raise InputError(f"{layout}: q and k differ in width.")
    if q.shape[1] % k.shape[1]:
        raise InputError(
            f"{layout}: the query heads must be a multiple of the kv heads. Were they (batch, tokens, heads, width)? "
            f"Then transpose(1, 2) first."
        )
    if q.shape[2] > k.shape[2]:
        raise InputError(f"{layout}: queries are the last positions of the keys, so there cannot be more of them.")
    for name, tensor in named.items():
        if tensor.dtype not in DTYPES:
            raise InputError(f"{name} is {tensor.dtype}; float64, float32, float16 and bfloat16 work.")
        if tensor.dtype != q.dtype or tensor.device != q.device:
            raise InputError(
                f"q is {q.dtype} on {q.device}, {name} {tensor.dtype} on {tensor.device}; make them the same."
            )
        if check_finite and name != "v" and not bool(torch.isfinite(tensor).all()):
            raise InputError(f"{name} holds NaN or infinite entries, which would scramble the choice of keys.")


def first_tokens(
    attention_mask: Bool[Tensor, "..."] | Int[Tensor, "..."] | Float[Tensor, "..."] | None, batch: int, length: int
) -> Int[Tensor, " b"] | None:
    """Where each sequence of a left-padded batch starts; None without a mask.

    Args:
        attention_mask: (batch, tokens), true or 1 for real tokens, or None.
        batch, length: of the keys.

    Raises:
        NotImplementedError: for a mask with other axes: which keys may be attended is for the search to decide.
        InputError: for padding that is not on the left, or a mask of another size.
    """
    if attention_mask is None:
        return None
    if attention_mask.ndim != 2:
        raise NotImplementedError(
            f"HiP takes a (batch, tokens) padding mask, not one of shape {tuple(attention_mask.shape)}: it attends few "
            "keys that it searches for itself, causally, and cannot follow an arbitrary mask."
        )
    if attention_mask.shape != (batch, length):
        raise InputError(
            f"The padding mask has shape {tuple(attention_mask.shape)}, "
            f"but there are {batch} sequences of {length} keys."
        )
    real = attention_mask.bool()
    first = length - real.sum(1)
    if not bool((real == (torch.arange(length, device=real.device) >= first[:, None])).all()):
        raise InputError(
            "The padding mask has zeros after the first real token: only padding on the left can be served."
        )
    return first


def chunk_rows(each: int, device: torch.device, chunk_bytes: int | None = None) -> int:
    """Query blocks at a time.

    Args:
        each: bytes that a query block needs.
        device: that computes.
        chunk_bytes: of all of them; by default what suits the device.
    """
    if chunk_bytes is None:
        chunk_bytes = CPU_CHUNK_BYTES if device.type == "cpu" else DEVICE_CHUNK_BYTES
    return max(1, chunk_bytes // max(each, 1))


def rows_of(
    flat: Int[Tensor, " x"], heads: int, kv_heads: int, blocks: int
) -> tuple[Int[Tensor, " x"], Int[Tensor, " x"], Int[Tensor, " x"], Int[Tensor, " x"]]:
    """Split flat indices (batch · heads + head) · blocks + block: a chunk of them stays with one head's keys.

    Returns:
        batch, row of queries (batch · heads + head), row of keys (batch · kv heads + head // group), block.
    """
    row, block = flat // blocks, flat % blocks
    b, head = row // heads, row % heads
    return b, row, b * kv_heads + head // (heads // kv_heads), block

"""A KV cache that lives in host memory, with O(log T) tokens of each head on the device (section 2.6)."""

from collections.abc import Sequence
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin, DynamicCache, DynamicLayer

from iclr_hip.config import HiPConfig
from iclr_hip.decoding import DecodingState, capacity
from iclr_hip.layout import Resident, Scratch
from iclr_shared.errors import InputError

#: Which block goes first: used longest ago, come in longest ago, or coldest. Every use warms a block by one, and in
#: `COOLING` lookups it cools by a factor e.
Eviction = Literal["lru", "fifo", "temperature"]
EVICTIONS = ("lru", "fifo", "temperature")
COOLING = 64.0
ABSENT = -1


class HostStore:
    """All tokens of one layer in host memory (pinned where there is CUDA), growing by doubling.

    Args:
        like: (batch, heads, tokens, width) tensor that gives shape, type and device.
    """

    def __init__(self, like: Float[Tensor, "b h t d"]):
        self.device, self.length = like.device, 0
        self.data = self._allocate(like.shape[0], like.shape[1], 0, like.shape[3], like.dtype)

    def append(self, new: Float[Tensor, "b h t d"]) -> None:
        """Add tokens.

        Raises:
            MemoryError: with the bytes that the host did not have; the store stays as it was.
        """
        b, h, capacity_, d = self.data.shape
        needed = self.length + new.shape[2]
        if needed > capacity_:
            grown = self._allocate(b, h, max(needed, 2 * capacity_, 64), d, self.data.dtype)
            grown[:, :, : self.length] = self.data[:, :, : self.length]
            self.data = grown
        self.data[:, :, self.length : needed] = new.to("cpu")
        self.length = needed

    @property
    def view(self) -> Float[Tensor, "b h t d"]:
        """All tokens, on the host, without a copy."""
        return self.data[:, :, : self.length]

    def take(self, row: Int[Tensor, " m"], token: Int[Tensor, "m n"]) -> Float[Tensor, "m n d"]:
        """Tokens by row (batch · heads + head) and place, moved to the device."""
        flat = self.data.view(-1, self.data.shape[3])
        index = (row.cpu()[:, None] * self.data.shape[2] + token.cpu()).flatten()
        return flat.index_select(0, index).view(*token.shape, -1).to(self.device, non_blocking=True)

    def _allocate(self, b: int, h: int, tokens: int, d: int, dtype: torch.dtype) -> Tensor:
        try:
            return torch.empty(b, h, tokens, d, dtype=dtype, pin_memory=self.device.type == "cuda")
        except (RuntimeError, MemoryError) as error:
            size = b * h * tokens * d * dtype.itemsize
            raise MemoryError(f"The host has no {size:,} bytes for the cache of one layer's keys or values.") from error


class BlockCache:
    """Blocks of b_k tokens on the device, and a table block → slot for each row.

    What is not there is served from the host and comes in after the step. A row is one kv head of one sequence.

    Args:
        stores: what to cache: keys, or keys and values.
        rows: batch · kv heads.
        block: b_k.
        eviction: see `Eviction`.
    """

    def __init__(self, stores: list[HostStore], rows: int, block: int, eviction: Eviction = "lru"):
        self.stores, self.block, self.eviction = stores, block, eviction
        device = stores[0].device
        self.table = torch.full((rows, 0), ABSENT, dtype=torch.int32, device=device)
        self.owner = torch.full((rows, 0), ABSENT, dtype=torch.int32, device=device)  # block of each slot
        self.worth = torch.zeros(rows, 0, dtype=torch.float64, device=device)  # of each slot: the lowest goes first
        self.slots = [torch.empty(rows, 0, block, s.data.shape[3], dtype=s.data.dtype, device=device) for s in stores]
        self.clock, self.hits, self.misses, self.bytes = 1, 0, 0, 0
        self.staged: tuple[Tensor, Tensor, list[Tensor]] | None = None

    def resize(self, blocks: int, slots: int) -> None:
        """Room in the table for `blocks` blocks of each row, and `slots` slots; both only grow."""
        self.table = _grown(self.table, blocks, ABSENT)
        self.owner, self.worth = _grown(self.owner, slots, ABSENT), _grown(self.worth, slots, 0)
        self.slots = [_grown(data, slots, 0) for data in self.slots]

    def gather(
        self, rows: Int[Tensor, " x"], blocks: Int[Tensor, "x n"], within: Int[Tensor, "x n"], origin: Int[Tensor, " r"]
    ) -> list[Tensor]:
        """Tokens, from the device where their block is there, else from the host.

        Args:
            rows, blocks: which block of which row.
            within: place of the token in its block.
            origin: token at which each row's block 0 begins.

        Returns:
            (x, n, width) for each store.
        """
        self.settle()
        count, width = self.table.shape[1], self.owner.shape[1]
        wanted, place = torch.unique(rows[:, None] * count + blocks, return_inverse=True)
        row, block = wanted // max(count, 1), wanted % max(count, 1)
        slot = self.table[row, block].long()
        missing = slot == ABSENT
        self.clock += 1
        self._use(row[~missing], slot[~missing])
        where = torch.where(missing, rows.new_zeros(()), row * width + slot)[place]
        gone = missing.nonzero()[:, 0]
        fetched: list[Tensor] = []
        result = []
        if len(gone):
            length = self.stores[0].length
            tokens = origin[row[gone]][:, None] + block[gone][:, None] * self.block
            tokens = tokens + torch.arange(self.block, device=tokens.device)
            fetched = [store.take(row[gone], tokens.clamp(max=length - 1)) for store in self.stores]
            whole = tokens[:, -1] < length  # a block that still grows must not be kept
            self.staged = row[gone][whole], block[gone][whole], [data[whole] for data in fetched]
            arrival = torch.zeros_like(missing, dtype=torch.int64)
            arrival[gone] = torch.arange(len(gone), device=gone.device)
            absent = missing[place]
        for i, slots in enumerate(self.slots):
            flat = slots.flatten(0, 2)
            if len(flat):
                found = flat.index_select(0, (where * self.block + within).flatten()).view(*blocks.shape, -1)
            else:
                found = slots.new_zeros(*blocks.shape, slots.shape[3])
            if len(gone):
                found[absent] = fetched[i][arrival[place[absent]], within[absent]]
            result.append(found)
        self.hits += len(wanted) - len(gone)
        self.misses += len(gone)
        self.bytes += sum(data.numel() * data.element_size() for data in fetched)
        return result

    def settle(self) -> None:
        """Take in what the last gather fetched: after the computation, so that an exception leaves the cache whole."""
        if self.staged is None:
            return
        (row, block, data), self.staged = self.staged, None
        width = self.owner.shape[1]
        if not len(row) or not width:
            return
        counts = torch.bincount(row, minlength=len(self.table))
        rank = torch.arange(len(row), device=row.device) - (counts.cumsum(0) - counts)[row]  # rows come sorted
        lowest = self.worth.argsort(dim=1, stable=True)
        kept = rank < width
        row, block, rank = row[kept], block[kept], rank[kept]
        slot = lowest[row, rank]
        evicted = self.owner[row, slot].long()
        old = evicted != ABSENT
        self.table[row[old], evicted[old]] = ABSENT
        self.owner[row, slot], self.worth[row, slot] = block.int(), self._now
        self.table[row, block] = slot.int()
        for slots, fetched in zip(self.slots, data, strict=True):
            slots[row, slot] = fetched[kept]

    @property
    def _now(self) -> float:
        """What a use at this lookup is worth. Log of a temperature, so that nothing has to cool: others rise."""
        return self.clock / COOLING if self.eviction == "temperature" else self.clock

    def _use(self, row: Tensor, slot: Tensor) -> None:
        if self.eviction == "lru":
            self.worth[row, slot] = self._now
        elif self.eviction == "temperature":
            self.worth[row, slot] = torch.logaddexp(self.worth[row, slot], self.worth.new_tensor(self._now))

    @property
    def resident(self) -> int:
        """Most tokens that a row holds."""
        return int((self.owner != ABSENT).sum(1).max()) * self.block if self.owner.numel() else 0

    def select(self, index: Int[Tensor, " n"]) -> None:
        """Keep the given rows, in that order."""
        self.settle()
        self.table, self.owner, self.worth = self.table[index], self.owner[index], self.worth[index]
        self.slots = [data[index] for data in self.slots]


def _grown(data: Tensor, size: int, fill: int) -> Tensor:
    missing = size - data.shape[1]
    if missing <= 0:
        return data
    return torch.cat([data, data.new_full((data.shape[0], missing, *data.shape[2:]), fill)], 1)


class OffloadedLayer(DynamicLayer):
    """One layer's keys and values in host memory, and on the device: sinks, the latest tokens, and two block caches.

    `update` gives back host tensors; the registered attention function finds this object on them (attribute
    ``hip_memory``) and reads through it. It is also a `KeyValues`.

    Args:
        config: settings.
        group: query heads to a kv head.
        scale: s of C(T).
        mask_share: part of C(T) for the search's cache (keys only); the rest holds keys and values that are attended.
        limit: tokens in place of C(T).
        eviction: see `Eviction`.
    """

    def __init__(
        self, config: HiPConfig, group: int = 1, scale: float = 4.0, mask_share: float = 0.75,
        limit: int | None = None, eviction: Eviction = "lru",
    ):  # fmt: skip
        CacheLayerMixin.__init__(self)
        self.config, self.group, self.scale, self.mask_share = config, group, scale, mask_share
        self.limit, self.eviction = limit, eviction
        self.decoding = DecodingState()
        self.first: Tensor | None = None

    # --- transformers' side ---

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Make the empty stores for this batch."""
        self.device, self.dtype = key_states.device, key_states.dtype
        self.batch, self.heads = key_states.shape[:2]
        self.host = [HostStore(key_states[:, :, :0]), HostStore(value_states[:, :, :0])]
        rows = self.batch * self.heads
        self.search_cache = BlockCache(self.host[:1], rows, self.config.block_size_k, self.eviction)
        self.attended_cache = BlockCache(self.host, rows, self.config.block_size_k, self.eviction)
        self.recent = [key_states[:, :, :0], value_states[:, :, :0]]
        self.sinks: list[Tensor] | None = None
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Append tokens; returns all of them, on the host, marked with this layer."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        lengths = [store.length for store in self.host]
        try:
            for store, new in zip(self.host, (key_states, value_states), strict=True):
                store.append(new)
        except MemoryError:
            for store, length in zip(self.host, lengths, strict=True):
                store.length = length
            raise
        self.recent = [
            torch.cat([old, new], 2) for old, new in zip(self.recent, (key_states, value_states), strict=True)
        ]
        keys, values = (store.view for store in self.host)
        keys.hip_memory = self
        return keys, values

    def get_seq_length(self) -> int:
        """Tokens held."""
        return self.host[0].length if self.is_initialized else 0

    def reset(self) -> None:
        """Forget all tokens."""
        self.is_initialized, self.first = False, None
        self.decoding = DecodingState()

    def crop(self, tokens_to_remove: int) -> None:
        """Take the last tokens away (a negative number, as transformers asks)."""
        if tokens_to_remove > 0:
            raise InputError("crop takes the number of tokens to remove as a negative number.")
        if tokens_to_remove and self.is_initialized:
            self._rebuild([store.view[:, :, :tokens_to_remove].clone() for store in self.host])

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Reorder the batch."""
        self.batch_select_indices(beam_idx)

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep the given sequences."""
        if self.get_seq_length():
            first = None if self.first is None else self.first[indices]
            decoding = self.decoding
            self._rebuild([store.view[indices.to("cpu")] for store in self.host])
            self.first, self.decoding = first, decoding  # other sequences: the next step notices, and searches

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeat every sequence."""
        self.batch_select_indices(torch.arange(self.batch).repeat_interleave(repeats))

    def offload(self) -> None:
        """Nothing: this layer is offloaded."""

    def prefetch(self) -> None:
        """Nothing: the caches fetch."""

    # --- attention's side: KeyValues ---

    @property
    def length(self) -> int:
        """Tokens held."""
        return self.get_seq_length()

    def tails(self) -> tuple[Tensor | None, Tensor]:
        """Last key but one, or None, and last key: (batch, kv heads, d)."""
        keys = self.recent[0]
        return keys[:, :, -2] if keys.shape[2] > 1 else None, keys[:, :, -1]

    def whole(self) -> Resident | None:
        """All tokens, if this is the first forward pass and they are on the device anyway."""
        return Resident(*self.recent) if self.recent[0].shape[2] == self.length else None

    def prepare(self, first: Int[Tensor, " b"] | None) -> None:
        """Fix where sequences start, and give the caches the room of this length."""
        if first is None:
            first = torch.zeros(self.batch, dtype=torch.int64, device=self.device)
        if self.first is None or not torch.equal(self.first, first):
            self.first, self.sinks = first, None
        tokens = capacity(self.length, self.config, self.group, self.scale) if self.limit is None else self.limit
        size = self.config.block_size_k
        slots = int(tokens * self.mask_share) // size
        blocks = -(-self.length // size) + 1
        self.search_cache.resize(blocks, slots)
        self.attended_cache.resize(blocks, tokens // size - slots)

    def search_keys(
        self, rows: Int[Tensor, " x"], tokens: Int[Tensor, "x n"], scratch: Scratch
    ) -> Float[Tensor, "x n d"]:
        """See `KeyValues`: through the search's cache."""
        return self._read(self.search_cache, rows, tokens)[0]

    def attended(self, rows: Int[Tensor, " x"], tokens: Int[Tensor, "x n"], scratch: Scratch) -> tuple[Tensor, Tensor]:
        """See `KeyValues`: through the cache of attended blocks; sinks and latest tokens are resident."""
        keys, values = self._read(self.attended_cache, rows, tokens)
        return keys, values

    def trim(self) -> None:
        """After a step: let go of all but the latest tokens on the device."""
        if self.recent[0].shape[2] > self._kept:
            self.recent = [recent[:, :, -self._kept :].clone() for recent in self.recent]

    def settle(self) -> None:
        """Take in what the step fetched."""
        self.search_cache.settle()
        self.attended_cache.settle()

    def _read(self, cache: BlockCache, rows: Tensor, tokens: Tensor) -> list[Tensor]:
        first = self.first.repeat_interleave(self.heads)
        origin = first + self.config.sink_token_size
        if self.sinks is None:
            row = torch.arange(len(first), device=self.device)
            place = first[:, None] + torch.arange(self.config.sink_token_size, device=self.device)
            self.sinks = [store.take(row, place.clamp(max=self.length - 1)) for store in self.host]
        begin = self.length - self.recent[0].shape[2]
        late = tokens >= begin
        early = (tokens < origin[rows][:, None]) & ~late
        cached = ~(late | early)
        out = [torch.empty(*tokens.shape, s.data.shape[3], dtype=self.dtype, device=self.device) for s in self.host]
        out = out[: len(cache.stores)]
        x, n = late.nonzero(as_tuple=True)
        for data, recent in zip(out, self.recent, strict=False):
            data[x, n] = recent.flatten(0, 1)[rows[x], tokens[x, n] - begin]
        x, n = early.nonzero(as_tuple=True)
        place = (tokens[x, n] - first[rows[x]]).clamp(min=0)  # tokens of padding are never attended
        for data, sinks in zip(out, self.sinks, strict=False):
            data[x, n] = sinks[rows[x], place] if sinks.shape[1] else 0.0
        x, n = cached.nonzero(as_tuple=True)
        if len(x):
            beyond = tokens[x, n] - origin[rows[x]]
            size = self.config.block_size_k
            found = cache.gather(rows[x], (beyond // size)[:, None], (beyond % size)[:, None], origin)
            for data, part in zip(out, found, strict=True):
                data[x, n] = part[:, 0]
        return out

    # --- what to know about it ---

    @property
    def _kept(self) -> int:
        """Latest tokens that stay on the device: the window and what it grows by between two searches."""
        return self.config.sliding_window_size + self.config.refresh_interval

    def stats(self) -> dict[str, int]:
        """Hits, misses, bytes moved and tokens that are resident for each kv head, after the last step."""
        if not self.is_initialized:
            return {}
        caches = self.search_cache, self.attended_cache
        cached = sum(cache.resident for cache in caches)
        recent = min(self.recent[0].shape[2], self._kept)
        sinks = min(self.config.sink_token_size, self.length)
        return {
            "hits": sum(cache.hits for cache in caches),
            "misses": sum(cache.misses for cache in caches),
            "search hits": caches[0].hits,
            "search misses": caches[0].misses,
            "bytes moved": sum(cache.bytes for cache in caches),
            "resident tokens": cached + recent + sinks,
            "cached tokens": cached,
            "host tokens": self.length,
            "capacity": sum(cache.owner.shape[1] for cache in caches) * self.config.block_size_k,
        }

    def state_dict(self) -> dict[str, Any]:
        """Keys, values, where sequences start, and the decoding state; the caches fill again by themselves."""
        host = [store.view.clone() for store in self.host] if self.is_initialized else None
        return {"host": host, "first": self.first, "decoding": self.decoding.state_dict()}

    def load_state_dict(self, state: dict[str, Any], device: torch.device | str = "cpu") -> None:
        """The inverse of `state_dict`."""
        self.reset()
        if state["host"] is not None:
            self._rebuild([part.to(device) for part in state["host"]])
        self.first = state["first"]
        self.decoding.load_state_dict(state["decoding"])

    def _rebuild(self, parts: list[Tensor]) -> None:
        """Start again with these tokens; only the latest stay on the device."""
        device = self.device if self.is_initialized else parts[0].device
        self.reset()
        parts = [part.to(device) for part in parts]
        self.update(*parts)
        self.trim()


class OffloadedCache(Cache):
    """A transformers cache whose pruned layers live in host memory (section 2.6 of the paper's method).

    Give it as ``cache`` to `generate` of a model with `iclr_hip.enable_hip`. Outputs equal those without it.
    The dense first layers attend every token at every step and stay on the device, as do layers with a sliding window.

    Args:
        config: settings; its `dense_layers` first layers are ordinary ones.
        layers: how many the model has, or its ordinary cache layers: those of another class than `DynamicLayer`, such
            as sliding windows, stay what they are.
        group: query heads to a kv head.
        scale: s of C(T) = ⌊log2(T / mask_k + 1) · mask_k · s · G⌋.
        mask_share: part of C(T) that serves the search.
        limit: tokens in place of C(T).
        eviction: see `Eviction`.

    Raises:
        InputError: for a share outside of 0 to 1, a negative limit, or another eviction.
    """

    def __init__(
        self,
        config: HiPConfig,
        layers: int | Sequence[CacheLayerMixin],
        group: int = 1,
        scale: float = 4.0,
        mask_share: float = 0.75,
        limit: int | None = None,
        eviction: str = "lru",
    ):
        if not 0 <= mask_share <= 1:
            raise InputError(f"mask_share must be from 0 to 1, got {mask_share}.")
        if limit is not None and limit < 0:
            raise InputError(f"limit must not be negative, got {limit}.")
        if eviction not in EVICTIONS:
            raise InputError(f"eviction must be one of {', '.join(EVICTIONS)}, got {eviction!r}.")
        capacity(1, config, group, scale)
        self.config = config
        ordinary = [DynamicLayer() for _ in range(layers)] if isinstance(layers, int) else layers
        super().__init__(
            layers=[
                OffloadedLayer(config, group, scale, mask_share, limit, eviction)
                if i >= config.dense_layers and type(layer) is DynamicLayer
                else layer
                for i, layer in enumerate(ordinary)
            ]
        )

    @classmethod
    def of(cls, model: Any, config: HiPConfig | None = None, **options: Any) -> "OffloadedCache":
        """The cache for a model, with the settings of `iclr_hip.enable_hip` unless others are given."""
        text = model.config.get_text_config()
        config = HiPConfig.from_dict(text.hip) if config is None else config
        group = text.num_attention_heads // getattr(text, "num_key_value_heads", text.num_attention_heads)
        return cls(config, DynamicCache(config=model.config).layers, group, **options)

    def stats(self) -> dict[str, int]:
        """Sums over layers of hits, misses and bytes; the most resident tokens of a layer's kv head."""
        found = [layer.stats() for layer in self.layers if isinstance(layer, OffloadedLayer) and layer.is_initialized]
        if not found:
            return {}
        most = ("resident tokens", "cached tokens", "host tokens", "capacity")
        return {name: (max if name in most else sum)(each[name] for each in found) for name in found[0]}

    def state_dict(self) -> dict[str, Any]:
        """The decoding session: keys, values, masks and step counters of every layer, for `torch.save`."""
        states = []
        for layer in self.layers:
            if isinstance(layer, OffloadedLayer):
                states.append(layer.state_dict())
            else:
                states.append({"keys": layer.keys, "values": layer.values, "seen": layer.get_seq_length()})
        return {"config": self.config.to_dict(), "layers": states}

    def load_state_dict(self, state: dict[str, Any], device: torch.device | str = "cpu") -> None:
        """The inverse of `state_dict`.

        Raises:
            InputError: if the state belongs to other settings or another number of layers.
        """
        if state["config"] != self.config.to_dict() or len(state["layers"]) != len(self.layers):
            raise InputError("The saved session has other settings or another number of layers than this cache.")
        for layer, saved in zip(self.layers, state["layers"], strict=True):
            if isinstance(layer, OffloadedLayer):
                layer.load_state_dict(saved, device)
            elif saved["keys"] is not None:
                layer.reset()
                layer.update(saved["keys"].to(device), saved["values"].to(device))
                if layer.is_sliding:  # it has let go of some
                    layer.cumulative_length = saved["seen"]

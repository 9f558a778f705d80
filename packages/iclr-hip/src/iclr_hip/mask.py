"""Which keys each query attends: sinks, a window, and what the tree search finds (section 3 of the paper)."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from types import ModuleType

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from iclr_hip import tree
from iclr_hip.config import HiPConfig
from iclr_hip.layout import NEVER, KeyValues, QueryBlocks, Resident, Scratch, check, chunk_rows, first_tokens, rows_of
from iclr_shared.errors import InputError, Unavailable


@dataclass(frozen=True)
class HiPMask:
    """The result of a search: a few blocks of keys for each block of queries. Memory O(T).

    Args:
        blocks: (batch, query heads, query blocks, m) int32, first token of each key block, ascending, then −1.
        first: (batch,) first real token of each sequence.
        query_length, key_length: Tq and Tk when the search ran; queries are the last Tq positions.
        config: settings of the search.
        evaluations: (batch, query heads, query blocks) int32, branch scores that the search needed.
    """

    blocks: Int[Tensor, "b h n m"]
    first: Int[Tensor, " b"]
    query_length: int
    key_length: int
    config: HiPConfig
    evaluations: Int[Tensor, "b h n"]

    def after(self, steps: int) -> "HiPMask":
        """The same blocks for the one query `steps` tokens later: its window is longer by as many (section 2.4)."""
        return replace(self, query_length=1, key_length=self.key_length + steps, blocks=self.blocks[:, :, -1:])

    def to_dense(
        self, key_length: int | None = None, extension: int = 0, rows: range | None = None
    ) -> Bool[Tensor, "b h q k"]:
        """Every pair (query row, key) that is attended. For looking at: the size is rows · Tk.

        Args:
            key_length: Tk, as the mask's own.
            extension: tokens by which the window is longer.
            rows: consecutive query rows; all by default.
        """
        self._check_length(key_length)
        rows = range(self.query_length) if rows is None else rows
        b, h = self.blocks.shape[:2]
        query_blocks = QueryBlocks.of(self.query_length, self.key_length, self.first, self.config)
        size, begin = query_blocks.size, rows.start // query_blocks.size
        end = -(-rows.stop // size)
        dense = torch.zeros(b * h, (end - begin) * size, self.key_length, dtype=torch.bool)
        for flat, tokens, allowed in self._pairs(query_blocks, extension, begin, end):
            _, row, _, block = rows_of(flat, h, h, query_blocks.count)
            x, r, n = allowed.nonzero(as_tuple=True)
            dense[row[x], (block[x] - begin) * size + r, tokens[x, n]] = True
        return dense[:, rows.start - begin * size :][:, : len(rows)].view(b, h, len(rows), self.key_length)

    def num_attended(self, extension: int = 0) -> Int[Tensor, "b h q"]:
        """Keys that each query row attends."""
        b, h = self.blocks.shape[:2]
        query_blocks = QueryBlocks.of(self.query_length, self.key_length, self.first, self.config)
        counts = torch.zeros(b * h, query_blocks.count, query_blocks.size, dtype=torch.int64)
        for flat, _, allowed in self._pairs(query_blocks, extension, 0, query_blocks.count):
            _, row, _, block = rows_of(flat, h, h, query_blocks.count)
            counts[row, block] = allowed.sum(2).cpu()
        return counts.flatten(1)[:, : self.query_length].view(b, h, -1)

    def _pairs(
        self, query_blocks: QueryBlocks, extension: int, begin: int, end: int
    ) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        b, h = self.blocks.shape[:2]
        rows = torch.arange(b * h, device=self.blocks.device)[:, None] * query_blocks.count
        for flat in (rows + torch.arange(begin, end, device=rows.device)).flatten().split(64):
            batch, row, _, block = rows_of(flat, h, h, query_blocks.count)
            chosen = self.blocks.flatten(0, 1)[row, block]
            found = candidates(query_blocks, batch, block, chosen, extension)
            yield flat.cpu(), found.tokens.cpu(), found.allowed.cpu()

    def _check_length(self, key_length: int | None) -> None:
        if key_length is not None and key_length != self.key_length:
            raise InputError(f"The mask was searched for {self.key_length} keys, not {key_length}.")


@dataclass(frozen=True)
class Candidates:
    """Keys of some query blocks, each once: sinks, then tree, then window; a row at p attends low ≤ p < high.

    Args:
        tokens: (x, n) index into the keys.
        low: (x, n) first position that may attend each; `NEVER` for places that hold no key.
        high: (x, w) end of the positions that may attend each of the window's keys, which are the last w.
        positions: (x, r) of the rows, −1 for padding.
    """

    tokens: Int[Tensor, "x n"]
    low: Int[Tensor, "x n"]
    high: Int[Tensor, "x w"]
    positions: Int[Tensor, "x r"]

    @property
    def allowed(self) -> Bool[Tensor, "x r n"]:
        """Which row attends which key."""
        allowed = self.positions[:, :, None] >= self.low[:, None]
        allowed[:, :, -self.high.shape[1] :] &= self.positions[:, :, None] < self.high[:, None]
        return allowed


def candidates(
    query_blocks: QueryBlocks,
    batch: Int[Tensor, " x"],
    block: Int[Tensor, " x"],
    chosen: Int[Tensor, "x m"],
    extension: int = 0,
) -> Candidates:
    """Sinks t < n_sink, tree n_sink ≤ t ≤ p − w, window p − w < t ≤ p without the sinks: no key twice (section 2.2).

    Args:
        query_blocks: all blocks.
        batch, block: those asked for.
        chosen: first tokens of their key blocks, −1 for none.
        extension: tokens by which the window is longer than w: decoding steps since the search.
    """
    config, first = query_blocks.config, query_blocks.first[batch][:, None]
    window = config.sliding_window_size + extension
    ascending = torch.arange(max(config.sink_token_size, config.block_size_k), device=chosen.device)
    sinks = ascending[: config.sink_token_size].expand(len(chosen), -1)
    used = int((chosen >= 0).sum(1).max()) if len(chosen) else 0
    chosen = chosen[:, :used]
    tree_keys = (chosen[:, :, None] - first[:, :, None] + ascending[: config.block_size_k]).flatten(1)
    kept = (chosen >= 0).repeat_interleave(config.block_size_k, 1)
    span = window + query_blocks.size - 1
    recent = query_blocks.last[batch, block][:, None] - span + 1 + torch.arange(span, device=chosen.device)
    low = torch.cat(
        [
            sinks,
            torch.where(kept, tree_keys + window, NEVER),
            recent.masked_fill(recent < config.sink_token_size, NEVER),
        ],
        1,
    )
    tokens = torch.cat([sinks, tree_keys, recent], 1) + first
    return Candidates(
        tokens.clamp(0, query_blocks.key_length - 1),
        low.int(),
        (recent + window).int(),
        query_blocks.positions(batch, block),
    )


def hip_mask(
    q: Float[Tensor, "..."],
    k: Float[Tensor, "..."],
    *,
    config: HiPConfig,
    attention_mask: Tensor | None = None,
    generator: torch.Generator | None = None,
    chunk_bytes: int | None = None,
) -> HiPMask:
    """Search the keys of every query block and head (Lee et al., arXiv 2406.09827, section 3). O(T log T) time.

    Args:
        q: (batch, query heads, Tq, d), positions applied; the last Tq of Tk positions.
        k: (batch, kv heads, Tk, d); query head h reads kv head h // (query heads / kv heads).
        config: settings.
        attention_mask: (batch, Tk) of a left-padded batch, 1 for real tokens.
        generator: for ``sample="random"``.
        chunk_bytes: of keys gathered at a time; 4 MiB on a CPU, 256 MiB elsewhere. Masks do not depend on it, but for
            ``sample="random"``.

    Raises:
        InputError: for shapes that do not fit, named.
        NotImplementedError: for masks with other axes.
        RuntimeError: if the backend cannot run here.
    """
    check(q, k, None, config.check_finite)
    first = first_tokens(attention_mask, k.shape[0], k.shape[2])
    return search(q, Resident(k, k[..., :0]), first=first, config=config, generator=generator, chunk_bytes=chunk_bytes)


@torch.no_grad()
def search(
    q: Float[Tensor, "b h q d"],
    memory: KeyValues,
    *,
    config: HiPConfig,
    first: Int[Tensor, " b"] | None = None,
    generator: torch.Generator | None = None,
    chunk_bytes: int | None = None,
) -> HiPMask:
    """`hip_mask` over keys that may live anywhere.

    Args:
        q: queries.
        memory: keys.
        config: settings; its backend must fit the place of the keys.
        first: (batch,) first real token of each sequence; 0 by default.
        generator, chunk_bytes: see `hip_mask`.
    """
    b, h, length, d = q.shape
    if first is None:
        first = torch.zeros(b, dtype=torch.int64, device=q.device)
    query_blocks = QueryBlocks.of(length, memory.length, first, config)
    m, n = config.nodes, query_blocks.count
    blocks = torch.full((b * h, n, m), -1, dtype=torch.int32, device=q.device)
    evaluations = torch.zeros(b * h, n, dtype=torch.int32, device=q.device)
    kernels = scoring_kernels(config, memory, q)
    padded = pad_rows(q, n * query_blocks.size).reshape(b * h, n, query_blocks.size, d)
    size = max(4, q.element_size())
    # Kernels read keys where they are: what a query block then needs are its queries, and nodes of ten integers.
    gathered = 2 * config.mask_k // config.block_stride_k * d * size
    nodes = 2 * m * 80 + query_blocks.size // config.block_stride_q * d * size
    chunk = chunk_rows(gathered if kernels is None else nodes, q.device, chunk_bytes)
    scratch = Scratch()
    total = torch.arange(b * h * n if m else 0, device=q.device)
    for flat in total.split(chunk):
        batch, row, kv_row, block = rows_of(flat, h, memory.heads, n)
        rows = query_blocks.scoring_rows(block)
        looking = _Look(
            queries=padded[row[:, None], block[:, None], rows],
            positions=query_blocks.positions(batch, block).gather(1, rows),
            kv_row=kv_row,
            first=first[batch],
            searchable=query_blocks.searchable[batch, block],
            memory=memory,
            config=config,
            scratch=scratch,
            generator=generator,
            kernels=kernels,
        )
        start, size = tree.initial_nodes(-(-looking.searchable // config.block_size_k), m, config.align_init)
        if tree.levels(size) and config.sample == "oracle":
            start, size, needed = tree.descend(start, size, tree.RangeMaximum(looking.every_block()))
        else:
            start, size, needed = tree.descend(start, size, looking)
        found = tree.leaves(start, size)
        tokens = found * config.block_size_k + config.sink_token_size + looking.first[:, None]
        blocks[row, block] = tokens.masked_fill(found < 0, -1).int()
        evaluations[row, block] = needed.int()
    memory.settle()
    return HiPMask(blocks.view(b, h, n, m), first, length, memory.length, config, evaluations.view(b, h, n))


def pad_rows(x: Float[Tensor, "b h t d"], rows: int) -> Float[Tensor, "b h rows d"]:
    """Zeros below, up to `rows` rows."""
    missing = rows - x.shape[2]
    return torch.nn.functional.pad(x, (0, 0, 0, missing)) if missing else x


@dataclass
class _Look:
    """Scores of branches: max of q · k over the scoring queries of a block and the scoring keys of a representative."""

    queries: Float[Tensor, "x s d"]
    positions: Int[Tensor, "x s"]
    kv_row: Int[Tensor, " x"]
    first: Int[Tensor, " x"]
    searchable: Int[Tensor, " x"]
    memory: KeyValues
    config: HiPConfig
    scratch: Scratch
    generator: torch.Generator | None
    kernels: ModuleType | None

    def __call__(self, start: Int[Tensor, "x n"], size: Int[Tensor, "x n"]) -> Float[Tensor, "x n"]:
        return self.blocks(tree.representatives(start, size, self.config.sample, self.generator))

    def blocks(self, chosen: Int[Tensor, "x n"]) -> Float[Tensor, "x n"]:
        """Scores of key blocks; `tree.LOWEST` where no query may see a scoring key."""
        config = self.config
        if self.kernels is not None and isinstance(self.memory, Resident):
            return self.kernels.block_scores(
                self.queries, self.positions, self.memory.key, self.kv_row, self.first, self.searchable, chosen, config
            )
        stride = config.block_stride_k
        within = torch.arange(stride - 1, config.block_size_k, stride, device=chosen.device)
        at = (chosen[:, :, None] * config.block_size_k + within).flatten(1)  # counted from the first searchable key
        tokens = (at + (config.sink_token_size + self.first)[:, None]).clamp(max=self.memory.length - 1)
        keys = self.memory.search_keys(self.kv_row, tokens, self.scratch)
        queries = self.queries
        if keys.dtype != torch.float64:
            keys, queries = keys.float(), queries.float()
        out = self.scratch.take("scores", (*queries.shape[:2], keys.shape[1]), keys)
        scores = torch.bmm(queries, keys.transpose(1, 2)) if out is None else torch.bmm(
            queries, keys.transpose(1, 2), out=out
        )  # fmt: skip
        end = self.searchable + config.sink_token_size
        if bool((self.positions < end[:, None] - 1).any()):  # some pairs look ahead: padding, or a window below b_q
            ahead = (at + config.sink_token_size)[:, None] > self.positions[:, :, None]
            scores.masked_fill_(ahead, tree.LOWEST)
        highest = scores.amax(1).masked_fill_(at >= self.searchable[:, None], tree.LOWEST)
        return highest.unflatten(1, (-1, len(within))).amax(2).float()

    def every_block(self) -> Float[Tensor, "x n"]:
        """Scores of all blocks, for the oracle."""
        count = -(-int(self.searchable.max()) // self.config.block_size_k)
        return self.blocks(torch.arange(count, device=self.kv_row.device).expand(len(self.kv_row), -1))


def scoring_kernels(config: HiPConfig, memory: KeyValues, q: Tensor) -> ModuleType | None:
    """The module that scores branches for this backend: None for torch.

    Raises:
        Unavailable: a RuntimeError, if the backend cannot run here.
    """
    backend = config.backend
    if backend == "auto":
        backend = "triton" if q.is_cuda else "torch"
    if backend == "torch" or not isinstance(memory, Resident):
        return None
    if backend == "triton":
        kernels = load_triton()
        kernels.check_device(q)
        return kernels
    from iclr_hip import cuda_scores

    cuda_scores.check_device(q)
    return cuda_scores


def load_triton() -> ModuleType:
    """The Triton kernels.

    Raises:
        Unavailable: where Triton cannot be imported.
    """
    try:
        from iclr_hip import kernels
    except ImportError as error:
        raise Unavailable(f'backend="triton" needs Triton, which cannot be imported here: {error}.') from None
    return kernels

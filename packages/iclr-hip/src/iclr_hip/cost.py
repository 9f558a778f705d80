"""Time and memory of prefill and decoding, against dense attention."""

import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from iclr_hip.attention import attend, hip_attention
from iclr_hip.config import HiPConfig
from iclr_hip.layout import Resident
from iclr_hip.mask import search


@dataclass(frozen=True)
class Prefill:
    """Seconds of one prefill by length, and its log-log slopes.

    Args:
        lengths: T.
        hip, dense: seconds, best of the repetitions.
    """

    lengths: list[int]
    hip: list[float]
    dense: list[float]


def inputs(
    generator: torch.Generator, length: int, heads: int, width: int, queries: int | None = None,
    device: str = "cpu", dtype: torch.dtype = torch.float32,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Normal q, k, v of (1, heads, tokens, width); `queries` rows of q, all by default."""
    rows = length if queries is None else queries
    return tuple(
        torch.randn(1, heads, n, width, generator=generator, device=device, dtype=dtype) for n in (rows, length, length)
    )


def seconds(function: Callable[[], Any], reps: int, sync: Callable[[], None] = lambda: None) -> float:
    """Best of `reps` calls after one that is not counted."""
    times = []
    for _ in range(reps + 1):
        sync()
        start = time.perf_counter()
        function()
        sync()
        times.append(time.perf_counter() - start)
    return min(times[1:])


@torch.no_grad()
def prefill(
    lengths: Sequence[int],
    config: HiPConfig,
    generator: torch.Generator,
    heads: int = 2,
    width: int = 64,
    reps: int = 2,
) -> Prefill:
    """Time HiP (search and attention) and scaled_dot_product_attention, in turns, one thread each."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        hip, dense = [], []
        for length in lengths:
            q, k, v = inputs(generator, length, heads, width)
            ours, theirs = [], []
            for _ in range(reps):
                ours.append(seconds(lambda q=q, k=k, v=v: hip_attention(q, k, v, config=config), 1))
                theirs.append(seconds(lambda q=q, k=k, v=v: F.scaled_dot_product_attention(q, k, v, is_causal=True), 1))
            hip.append(min(ours))
            dense.append(min(theirs))
    finally:
        torch.set_num_threads(threads)
    return Prefill(list(lengths), hip, dense)


@torch.no_grad()
def decode(
    length: int, config: HiPConfig, generator: torch.Generator, heads: int = 8, width: int = 64, reps: int = 5
) -> tuple[float, float, float]:
    """Seconds for one token: HiP with a search every r_m-th step, HiP with a search at every step, dense."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        q, k, v = inputs(generator, length, heads, width, queries=1)
        memory = Resident(k, v)
        mask = search(q, memory, config=config)
        searching = seconds(lambda: search(q, memory, config=config), reps)
        attending = seconds(lambda: attend(q, memory, mask), reps)
        dense = seconds(lambda: F.scaled_dot_product_attention(q, k, v), reps)
    finally:
        torch.set_num_threads(threads)
    return attending + searching / config.refresh_interval, attending + searching, dense


class Allocations(TorchDispatchMode):
    """Within this context, what operations make: memory of tensors that were there before is not counted.

    What an operation needs inside itself and gives back is not seen either.

    Attributes:
        entries: of the largest new tensor.
        alive, most: bytes alive now, and at most.
    """

    def __init__(self):
        super().__init__()
        self.entries = self.alive = self.most = 0
        self.known: dict[int, weakref.ref] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for tensor in self._tensors((args, kwargs)):
            self._note(tensor.untyped_storage(), 0)
        result = func(*args, **(kwargs or {}))
        for tensor in self._tensors(result):
            storage = tensor.untyped_storage()
            if self._note(storage, storage.nbytes()):
                self.entries = max(self.entries, storage.nbytes() // tensor.element_size())
        return result

    @staticmethod
    def _tensors(tree: Any) -> list[Tensor]:
        return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]

    def _note(self, storage: torch.UntypedStorage, size: int) -> bool:
        """Count memory that is new, until it goes."""
        name = id(storage)
        if name in self.known:
            return False

        def gone(_: weakref.ref) -> None:
            self.alive -= size
            del self.known[name]

        self.known[name] = weakref.ref(storage, gone)
        self.alive += size
        self.most = max(self.most, self.alive)
        return True


def peak_bytes(function: Callable[[], Any]) -> int:
    """Most bytes alive at once in tensors that `function` makes."""
    with Allocations() as allocations:
        function()
    return allocations.most


def largest_of_search(length: int, config: HiPConfig, generator: torch.Generator, width: int = 64) -> tuple[int, int]:
    """Entries of the largest tensor that a search over one head of `length` tokens makes, and kept blocks."""
    q, k, _ = inputs(generator, length, 1, width)
    with Allocations() as made:
        mask = search(q, Resident(k, k[..., :0]), config=config)
    return made.entries, int((mask.blocks >= 0).sum())


def torch_backend(**options: Any) -> HiPConfig:
    """Default settings on the torch backend."""
    return replace(HiPConfig(backend="torch"), **options)

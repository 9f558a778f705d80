"""Seeds by name: a tree in which adding one consumer never shifts the stream of another."""

import contextlib
import hashlib
import json
import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import jax
    import numpy as np
    import torch


@dataclass(frozen=True, slots=True)
class SeedTree:
    """A node of the tree: a root seed and a path of names. Make one with `root`.

    Hand workers a child, never a generator that others use too.
    """

    seed: int
    path: tuple[str | int, ...] = ()

    def child(self, *names: str | int) -> "SeedTree":
        """The node reached by `names`: ``root(0).child("data", 3)``."""
        return SeedTree(self.seed, self.path + names)

    def int64(self) -> int:
        """64 bits, a BLAKE2b hash of seed and path: in [0, 2**64)."""
        key = json.dumps([self.seed, *self.path]).encode()
        return int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "big")

    def int32(self) -> int:
        """31 bits, for libraries that take a C int: in [0, 2**31)."""
        return self.int64() >> 33

    def python(self) -> random.Random:
        """A generator of the standard library."""
        return random.Random(self.int64())

    def numpy(self) -> "np.random.Generator":
        """A NumPy generator (PCG64DXSM)."""
        import numpy as np

        return np.random.Generator(np.random.PCG64DXSM(self.int64()))

    def jax(self) -> "jax.Array":
        """A typed JAX key (`jax.random.key`), the same with 32-bit and 64-bit integers enabled."""
        import jax

        return jax.random.key(self.int32())

    def torch(self, device: str = "cpu") -> "torch.Generator":
        """A PyTorch generator on `device`."""
        import torch

        return torch.Generator(device).manual_seed(self.int64() >> 1)


def root(seed: int) -> SeedTree:
    """The tree of a run's seed."""
    return SeedTree(int(seed))


@contextlib.contextmanager
def seed_everything(tree: SeedTree) -> Iterator[tuple[str, ...]]:
    """Seed the global generators, for libraries that have no other; the previous states come back on exit.

    Touches the standard library, and NumPy and PyTorch if they are already imported.

    Yields:
        The names of the libraries seeded, for the record.
    """
    seed = tree.int32()
    states = {"random": random.getstate()}
    random.seed(seed)
    if numpy := sys.modules.get("numpy"):
        states["numpy"] = numpy.random.get_state()
        numpy.random.seed(seed)
    if torch := sys.modules.get("torch"):
        states["torch"] = torch.random.get_rng_state()
        torch.manual_seed(seed)
    try:
        yield tuple(states)
    finally:
        random.setstate(states["random"])
        if numpy and "numpy" in states:
            numpy.random.set_state(states["numpy"])
        if torch and "torch" in states:
            torch.random.set_rng_state(states["torch"])


@contextlib.contextmanager
def deterministic() -> Iterator[tuple[str, ...]]:
    """Ask PyTorch, if it is imported, for deterministic algorithms; the previous flags come back on exit.

    Yields:
        The flags that took effect, for the record. JAX on CPU is deterministic as it is.
    """
    torch = sys.modules.get("torch")
    if torch is None:
        yield ()
        return
    before = torch.are_deterministic_algorithms_enabled(), torch.backends.cudnn.benchmark
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False
    try:
        yield ("torch.use_deterministic_algorithms", "torch.backends.cudnn.benchmark=False")
    finally:
        torch.use_deterministic_algorithms(before[0])
        torch.backends.cudnn.benchmark = before[1]

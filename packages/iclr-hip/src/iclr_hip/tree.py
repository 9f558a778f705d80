"""The tree search (section 3 of the paper): halve every node, look at one block of each half, keep the best m."""

from collections.abc import Callable

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from iclr_hip.config import Sample

#: Score of a branch that exists but whose representative no query may see: below every real score, above no branch.
LOWEST = torch.finfo(torch.float32).min

Nodes = tuple[Tensor, Tensor]
#: (start, size) of branches, each (x, 2m), in blocks -> scores (x, 2m), float32; of branches of size 0 anything.
Scorer = Callable[[Tensor, Tensor], Tensor]


def initial_nodes(blocks: Int[Tensor, " x"], nodes: int, align: bool = False) -> Nodes:
    """Cut `blocks` key blocks into `nodes` nodes: start_j = floor(blocks·j/m), size_j = start_{j+1} − start_j.

    Args:
        blocks: number of searchable key blocks for each query block.
        nodes: m.
        align: snap starts down to multiples of ceil(2^floor(log2 blocks)/m) (official code v1.1).

    Returns:
        start, size: (x, m) int64, in blocks; size 0 where there are fewer blocks than nodes.
    """
    blocks = blocks.long()[:, None]
    bounds = blocks * torch.arange(nodes + 1, device=blocks.device) // nodes
    if align:
        power = 2 ** torch.floor(torch.log2(blocks.clamp(min=1).double())).long()
        unit = (power + nodes - 1) // nodes
        bounds = torch.cat([bounds[:, :-1] // unit * unit, bounds[:, -1:]], 1)
    return bounds[:, :-1], bounds.diff(dim=1)


def branch(start: Int[Tensor, "x m"], size: Int[Tensor, "x m"]) -> Nodes:
    """Halve nodes: L = (start, size // 2), R = (start + size // 2, the rest), interleaved L0, R0, L1, R1, …"""
    half = size // 2
    return (torch.stack([start, start + half], -1).flatten(1), torch.stack([half, size - half], -1).flatten(1))


def representatives(
    start: Int[Tensor, "x n"], size: Int[Tensor, "x n"], sample: Sample, generator: torch.Generator | None = None
) -> Int[Tensor, "x n"]:
    """The block that stands for each branch; of an empty branch its start.

    Args:
        start, size: of branches, in blocks.
        sample: "center" is start + size // 2.
        generator: for "random".
    """
    if sample == "center":
        return start + size // 2
    if sample == "first":
        return start
    if sample == "last":
        return start + (size - 1).clamp(min=0)
    if sample == "random":
        if generator is None:
            generator = torch.Generator(start.device).manual_seed(0)
        at = torch.rand(size.shape, generator=generator, device=size.device, dtype=torch.float64)
        return start + torch.minimum((at * size).long(), (size - 1).clamp(min=0))
    raise AssertionError(sample)


def best(scores: Float[Tensor, "x n"], m: int) -> Int[Tensor, "x m"]:
    """Positions of the m highest scores, best first, ties at the lower position.

    The score's bits, ordered as an integer, and the position are packed into one int64: every order of a sort of these
    keys is the stable one. NumPy sorts them an order of magnitude faster than torch on a CPU.
    """
    bits = (scores.float() + 0.0).view(torch.int32)  # -0.0 and 0.0 tie
    ascending = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    position = torch.arange(scores.shape[1], device=scores.device)
    keys = ((~ascending).long() << 32) | position
    on_cpu = keys.device.type == "cpu"
    keys = torch.from_numpy(np.sort(keys.numpy(), axis=1)) if on_cpu else keys.sort(dim=1).values
    return keys[:, :m] & 0xFFFFFFFF


def levels(size: Int[Tensor, "x m"]) -> int:
    """Levels until no node is larger than one block: ceil(log2(max size))."""
    largest = int(size.max()) if size.numel() else 0
    return max(largest - 1, 0).bit_length()


def descend(start: Int[Tensor, "x m"], size: Int[Tensor, "x m"], score: Scorer) -> tuple[Tensor, Tensor, Tensor]:
    """Branch, score and keep the best m until every node is one block.

    Args:
        start, size: nodes of each query block, in key blocks.
        score: called once for each level with the branches' starts and sizes.

    Returns:
        start, size: (x, m), sizes 0 or 1, best first; and the scores that each query block needed, (x,) int64: 2m for
        each of its own ceil(log2(max size)) levels. Further levels, run because another query block of the batch needs
        them, change nothing and are not counted.
    """
    m = start.shape[1]
    evaluations = torch.zeros(start.shape[0], dtype=torch.int64, device=start.device)
    largest = size.amax(1) if m else evaluations
    for level in range(levels(size)):
        evaluations += 2 * m * (largest > 2**level)
        start, size = branch(start, size)
        kept = best(score(start, size).float().masked_fill(size == 0, -torch.inf), m)
        start, size = start.gather(1, kept), size.gather(1, kept)
    return start, size, evaluations


def leaves(start: Int[Tensor, "x m"], size: Int[Tensor, "x m"]) -> Int[Tensor, "x m"]:
    """Starts of the nodes that exist, ascending, then −1."""
    missing = torch.iinfo(torch.int64).max
    ordered = torch.where(size > 0, start, missing).sort(dim=1).values
    return ordered.masked_fill(ordered == missing, -1)


def search_scores(
    scores: Float[Tensor, "x t"],
    m: int,
    sample: Sample = "center",
    align: bool = False,
    generator: torch.Generator | None = None,
) -> tuple[Tensor, Tensor]:
    """The search over given scores of t blocks: what the theorem is about.

    Args:
        scores: of every block.
        m: nodes kept.
        sample: see `representatives`; "oracle" takes a branch's best score.
        align: see `initial_nodes`.
        generator: for "random".

    Returns:
        blocks found, (x, m) ascending, −1 where there are fewer than m; scores looked at, (x,).
    """
    x, t = scores.shape
    nodes = initial_nodes(torch.full((x,), t, device=scores.device), m, align)
    if sample == "oracle":
        ranges = RangeMaximum(scores)
        start, size, evaluations = descend(*nodes, ranges)
    else:

        def look(start: Tensor, size: Tensor) -> Tensor:
            return scores.gather(1, representatives(start, size, sample, generator).clamp(max=t - 1)).float()

        start, size, evaluations = descend(*nodes, look)
    return leaves(start, size), evaluations


class RangeMaximum:
    """Maximum of scores over any range of blocks, from a table of ranges of length 2^i.

    Args:
        scores: (x, t).
    """

    def __init__(self, scores: Float[Tensor, "x t"]):
        self.rows, width = [scores.float()], 1
        while 2 * width <= scores.shape[1]:
            last = self.rows[-1]
            grown = last.clone()
            grown[:, :-width] = torch.maximum(last[:, :-width], last[:, width:])
            self.rows.append(grown)
            width *= 2
        self.table = torch.stack(self.rows, 1)  # (x, log t, t)

    def __call__(self, start: Int[Tensor, "x n"], size: Int[Tensor, "x n"]) -> Float[Tensor, "x n"]:
        """Maxima of ``scores[start : start + size]``; for size 0 the score at start."""
        size = size.clamp(min=1)
        level = torch.floor(torch.log2(size.double())).long()
        t = self.table.shape[2]
        flat = self.table.flatten(1)
        left = flat.gather(1, level * t + start.clamp(max=t - 1))
        right = flat.gather(1, level * t + (start + size - 2**level).clamp(0, t - 1))
        return torch.maximum(left, right)

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from iclr_hip import tree

#: Reference values 1: scores over 16 blocks.
SCORES = torch.tensor([[3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3]], dtype=torch.float32)


def test_worked_example():
    found, evaluations = tree.search_scores(SCORES, 2)
    assert found.tolist() == [[11, 12]]
    assert evaluations.tolist() == [12]


def test_its_levels():
    seen = []

    def look(start, size):
        at = tree.representatives(start, size, "center")
        seen.append((start[0].tolist(), size[0].tolist(), at[0].tolist(), SCORES[0, at[0]].tolist()))
        return SCORES.gather(1, at)

    start, size = tree.initial_nodes(torch.tensor([16]), 2)
    assert (start.tolist(), size.tolist()) == ([[0, 8]], [[8, 8]])
    tree.descend(start, size, look)
    assert seen[0] == ([0, 4, 8, 12], [4, 4, 4, 4], [2, 6, 10, 14], [4, 2, 5, 9])
    assert seen[1] == ([12, 14, 8, 10], [2, 2, 2, 2], [13, 15, 9, 11], [7, 3, 3, 8])
    assert seen[2][2:] == ([10, 11, 12, 13], [5, 8, 9, 7])


@pytest.mark.parametrize(
    ("blocks", "wanted"), [(128, 96), (256, 128), (512, 160), (1024, 192), (4096, 256), (16384, 320)]
)
def test_evaluations(blocks, wanted):
    scores = torch.randn(2, blocks, generator=torch.Generator().manual_seed(blocks))
    assert tree.search_scores(scores, 16)[1].tolist() == [wanted, wanted]


def test_halves():
    start, size = tree.branch(torch.tensor([[0, 5, 9]]), torch.tensor([[5, 1, 0]]))
    assert start.tolist() == [[0, 2, 5, 5, 9, 9]]
    assert size.tolist() == [[2, 3, 0, 1, 0, 0]]
    for sample, wanted in (("center", [1, 3]), ("first", [0, 2]), ("last", [1, 4])):
        assert tree.representatives(start, size, sample)[0, :2].tolist() == wanted
    draws = [
        tree.representatives(start, size, "random", torch.Generator().manual_seed(i))[0, 1].item() for i in range(40)
    ]
    assert set(draws) == {2, 3, 4}
    assert torch.equal(tree.representatives(start, size, "random"), tree.representatives(start, size, "random"))


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 200), st.integers(1, 24), st.booleans(), st.sampled_from(["center", "first", "last", "random"]))
def test_unique_blocks_and_a_partition(blocks, m, align, sample):
    start, size = tree.initial_nodes(torch.tensor([blocks]), m, align)
    assert int(size.sum()) == blocks
    assert torch.equal(start[0], size[0].cumsum(0) - size[0])
    scores = torch.randn(1, blocks, generator=torch.Generator().manual_seed(blocks))
    found = tree.search_scores(scores, m, sample, align)[0][0]
    kept = found[found >= 0]
    assert len(kept) == len(set(kept.tolist())) == min(m, blocks) or align
    assert len(kept) == len(set(kept.tolist()))
    assert kept.max() < blocks
    if blocks <= m and not align:
        assert kept.tolist() == list(range(blocks))


@settings(max_examples=30, deadline=None)
@given(st.integers(2, 100), st.integers(1, 8), st.integers(0, 10**6))
def test_the_oracle_finds_the_top(blocks, m, seed):
    scores = torch.randn(3, blocks, generator=torch.Generator().manual_seed(seed))
    found = tree.search_scores(scores, m, "oracle")[0]
    top = scores.topk(min(m, blocks), dim=1).indices
    assert (found == top[:, :1]).any(1).all()
    ranges = tree.RangeMaximum(scores)
    start, size = torch.tensor([[0, 1]] * 3), torch.tensor([[blocks, blocks - 1]] * 3)
    assert torch.equal(ranges(start, size), torch.stack([scores.amax(1), scores[:, 1:].amax(1)], 1))


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 60), st.integers(0, 10**6))
def test_best_is_a_stable_sort(n, seed):
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randint(-3, 4, (4, n), generator=generator) * torch.tensor([1.0, -0.0, 1e-38, 1e30])[:, None]
    scores[:, ::7] = -torch.inf
    wanted = scores.sort(dim=1, descending=True, stable=True).indices
    assert torch.equal(tree.best(scores, n), wanted)


def test_random_needs_no_seed_and_no_branch_is_lowest():
    assert torch.finfo(torch.float32).min == tree.LOWEST
    assert tree.leaves(torch.tensor([[5, 2, 9]]), torch.tensor([[1, 0, 1]])).tolist() == [[5, 9, -1]]
    assert tree.levels(torch.zeros(0, 4, dtype=torch.int64)) == 0

from itertools import pairwise

import numpy as np
import pytest
import torch
from hip_inputs import padding, small, tensors

from iclr_hip import tree
from iclr_hip.attention import hip_attention
from iclr_hip.controls import random_mask, window_config
from iclr_hip.inspection import captured_mass
from iclr_hip.locality import smooth
from iclr_hip.mask import hip_mask
from iclr_shared.errors import InputError


def slow_blocks(q, k, config, first=0):
    """Section 2.3 with Python loops: the kept tokens of every query block of one head."""
    tq, tk = len(q), len(k)
    k = k[first:]
    found = []
    for begin in range(0, tq, config.block_size_q):
        rows = range(begin, min(begin + config.block_size_q, tq))
        positions = [tk - tq + row - first for row in rows]
        stride = config.block_stride_q
        groups = len(rows) // stride
        picked = [stride * (i + 1) - 1 for i in range(groups)] or [len(rows) - 1]
        end = max(0, positions[-1] + 1 - config.sliding_window_size)
        n = max(0, end - config.sink_token_size)
        blocks = -(-n // config.block_size_k)

        def score(block, picked=picked, positions=positions, rows=rows, end=end):
            best = tree.LOWEST
            for u in range(config.block_stride_k - 1, config.block_size_k, config.block_stride_k):
                t = config.sink_token_size + block * config.block_size_k + u
                for i in picked:
                    if t < end and 0 <= t <= positions[i]:
                        best = max(best, float(q[rows[i]] @ k[t]))
            return best

        m = config.nodes
        bounds = [blocks * j // m for j in range(m + 1)]
        nodes = [(a, b - a) for a, b in pairwise(bounds)]
        while max(size for _, size in nodes) > 1:
            branches = []
            for start, size in nodes:
                branches += [(start, size // 2), (start + size // 2, size - size // 2)]
            scores = [score(s + n // 2) if n else -torch.inf for s, n in branches]
            order = sorted(range(len(branches)), key=lambda i, s=scores: (-s[i], i))
            nodes = [branches[i] for i in order[:m]]
        tokens = sorted(s for s, size in nodes if size)
        found.append([t * config.block_size_k + config.sink_token_size + first for t in tokens])
    return found


@pytest.mark.parametrize(
    ("tq", "tk", "options"),
    [
        (200, 200, {}),
        (50, 170, {"block_size_k": 4, "block_stride_k": 2, "block_stride_q": 4}),
        (1, 203, {}),
        (97, 97, {"sliding_window_size": 5, "mask_k": 16, "block_size_k": 1}),
    ],
)
def test_brute_force(tq, tk, options):
    config = small(**options)
    q, k, _ = tensors(tq, h=2, g=1, tq=tq, tk=tk)
    mask = hip_mask(q, k, config=config, chunk_bytes=50_000)
    for head in range(2):
        wanted = slow_blocks(q[0, head], k[0, 0], config)
        assert [[t for t in row if t >= 0] for row in mask.blocks[0, head].tolist()] == wanted
    dense = mask.to_dense(tk)
    positions = torch.arange(tk - tq, tk)
    t = torch.arange(tk)
    for head in range(2):
        for row, p in enumerate(positions.tolist()):
            chosen = torch.zeros(tk, dtype=torch.bool)
            for block in mask.blocks[0, head, row // mask_rows(mask)].tolist():
                if block >= 0:
                    chosen[block : block + config.block_size_k] = True
            window = (t > p - config.sliding_window_size) & (t <= p)
            end = max(0, last_position(mask, row) + 1 - config.sliding_window_size)
            wanted_row = ((t < config.sink_token_size) | (chosen & (t < end))) & (t <= p) | window
            assert torch.equal(dense[0, head, row], wanted_row)
    assert torch.equal(mask.num_attended(), dense.sum(3))


def mask_rows(mask):
    return min(mask.config.block_size_q, mask.query_length)


def last_position(mask, row):
    size = mask_rows(mask)
    return mask.key_length - mask.query_length + min((row // size + 1) * size, mask.query_length) - 1


def test_attended_count():
    """Reference values 4: at most 52 keys a row, 52 in a block's last row once the tree is full."""
    q, k, _ = tensors(0)
    counts = hip_mask(q, k, config=small()).num_attended()
    assert counts.max() == 52
    assert (counts[:, :, 15::16][:, :, 4:] == 52).all()
    assert hip_mask(q, k, config=small()).blocks.diff(dim=3).ne(0).sum() > 0


def test_left_padding():
    q, k, v = tensors(1, b=2, h=4, g=2, tq=150)
    config, mask = small(), padding(2, 150, [0, 61])
    out, found = hip_attention(q, k, v, config=config, attention_mask=mask)
    dense = found.to_dense()
    assert not dense[1, :, :, :61].any()
    assert not dense[1, :, :61].any()
    assert (found.num_attended()[1, :, :61] == 0).all()
    assert torch.equal(out[1, :, :61], torch.zeros_like(out[1, :, :61]))
    assert out.isfinite().all()
    wanted = slow_blocks(q[1, 3], k[1, 1], config, first=61)
    assert [[t for t in row if t >= 0] for row in found.blocks[1, 3].tolist()] == wanted
    everything = hip_attention(q, k, v, config=config, attention_mask=padding(2, 150, [150, 0]))[0]
    assert torch.equal(everything[0], torch.zeros_like(everything[0]))


@pytest.mark.parametrize("sample", ["center", "first", "last", "random", "oracle"])
@pytest.mark.parametrize("align", [False, True])
def test_samples(sample, align):
    q, k, _ = tensors(2, tq=180)
    mask = hip_mask(q, k, config=small(sample=sample, align_init=align), generator=torch.Generator().manual_seed(0))
    assert mask.num_attended().max() <= 52
    again = hip_mask(q, k, config=small(sample=sample, align_init=align), generator=torch.Generator().manual_seed(0))
    assert torch.equal(mask.blocks, again.blocks)


def test_oracle_keeps_the_best_block():
    q, k, _ = tensors(3, h=1, tq=256)
    mask = hip_mask(q, k, config=small(sample="oracle", mask_k=8, block_size_q=64))
    scores = (q[0, 0, 193::2] @ k[0, 0].T)[:, 4 : 256 - 16].amax(0)
    assert mask.blocks[0, 0, -1].tolist().count(4 + int(scores.argmax()) // 2 * 2) == 1


@pytest.mark.parametrize(
    ("options", "mass", "random"), [({"block_size_q": 1, "block_stride_q": 1}, 0.53, 0.29), ({}, 0.45, 0.28)]
)
def test_softmax_mass(options, mass, random):
    """Reference values 8: .53 and .29, with 52 keys in every row, are those of a search for each query.

    With the b_q = 16 that stands beside them a block's queries share their keys, and no choice of blocks keeps as much:
    the exhaustive "oracle" has .45 too.
    """
    config = small(**options)
    rng = np.random.default_rng(0)
    q, k = (smooth(rng, (1, 20, 16, 256), 8.0).transpose(2, 3).contiguous() for _ in range(2))
    masks = hip_mask(q, k, config=config), random_mask(q, 256, config, torch.Generator().manual_seed(0))
    found, drawn = (float(captured_mass(q, k, mask, rows=range(128, 256)).mean()) for mask in masks)
    assert found == pytest.approx(mass, abs=0.02)
    assert drawn == pytest.approx(random, abs=0.02)
    budgets = [float(mask.num_attended()[:, :, 128:].double().mean()) for mask in masks]
    assert budgets[0] == pytest.approx(budgets[1], rel=0.02)
    assert window_config(small()).sliding_window_size == 48


def test_budget_of_controls():
    q, _, _ = tensors(4, b=2, tq=100)
    mask = random_mask(q, 100, small(), torch.Generator().manual_seed(0), first=torch.tensor([0, 30]))
    kept = mask.blocks[1][mask.blocks[1] >= 0]
    assert kept.min() >= 34
    assert not mask.to_dense()[1, :, :, :30].any()
    for row in mask.blocks[0, 0].tolist():
        real = [t for t in row if t >= 0]
        assert real == sorted(set(real))


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        (
            ((1, 3, 8, 4), (1, 2, 8, 4), (1, 2, 8, 4)),
            "q \\(1, 3, 8, 4\\), k \\(1, 2, 8, 4\\).*multiple of the kv heads",
        ),
        (((1, 8, 4, 4), (1, 9, 4, 4), (1, 9, 4, 4)), "transpose\\(1, 2\\)"),
        (((1, 2, 8, 4), (1, 2, 8, 5), (1, 2, 8, 5)), "q and k differ in width"),
        (((1, 2, 8, 4), (1, 2, 8, 4), (1, 2, 7, 4)), "k and v differ"),
        (((1, 2, 9, 4), (1, 2, 8, 4), (1, 2, 8, 4)), "cannot be more of them"),
        (((2, 2, 8, 4), (1, 2, 8, 4), (1, 2, 8, 4)), "batches differ"),
        (((1, 2, 0, 4), (1, 2, 8, 4), (1, 2, 8, 4)), "nothing in them"),
        (((2, 8, 4), (1, 2, 8, 4), (1, 2, 8, 4)), "\\(batch, heads, tokens, width\\)"),
    ],
)
def test_wrong_shapes(shapes, message):
    with pytest.raises(ValueError, match=message):
        hip_attention(*(torch.zeros(shape) for shape in shapes), config=small())


def test_wrong_types_and_masks():
    q, k, v = tensors(5, tq=32)
    with pytest.raises(InputError, match="float8"):
        hip_attention(*(x.to(torch.float8_e4m3fn) for x in (q, k, v)), config=small())
    with pytest.raises(InputError, match="make them the same"):
        hip_attention(q, k.half(), v, config=small())
    with pytest.raises(NotImplementedError, match="arbitrary mask"):
        hip_attention(q, k, v, config=small(), attention_mask=torch.zeros(1, 1, 32, 32))
    with pytest.raises(InputError, match="padding on the left"):
        hip_attention(q, k, v, config=small(), attention_mask=1 - padding(1, 32, [9]))
    with pytest.raises(InputError, match="1 sequences of 32 keys"):
        hip_attention(q, k, v, config=small(), attention_mask=padding(1, 31, [0]))
    with pytest.raises(InputError, match="causal attention only"):
        hip_attention(q, k, v, config=small(), causal=False)
    k[0, 0, 3, 1] = torch.nan
    with pytest.raises(InputError, match="k holds NaN"):
        hip_attention(q, k, v, config=small(check_finite=True))
    with pytest.raises(InputError, match="searched for 32 keys"):
        hip_mask(q, q, config=small()).to_dense(31)

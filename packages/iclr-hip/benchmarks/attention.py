"""HiP against dense attention, one thread; on a GPU Triton against flash. `python benchmarks/attention.py [LONGEST]`"""

import sys

import torch
import torch.nn.functional as F

from iclr_hip import HiPConfig, block_sparse_attention, hip_attention, hip_mask
from iclr_hip.cost import decode, inputs, peak_bytes, seconds
from iclr_shared.bench import compare, print_comparisons
from iclr_shared.tables import print_table
from iclr_shared.testing import loglog_slope

CONFIG = HiPConfig(backend="torch")


ROWS = 1024


def equal(outputs) -> None:
    torch.testing.assert_close(outputs["HiP"], outputs["masked"], atol=1e-4, rtol=0)


def masked(q, k, v, masks) -> torch.Tensor:
    """What a user would write instead: dense attention with the mask, `ROWS` queries at a time to bound memory."""
    parts = [
        F.scaled_dot_product_attention(rows, k, v, attn_mask=m) for rows, m in zip(q.split(ROWS, 2), masks, strict=True)
    ]
    return torch.cat(parts, 2)


def prefill(longest: int) -> None:
    """Time by length; HiP's outputs are held equal to those of masked attention with the same mask, at all lengths."""
    generator, comparisons, lengths = torch.Generator().manual_seed(0), [], []
    length = 1024
    while length <= longest:
        q, k, v = inputs(generator, length, 2, 64)
        mask = hip_mask(q, k, config=CONFIG)
        masks = [mask.to_dense(rows=range(at, at + ROWS)) for at in range(0, length, ROWS)]
        candidates = {
            "HiP": lambda q=q, k=k, v=v: hip_attention(q, k, v, config=CONFIG)[0],
            "scaled_dot_product_attention": lambda q=q, k=k, v=v: F.scaled_dot_product_attention(
                q, k, v, is_causal=True
            ),
            "masked": lambda q=q, k=k, v=v, masks=masks: masked(q, k, v, masks),
        }
        reps = 5 if length <= 8192 else 2
        comparisons.append(compare(candidates, check=equal, reps=reps, warmup=1, min_time=0.0, label=f"T = {length}"))
        lengths.append(length)
        length *= 2
    print_comparisons(comparisons, "prefill, 2 heads of width 64")
    rows = []
    for name in ("HiP", "scaled_dot_product_attention", "masked"):
        times = [comparison.median(name) for comparison in comparisons]
        rows.append((name, *loglog_slope(lengths, times), loglog_slope(lengths[-3:], times[-3:])[0]))
    print_table(("what", "slope of time", "± ", "slope, last three"), rows, "growth of time with T")


def parts(length: int) -> None:
    """Where the time goes."""
    q, k, v = inputs(torch.Generator().manual_seed(0), length, 2, 64)
    mask = hip_mask(q, k, config=CONFIG)
    rows = [
        ("search", 1e3 * seconds(lambda: hip_mask(q, k, config=CONFIG), 2)),
        ("block-sparse attention", 1e3 * seconds(lambda: block_sparse_attention(q, k, v, mask), 2)),
    ]
    print_table(("part", "ms"), rows, f"prefill of {length} tokens")


def tokens(longest: int) -> None:
    """One decoded token."""
    rows, length = [], 2048
    while length <= longest:
        hip, searching, dense = decode(length, CONFIG, torch.Generator().manual_seed(0))
        rows.append((length, 1e3 * hip, 1e3 * searching, 1e3 * dense, dense / hip, dense / searching))
        length *= 4
    columns = ("T", "HiP (ms)", "search at every step", "dense", "ratio (wanted ≥ 3)", "ratio, every step")
    print_table(columns, rows, "decoding a token, 8 heads of width 64")


def memory(longest: int) -> None:
    """Most bytes alive in new tensors."""
    lengths = [longest // 8, longest // 4, longest // 2, longest]
    found = []
    for length in lengths:
        q, k, v = inputs(torch.Generator().manual_seed(0), length, 1, 64)
        found.append(peak_bytes(lambda q=q, k=k, v=v: hip_attention(q, k, v, config=CONFIG)))
    rows = [(t, b / 2**20, 8 * t * t / 2**20) for t, b in zip(lengths, found, strict=True)]
    print_table(("T", "HiP (MiB)", "scores and weights of masked attention"), rows, "memory, one head of width 64")
    print_table(("what", "slope", "± "), [("HiP", *loglog_slope(lengths, found))])


def gpu() -> None:
    """Triton kernels against flash attention, bfloat16."""
    rows = []
    for length in (8192, 32768, 131072):
        generator = torch.Generator("cuda").manual_seed(0)
        q, k, v = inputs(generator, length, 32, 128, device="cuda", dtype=torch.bfloat16)
        config = HiPConfig(backend="triton")
        times = [
            seconds(function, 20, torch.cuda.synchronize)
            for function in (
                lambda q=q, k=k, v=v, c=config: hip_attention(q, k, v, config=c),
                lambda q=q, k=k, v=v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
            )
        ]
        rows.append((length, 1e3 * times[0], 1e3 * times[1], times[1] / times[0]))
    print_table(("T", "HiP (ms)", "flash (ms)", "ratio"), rows, "prefill on the GPU, 32 heads of width 128")


if __name__ == "__main__":
    longest = int(sys.argv[1]) if len(sys.argv) > 1 else 32768
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    prefill(longest)
    parts(longest)
    tokens(longest)
    memory(longest)
    if torch.cuda.is_available():
        gpu()

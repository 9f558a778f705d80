"""Checks of time and memory. One run times HiP and dense attention; several rows read it."""

from collections.abc import Sequence
from functools import cache

import numpy as np
import torch
import torch.nn.functional as F

from iclr_hip import cost, figures
from iclr_hip.attention import hip_attention
from iclr_hip.config import HiPConfig
from iclr_shared.claims import ClaimRun, Measurement
from iclr_shared.errors import Unavailable
from iclr_shared.seeds import root

LENGTHS = (1024, 2048, 4096, 8192, 16384, 32768)
CONFIG = cost.torch_backend()


@cache
def _prefill(seed: int, lengths: tuple[int, ...], config: HiPConfig, reps: int) -> cost.Prefill:
    return cost.prefill(lengths, config, root(seed).child("prefill").torch(), reps=reps)


def _slope(x: Sequence[float], y: Sequence[float]) -> float:
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])


def prefill_slope(
    run: ClaimRun, *, lengths: tuple[int, ...] = LENGTHS, config: HiPConfig = CONFIG, reps: int = 2, dense: bool = False
) -> Measurement:
    """Row 3: slope of HiP's prefill over all lengths, H = 2, d = 64, one thread. Control: dense over the same ones."""
    times = _prefill(run.seeds.seed, lengths, config, reps)
    slopes = [_slope(lengths, seconds) for seconds in (times.hip, times.dense)]
    series = {"T": times.lengths, "HiP (s)": times.hip, "control: dense (s)": times.dense}
    run.figure("prefill", figures.curves(
        lengths, {"HiP": times.hip, "control: scaled_dot_product_attention": times.dense}, xlabel="T (tokens)",
        ylabel="seconds", title="Prefill, 2 heads of width 64, one thread", xscale="log", yscale="log",
    ))  # fmt: skip
    return Measurement(slopes[int(dense)], baseline=("dense", slopes[1]), n=reps, series=series)


def dense_slope(
    run: ClaimRun, *, lengths: tuple[int, ...] = LENGTHS, config: HiPConfig = CONFIG, reps: int = 2, hip: bool = False
) -> Measurement:
    """Row 3: slope of dense attention over the last three lengths. Control: HiP over them."""
    times = _prefill(run.seeds.seed, lengths, config, reps)
    slopes = [_slope(lengths[-3:], seconds[-3:]) for seconds in (times.hip, times.dense)]
    return Measurement(slopes[int(not hip)], baseline=("HiP", slopes[0]), n=reps)


def prefill_speedup(
    run: ClaimRun, *, lengths: tuple[int, ...] = LENGTHS, config: HiPConfig = CONFIG, reps: int = 2
) -> Measurement:
    """Row 3: dense over HiP at the last length. Control: the same at the first."""
    times = _prefill(run.seeds.seed, lengths, config, reps)
    ratios = np.array(times.dense) / np.array(times.hip)
    return Measurement(
        ratios[-1], baseline=(f"at T = {lengths[0]}", ratios[0]), n=reps, series={"T": lengths, "ratio": ratios}
    )


def crossing(
    run: ClaimRun, *, lengths: tuple[int, ...] = LENGTHS, config: HiPConfig = CONFIG, reps: int = 2
) -> Measurement:
    """Row 3: shortest length from which on HiP is faster, infinite if none. Control: dense itself, infinite."""
    times = _prefill(run.seeds.seed, lengths, config, reps)
    faster = [h < d for h, d in zip(times.hip, times.dense, strict=True)]
    start = len(lengths)
    while start and faster[start - 1]:
        start -= 1
    return Measurement(
        lengths[start] if start < len(lengths) else np.inf, baseline=("dense against itself", np.inf), n=reps
    )


def decoding_speedup(
    run: ClaimRun, *, length: int = 32768, config: HiPConfig = CONFIG, every_step: bool = False
) -> Measurement:
    """Row 3: one token over T keys, 8 heads of width 64, a search every r_m steps. Control: one at every step."""
    hip, searching, dense = cost.decode(length, config, run.seeds.child("decode").torch())
    ratios = dense / hip, dense / searching
    details = {"HiP (ms)": 1e3 * hip, "HiP, search at every step (ms)": 1e3 * searching, "dense (ms)": 1e3 * dense}
    return Measurement(ratios[int(every_step)], baseline=("a search at every step", ratios[1]), details=details)


@torch.no_grad()
def memory_slope(
    run: ClaimRun, *, lengths: tuple[int, ...] = (4096, 8192, 16384, 32768), config: HiPConfig = CONFIG,
    naive: bool = False,
) -> Measurement:  # fmt: skip
    """Row 4: most bytes alive in new tensors, outputs included. Control: masked attention with its (T, T) weights."""
    generator, hip, dense = run.seeds.child("memory").torch(), [], []
    for length in run.progress(lengths, desc="memory"):
        q, k, v = cost.inputs(generator, length, 1, 64)
        hip.append(cost.peak_bytes(lambda q=q, k=k, v=v: hip_attention(q, k, v, config=config)))
        dense.append(2 * 4 * length**2)  # scores and weights of one head, float32
    slopes = _slope(lengths, hip), _slope(lengths, dense)
    run.figure("memory", figures.curves(
        lengths, {"HiP": np.array(hip) / 2**20, "control: (T, T) scores and weights": np.array(dense) / 2**20},
        xlabel="T (tokens)", ylabel="MiB", title="Most bytes alive, one head of width 64", xscale="log", yscale="log",
    ))  # fmt: skip
    series = {"T": lengths, "HiP (bytes)": hip, "formula of masked attention (bytes)": dense}
    return Measurement(slopes[int(naive)], baseline=("masked attention", slopes[1]), series=series)


def no_square_tensor(
    run: ClaimRun, *, length: int = 131072, config: HiPConfig = CONFIG, naive: bool = False
) -> Measurement:
    """Row 4: the largest tensor of a search at T = 131,072, one head. Control: a (T, T) mask, 1."""
    entries, blocks = cost.largest_of_search(length, config, run.seeds.child("large").torch())
    measured = 1.0 if naive else entries / length**2
    details = {"entries of the largest tensor": entries, "entries of a (T, T) tensor": length**2, "kept blocks": blocks}
    return Measurement(measured, baseline=("a (T, T) mask", 1.0), details=details)


@torch.no_grad()
def gpu_speedup(run: ClaimRun, *, length: int = 32768, heads: int = 32, reps: int = 20) -> Measurement:
    """Row 9: Triton kernels against flash attention, bfloat16, d = 128. Control: the same at 2,048 tokens.

    Raises:
        Unavailable: without CUDA.
    """
    if not torch.cuda.is_available():
        raise Unavailable("The speed-up on a GPU needs CUDA.")
    ratios = []
    for tokens in (length, 2048):
        generator = run.seeds.child("gpu").torch("cuda")
        q, k, v = cost.inputs(generator, tokens, heads, 128, device="cuda", dtype=torch.bfloat16)
        ours = cost.seconds(
            lambda q=q, k=k, v=v: hip_attention(q, k, v, config=HiPConfig(backend="triton")),
            reps,
            torch.cuda.synchronize,
        )
        theirs = cost.seconds(
            lambda q=q, k=k, v=v: F.scaled_dot_product_attention(q, k, v, is_causal=True), reps, torch.cuda.synchronize
        )
        ratios.append(theirs / ours)
    return Measurement(ratios[0], baseline=("at T = 2048", ratios[1]), n=reps)

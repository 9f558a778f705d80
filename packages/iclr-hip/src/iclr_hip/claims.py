"""Checks of the theorem, the counts, the dense limit and the needle."""

from functools import cache

import numpy as np
import torch
import torch.nn.functional as F

from iclr_hip import figures
from iclr_hip.attention import hip_attention
from iclr_hip.config import HiPConfig
from iclr_hip.controls import window_config
from iclr_hip.locality import needle, random_found, smooth, top_found
from iclr_hip.mask import HiPMask, hip_mask
from iclr_shared.claims import ClaimRun, Measurement
from iclr_shared.seeds import SeedTree, root

LENGTHS = (4.0, 16.0, 64.0)
NODES = (1, 4, 16)
#: P(top-1 found) at T = 256 and m = 4 for `LENGTHS`, from 4,000 draws.
EXPECTED = (0.384, 0.685, 0.806)
WHITE = 0.01


# --- C1: the theorem -----------------------------------------------------------------------------------------------


def _top(seeds: SeedTree, draws: int, length: float, m: int, tokens: int, shuffled: bool) -> tuple[float, float]:
    """P(top-1 found) by the search and by a random choice."""
    rng = seeds.child("scores", str(length)).numpy()
    scores = smooth(rng, (draws, tokens), length)
    if shuffled:
        scores = scores[:, torch.from_numpy(rng.permutation(tokens))]
    return top_found(scores, m)[0], random_found(scores, m, seeds.child("random", str(length)).torch())


def finds_the_top(run: ClaimRun, *, draws: int = 4000, tokens: int = 256, shuffled: bool = False) -> Measurement:
    """Row 1: P(top-1 found), m = 4. Control: m random tokens, 1 / 64; white noise in the details."""
    found = [_top(run.seeds, draws, length, 4, tokens, shuffled) for length in (*LENGTHS, WHITE)]
    deviation = [max(abs(pair[i] - p) for pair, p in zip(found, EXPECTED, strict=False)) for i in (0, 1)]
    names = [f"P, length {length:g}" for length in (*LENGTHS, WHITE)]
    details = dict(zip(names, (pair[0] for pair in found), strict=True))
    return Measurement(deviation[0], baseline=("random tokens", deviation[1]), n=draws, details=details)


def beats_random_pruning(run: ClaimRun, *, draws: int = 4000, tokens: int = 256, random: bool = False) -> Measurement:
    """Row 1: P(top-1 found) three standard errors lower, over m / T. Control: m random tokens."""
    lines: dict[str, list[float]] = {}
    ratios, controls = [], []
    for m in NODES:
        lines[f"HiP, m = {m}"], lines[f"control: random, m = {m}"] = [], []
        for length in LENGTHS:
            found = _top(run.seeds, draws, length, m, tokens, shuffled=False)
            for p, into in zip(found, (ratios, controls), strict=True):
                into.append((p - 3 * (p * (1 - p) / draws) ** 0.5) * tokens / m)
            lines[f"HiP, m = {m}"].append(found[0])
            lines[f"control: random, m = {m}"].append(found[1])
    run.figure("top1", figures.curves(
        LENGTHS, lines, xlabel="correlation length ℓ (tokens)", ylabel="P(highest score is kept)",
        title=f"Smooth scores, T = {tokens}", xscale="log", yscale="log",
    ))  # fmt: skip
    measured = min(controls if random else ratios)
    return Measurement(
        measured, baseline=("random tokens", min(controls)), n=draws, series={"length": LENGTHS, **lines}
    )


def locality_helps(run: ClaimRun, *, draws: int = 4000, tokens: int = 256, shuffled: bool = False) -> Measurement:
    """Row 1: P(top-1 found) at lengths 0, 4, 16, 64. Control: the same scores in shuffled order."""

    def smallest(shuffled: bool) -> float:
        lengths = LENGTHS if shuffled else (WHITE, *LENGTHS)
        return min(
            float(np.diff([_top(run.seeds, draws, length, m, tokens, shuffled)[0] for length in lengths]).min())
            for m in NODES
        )

    steps = smallest(False), smallest(True)
    return Measurement(steps[int(shuffled)], baseline=("shuffled", steps[1]), n=draws)


# --- C3a: counts ---------------------------------------------------------------------------------------------------


def counts_evaluations(run: ClaimRun, *, longest: int = 8192, oracle: bool = False) -> Measurement:
    """Row 3: evaluations that `hip_mask` counted, against 2 m levels. Control: all n blocks, as an exact top-m."""
    config = HiPConfig(mask_k=128, sliding_window_size=64, sink_token_size=16, backend="torch")
    generator = run.seeds.child("keys").torch()
    deviation, every, counted = 0.0, 0.0, []
    for length in (longest // 8, longest // 4, longest // 2, longest):
        q, k = (torch.randn(1, 1, length, 16, generator=generator) for _ in range(2))
        found = hip_mask(q, k, config=config).evaluations[0, 0].double()
        last = torch.arange(config.block_size_q - 1, length, config.block_size_q)
        blocks = ((last + 1 - config.sliding_window_size - config.sink_token_size).clamp(min=0) + 1) // 2
        depth = torch.tensor([max(-(-int(n) // config.nodes) - 1, 0).bit_length() for n in blocks])
        wanted = 2 * config.nodes * depth.double()
        deviation = max(deviation, float((found - wanted).abs().max()))
        every = max(every, float((blocks - wanted).abs().max()))
        counted.append(float(found[-1]))
    measured = every if oracle else deviation
    return Measurement(measured, baseline=("all blocks", every), series={"evaluations of the last block": counted})


# --- C6: the dense limit -------------------------------------------------------------------------------------------


def _limit(seeds: SeedTree, length: int, keys: int) -> tuple[float, int]:
    """Largest difference from dense outputs, and pairs in which the mask is not the causal one."""
    generator = seeds.child("limit").torch()
    q, k, v = (torch.randn(2, heads, length, 32, generator=generator) for heads in (4, 2, 2))
    config = HiPConfig(mask_k=keys, sliding_window_size=32, sink_token_size=4, block_size_q=32, backend="torch")
    out, mask = hip_attention(q, k, v, config=config)
    dense = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    causal = torch.ones(length, length, dtype=torch.bool).tril()
    return float((out - dense).abs().max()), int((mask.to_dense() != causal).sum())


def dense_limit(run: ClaimRun, *, length: int = 777, keys: int | None = None) -> Measurement:
    """Row 6: outputs with mask_k ≥ T. Control: mask_k = T / 8."""
    few = length // 16 * 2
    measured, control = (
        _limit(run.seeds, length, size)[0] for size in (length + length % 2 if keys is None else keys, few)
    )
    return Measurement(measured, baseline=(f"mask_k = {few}", control))


def full_mask(run: ClaimRun, *, length: int = 777, keys: int | None = None) -> Measurement:
    """Row 6: the mask with mask_k ≥ T. Control: mask_k = T / 8."""
    few = length // 16 * 2
    measured, control = (
        _limit(run.seeds, length, size)[1] for size in (length + length % 2 if keys is None else keys, few)
    )
    return Measurement(measured, baseline=(f"mask_k = {few}", control))


# --- C7: the needle ------------------------------------------------------------------------------------------------

WIDTHS = (1.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0)
_NEEDLE = HiPConfig(mask_k=128, sliding_window_size=256, sink_token_size=16, backend="torch")


def _kept(mask: HiPMask, place: int) -> bool:
    """Whether the last query attends `place`."""
    return bool(mask.to_dense(rows=range(mask.query_length - 1, mask.query_length))[0, 0, -1, place])


@cache
def _needles(seeds: SeedTree, trials: int, length: int, width: float, shape: str) -> tuple[float, float]:
    """Share of needles kept by HiP, and by sinks and window of the same budget."""
    found = []
    for trial in range(trials):
        rng = seeds.child("needle", shape, str(width), trial).numpy()
        q, k, place = needle(rng, length, width, shape=shape)
        found.append([_kept(hip_mask(q, k, config=c), place) for c in (_NEEDLE, window_config(_NEEDLE))])
    shares = np.mean(found, 0)
    return float(shares[0]), float(shares[1])


def finds_the_needle(run: ClaimRun, *, trials: int = 60, length: int = 8192, width: float = 32.0) -> Measurement:
    """Row 7: Gaussian needle of σ = 32. Control: sinks and window. All widths are shown."""
    found, window = _needles(root(run.seeds.seed), trials, length, width, "gaussian")
    lines = {
        shape: [_needles(root(run.seeds.seed), trials, length, w, shape)[0] for w in run.progress(WIDTHS, desc=shape)]
        for shape in ("gaussian", "box")
    }
    run.figure("width", figures.curves(
        WIDTHS, {"Gaussian of σ": lines["gaussian"], "box": lines["box"],
                 "control: sinks and window": [window] * len(WIDTHS)},
        xlabel="width of the needle (tokens)", ylabel="share of needles kept",
        title=f"T = {length}, mask_k = {_NEEDLE.mask_k}", xscale="log",
    ))  # fmt: skip
    error = (found * (1 - found) / trials) ** 0.5
    return Measurement(
        found, baseline=("sinks and window", window), ci=(max(0.0, found - 2 * error), min(1.0, found + 2 * error)),
        n=trials, series={"width": WIDTHS, **lines},
        note="A needle narrower than the distance of representatives, n / 2m tokens, is missed by design.",
    )  # fmt: skip


def window_misses_the_needle(
    run: ClaimRun, *, trials: int = 60, length: int = 8192, width: float = 32.0, searched: bool = False
) -> Measurement:
    """Row 7: sinks and window of the same budget. Control: HiP."""
    found, window = _needles(root(run.seeds.seed), trials, length, width, "gaussian")
    return Measurement(found if searched else window, baseline=("HiP", found), n=trials)

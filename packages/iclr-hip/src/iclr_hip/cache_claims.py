"""Checks of the offloaded cache: exact, small, and mostly hit."""

from dataclasses import replace
from functools import cache
from typing import Any

from iclr_hip import figures
from iclr_hip.cache import Eviction, OffloadedLayer
from iclr_hip.config import HiPConfig
from iclr_hip.decoding import DecodingState, capacity, step
from iclr_hip.layout import Resident
from iclr_hip.locality import smooth
from iclr_shared.claims import ClaimRun, Measurement
from iclr_shared.seeds import root

LENGTHS = (2048, 4096, 8192, 16384)
CONFIG = HiPConfig(mask_k=128, sliding_window_size=64, sink_token_size=16, dense_layers=0, backend="torch")
SMOOTH = 64.0


@cache
def _decode(
    seed: int, lengths: tuple[int, ...], steps: int, config: HiPConfig, eviction: Eviction, length: float,
    limit: int | None = None,
) -> list[dict[str, Any]]:  # fmt: skip
    """Decode after a prompt of each length, one kv head with two queries, with and without offloading."""
    found = []
    for tokens in lengths:
        rng = root(seed).child("keys", tokens).numpy()
        # Smooth along tokens: (1, heads, tokens, d).
        q, k, v = (
            smooth(rng, (1, heads, 32, tokens + steps), length).transpose(2, 3).contiguous() for heads in (2, 1, 1)
        )
        layer = OffloadedLayer(config, group=2, eviction=eviction, limit=limit)
        plain = DecodingState()
        worst, most, before = 0.0, 0, {}
        for at in range(tokens, tokens + steps + 1):
            new = slice(0, at) if at == tokens else slice(at - 1, at)
            layer.update(k[:, :, new], v[:, :, new])
            layer.prepare(None)
            if at == tokens:
                layer.trim()  # the prompt itself is attended as it is without offloading
                before = layer.stats()
                continue
            query, keys = q[:, :, at - 1 : at], k[:, :, :at]
            ours, _ = step(layer.decoding, query, layer, layer.tails(), config=config)
            layer.trim()
            resident = Resident(keys, v[:, :, :at])
            theirs, _ = step(plain, query, resident, (keys[:, :, -2], keys[:, :, -1]), config=config)
            worst = max(worst, float((ours - theirs).abs().max()))
            most = max(most, layer.stats()["resident tokens"])
        after = layer.stats()
        hits, misses = (after[name] - before[name] for name in ("hits", "misses"))
        found.append({
            "T": tokens, "difference": worst, "resident": most, "hit rate": hits / max(hits + misses, 1),
            "allowed": capacity(tokens + steps, config, 2)
            + config.sliding_window_size + config.refresh_interval + config.sink_token_size,
            "bytes": after["bytes moved"] - before["bytes moved"],
        })  # fmt: skip
    return found


def offloading_is_exact(
    run: ClaimRun, *, lengths: tuple[int, ...] = LENGTHS, steps: int = 256, broken: bool = False
) -> Measurement:
    """Row 8: decoded outputs with offloading against those without. Control: keys of another draw."""
    found = _decode(run.seeds.seed, lengths, steps, CONFIG, "lru", SMOOTH)
    rng = run.seeds.child("other").numpy()
    q, k, v = (smooth(rng, (1, 1, 32, 512), SMOOTH).transpose(2, 3).contiguous() for _ in range(3))
    outs = [
        step(DecodingState(), q[:, :, -1:], Resident(keys, v), (None, keys[:, :, -1]), config=CONFIG)[0]
        for keys in (k, q)
    ]
    other = float((outs[0] - outs[1]).abs().max())
    measured = other if broken else max(each["difference"] for each in found)
    return Measurement(measured, baseline=("other keys", other), n=steps * len(lengths))


def resident_tokens(
    run: ClaimRun, *, lengths: tuple[int, ...] = LENGTHS, steps: int = 256, unlimited: bool = False
) -> Measurement:
    """Row 8: tokens on the device for a kv head, over C(T) + w + r_m + n_sink. Control: all T tokens."""
    found = _decode(run.seeds.seed, lengths, steps, CONFIG, "lru", SMOOTH)
    ratios = [
        max(each["resident"] / each["allowed"] for each in found),
        max((each["T"] + steps) / each["allowed"] for each in found),
    ]
    run.figure("resident", figures.curves(
        lengths, {"resident": [each["resident"] for each in found],
                  "C(T) + w + r_m + n_sink": [each["allowed"] for each in found],
                  "control: all tokens": [each["T"] for each in found]},
        xlabel="T (tokens)", ylabel="tokens of a kv head on the device", title=f"Decoding {steps} tokens",
        xscale="log", yscale="log",
    ))  # fmt: skip
    series = {"T": lengths, "resident": [each["resident"] for each in found]}
    return Measurement(ratios[int(unlimited)], baseline=("unlimited cache", ratios[1]), series=series)


def capacity_growth(run: ClaimRun, *, length: int = 131072, linear: bool = False) -> Measurement:
    """Row 8: growth of C(T) at the last doubling, over mask_k s G. Control: all tokens."""
    config, scale, group = HiPConfig(), 4.0, 4
    unit = config.mask_k * scale * group
    growth = (capacity(length, config, group, scale) - capacity(length // 2, config, group, scale)) / unit
    control = length / 2 / unit
    return Measurement(control if linear else growth, baseline=("all tokens", control))


def hit_rate(
    run: ClaimRun, *, lengths: tuple[int, ...] = LENGTHS, steps: int = 256, limit: int | None = None
) -> Measurement:
    """Row 8: hits over accesses while decoding over smooth keys. Controls: first in first out; noise; unlimited."""
    rates, aligned = {}, replace(CONFIG, align_init=True)
    for name, config, eviction, length, room in run.progress((
        ("LRU", CONFIG, "lru", SMOOTH, limit), ("temperature", CONFIG, "temperature", SMOOTH, limit),
        ("LRU, aligned first nodes", aligned, "lru", SMOOTH, limit),
        ("control: FIFO", CONFIG, "fifo", SMOOTH, limit), ("control: white noise", CONFIG, "lru", 0.01, limit),
        ("control: unlimited", CONFIG, "lru", SMOOTH, 10**5),
    ), desc="policies"):  # fmt: skip
        found = _decode(run.seeds.seed, lengths, steps, config, eviction, length, room)
        rates[name] = [each["hit rate"] for each in found]
    run.figure("hits", figures.curves(
        lengths, rates, xlabel="T (tokens)", ylabel="hit rate", title=f"Decoding {steps} tokens, ℓ = {SMOOTH:g}",
        xscale="log",
    ))  # fmt: skip
    return Measurement(
        min(rates["LRU"]), baseline=("first in, first out", min(rates["control: FIFO"])), n=steps * len(lengths),
        series={"T": lengths, **rates},
    )  # fmt: skip

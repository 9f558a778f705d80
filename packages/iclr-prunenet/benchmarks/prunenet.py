"""Ours against the official way of training, SVD against Gram matrices, dense against cut models.

python packages/iclr-prunenet/benchmarks/prunenet.py
"""

from copy import deepcopy

import numpy as np
import torch

from iclr_prunenet.evaluation import forward_call
from iclr_prunenet.feed_forward import find_feed_forwards, mask_block
from iclr_prunenet.official import official_episode, product_mask
from iclr_prunenet.planted import tiny_llama
from iclr_prunenet.policy import PruneNetPolicy
from iclr_prunenet.pruning import random_prune
from iclr_prunenet.spectra import Spectrum, spectral_ks
from iclr_prunenet.training import train_policy
from iclr_shared.bench import compare, print_comparisons


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def policies(hidden: int, units: int):
    """One relaxed sample and its gradient: the linear score against the (n, n) product."""
    policy, matrix = PruneNetPolicy(hidden, units, generator()), torch.randn(units, hidden, generator=generator(1))

    def ours():
        z = policy(matrix, generator(2))
        return z, *torch.autograd.grad(z.log().sum(), list(policy.parameters()))

    def product():
        z = product_mask(policy, matrix, generator(2))
        return z, *torch.autograd.grad(z.log().sum(), list(policy.parameters()))

    def check(outputs):
        for a, b in zip(outputs["ours"], outputs["product W Aᵀ"], strict=True):
            torch.testing.assert_close(a, b, rtol=5e-3, atol=5e-3)

    return compare({"ours": ours, "product W Aᵀ": product}, check=check, reps=5, label=f"policy, h={hidden} n={units}")


def spectra(hidden: int, units: int):
    """D of one draw of rows: from Gram matrices against two SVDs (the first is known in both)."""
    matrix = torch.randn(units, hidden, generator=generator())
    rows = torch.randperm(units, generator=generator(1))[: int(0.7 * units)].sort().values
    spectrum = Spectrum.of(matrix)

    def check(outputs):
        np.testing.assert_allclose(outputs["ours"], outputs["two svdvals"], atol=1e-9)

    ways = {"ours": lambda: spectrum.ks(matrix, rows), "two svdvals": lambda: spectral_ks(matrix, rows)}
    return compare(ways, check=check, reps=5, label=f"KS distance, h={hidden} n={units}")


def episodes(hidden: int, units: int, layers: int):
    """One training episode with its setting up."""
    model = tiny_llama(0, hidden, units, layers, heads=hidden // 64)

    def check(outputs):
        for found in outputs.values():
            assert all(0 < distance < 0.5 for distance in found)

    return compare(
        {
            "ours": lambda: train_policy(model, 0.3, 1)[1][0].ks,
            "official way": lambda: official_episode(model, 42),
        },
        check=check, reps=3, warmup=1, label=f"episode, h={hidden} n={units} L={layers}",
    )  # fmt: skip


def speed(hidden: int, ratio: float):
    """Forward passes of 4 x 128 tokens."""
    dense = tiny_llama(0, hidden, 4 * hidden, 4, heads=hidden // 64)
    cut, masked = deepcopy(dense), deepcopy(dense)
    report = random_prune(cut, ratio)
    for block, rows in zip(find_feed_forwards(masked), report.rows, strict=True):
        mask_block(masked, block, rows)

    def check(outputs):
        torch.testing.assert_close(outputs["cut"], outputs["dense, units masked"], atol=1e-4, rtol=1e-4)

    ways = {"cut": forward_call(cut, 4, 128), "dense, units masked": forward_call(masked, 4, 128)}
    comparison = compare(ways, check=check, reps=7, label=f"forward, h={hidden} r={ratio:g}")
    tokens = {name: 512 / comparison.median(name) for name in ways}
    return comparison, [f"{tokens['dense, units masked']:.0f}", f"{tokens['cut']:.0f}"]


if __name__ == "__main__":
    found = [policies(256, 1024), policies(768, 3072), spectra(256, 1024), spectra(768, 3072)]
    found += [episodes(256, 1024, 4), episodes(768, 3072, 4)]
    speeds = [speed(512, 0.3), speed(768, 0.3), speed(768, 0.5)]
    print_comparisons([*found, *(comparison for comparison, _ in speeds)], "PruneNet")
    for comparison, (before, after) in speeds:
        print(f"{comparison.label}: {before} tokens/s before, {after} after")

"""Checks on a small trained Llama: is there attention locality, and what does pruning cost."""

from functools import cache
from typing import Any

import numpy as np
import torch
from transformers import LlamaForCausalLM

from iclr_hip import figures, tiny_lm
from iclr_hip.config import HiPConfig
from iclr_hip.controls import random_search, window_config
from iclr_hip.locality import rank_correlations, score_differences
from iclr_hip.serving import Seen, disable_hip, observing, searching_with
from iclr_shared.claims import ClaimRun, Measurement
from iclr_shared.seeds import root

#: 96 + 48 + 8 of 512 tokens: 30 %. No dense layer: both layers are pruned.
CONFIG = HiPConfig(
    mask_k=96, sliding_window_size=48, sink_token_size=8, block_size_q=16, dense_layers=0, backend="torch"
)


@cache
def _model(seed: int, steps: int, context: int) -> tuple[LlamaForCausalLM, torch.Tensor, dict[str, Any]]:
    """The trained model, held-out tokens, and what to say about them."""
    train, held_out = tiny_lm.split(tiny_lm.corpus())
    model = tiny_lm.new_model(root(seed).child("weights").int32(), context)
    losses = tiny_lm.train(model, train, root(seed).child("batches").torch(), steps, context=context)
    details = {"training bytes": len(train), "steps": steps, "last training loss (nats)": float(np.mean(losses[-20:]))}
    return model, held_out, details


def locality_in_a_trained_model(
    run: ClaimRun, *, steps: int = 400, context: int = 512, sequences: int = 4, shuffled: bool = False
) -> Measurement:
    """Row 2: share of heads with Spearman > 0.8 of E|s_i − s_{i+δ}| and δ. Control: keys in shuffled order."""
    model, held_out, details = _model(run.seeds.seed, steps, context)
    model = tiny_lm.prune(model, CONFIG)
    seen: list[Seen] = []
    with observing(model, seen.append), torch.no_grad():
        model(input_ids=tiny_lm.windows(held_out, sequences, context), use_cache=False)
    disable_hip(model)
    order = torch.randperm(context, generator=run.seeds.child("order").torch())
    curves, controls = [], []
    for layer in seen:
        for into, keys in ((curves, layer.key), (controls, layer.key[:, :, order])):
            into.append(np.mean([score_differences(q, k) for q, k in zip(layer.query, keys, strict=True)], 0))
    heads, flat = np.concatenate(curves), np.concatenate(controls)
    found, control = rank_correlations(heads), rank_correlations(flat)
    names = [f"layer {layer.layer}, head {h}" for layer in seen for h in range(layer.query.shape[1])]
    lines = dict(zip(names, heads, strict=True)) | {"control: shuffled keys": flat.mean(0)}
    run.figure("locality", figures.curves(
        range(1, heads.shape[1] + 1), lines, xlabel="distance δ (tokens)", ylabel="E |s_i − s_{i+δ}|",
        title="Score differences in a trained model",
    ))  # fmt: skip
    shares = [float((values > 0.8).mean()) for values in (found, control)]
    rise = {
        f"rise over δ, {name}": float(line[-1] / line[0])
        for name, line in zip(("heads", "shuffled"), (heads.mean(0), flat.mean(0)), strict=True)
    }
    return Measurement(
        shares[int(shuffled)], baseline=("shuffled keys", shares[1]), n=len(names),
        series={"head": names, "Spearman": found, "Spearman, shuffled": control}, details=details | rise,
    )  # fmt: skip


@cache
def _perplexities(
    seed: int, steps: int, context: int, sequences: int, config: HiPConfig
) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """Mean loss of each held-out sequence's second half: dense, HiP, random blocks, sinks and window."""
    model, held_out, details = _model(seed, steps, context)
    tokens = tiny_lm.windows(held_out, sequences, context)
    losses = {"dense": tiny_lm.losses(model, tokens)}
    losses["HiP"] = tiny_lm.losses(tiny_lm.prune(model, config), tokens)
    with searching_with(model, random_search(root(seed).child("random").torch())):
        losses["random blocks"] = tiny_lm.losses(model, tokens)
    losses["sinks and window"] = tiny_lm.losses(tiny_lm.prune(model, window_config(config)), tokens)
    disable_hip(model)
    budget = config.mask_k + config.sliding_window_size + config.sink_token_size
    return losses, details | {"budget (tokens)": budget, "context (tokens)": context}


def _increases(losses: dict[str, torch.Tensor]) -> dict[str, float]:
    """Relative increase of perplexity over dense."""
    return {name: float((loss.mean() - losses["dense"].mean()).exp() - 1) for name, loss in losses.items()}


def _error(losses: dict[str, torch.Tensor], name: str, other: str) -> float:
    """Standard error of the paired difference of two losses: about that of the relative perplexities."""
    return float((losses[name] - losses[other]).std() / len(losses[name]) ** 0.5)


def little_is_lost(
    run: ClaimRun, *, steps: int = 400, context: int = 512, sequences: int = 48, config: HiPConfig = CONFIG
) -> Measurement:
    """Row 5: perplexity of HiP over dense, minus 1. Control: random blocks of the same budget."""
    losses, details = _perplexities(run.seeds.seed, steps, context, sequences, config)
    increases = _increases(losses)
    names = [name for name in losses if name != "dense"]
    errors = [_error(losses, name, "dense") for name in names]
    run.figure("perplexity", figures.bars(
        names, [100 * increases[name] for name in names], [100 * e for e in errors], "increase of perplexity (%)",
        f"{details['budget (tokens)']} of {context} tokens attended",
    ))  # fmt: skip
    details = details | {f"increase, {name}": increases[name] for name in names}
    details |= {"perplexity of dense": float(losses["dense"].mean().exp())}
    measured, error = increases["HiP"], errors[0]
    return Measurement(
        measured, baseline=("random blocks", increases["random blocks"]),
        ci=(measured - 2 * error, measured + 2 * error), n=sequences, details=details,
    )  # fmt: skip


def _less_than(run: ClaimRun, other: str, steps: int, context: int, sequences: int, config: HiPConfig) -> Measurement:
    losses, details = _perplexities(run.seeds.seed, steps, context, sequences, config)
    increases, error = _increases(losses), 2 * _error(losses, "HiP", other)
    gap = increases[other] - increases["HiP"]
    return Measurement(
        gap, baseline=("HiP against itself", 0.0), ci=(gap - error, gap + error), n=sequences, details=details
    )


def less_than_random(
    run: ClaimRun, *, steps: int = 400, context: int = 512, sequences: int = 48, config: HiPConfig = CONFIG
) -> Measurement:
    """Row 5: increase with random blocks minus HiP's. Control: 0."""
    return _less_than(run, "random blocks", steps, context, sequences, config)


def less_than_window(
    run: ClaimRun, *, steps: int = 400, context: int = 512, sequences: int = 48, config: HiPConfig = CONFIG
) -> Measurement:
    """Row 5: increase with sinks and a window of the same budget minus HiP's. Control: 0."""
    return _less_than(run, "sinks and window", steps, context, sequences, config)

"""Run by `test_kernels.py` with TRITON_INTERPRET=1: prints, for each case, equal blocks and the largest difference."""

import json
import sys
from dataclasses import replace

import torch

from iclr_hip.attention import block_sparse_attention, hip_attention
from iclr_hip.config import HiPConfig

CASES = {
    "GQA, fewer queries than keys": {"g": 1, "tq": 100, "tk": 160},
    "ties": {"tq": 96, "integers": True, "block_size_k": 4, "block_stride_k": 2},
    "padding": {"b": 2, "tq": 80, "d": 24, "first": [0, 37]},
    "one query": {"tq": 1, "tk": 203},
    "window below b_q": {"tq": 70, "sliding_window_size": 5, "sample": "last"},
    "mask_k of all keys": {"tq": 64, "mask_k": 64},
}


def case(b=1, h=2, g=2, tq=64, tk=None, d=16, first=None, integers=False, **options):
    """Equal blocks, largest difference of outputs."""
    generator = torch.Generator().manual_seed(tq)
    tk = tk or tq
    q, k, v = (torch.randn(b, n, t, d, generator=generator) for n, t in ((h, tq), (g, tk), (g, tk)))
    if integers:
        q, k = q.round(), k.round()
    sizes = {"mask_k": 16, "block_size_q": 16, "sliding_window_size": 16, "sink_token_size": 4, "backend": "torch"}
    config = HiPConfig(**sizes | options)
    mask = None if first is None else (torch.arange(tk) >= torch.tensor(first)[:, None]).long()
    (out, blocks), (other, found) = (
        hip_attention(q, k, v, config=c, attention_mask=mask) for c in (config, replace(config, backend="triton"))
    )
    return torch.equal(blocks.blocks, found.blocks), float((out - other).abs().max())


def later():
    """A mask that serves a later token, and float16."""
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 2, t, 16, generator=generator) for t in (1, 120, 120))
    sizes = {"mask_k": 16, "block_size_q": 16, "sliding_window_size": 16, "sink_token_size": 4}
    configs = [HiPConfig(backend=name, **sizes) for name in ("torch", "triton")]
    masks = [hip_attention(q, k[:, :, :115], v[:, :, :115], config=c)[1] for c in configs]
    outs = [block_sparse_attention(q, k, v, mask) for mask in masks]
    half = [block_sparse_attention(q.half(), k.half(), v.half(), mask).float() for mask in masks]
    return float((outs[0] - outs[1]).abs().max()), float((half[0] - half[1]).abs().max())


def refused():
    """Errors of what the kernels cannot do."""
    x = torch.zeros(1, 1, 64, 16)
    config, found = HiPConfig(backend="triton", mask_k=16, sliding_window_size=16), []
    for inputs, options in (
        ((x.double(),) * 3, {}),
        ((x.clone().requires_grad_(), x, x), {}),
        ((x,) * 3, {"softcap": 2.0}),
        ((x.bfloat16(),) * 3, {}),
    ):
        try:
            hip_attention(*inputs, config=config, **options)
        except Exception as error:
            found.append(f"{type(error).__name__}: {error}")
    return found


if __name__ == "__main__":
    json.dump(
        {"cases": {name: case(**options) for name, options in CASES.items()}, "later": later(), "refused": refused()},
        sys.stdout,
    )

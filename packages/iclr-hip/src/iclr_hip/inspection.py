"""How much of dense attention a mask keeps, and what it looks like."""

import torch
from jaxtyping import Float
from matplotlib.figure import Figure
from torch import Tensor

from iclr_hip.mask import HiPMask
from iclr_shared.plots import new_figure


@torch.no_grad()
def captured_mass(
    q: Float[Tensor, "b h q d"],
    k: Float[Tensor, "b g k d"],
    mask: HiPMask,
    scale: float | None = None,
    rows: range | None = None,
) -> Float[Tensor, "b h r"]:
    """Share of the dense causal softmax that falls on attended keys, for each query row.

    Args:
        q, k: as in `iclr_hip.hip_mask`.
        mask: of these.
        scale: of q · k; d^(−1/2) by default.
        rows: consecutive query rows to look at, all by default. Time and memory grow with rows · Tk.
    """
    rows = range(mask.query_length) if rows is None else rows
    at = torch.tensor(list(rows))
    k = k.repeat_interleave(q.shape[1] // k.shape[1], 1).float()
    scores = q[:, :, at].float() @ k.transpose(2, 3) * (q.shape[3] ** -0.5 if scale is None else scale)
    key = torch.arange(k.shape[2], device=q.device)
    position = (mask.key_length - mask.query_length + at).to(q.device)
    seen = (key <= position[:, None]) & (key >= mask.first[:, None, None])
    scores = scores.masked_fill(~seen[:, None], torch.finfo(scores.dtype).min)
    kept = mask.to_dense(rows=rows).to(q.device)
    return (scores.softmax(3) * kept).sum(3)


def pattern_figure(mask: HiPMask, title: str = "", pixels: int = 256) -> Figure:
    """Where each block of queries attends, averaged over heads: sequence 0, keys to the right, queries downwards.

    Args:
        mask: of a prompt.
        title: above the picture.
        pixels: to a side at most.
    """
    import numpy as np

    h, n = mask.blocks.shape[1:3]
    size, width = min(mask.config.block_size_q, mask.query_length), max(1, -(-mask.key_length // pixels))
    tall = max(1, -(-n // pixels))
    image = np.zeros((-(-n // tall), -(-mask.key_length // width)))
    blocks = mask.blocks[0].cpu().numpy()
    window, sinks = mask.config.sliding_window_size, mask.config.sink_token_size
    first = int(mask.first[0])
    for block in range(n):
        chosen = blocks[:, block][blocks[:, block] >= 0]
        counts = np.bincount(chosen, minlength=mask.key_length).astype(float)
        for shift in range(1, mask.config.block_size_k):
            counts[shift:] += np.bincount(chosen, minlength=mask.key_length)[: mask.key_length - shift]
        last = mask.key_length - mask.query_length + min((block + 1) * size, mask.query_length)
        counts[first : first + sinks] = h
        counts[max(first, last - window - size + 1) : last] = h
        counts[last:] = 0
        counts = np.pad(counts, (0, -len(counts) % width)).reshape(-1, width).mean(1)
        image[block // tall] += counts / h / tall
    figure, axes = new_figure(width=6.4, height=5.6)
    axes.grid(False)
    extent = (0, mask.key_length, mask.key_length, mask.key_length - mask.query_length)
    shown = axes.imshow(image, aspect="auto", extent=extent, cmap="magma_r", vmin=0, vmax=1, interpolation="nearest")
    axes.set(xlabel="key position (tokens)", ylabel="query position (tokens)", title=title)
    figure.colorbar(shown, label="share of heads and keys attended")
    return figure

"""One episode as the official code does it, to measure against: whole products, full SVDs, a copy of the model."""

from copy import deepcopy

import torch
from torch import nn
from transformers import PreTrainedModel

from iclr_prunenet.feed_forward import find_feed_forwards, scored_matrices, slice_block
from iclr_prunenet.policy import PruneNetPolicy, draw_rows, rows_kept
from iclr_prunenet.spectra import ks_statistic
from iclr_prunenet.training import OFFICIAL_REWARD


def official_episode(model: PreTrainedModel, seed: int, ratio: float = 0.3) -> list[float]:
    """The spectra of all layers and one episode of updates; alpha = sigmoid((W Aᵀ + 1 bᵀ) u) as written.

    Returns:
        D of each layer.
    """
    generator = torch.Generator().manual_seed(seed)
    before = [torch.linalg.svd(matrix, full_matrices=False).S for matrix in scored_matrices(model)]
    blocks = find_feed_forwards(model)
    policy = PruneNetPolicy(blocks[0].hidden_size, blocks[0].intermediate_size, generator)
    optimiser = torch.optim.AdamW(policy.parameters(), lr=1e-3)
    copy = deepcopy(model)
    states, drawn, distances = [], [], []
    for block, matrix, values in zip(blocks, scored_matrices(copy), before, strict=True):
        states.append(matrix.clone())
        with torch.no_grad():
            mask = product_mask(policy, states[-1], generator)
        rows = draw_rows(mask, rows_kept(len(matrix), ratio), generator).sort().values
        slice_block(copy, block, rows)
        kept = block.rows(copy.get_parameter(block.scored).detach())[: len(rows)]
        distances.append(ks_statistic(values, torch.linalg.svd(kept, full_matrices=False).S))
        drawn.append(rows)
    for layer, (state, rows) in enumerate(zip(states, drawn, strict=True)):
        reward = 0.99**layer * (1 / distances[layer] if distances[layer] else OFFICIAL_REWARD)
        loss = -reward * product_mask(policy, state, generator).log()[rows].sum()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return distances


def product_mask(policy: PruneNetPolicy, matrix: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """z by way of the (n, n) product W Aᵀ, as the equations are written."""
    alpha = torch.sigmoid(policy.proj_intermediate(matrix) @ policy.row_sparsities)[:, 0].clamp(1e-6, 1 - 1e-6)
    noise = torch.rand(len(alpha), generator=generator).clamp(1e-6, 1 - 1e-6)
    return nn.functional.sigmoid(torch.logit(noise) + torch.logit(alpha))

"""Attention from END: read it, put another prompt's pattern in its place, compare with request-patching (§2.8)."""

import contextlib
import contextvars
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float

from iclr_interp.orion.causal import HYPOTHESES, interchange_expected
from iclr_interp.orion.datasets import RetrievalDataset, resolve
from iclr_interp.orion.language_model import LanguageModel
from iclr_interp.orion.tokens import Batch, encode
from iclr_shared.errors import InputError


@dataclass
class _Attending:
    """What our attention function should do at END: note its weights, or put others in their place."""

    ends: torch.Tensor
    noted: dict[int, torch.Tensor]
    given: Mapping[int, torch.Tensor] | None = None


_attending: contextvars.ContextVar[_Attending | None] = contextvars.ContextVar("orion_attending", default=None)
_NAME = "orion_end_pattern"


def _attention_function(module, query, key, value, attention_mask, scaling=None, dropout=0.0, **kwargs):
    """Attention in the open, for the interface of `transformers`."""
    groups = query.shape[1] // key.shape[1]
    key, value = (x.repeat_interleave(groups, 1) if groups > 1 else x for x in (key, value))
    scores = query @ key.transpose(-1, -2) * (query.shape[-1] ** -0.5 if scaling is None else scaling)
    if attention_mask is not None:
        scores = scores + attention_mask[..., : key.shape[-2]]
    weights = torch.softmax(scores, -1, dtype=torch.float32).to(query.dtype)
    task = _attending.get()
    if task is not None:
        rows = torch.arange(len(weights), device=weights.device)
        ends = task.ends.to(weights.device)
        if task.given is not None:
            weights = weights.clone()
            weights[rows, :, ends] = task.given[module.layer_idx].to(weights)
        task.noted[module.layer_idx] = weights[rows, :, ends]
    return (weights @ value).transpose(1, 2).contiguous(), weights


@contextlib.contextmanager
def _open_attention(model: LanguageModel, task: _Attending) -> Iterator[None]:
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface, eager_mask

    if not model.is_pretrained:
        raise InputError(f"{model.name} is no model of transformers; its attention cannot be read.")
    AttentionInterface.register(_NAME, _attention_function)
    AttentionMaskInterface.register(_NAME, eager_mask)
    before = model.config._attn_implementation
    token = _attending.set(task)
    try:
        model.module.set_attn_implementation(_NAME)
        yield
    finally:
        _attending.reset(token)
        model.module.set_attn_implementation(before)
    if len(task.noted) != model.depth:
        raise InputError(
            f"{model.name} does not use the attention interface of transformers; its attention cannot be read."
        )


@torch.no_grad()
def end_patterns(model: LanguageModel, batch: Batch) -> Float[torch.Tensor, "n N H T"]:
    """Attention of each block's heads from END to all positions."""
    task = _Attending(batch.ends, {})
    with _open_attention(model, task):
        model.run(batch)
    return torch.stack([task.noted[block] for block in range(model.depth)], 1).float()


@torch.no_grad()
def run_with_patterns(
    model: LanguageModel, batch: Batch, patterns: Float[torch.Tensor, "n N H T"]
) -> Float[torch.Tensor, "n V"]:
    """Logits at END when all heads attend from END as given."""
    task = _Attending(batch.ends, {}, {block: patterns[:, block] for block in range(model.depth)})
    with _open_attention(model, task):
        return model.run(batch)


@dataclass(frozen=True)
class PatternComparison:
    """Probability, rank (0 is first) and top-1 rate of four answers under four ways of running the target.

    Args:
        answers: rows: R₂(C₂), R₁(C₂), R₁(C₁), and the mean over what all other queries give on C₂ (NaN if there is
            none).
        ways: columns: the clean target, the chimera, its patterns on the target, request-patching.
        probability, rank, top1: means over pairs.
    """

    probability: Float[np.ndarray, "4 4"]
    rank: Float[np.ndarray, "4 4"]
    top1: Float[np.ndarray, "4 4"]
    answers: tuple[str, ...] = ("R2(C2)", "R1(C2)", "R1(C1)", "other R(C2)")
    ways: tuple[str, ...] = ("target", "chimera", "chimera's patterns", "request-patch")

    def frame(self):
        """A pandas data frame, one row for each answer and way."""
        import pandas as pd

        index = pd.MultiIndex.from_product([self.answers, self.ways], names=["answer", "way"])
        return pd.DataFrame({name: getattr(self, name).ravel() for name in ("probability", "rank", "top1")}, index)


def compare_patterns(
    model: LanguageModel, dataset: RetrievalDataset, layer: int, pairs: Sequence[Sequence[int]]
) -> PatternComparison:
    """Does request-patching act through attention? Take head patterns of the chimera (context 2, question 1) (§2.8).

    Args:
        model: on the attention interface of `transformers`.
        dataset: of one task.
        layer: where request-patching patches, L2.
        pairs: (target, source).
    """
    model.check_layer(layer)
    scores = []
    for two, one in pairs:
        target, source = dataset.items[two], dataset.items[one]
        chimera = target.with_request(source)
        batches = [model.batch_tokens([encode(dataset.tokenizer, item.text)]) for item in (target, source, chimera)]
        pattern = _aligned(end_patterns(model, batches[2]), batches[2].ids[0], batches[0].ids[0])
        _, residuals = model.residuals(batches[1])
        logits = torch.cat([
            model.run(batches[0]),
            model.run(batches[2]),
            run_with_patterns(model, batches[0], pattern),
            model.run(batches[0], layer, residuals[:, layer]),
        ]).float()  # fmt: skip
        expected = interchange_expected([(target, source)])[0]
        if None in expected.values():
            continue
        reachable = {resolve(query, target.context) for query in dataset.queries_counted}
        others = sorted(v for v in reachable - {expected["nil"], expected["query"]} if v is not None)
        ids = [dataset.first_ids[value] for value in [*(expected[h] for h in HYPOTHESES), *others]]
        rank = (logits[:, None] > logits[:, ids, None]).sum(-1).T.float()
        found = torch.stack([logits.softmax(-1)[:, ids].T, rank, (rank == 0).float()])
        scores.append(torch.cat([found[:, :3], found[:, 3:].mean(1, keepdim=True)], 1))  # NaN where none is left
    if not scores:
        raise InputError("No pair has an answer to every hypothesis.")
    return PatternComparison(*torch.stack(scores).nanmean(0).cpu().numpy())


def _aligned(pattern: torch.Tensor, ids: torch.Tensor, onto: torch.Tensor) -> torch.Tensor:
    """A pattern over `ids` moved onto other tokens: the common beginning stays, the rest is aligned at END."""
    shared = min(len(ids), len(onto))
    differ = (ids[:shared] != onto[:shared]).nonzero()
    prefix = int(differ[0]) if len(differ) else shared
    moved = torch.zeros(*pattern.shape[:-1], len(onto), device=pattern.device)
    moved[..., :prefix] = pattern[..., :prefix]
    tail = min(len(ids), len(onto)) - prefix
    if tail:
        moved[..., len(onto) - tail :] = pattern[..., len(ids) - tail :]
    return moved / moved.sum(-1, keepdim=True).clamp(min=1e-9)

"""The case study: which heads and MLPs write the answer, and what they attend to (§2.8).

Layers of components are 0-based block indices, as in the case study. "Patch at the input of block 16" is layer 16 of
`request_patch`, which counts what has been done: after block 16 of 1 … N.
"""

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Float

from iclr_interp.orion.datasets import RetrievalDataset, resolve
from iclr_interp.orion.language_model import LanguageModel
from iclr_interp.orion.patterns import end_patterns
from iclr_interp.orion.retrieval import find
from iclr_interp.orion.tokens import Batch, spans
from iclr_shared.errors import InputError

_ATTENTION = ("attn", "attention", "self_attn", "self_attention")
_PROJECTION = ("c_proj", "dense", "o_proj", "out_proj")


class Component(NamedTuple):
    """A part that writes into the residual stream: a head, an MLP, or the embedding (block -1)."""

    kind: Literal["head", "mlp", "embedding"]
    block: int
    head: int = 0

    def __str__(self) -> str:
        return {"head": f"head {self.block}.{self.head}", "mlp": f"MLP {self.block}", "embedding": "embedding"}[
            self.kind
        ]


@dataclass(frozen=True)
class DirectEffects:
    """Effects of components on the answer, for each prompt.

    Args:
        components: in order of blocks; heads, then the MLP.
        effects: what of the metric is lost when the component's output is another prompt's.
        variables: what each prompt asks for.
    """

    components: tuple[Component, ...]
    effects: Float[np.ndarray, "n c"]
    variables: tuple[str, ...]

    @property
    def mean(self) -> Float[np.ndarray, " c"]:
        """Over prompts."""
        return self.effects.mean(0)

    def by_variable(self) -> dict[str, Float[np.ndarray, " c"]]:
        """Means over the prompts that ask for the same."""
        asked = np.array(self.variables)
        return {variable: self.effects[asked == variable].mean(0) for variable in sorted(set(self.variables))}

    def top(self, k: int = 50, kind: str | None = None) -> list[Component]:
        """The k components (of one kind) with the largest mean effect."""
        order = np.argsort(-self.mean, kind="stable")
        return [c for c in (self.components[i] for i in order) if kind in (None, c.kind)][:k]


def direct_effects(
    model: LanguageModel,
    dataset: RetrievalDataset,
    metric: Literal["logit_difference", "log_probability"] = "logit_difference",
    mode: Literal["resample", "linear"] = "resample",
    resamples: int = 1,
    seed: int = 0,
    batch_size: int = 16,
) -> DirectEffects:
    """Direct path patching of each head and MLP: r′ = r − out_c(x) + out_c(x″) at END after the last block (§2.8).

    x″ is a random prompt with another query. The metric goes through final norm and unembedding: the logit of the
    answer minus the mean logit of what the data set's other queries would give in this context, or the answer's
    log-probability.

    Args:
        model: of `transformers`, with an attention module and an MLP in each block.
        dataset: prompts with at least two different queries.
        metric: of the logits.
        mode: ``linear`` takes the metric's gradient at r times the change instead. Linear effects of all components,
            the embedding among them, add up to the gradient times r − r″.
        resamples: x″ for each prompt.
        seed: of x″.
        batch_size: prompts in a pass.

    Raises:
        InputError: if the model's parts are not found, or all prompts ask the same.
    """
    writes, last = _outputs(model, dataset, batch_size)
    rng = np.random.default_rng(seed)
    queries = dataset.queries
    choices = [[j for j, other in enumerate(queries) if other != query] for query in queries]
    if not all(choices):
        raise InputError(f"All prompts of {dataset.name} ask the same; direct effects need another queried variable.")
    answers, others = _targets(dataset)
    effects = np.zeros((len(dataset), len(writes.components)))
    for _ in range(resamples):
        other = torch.tensor([int(rng.choice(rows)) for rows in choices])
        if mode == "linear":
            slope = _gradient(model, last, answers, others, metric)
        else:
            clean = _measure(_unembedded(model, last, batch_size), answers, others, metric)
        for c in range(len(writes.components)):
            change = writes[c] - writes[c][other]
            if mode == "linear":
                lost = (slope * change).sum(-1)
            else:
                lost = clean - _measure(_unembedded(model, last - change, batch_size), answers, others, metric)
            effects[:, c] += lost.double().cpu().numpy() / resamples
    return DirectEffects(tuple(writes.components), effects, tuple(str(query) for query in queries))


def component_overlap(effects: Mapping[str, Float[np.ndarray, " c"]], k: int = 50) -> Float[np.ndarray, "v v"]:
    """Share of the k strongest components of one variable that are among those of another."""
    tops = [set(np.argsort(-values, kind="stable")[:k].tolist()) for values in effects.values()]
    size = min(k, min(len(values) for values in effects.values()))
    return np.array([[len(a & b) / size for b in tops] for a in tops])


def attention_to_entities(
    model: LanguageModel,
    dataset: RetrievalDataset,
    batch_size: int = 16,
    layer: int | None = None,
    sources: Sequence[int] | None = None,
) -> tuple[Float[np.ndarray, "n N H E"], np.ndarray]:
    """Attention of each head from END to the tokens of each entity's value, also under request-patching.

    Args:
        model: of `transformers`, on its attention interface.
        dataset: prompts whose contexts all have the same number of entities; the tokenizer must be a fast one.
        batch_size: prompts in a pass.
        layer: after which each prompt's residual at END is overwritten by that of its source; None for no patch.
        sources: index of each prompt's source.

    Returns:
        Mass on each entity, and for each prompt the index of the entity that answers its own request.

    Raises:
        InputError: if the contexts differ in size, or attention cannot be read.
    """
    sizes = {len(context) for context in dataset.contexts}
    if len(sizes) != 1:
        raise InputError("The contexts differ in their number of entities.")
    if (layer is None) != (sources is None) or (sources is not None and len(sources) != len(dataset)):
        raise InputError("To patch requests, give a layer, and a source for each prompt.")
    spots = [_spots(dataset, i) for i in range(len(dataset))]
    found = []
    for part in spans(len(dataset), batch_size):
        batch = model.batch_tokens(dataset.tokens[part])
        with contextlib.ExitStack() as stack:
            if layer is not None and sources is not None:
                source = model.batch_tokens([dataset.tokens[i] for i in sources[part]])
                patch = model.residuals(source)[1][:, model.check_layer(layer)]
                stack.enter_context(model.patched(layer, batch.ends, patch))
            patterns = end_patterns(model, batch)
        for row, masks in zip(patterns, spots[part], strict=True):
            found.append(torch.stack([row[..., : len(mask)][..., mask].sum(-1) for mask in masks], -1).cpu().numpy())
    answering = [
        next(i for i, e in enumerate(item.context) if e is find(item.query.where, item.context))
        for item in dataset.items
    ]
    return np.stack(found), np.array(answering)


class Mover(NamedTuple):
    """A head, its mean direct effect, and its mean attention on the answer's tokens."""

    head: Component
    effect: float
    attention: float


def movers(
    effects: DirectEffects,
    attention: Float[np.ndarray, "n N H E"],
    answering: np.ndarray,
    k: int = 3,
    blocks: Sequence[int] | None = None,
) -> list[Mover]:
    """The k heads (of some blocks, 0-based) with the largest direct effect, with their attention on what answers."""
    on_answer = attention[np.arange(len(attention)), :, :, answering].mean(0)
    mean = dict(zip(effects.components, effects.mean, strict=True))
    heads = [c for c in effects.top(len(mean), "head") if blocks is None or c.block in blocks]
    return [Mover(c, float(mean[c]), float(on_answer[c.block, c.head])) for c in heads[:k]]


@torch.no_grad()
def ablated_accuracy(
    model: LanguageModel, dataset: RetrievalDataset, heads: Sequence[Component], batch_size: int = 64
) -> float:
    """Accuracy with the heads' outputs at END replaced by their mean over the data set."""
    means = {block: _head_inputs(model, dataset, batch_size)[:, block].mean(0) for block in {h.block for h in heads}}
    width = next(iter(means.values())).shape[-1] // _heads(model) if heads else 0
    hits = 0
    for part in spans(len(dataset), batch_size):
        batch = model.batch_tokens(dataset.tokens[part])
        rows = torch.arange(len(batch.ids), device=model.device)
        handles = []

        def replace(block, batch=batch, rows=rows):
            def hook(_, args):
                hidden = args[0].clone()
                for head in heads:
                    if head.block == block:
                        part = slice(head.head * width, (head.head + 1) * width)
                        hidden[rows, batch.ends, part] = means[block][part].to(hidden)
                return (hidden, *args[1:])

            return hook

        try:
            handles = [_projection(model, b).register_forward_pre_hook(replace(b)) for b in means]
            best = model.run(batch).argmax(-1).tolist()
        finally:
            for handle in handles:
                handle.remove()
        wanted = [dataset.first_ids[a] for a in dataset.answers[part]]
        hits += sum(a == b for a, b in zip(best, wanted, strict=True))
    return hits / len(dataset)


# --- what components write -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Writes:
    """Outputs of all components at END, made when asked for: heads from the input of their projection."""

    components: list[Component]
    inputs: Float[torch.Tensor, "n N a"]
    weights: list[Float[torch.Tensor, "a d"]]
    mlps: Float[torch.Tensor, "n N d"]
    embedding: Float[torch.Tensor, "n d"]
    heads: int

    def __getitem__(self, index: int) -> torch.Tensor:
        kind, block, head = self.components[index]
        if kind == "embedding":
            return self.embedding
        if kind == "mlp":
            return self.mlps[:, block]
        width = self.inputs.shape[-1] // self.heads
        part = slice(head * width, (head + 1) * width)
        return self.inputs[:, block, part] @ self.weights[block][part]


def _outputs(model, dataset, batch_size) -> tuple[_Writes, torch.Tensor]:
    inputs, mlps, embedding, last = [], [], [], []
    for part in spans(len(dataset), batch_size):
        batch = model.batch_tokens(dataset.tokens[part])
        with _noted(model, batch) as (projected, written):
            _, residuals = model.residuals(batch)
        inputs.append(torch.stack([projected[b] for b in range(model.depth)], 1).float())
        mlps.append(torch.stack([written[b] for b in range(model.depth)], 1).float())
        embedding.append(residuals[:, 0].float())
        last.append(residuals[:, -1].float())
    weights = [_weight(_projection(model, block)) for block in range(model.depth)]
    heads = _heads(model)
    components = [Component("embedding", -1)]
    for block in range(model.depth):
        components += [Component("head", block, head) for head in range(heads)] + [Component("mlp", block)]
    writes = _Writes(components, torch.cat(inputs), weights, torch.cat(mlps), torch.cat(embedding), heads)
    return writes, torch.cat(last)


def _head_inputs(model, dataset, batch_size) -> torch.Tensor:
    return _outputs(model, dataset, batch_size)[0].inputs


@contextlib.contextmanager
def _noted(model: LanguageModel, batch: Batch) -> Iterator[tuple[dict[int, torch.Tensor], dict[int, torch.Tensor]]]:
    projected: dict[int, torch.Tensor] = {}
    written: dict[int, torch.Tensor] = {}

    def note(store: dict, block: int, hidden: torch.Tensor) -> None:
        store[block] = hidden[torch.arange(len(hidden), device=hidden.device), batch.ends.to(hidden.device)].clone()

    handles = []
    try:
        for block in range(model.depth):
            handles.append(
                _projection(model, block).register_forward_pre_hook(
                    lambda _, args, b=block: note(projected, b, args[0])
                )
            )
            handles.append(
                _mlp(model, block).register_forward_hook(
                    lambda _, args, output, b=block: note(
                        written, b, output[0] if isinstance(output, tuple) else output
                    )
                )
            )
        yield projected, written
    finally:
        for handle in handles:
            handle.remove()


def _projection(model: LanguageModel, block: int) -> torch.nn.Module:
    for name in _ATTENTION:
        attention = getattr(model.blocks[block], name, None)
        for inner in _PROJECTION:
            if (found := getattr(attention, inner, None)) is not None:
                return found
    raise InputError(f"{model.name}: no attention output is found in {type(model.blocks[block]).__name__}.")


def _mlp(model: LanguageModel, block: int) -> torch.nn.Module:
    if (found := getattr(model.blocks[block], "mlp", None)) is None:
        raise InputError(f"{model.name}: no MLP is found in {type(model.blocks[block]).__name__}.")
    return found


def _weight(projection: Any) -> torch.Tensor:
    """(inputs, width): `Linear` keeps the transpose, the `Conv1D` of GPT-2 does not."""
    weight = projection.weight.detach().float()
    return weight.T if isinstance(projection, torch.nn.Linear) else weight


def _heads(model: LanguageModel) -> int:
    return int(model.config.num_attention_heads)


def _targets(dataset: RetrievalDataset) -> tuple[torch.Tensor, list[list[int]]]:
    answers = torch.tensor([dataset.first_ids[value] for value in dataset.answers])
    others = []
    for item, answer in zip(dataset.items, dataset.answers, strict=True):
        values = {resolve(query, item.context) for query in dataset.queries_counted} - {None, answer}
        others.append([dataset.first_ids[value] for value in sorted(v for v in values if v)])
    return answers, others


def _measure(logits: torch.Tensor, answers: torch.Tensor, others: list[list[int]], metric: str) -> torch.Tensor:
    rows = torch.arange(len(logits), device=logits.device)
    answers = answers.to(logits.device)
    if metric == "log_probability":
        return logits.log_softmax(-1)[rows, answers]
    if metric != "logit_difference":
        raise InputError(f"metric must be 'logit_difference' or 'log_probability', got {metric!r}.")
    weights = torch.zeros_like(logits)
    for row, ids in enumerate(others):
        for token in ids:
            weights[row, token] += 1 / len(ids)
    return logits[rows, answers] - (weights * logits).sum(-1)


def _unembedded(model: LanguageModel, residuals: torch.Tensor, batch_size: int) -> torch.Tensor:
    parts = residuals.split(max(batch_size, 64))
    return torch.cat([model.unembed(part.to(model.dtype)).float() for part in parts])


def _gradient(model, residuals, answers, others, metric) -> torch.Tensor:
    with torch.enable_grad():
        point = residuals.detach().clone().requires_grad_(True)
        logits = model.unembed(point.to(model.dtype), grad=True).float()
        (slope,) = torch.autograd.grad(_measure(logits, answers, others, metric).sum(), point)
    return slope.detach()


def _spots(dataset: RetrievalDataset, index: int) -> list[torch.Tensor]:
    """For each entity a mask over the prompt's tokens that are part of its value."""
    item, ids = dataset.items[index], dataset.tokens[index]
    coded = dataset.tokenizer(item.text, add_special_tokens=False, return_offsets_mapping=True)
    shift = len(ids) - len(coded["input_ids"])
    masks = []
    for entity in item.context:
        core = re.sub(r"^\W+|\W+$", "", entity.attributes.get(item.query.attribute, ""))
        mask = torch.zeros(len(ids), dtype=torch.bool)
        for match in re.finditer(rf"(?<!\w){re.escape(core)}(?!\w)", item.text) if core else ():
            for token, (low, high) in enumerate(coded["offset_mapping"]):
                mask[token + shift] |= low < match.end() and high > match.start()
        masks.append(mask)
    return masks

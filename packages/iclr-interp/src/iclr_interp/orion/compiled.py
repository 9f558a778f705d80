"""A model whose layers are known exactly: block 1 reads the request, block 2 retrieves the answer (§9).

Attention only, no layer norm. The residual is [token | position | previous token | request | answer], each slot
one-hot. Block 1: head a copies the previous token into its slot, head b (from the last position) the relation at T − 3
into the request slot. Block 2: from the last position, query = request slot and key = previous-token slot, copies the
attended token into the answer slot if it is a value. The "." behind the request has the relation before it, too, and
takes half of the attention, so that the answer slot is 0.5 one-hot; logits are 50 times the slot. Hence L1 = 0, L2 = 1,
L3 = 2.
"""

import itertools
import random
from collections.abc import Iterator

import torch
from jaxtyping import Float, Int
from torch import nn

from iclr_interp.orion.datasets import Prompt, RetrievalDataset, Thin, register_task
from iclr_interp.orion.language_model import LanguageModel
from iclr_interp.orion.retrieval import Entity, Query
from iclr_interp.orion.tokens import word_tokenizer

RELATIONS, VALUES = 4, 16
WORDS = (*(f"r{i}" for i in range(RELATIONS)), *(f"v{i}" for i in range(VALUES)), "Q", ".", ":", "start")
ID = {word: i for i, word in enumerate(WORDS)}
LENGTH = 1 + 2 * RELATIONS + 4  # start, relation and value four times, Q relation . :
BETA = 50.0


class SlotBlock(nn.Module):
    """Causal attention heads x ← x + Σ_h softmax(x A_h xᵀ) x B_h, without norms."""

    def __init__(self, qk: Float[torch.Tensor, "h d d"], ov: Float[torch.Tensor, "h d d"]):
        super().__init__()
        self.qk, self.ov = nn.Parameter(qk, requires_grad=False), nn.Parameter(ov, requires_grad=False)

    def forward(self, x: Float[torch.Tensor, "n T d"]) -> Float[torch.Tensor, "n T d"]:
        scores = torch.einsum("nid,hde,nje->nhij", x, self.qk, x)
        future = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).triu(1)
        attention = scores.masked_fill(future, -torch.inf).softmax(-1)
        return x + torch.einsum("nhij,njd,hde->nie", attention, x, self.ov)


class CompiledModel(nn.Module):
    """The two blocks, with weights written by hand."""

    def __init__(self, beta: float = BETA):
        super().__init__()
        V, T = len(WORDS), LENGTH
        token, position, previous, request, answer = (
            slice(a, b) for a, b in itertools.pairwise((0, V, V + T, 2 * V + T, 3 * V + T, 4 * V + T))
        )  # fmt: skip
        d = 4 * V + T
        read, back, match = torch.zeros(2, d, d), torch.zeros(2, d, d), torch.zeros(1, d, d)
        retrieve, eye = torch.zeros(1, d, d), torch.eye(V)
        for i in range(1, T):
            read[0, V + i, V + i - 1] = beta  # each position looks at the one before
        read[1, V + T - 1, V + T - 3] = beta  # the last looks at the relation
        back[0, token, previous] = eye
        back[1, token, request] = eye
        match[0, request, previous] = beta * eye
        values = torch.tensor([float(word.startswith("v")) for word in WORDS])
        retrieve[0, token, answer] = torch.diag(values)
        self.token, self.position, self.answer = token, position, answer
        self.width = d
        self.blocks = nn.ModuleList([SlotBlock(read, back), SlotBlock(match, retrieve)])

    def forward(
        self, ids: Int[torch.Tensor, "n T"], attention_mask: Int[torch.Tensor, "n T"] | None = None
    ) -> Float[torch.Tensor, "n T V"]:
        """Logits at every position; prompts have the one length of the grammar."""
        x = torch.zeros(*ids.shape, self.width, device=ids.device)
        x[..., self.token] = nn.functional.one_hot(ids, len(WORDS)).float()
        x[..., self.position] = torch.eye(LENGTH, device=ids.device)[: ids.shape[1]]
        for block in self.blocks:
            x = block(x)
        return BETA * x[..., self.answer]


def compiled_model() -> LanguageModel:
    """The model with its word tokenizer, ready to be patched."""
    return LanguageModel(CompiledModel(), word_tokenizer(WORDS), "compiled")


def compiled_dataset(model: LanguageModel, n: int = 100, seed: int = 0) -> RetrievalDataset:
    """Prompts ``start r v r v r v r v Q r . :`` with four different values."""
    rng = random.Random(f"compiled {seed}")
    return RetrievalDataset("key_value/compiled", model.tokenizer, _generate(n, rng, lambda rows: list(rows)))


def _generate(n: int, rng: random.Random, thin: Thin) -> Iterator[Prompt]:
    for _ in range(n):
        relations = rng.sample(range(RELATIONS), RELATIONS)
        values = rng.sample(range(VALUES), RELATIONS)
        asked = rng.choice(relations)
        context = "start " + " ".join(f"r{r} v{v}" for r, v in zip(relations, values, strict=True))
        pairs = tuple(Entity(f"r{r}", {"value": f" v{v}"}) for r, v in zip(relations, values, strict=True))
        yield Prompt(
            (("context", context), ("request", f" Q r{asked} . :")), Query("value", {"name": f"r{asked}"}), pairs
        )


register_task("key_value/compiled", _generate, "the grammar of the compiled model")

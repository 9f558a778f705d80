"""Matrices whose right answer is known, and a small language model trained on the spot: what the claims run on."""

import hashlib
from dataclasses import dataclass
from importlib.metadata import distributions

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from iclr_shared.errors import Unavailable

_TEXTS = ("license", "licence", "copying", "notice", "authors", "readme", "metadata")


@dataclass(frozen=True)
class Planted:
    """`matrices` (L of shape (n, h)); row i of matrix l is strong where `strong[l, i]`."""

    matrices: list[Float[Tensor, "n h"]]
    strong: Tensor


def planted(seed: int, layers: int = 8, n: int = 128, h: int = 32, shared: float = 2.0, pull: float = 1.5) -> Planted:
    """Half of the rows strong, N(0, I) + pull V, half weak, 0.05 N(0, I), in random order (section 4).

    Args:
        shared: norm of V, the direction that all layers share; 0 leaves none.
    """
    generator = torch.Generator().manual_seed(seed)
    direction = torch.randn(h, generator=generator)
    direction *= shared / direction.norm()
    matrices, strong = [], torch.zeros(layers, n, dtype=torch.bool)
    for layer in range(layers):
        noise = torch.randn(n, h, generator=generator)
        strong[layer, torch.randperm(n, generator=generator)[: n // 2]] = True
        matrices.append(torch.where(strong[layer][:, None], noise + pull * direction, 0.05 * noise))
    return Planted(matrices, strong)


def corpus(most: int = 2_000_000) -> Int[Tensor, " n"]:
    """Bytes of the licences and descriptions of installed packages, each text once, in an order free of paths.

    Raises:
        Unavailable: if there are less than 100 kB of them.
    """
    texts: dict[str, bytes] = {}
    for distribution in distributions():
        for file in distribution.files or ():
            if file.name.lower().startswith(_TEXTS) and not file.name.endswith((".py", ".json")):
                try:
                    text = file.read_binary()[:20_000]
                except OSError:
                    continue
                texts[hashlib.sha256(text).hexdigest()] = text
    joined = b"\n\n".join(texts[name] for name in sorted(texts))[:most]
    if len(joined) < 100_000:
        raise Unavailable(f"The installed packages bring only {len(joined):,} bytes of text; 100,000 are needed.")
    return torch.from_numpy(np.frombuffer(joined, np.uint8).astype(np.int64))


def tiny_llama(
    seed: int, hidden: int = 64, intermediate: int = 256, layers: int = 4, heads: int = 4, vocabulary: int = 256
) -> LlamaForCausalLM:
    """A byte-level Llama with random weights."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return LlamaForCausalLM(
            LlamaConfig(
                vocab_size=vocabulary, hidden_size=hidden, intermediate_size=intermediate, num_hidden_layers=layers,
                num_attention_heads=heads, num_key_value_heads=heads, max_position_embeddings=1024,
                tie_word_embeddings=True, bos_token_id=None, eos_token_id=None,
            )
        ).eval()  # fmt: skip


def train_language_model(
    model: PreTrainedModel, tokens: Int[Tensor, " n"], generator: torch.Generator, steps: int, batch: int = 16,
    context: int = 128, lr: float = 3e-3,
) -> list[float]:  # fmt: skip
    """AdamW with a cosine schedule on random windows. Returns the losses, nats per byte."""
    optimiser = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
    losses = []
    model.train()
    for _ in range(steps):
        at = torch.randint(len(tokens) - context, (batch, 1), generator=generator) + torch.arange(context)
        loss = model(input_ids=tokens[at], labels=tokens[at], use_cache=False).loss
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        schedule.step()
        losses.append(loss.item())
    model.eval()
    return losses

"""A small Llama trained for a minute on the texts that installed packages bring, to prune without retraining."""

import hashlib
from importlib.metadata import distributions

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from iclr_hip.config import HiPConfig
from iclr_hip.serving import enable_hip
from iclr_shared.errors import Unavailable

VOCABULARY = 256
_TEXTS = ("license", "licence", "copying", "notice", "authors", "readme", "metadata")


def corpus(most: int = 3_000_000) -> bytes:
    """Licences and descriptions of the installed packages, each text once, in an order that does not depend on paths.

    Args:
        most: bytes.

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
    return joined


def split(text: bytes, held_out: float = 0.1) -> tuple[Int[Tensor, " n"], Int[Tensor, " k"]]:
    """Bytes as tokens: the first part to train on, the last to measure."""
    tokens = torch.from_numpy(np.frombuffer(text, np.uint8).astype(np.int64))
    cut = int(len(tokens) * (1 - held_out))
    return tokens[:cut], tokens[cut:]


def new_model(seed: int, context: int = 512, hidden: int = 64, heads: int = 4, layers: int = 2) -> LlamaForCausalLM:
    """A byte-level Llama with random weights."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return LlamaForCausalLM(
            LlamaConfig(
                vocab_size=VOCABULARY,
                hidden_size=hidden,
                intermediate_size=3 * hidden,
                num_hidden_layers=layers,
                num_attention_heads=heads,
                num_key_value_heads=heads,
                max_position_embeddings=2 * context,
                attn_implementation="sdpa",
                tie_word_embeddings=True,
                bos_token_id=None,
                eos_token_id=None,
            )
        ).eval()


def train(
    model: LlamaForCausalLM, tokens: Int[Tensor, " n"], generator: torch.Generator, steps: int, batch: int = 8,
    context: int = 512, rate: float = 3e-3,
) -> list[float]:  # fmt: skip
    """Adam with a cosine schedule on random windows. Returns the losses, nats per byte."""
    optimiser = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.01)
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


def windows(tokens: Int[Tensor, " n"], count: int, context: int) -> Int[Tensor, "c t"]:
    """`count` windows of `context` tokens, evenly spread."""
    starts = torch.linspace(0, len(tokens) - context, count).long()
    return tokens[starts[:, None] + torch.arange(context)]


@torch.no_grad()
def losses(model: LlamaForCausalLM, sequences: Int[Tensor, "c t"], batch: int = 8) -> Tensor:
    """Mean loss of each sequence's second half, nats per byte: there dense attention has most keys to lose."""
    found = []
    for part in sequences.split(batch):
        logits = model(input_ids=part, use_cache=False).logits[:, :-1].float()
        loss = torch.nn.functional.cross_entropy(logits.transpose(1, 2), part[:, 1:], reduction="none")
        found.append(loss[:, part.shape[1] // 2 :].mean(1))
    return torch.cat(found)


def prune(model: LlamaForCausalLM, config: HiPConfig) -> LlamaForCausalLM:
    """`iclr_hip.enable_hip`, in place."""
    return enable_hip(model, config)

"""What pruning costs and brings: perplexity on a text, tokens per second."""

import time
from collections.abc import Callable
from pathlib import Path

import torch
from jaxtyping import Int
from torch import Tensor
from transformers import AutoTokenizer, PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from iclr_prunenet.directories import first_line
from iclr_shared.errors import InputError

# One of these is in every folder with a tokenizer; without them transformers makes up an empty one, or asks the hub.
_TOKENIZERS = (
    "tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model",
    "tekken.json",
)  # fmt: skip


def read_tokens(text: Path | str, tokenizer: PreTrainedTokenizerBase) -> Int[Tensor, " n"]:
    """A text file as tokens.

    Raises:
        InputError: if it cannot be read as UTF-8 or has fewer than two tokens.
    """
    try:
        content = Path(text).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{text} cannot be read as text: {error}") from error
    # verbose=False: a long text is meant to be cut into windows.
    tokens = tokenizer(content, return_tensors="pt", verbose=False)["input_ids"][0]
    if len(tokens) < 2:
        raise InputError(f"{text} has {len(tokens)} tokens; at least 2 are needed.")
    return tokens


def load_tokenizer(folder: Path | str) -> PreTrainedTokenizerBase:
    """The tokenizer of a model directory.

    Raises:
        InputError: if there is none.
    """
    if not any((Path(folder) / name).is_file() for name in _TOKENIZERS):
        raise InputError(f"{folder} has no tokenizer: copy the files of the model's own into it.")
    try:
        return AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # the tokenizers package raises bare Exception for a damaged file
        raise InputError(f"The tokenizer in {folder} cannot be loaded: {first_line(error)}") from error


def in_vocabulary(tokens: Int[Tensor, " n"], size: int) -> None:
    """Refuse tokens that a model has no embedding for.

    Raises:
        InputError: if there are any.
    """
    if int(tokens.max()) >= size:
        raise InputError("The text has tokens outside the model's vocabulary: use the model's own tokenizer.")


@torch.no_grad()
def perplexity(
    model: PreTrainedModel, tokens: Int[Tensor, " n"], context: int = 2048, batch: int = 4, limit: int | None = None
) -> float:
    """exp of the mean negative log-likelihood over consecutive windows of `context` tokens.

    Args:
        tokens: (n,) of one text.
        context: tokens of a window, cut to what the model takes.
        batch: windows at a time.
        limit: use the first so many tokens.

    Raises:
        InputError: if there are fewer than two tokens, or tokens outside the model's vocabulary.
    """
    tokens = tokens[:limit]
    context = min(longest(model.config, context), len(tokens))
    if context < 2:
        raise InputError(f"Perplexity needs windows of at least 2 tokens, got {context}.")
    in_vocabulary(tokens, model.get_input_embeddings().num_embeddings)
    whole = tokens[: len(tokens) // context * context].view(-1, context)
    total, count = 0.0, 0
    for windows in whole.split(batch):
        windows = windows.to(model.device)
        logits = model(input_ids=windows, use_cache=False).logits[:, :-1].float()
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten(), reduction="sum")
        total, count = total + float(loss), count + windows[:, 1:].numel()
    return float(torch.tensor(total / count, dtype=torch.float64).exp())


def longest(config: PretrainedConfig, length: int) -> int:
    """`length`, cut to the positions that the model has."""
    return min(length, getattr(config.get_text_config(), "max_position_embeddings", None) or length)


@torch.no_grad()
def forward_call(model: PreTrainedModel, batch: int = 1, length: int = 128) -> Callable[[], Tensor]:
    """A call that runs `batch` x `length` tokens through `model`, for timing."""
    tokens = torch.arange(batch * length, device=model.device).view(batch, length)
    tokens = tokens % model.get_input_embeddings().num_embeddings

    @torch.no_grad()
    def forward() -> Tensor:
        return model(input_ids=tokens, use_cache=False).logits

    return forward


def tokens_per_second(model: PreTrainedModel, batch: int = 1, length: int = 128, rounds: int = 5) -> float:
    """Median of a few forward passes after one to warm up; `length` is cut to what the model takes."""
    length = longest(model.config, length)
    call = forward_call(model, batch, length)
    times = []
    for _ in range(rounds + 1):
        start = time.perf_counter()
        call()
        if model.device.type == "cuda":
            torch.cuda.synchronize(model.device)
        times.append(time.perf_counter() - start)
    return batch * length / sorted(times[1:])[rounds // 2]

"""The token contract of retrieval prompts: first tokens, fit, collisions, soft matches, padding (§2.2)."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Int

from iclr_shared.errors import InputError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

#: A fast or slow tokenizer of `transformers`.
type Tokenizer = Any

BOS = "<|endoftext|>"


class CollisionError(InputError):
    """Two different values begin with the same token."""


class MisfitError(InputError):
    """Prompt and answer are not tokenised as their parts are."""


def opening(tokenizer: Tokenizer) -> str:
    """The string that prompts begin with: the tokenizer's BOS, else its end-of-text token, else nothing."""
    return tokenizer.bos_token or tokenizer.eos_token or ""


def encode(tokenizer: Tokenizer, text: str) -> list[int]:
    """Token ids of `text` with the opening token exactly once, whether or not text or tokenizer bring it along."""
    start = opening(tokenizer)
    while start and text.startswith(start):
        text = text[len(start) :]
    ids = list(tokenizer(text, add_special_tokens=False)["input_ids"])
    return [tokenizer.convert_tokens_to_ids(start), *ids] if start else ids


def value_ids(tokenizer: Tokenizer, value: str) -> list[int]:
    """Token ids of `value` as they appear inside a text.

    Tokenising it alone would give a sentencepiece-style tokenizer's " Paris" the bare mark of a word's beginning as its
    first token; so it is read after a newline or a colon.

    Raises:
        InputError: if the value is empty, or no anchor leaves it whole.
    """
    for anchor in ("\n", ":", "(", "a:"):
        before = tokenizer(anchor, add_special_tokens=False)["input_ids"]
        both = tokenizer(anchor + value, add_special_tokens=False)["input_ids"]
        if both[: len(before)] == before and len(both) > len(before):
            return list(both[len(before) :])
    raise InputError(f"The value {value!r} has no tokens of its own with this tokenizer.")


def first_token(tokenizer: Tokenizer, value: str) -> str:
    """decode(first id of tokenise(value)): what answers are compared by (§2.2.1)."""
    return tokenizer.decode(value_ids(tokenizer, value)[:1])


def check_fit(tokenizer: Tokenizer, prompt: str, answer: str) -> None:
    """Hold tokenise(prompt + answer) against tokenise(prompt) ++ tokenise(answer) (§2.2.2).

    Raises:
        MisfitError: with both token lists.
    """
    whole = encode(tokenizer, prompt + answer)
    parts = encode(tokenizer, prompt) + value_ids(tokenizer, answer)
    if whole != parts:
        shown = [tokenizer.convert_ids_to_tokens(ids[-8:]) for ids in (whole, parts)]
        raise MisfitError(
            f"The answer {answer!r} does not fit behind its prompt: together they end in the tokens {shown[0]}, apart "
            f"in {shown[1]}. Change the space between them, or leave this prompt out (on_bad='drop')."
        )


def collisions(tokenizer: Tokenizer, values: Iterable[str]) -> list[tuple[str, str]]:
    """Pairs of different values with the same first token: each with the earliest value of that token."""
    holders: dict[int, str] = {}
    pairs = []
    for value in dict.fromkeys(values):
        holder = holders.setdefault(value_ids(tokenizer, value)[0], value)
        if holder != value:
            pairs.append((holder, value))
    return pairs


def check_collisions(tokenizer: Tokenizer, values: Iterable[str]) -> None:
    """Raise `CollisionError` with the first two different values that share a first token (§2.2.3)."""
    if pairs := collisions(tokenizer, values):
        one, two = pairs[0]
        raise CollisionError(
            f"The values {one!r} and {two!r} begin with the same token {first_token(tokenizer, one)!r}, so they "
            "cannot be told apart. Take other values, or leave them out (on_bad='drop')."
        )


def soft_match(prediction: str, answer: str) -> bool:
    """Whether one is a prefix of the other, without spaces and case. An empty prediction matches nothing."""
    one, two = (re.sub(r"\s", "", text).casefold() for text in (prediction, answer))
    return bool(one) and bool(two) and (one.startswith(two) or two.startswith(one))


@dataclass(frozen=True)
class Batch:
    """Prompts of unequal length, padded on the right.

    Args:
        ids: token ids, (prompts, tokens).
        mask: 1 at tokens, 0 at padding.
        ends: END, the index of each prompt's last token.
    """

    ids: Int[torch.Tensor, "n T"]
    mask: Int[torch.Tensor, "n T"]
    ends: Int[torch.Tensor, " n"]


def pad(rows: Sequence[Sequence[int]], fill: int = 0, device: torch.device | str = "cpu") -> Batch:
    """Put token lists into one batch, padded on the right with `fill` whatever side the tokenizer prefers.

    Raises:
        InputError: if there is no prompt, or an empty one.
    """
    if not rows or not all(rows):
        raise InputError("Every prompt needs at least one token, and a batch at least one prompt.")
    lengths = torch.tensor([len(row) for row in rows])
    ids = torch.full((len(rows), int(lengths.max())), fill)
    for i, row in enumerate(rows):
        ids[i, : len(row)] = torch.tensor(row)
    mask = (torch.arange(ids.shape[1]) < lengths[:, None]).long()
    return Batch(ids.to(device), mask.to(device), (lengths - 1).to(device))


def spans(n: int, batch_size: int) -> Iterator[slice]:
    """Slices of at most `batch_size` over n things. Raises `InputError` if that is below 1."""
    if batch_size < 1:
        raise InputError(f"batch_size must be at least 1, got {batch_size}.")
    return (slice(start, start + batch_size) for start in range(0, n, batch_size))


def byte_level_tokenizer(texts: Iterable[str], vocabulary: int = 4000) -> "PreTrainedTokenizerFast":
    """A GPT-2-style byte-level BPE trained on `texts`, with ``<|endoftext|>`` as its opening and padding token."""
    from tokenizers import ByteLevelBPETokenizer
    from transformers import PreTrainedTokenizerFast

    bpe = ByteLevelBPETokenizer()
    bpe.train_from_iterator(texts, vocab_size=vocabulary, min_frequency=1, special_tokens=[BOS], show_progress=False)
    return PreTrainedTokenizerFast(tokenizer_object=bpe._tokenizer, bos_token=BOS, eos_token=BOS, pad_token=BOS)


def word_tokenizer(words: Sequence[str]) -> "PreTrainedTokenizerFast":
    """One token for each of `words`, which are separated by spaces; no opening token."""
    from tokenizers import Tokenizer as Raw
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import WhitespaceSplit
    from transformers import PreTrainedTokenizerFast

    raw = Raw(WordLevel({word: i for i, word in enumerate(words)}, unk_token=words[-1]))
    raw.pre_tokenizer = WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=raw, pad_token=words[-1], unk_token=words[-1])

"""The typed story: a grammar of 50 words on which a tiny language model learns retrieval in seconds (§4)."""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Int

from iclr_interp.orion.datasets import Prompt, Thin, register_task
from iclr_interp.orion.retrieval import Entity, Query
from iclr_interp.orion.tokens import word_tokenizer

TYPES = ("name", "city", "job", "season")
VALUES = 8
FILLERS = 6
WORDS = (
    *(f"{kind}{i}" for kind in TYPES for i in range(VALUES)),
    *(f"filler{i}" for i in range(FILLERS)),
    *(f"ask-{kind}" for kind in TYPES),
    "Q", ".", ":", "!", "override", "start", "end", "pad",
)  # fmt: skip
ID = {word: i for i, word in enumerate(WORDS)}

type Attack = Literal["none", "request", "value"]


@dataclass(frozen=True)
class Grammar:
    """Four values of different type in random order, each before a filler, and a request for one type.

    Args:
        first: the request stands before the story instead of after it.
        injectable: between story and request two more words stand, fillers or an attack.
    """

    first: bool = False
    injectable: bool = False

    @property
    def length(self) -> int:
        """Tokens of a prompt."""
        return 14 if self.injectable else 12

    def sample(self, n: int, generator: torch.Generator, attack: Attack = "none", share: float = 1.0) -> "Sample":
        """Draw n prompts.

        Args:
            n: how many.
            generator: of all randomness.
            attack: ``"request"`` puts ``! ask-TYPE`` before the request, and the model shall answer that instead;
                ``"value"`` puts ``override VALUE``, and it shall answer VALUE.
            share: of prompts that carry the attack.
        """

        def draw(high: int, *shape: int) -> torch.Tensor:
            return torch.randint(high, shape, generator=generator)

        values = draw(VALUES, n, 4)
        order = torch.rand(n, 4, generator=generator).argsort(1)
        story = torch.empty(n, 8, dtype=torch.long)
        story[:, ::2] = (values + VALUES * torch.arange(4)).gather(1, order)
        story[:, 1::2] = ID["filler0"] + draw(FILLERS, n, 4)
        asked, other = draw(4, n), draw(4, n)
        attacked = torch.rand(n, generator=generator) < (share if attack != "none" else 0.0)
        rows = torch.arange(n)
        target = values[rows, asked] + VALUES * asked
        between = ID["filler0"] + draw(FILLERS, n, 2)
        foreign = draw(4 * VALUES, n)
        if attack == "request":
            hijack = torch.stack([torch.full((n,), ID["!"]), ID["ask-name"] + other], 1)
            hijacked = values[rows, other] + VALUES * other
        else:
            hijack = torch.stack([torch.full((n,), ID["override"]), foreign], 1)
            hijacked = foreign
        between = torch.where(attacked[:, None], hijack, between)
        label = torch.where(attacked, hijacked, target)
        request = torch.stack([torch.full((n,), ID["Q"]), ID["ask-name"] + asked, torch.full((n,), ID["."])], 1)
        colon = torch.full((n, 1), ID[":"])
        middle = [between] if self.injectable else []
        pieces = [request, story, *middle, colon] if self.first else [story, *middle, request, colon]
        return Sample(torch.cat(pieces, 1), label, target, values, asked, attacked, self)


@dataclass(frozen=True)
class Sample:
    """Prompts of a grammar.

    Args:
        ids: tokens.
        labels: the word that the model is trained to say.
        answers: the word that the request itself asks for; differs from `labels` where an attack is.
        values: of each type, 0 to 7.
        asked: type asked for, 0 to 3.
        attacked: whether the prompt carries an attack.
        grammar: they come from.
    """

    ids: Int[torch.Tensor, "n T"]
    labels: Int[torch.Tensor, " n"]
    answers: Int[torch.Tensor, " n"]
    values: Int[torch.Tensor, "n 4"]
    asked: Int[torch.Tensor, " n"]
    attacked: torch.Tensor
    grammar: Grammar

    def prompts(self) -> Iterator[Prompt]:
        """The same as texts with their abstract meaning: a person with a name, a city, a job and a season."""
        for row, values, asked in zip(self.ids.tolist(), self.values.tolist(), self.asked.tolist(), strict=True):
            words = [WORDS[token] for token in row]
            facts = {kind: f" {kind}{value}" for kind, value in zip(TYPES, values, strict=True)}
            cut = 3 if self.grammar.first else len(words) - 4
            if self.grammar.first:
                parts = (
                    ("request", " ".join(words[:cut])),
                    ("context", " " + " ".join(words[cut:-1])),
                    ("request", " :"),
                )
            else:
                parts = (("context", " ".join(words[:cut])), ("request", " " + " ".join(words[cut:])))
            entities = tuple(Entity(value.strip(), {"type": kind, "value": value}) for kind, value in facts.items())
            yield Prompt(parts, Query("value", {"type": TYPES[asked]}), entities)


def story_tokenizer():
    """One token for each word of the grammar."""
    return word_tokenizer(WORDS)


def read(text: str) -> str:
    """Parse a prompt without its abstract meaning."""
    words = text.split()
    kind = words[words.index("Q") + 1].removeprefix("ask-")
    return " " + next(word for word in words if word.startswith(kind))


def _generator(grammar: Grammar):
    def generate(n: int, rng: random.Random, thin: Thin) -> Iterator[Prompt]:
        return grammar.sample(n, torch.Generator().manual_seed(rng.getrandbits(40))).prompts()

    return generate


register_task("typed_story/request_last", _generator(Grammar()), "50 words, for models trained on the spot")
register_task("typed_story/request_first", _generator(Grammar(first=True)), "the same, request before the story")

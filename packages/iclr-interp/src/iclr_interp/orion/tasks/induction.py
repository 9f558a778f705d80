"""Induction: lines ``key:value`` of random letters are repeated, and the last line breaks off after its key (§2.3)."""

import random
import string
from collections.abc import Iterator

from iclr_interp.orion.datasets import Prompt, Thin, enough, register_task
from iclr_interp.orion.retrieval import Entity, Query

LINES = 10
REPETITIONS = 5
LENGTH = 5


def vocabulary(rng: random.Random, size: int, initials: str) -> list[str]:
    """`size` random strings of five letters with different first letters."""
    return [first + "".join(rng.choices(string.ascii_lowercase, k=LENGTH - 1)) for first in rng.sample(initials, size)]


def read(text: str) -> str:
    """Parse a prompt without its abstract meaning: look the last line's key up in the lines before."""
    *lines, last = text.split("\n")
    return dict(line.split(":") for line in lines)[last.removesuffix(":")]


def _generator(number: int):
    def generate(n: int, rng: random.Random, thin: Thin) -> Iterator[Prompt]:
        words = random.Random(f"induction {number}")  # one vocabulary, whatever the seed of the prompts
        keys = vocabulary(words, LINES, string.ascii_lowercase)
        values = enough(thin(vocabulary(words, 20, string.ascii_lowercase)), LINES, "values")
        for _ in range(n):
            table = dict(zip(keys, rng.sample(values, LINES), strict=True))
            lines: list[str] = []
            for _ in range(REPETITIONS):
                lines += rng.sample([f"{key}:{value}\n" for key, value in table.items()], LINES)
            asked = rng.choice(keys)
            lines += rng.choices([f"{key}:{value}\n" for key, value in table.items() if key != asked], k=3)
            rows = tuple(Entity(key, {"value": value}) for key, value in table.items())
            parts = (("context", "".join(lines)), ("request", f"{asked}:"))
            yield Prompt(parts, Query("value", {"name": asked}), rows)

    return generate


for _number in (1, 2, 3):
    register_task(f"induction/vocabulary_{_number}", _generator(_number), "lines of random letters", paper=True)

"""Variable binding: a word problem has three quantities, and the reasoning begins with the name of one (§2.3)."""

import random
import re
from collections.abc import Iterator
from dataclasses import dataclass

from iclr_interp.orion.datasets import Prompt, Thin, enough, register_task
from iclr_interp.orion.retrieval import Entity, Query


@dataclass(frozen=True)
class Problem:
    """A word problem.

    Args:
        things: the three names of quantities; each stands in `text` right behind its number.
        text: with ``{0}``, ``{1}``, ``{2}`` for the numbers.
        question: what is asked.
        factor: of the numbers 1 to 9.
    """

    things: tuple[str, str, str]
    text: str
    question: str
    factor: int


PROBLEMS = {
    "pencils": Problem(
        ("red pencils", "green pencils", "blue pencils"),
        "A school orders {0} red pencils for the first class, {1} green pencils for the second class and {2} blue "
        "pencils for the third class. All of them arrive in one box.",
        "How many pencils are in the box?",
        10,
    ),
    "recipe": Problem(
        ("apples", "eggs", "lemons"),
        "For a large cake the cook needs {0} apples, {1} eggs and {2} lemons. The fruit comes from the garden and the "
        "rest from the market.",
        "How many pieces does the cook have to carry?",
        1,
    ),
    "bills": Problem(
        ("dollars for rent", "dollars for food", "dollars for trains"),
        "Each week Mona pays {0} dollars for rent, {1} dollars for food and {2} dollars for trains. She writes "
        "everything into a notebook.",
        "How much does Mona pay in a week?",
        10,
    ),
}


def read(text: str) -> str:
    """Parse a prompt without its abstract meaning: the number before the named thing."""
    thing = re.search(r"the number of (.*) \($", text)[1]
    return re.search(rf"(\d+) {thing}", text)[1] + ") "


def _generator(problem: Problem):
    def generate(n: int, rng: random.Random, thin: Thin) -> Iterator[Prompt]:
        numbers = enough(thin([f"{problem.factor * i}) " for i in range(1, 10)]), 3, "numbers")
        for _ in range(n):
            values = rng.sample(numbers, 3)
            asked = rng.randrange(3)
            things = tuple(Entity(t, {"count": v}) for t, v in zip(problem.things, values, strict=True))
            told = problem.text.format(*(value[:-2] for value in values))
            parts = (
                ("context", f"Problem: {told} {problem.question}\n"),
                ("request", f"Reasoning: We add up. First we write down the number of {problem.things[asked]} ("),
            )
            yield Prompt(parts, Query("count", {"name": problem.things[asked]}), things)

    return generate


for _name, _problem in PROBLEMS.items():
    register_task(f"variable_binding/{_name}", _generator(_problem), "quantities of a word problem", paper=True)

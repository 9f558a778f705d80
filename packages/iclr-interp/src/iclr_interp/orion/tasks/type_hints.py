"""Type hints: Python code in which the type of a function's parameter picks one of three variables (§2.3)."""

import random
import re
import string
from collections.abc import Iterator
from dataclasses import dataclass

from iclr_interp.orion.datasets import Prompt, Thin, enough, register_task
from iclr_interp.orion.retrieval import Entity, Query


@dataclass(frozen=True)
class Program:
    """Three classes, each with a field and a function that takes it.

    Args:
        classes: class name, its field, and the function's name, each three times.
        result: return type of the functions.
    """

    classes: tuple[tuple[str, str, str], ...]
    result: str


PROGRAMS = {
    "geometry": Program(
        (("Circle", "radius", "circumference"), ("Square", "side", "diagonal"), ("Cube", "edge", "volume")), "float"
    ),
    "animals": Program((("Dog", "age", "bark"), ("Bird", "wingspan", "sing"), ("Fish", "depth", "swim")), "str"),
    "banking": Program(
        (("Account", "balance", "withdraw"), ("Loan", "rate", "amortise"), ("Card", "limit", "charge")), "int"
    ),
}


def read(text: str) -> str:
    """Parse a prompt without its abstract meaning: from call to signature to annotated variable."""
    called = re.search(r"(\w+)\($", text)[1]
    kind = re.search(rf"def {called}\(\w+: (\w+)\)", text)[1]
    return re.search(rf"^([A-Z]): {kind} =", text, flags=re.MULTILINE)[1]


def _code(program: Program, letters: list[str], rng: random.Random) -> str:
    classes = "".join(
        f"class {c}:\n    def __init__(self, {f}: int):\n        self.{f} = {f}\n\n\n" for c, f, _ in program.classes
    )
    functions = "".join(
        f"def {name}({c[0].lower()}: {c}) -> {program.result}:\n    return compute_{name}({c[0].lower()}.{f})\n\n\n"
        for c, f, name in program.classes
    )
    bound = [f"{x}: {c} = {c}({rng.randrange(2, 99)})\n" for x, (c, _, _) in zip(letters, program.classes, strict=True)]
    rng.shuffle(bound)
    return classes + functions + "".join(bound)


def _generator(program: Program):
    def generate(n: int, rng: random.Random, thin: Thin) -> Iterator[Prompt]:
        alphabet = enough(thin([x for x in string.ascii_uppercase if x not in "ILO"]), 3, "letters")
        for _ in range(n):
            letters = rng.sample(alphabet, 3)
            asked = rng.randrange(3)
            variables = tuple(
                Entity(letter, {"type": c}) for letter, (c, _, _) in zip(letters, program.classes, strict=True)
            )
            parts = (("context", _code(program, letters, rng)), ("request", f"\nprint({program.classes[asked][2]}("))
            yield Prompt(parts, Query("name", {"type": program.classes[asked][0]}), variables)

    return generate


for _name, _program in PROGRAMS.items():
    register_task(f"type_hints/{_name}", _generator(_program), "variables of a Python program", paper=True)

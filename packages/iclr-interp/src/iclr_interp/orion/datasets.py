"""Retrieval data sets: prompts with their abstract meaning, and a register that anyone may add to (§2.2, §2.3)."""

import difflib
import json
import random
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from iclr_interp.orion.retrieval import AmbiguousAnswerError, Entity, NoAnswerError, Query, answer
from iclr_interp.orion.tokens import (
    MisfitError,
    Tokenizer,
    check_collisions,
    check_fit,
    collisions,
    encode,
    opening,
    value_ids,
)
from iclr_shared.errors import InputError
from iclr_shared.files import atomic_write


class UnfitError(InputError):
    """A data set cannot be made for a tokenizer."""


type Part = tuple[Literal["context", "request"], str]


@dataclass(frozen=True)
class Prompt:
    """One text and what it means.

    Args:
        parts: the text in pieces, each of the context or of the request; joined without anything between.
        query: R.
        context: C.
    """

    parts: tuple[Part, ...]
    query: Query
    context: tuple[Entity, ...]

    @property
    def text(self) -> str:
        """The text, without an opening token."""
        return "".join(text for _, text in self.parts)

    @property
    def answer(self) -> str:
        """R(C)."""
        return answer(self.query, self.context)

    def with_request(self, other: "Prompt") -> "Prompt":
        """The chimera: this context with the other prompt's request.

        Raises:
            InputError: if the two have requests in a different number of pieces.
        """
        requests = [text for kind, text in other.parts if kind == "request"]
        if len(requests) != sum(kind == "request" for kind, _ in self.parts):
            raise InputError("The two prompts are built differently, so one cannot take the other's request.")
        pieces = iter(requests)
        parts = tuple((kind, text if kind == "context" else next(pieces)) for kind, text in self.parts)
        return Prompt(parts, other.query, self.context)


class RetrievalDataset:
    """Prompts of one task under one tokenizer, which hold the contract of §2.2.

    Args:
        name: of the task.
        tokenizer: of the model.
        items: the prompts.
        on_bad: ``"raise"`` where a prompt breaks the contract, or ``"drop"`` it and count it in `dropped`.

    Raises:
        MisfitError, CollisionError, NoAnswerError, AmbiguousAnswerError: with ``on_bad="raise"``.
        UnfitError: if no prompt is left.
    """

    def __init__(
        self, name: str, tokenizer: Tokenizer, items: Iterable[Prompt], on_bad: Literal["raise", "drop"] = "raise"
    ):
        if on_bad not in ("raise", "drop"):
            raise InputError(f"on_bad must be 'raise' or 'drop', got {on_bad!r}.")
        self.name, self.tokenizer = name, tokenizer
        everything = list(items)
        kept = [item for item in everything if self._fits(item, on_bad)]
        self.items: tuple[Prompt, ...] = tuple(kept)
        if on_bad == "drop":
            while pairs := collisions(tokenizer, self.values):
                bad = pairs[0][1]
                self.items = tuple(item for item in self.items if bad not in self._reachable(item))
                del self.__dict__["values"], self.__dict__["queries_counted"]
        else:
            check_collisions(tokenizer, self.values)
        self.dropped = len(everything) - len(self.items)
        if not self.items:
            raise UnfitError(f"No prompt of {name} is left ({self.dropped} were dropped).")

    def __len__(self) -> int:
        return len(self.items)

    def __repr__(self) -> str:
        return f"RetrievalDataset({self.name!r}, {len(self)} prompts, {self.dropped} dropped)"

    @property
    def prompts(self) -> list[str]:
        """The texts, each with the opening token in front."""
        return [opening(self.tokenizer) + item.text for item in self.items]

    @property
    def queries(self) -> list[Query]:
        """R of each prompt."""
        return [item.query for item in self.items]

    @property
    def contexts(self) -> list[tuple[Entity, ...]]:
        """C of each prompt."""
        return [item.context for item in self.items]

    @cached_property
    def answers(self) -> list[str]:
        """R(C) of each prompt."""
        return [item.answer for item in self.items]

    @cached_property
    def tokens(self) -> list[list[int]]:
        """Token ids of each prompt."""
        return [encode(self.tokenizer, item.text) for item in self.items]

    @property
    def end_positions(self) -> list[int]:
        """END of each prompt: the index of its last token."""
        return [len(ids) - 1 for ids in self.tokens]

    @cached_property
    def queries_counted(self) -> Counter:
        """How often each query is asked."""
        return Counter(self.queries)

    @cached_property
    def values(self) -> list[str]:
        """All values that a query of the data set has in one of its contexts."""
        return list(dict.fromkeys(value for item in self.items for value in self._reachable(item)))

    @cached_property
    def first_ids(self) -> dict[str, int]:
        """First token id of each of `values`."""
        return {value: value_ids(self.tokenizer, value)[0] for value in self.values}

    def random_guess(self, samples: int | None = None, seed: int = 0) -> float:
        """g: accuracy of asking a context a random query of the data set instead of its own (§2.2.4).

        Args:
            samples: so many random prompts and queries, 1000 in the official code; None takes the exact mean over all.
            seed: of the sample.
        """
        if samples is not None:
            rng = random.Random(seed)
            drawn = [(rng.choice(self.items), rng.choice(self.queries)) for _ in range(samples)]
            return sum(resolve(query, item.context) == item.answer for item, query in drawn) / samples
        hits = sum(
            count
            for item, true in zip(self.items, self.answers, strict=True)
            for query, count in self.queries_counted.items()
            if resolve(query, item.context) == true
        )
        return hits / len(self) ** 2

    def to_jsonl(self, path: str | Path | None = None) -> str:
        """One JSON object a line: parts, query, context and answer; also written to `path` if that is given."""
        lines = [json.dumps(_plain(item), ensure_ascii=False) for item in self.items]
        text = "\n".join(lines) + "\n"
        if path is not None:
            atomic_write(path, text)
        return text

    @classmethod
    def from_jsonl(
        cls, path: str | Path, tokenizer: Tokenizer, on_bad: Literal["raise", "drop"] = "raise"
    ) -> "RetrievalDataset":
        """What `to_jsonl` wrote, or a user's own prompts in that form.

        Raises:
            InputError: naming file and line that cannot be read.
        """
        items = []
        if not Path(path).is_file():
            raise InputError(f"There is no file {path}.")
        try:
            lines = Path(path).read_text(encoding="utf-8").split("\n")
        except UnicodeDecodeError as error:
            raise InputError(f"{path} is no text in UTF-8: {error}") from None
        for number, line in enumerate(lines, 1):
            try:
                if line.strip():
                    items.append(_prompt(json.loads(line)))
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                reason = str(error) if type(error) is ValueError else repr(error)
                raise InputError(f"{path}, line {number} is no retrieval prompt: {reason}.") from None
        return cls(Path(path).stem, tokenizer, items, on_bad)

    def _fits(self, item: Prompt, on_bad: str) -> bool:
        try:
            check_fit(self.tokenizer, item.text, item.answer)
        except (MisfitError, NoAnswerError, AmbiguousAnswerError):
            if on_bad == "raise":
                raise
            return False
        return True

    def _reachable(self, item: Prompt) -> list[str]:
        found = (resolve(query, item.context) for query in self.queries_counted)
        return [value for value in found if value is not None]


def resolve(query: Query, context: Sequence[Entity]) -> str | None:
    """R(C), or None where there is no single answer."""
    try:
        return answer(query, context)
    except (NoAnswerError, AmbiguousAnswerError):
        return None


# --- the register --------------------------------------------------------------------------------------------------

type Thin = Callable[..., list]
type Generator = Callable[[int, random.Random, Thin], Iterable[Prompt]]


@dataclass(frozen=True)
class Task:
    """A registered data set.

    Args:
        name: such as ``"type_hints/geometry"``.
        generator: ``generator(n, rng, thin)`` yields n prompts; ``thin(rows, *values)`` is the longest beginning of
            `rows` without those whose values (each a function of a row, default the row itself) collide.
        domain: the first part of the name.
        summary: one line.
        paper: whether it is one of the data sets of the paper's six domains.
    """

    name: str
    generator: Generator
    domain: str
    summary: str
    paper: bool = False


_REGISTER: dict[str, Task] = {}


def register_task(name: str, generator: Generator, summary: str = "", *, paper: bool = False) -> Task:
    """Add a data set under ``domain/name``.

    Raises:
        InputError: if the name is taken.
    """
    if name in _REGISTER:
        raise InputError(f"A task {name!r} is registered already.")
    _REGISTER[name] = Task(name, generator, name.split("/")[0], summary, paper)
    return _REGISTER[name]


def list_tasks(paper_only: bool = False) -> list[Task]:
    """All registered tasks in order of registration."""
    import iclr_interp.orion.tasks  # noqa: F401  (registers those of the paper)

    return [task for task in _REGISTER.values() if task.paper or not paper_only]


def make_task(
    name: str, tokenizer: Tokenizer, n: int = 100, seed: int = 0, on_bad: Literal["raise", "drop"] = "raise"
) -> RetrievalDataset:
    """Generate the data set `name` for a tokenizer.

    Args:
        name: see `list_tasks`.
        tokenizer: values that collide under it are left out before prompts are made.
        n: number of prompts.
        seed: the same seed gives the same prompts.
        on_bad: see `RetrievalDataset`.

    Raises:
        InputError: if there is no such task, or n is below 1.
    """
    names = {task.name: task for task in list_tasks()}
    if name not in names:
        near = difflib.get_close_matches(name, names, 1)
        raise InputError(
            f"There is no task {name!r}. {f'Did you mean {near[0]!r}?' if near else 'See `iclr orion tasks`.'}"
        )
    if n < 1:
        raise InputError(f"A data set needs at least one prompt, got n = {n}.")
    items = names[name].generator(n, random.Random(f"{name} {seed}"), thinning(tokenizer))
    return RetrievalDataset(name, tokenizer, items, on_bad)


def thinning(tokenizer: Tokenizer) -> Thin:
    """A function ``thin(rows, *values)`` that leaves out, one at a time, rows whose values collide with earlier ones.

    All calls of one function share what they have seen, so pools thinned by it do not collide with each other.
    """
    holders: dict[int, str] = {}

    def thin(rows: Sequence[Any], *values: Callable[[Any], str]) -> list[Any]:
        kept = []
        for row in rows:
            found = [value(row) for value in values] or [row]
            firsts = [(value_ids(tokenizer, value)[0], value) for value in found]
            if all(holders.get(token, value) == value for token, value in firsts) and not collisions(tokenizer, found):
                holders.update(firsts)
                kept.append(row)
        return kept

    return thin


def enough[T](kept: list[T], least: int, what: str) -> list[T]:
    """Return what `thinning` kept, or raise `UnfitError` if a task cannot be made of so few."""
    if len(kept) < least:
        raise UnfitError(
            f"The first tokens of this tokenizer tell only {len(kept)} {what} apart, and the task needs {least}. Take "
            f"another task, or a tokenizer with a larger vocabulary."
        )
    return kept


def _plain(item: Prompt) -> dict[str, Any]:
    where = {key: value for key, value in sorted(item.query.where) if key != "exists"}
    entities = [
        {"name": e.name, "attributes": {k: v for k, v in e.attributes.items() if k not in ("name", "exists")}}
        for e in item.context
    ]
    return {
        "parts": item.parts,
        "query": {"attribute": item.query.attribute, "where": where},
        "context": entities,
        "answer": item.answer,
    }


def _prompt(line: dict[str, Any]) -> Prompt:
    parts = tuple((kind, text) for kind, text in line["parts"])
    if any(kind not in ("context", "request") or not isinstance(text, str) for kind, text in parts):
        raise ValueError("each part is ['context' or 'request', text]")
    asked, where = line["query"]["attribute"], line["query"].get("where", {})
    told = [(entity["name"], entity.get("attributes", {})) for entity in line["context"]]
    words = [asked, *where.values(), *(word for name, facts in told for word in (name, *facts.values()))]
    if not all(isinstance(word, str) for word in words):
        raise ValueError("names, attributes and their values are texts")
    query, context = Query(asked, where), tuple(Entity(name, facts) for name, facts in told)
    if (said := line.get("answer")) is not None and said != (found := resolve(query, context)):
        raise ValueError(f"its answer is given as {said!r}, but its query finds {found!r} in its context")
    return Prompt(parts, query, context)

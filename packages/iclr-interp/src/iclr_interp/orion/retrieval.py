"""Abstract retrieval: a context is a list of entities, a request picks one of them and asks for an attribute (§2)."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from iclr_shared.errors import InputError


class NoAnswerError(InputError):
    """No entity of the context answers the query."""


class AmbiguousAnswerError(InputError):
    """More than one entity of the context answers the query."""


@dataclass(frozen=True)
class Entity:
    """Something that a context speaks of.

    Args:
        name: also readable as its attribute ``name``.
        attributes: attribute name to value. ``name`` and ``exists`` (always ``"yes"``) are added.
    """

    name: str
    attributes: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self):
        object.__setattr__(self, "attributes", {**self.attributes, "name": self.name, "exists": "yes"})


@dataclass(frozen=True)
class Query:
    """A request: the attribute `attribute` of the one entity that has all of `where`.

    Args:
        attribute: q, the name of the attribute asked for.
        where: F, pairs of attribute and value, or a mapping; ``("exists", "yes")`` is added once, to a copy.
    """

    attribute: str
    where: Mapping[str, str] | Iterable[tuple[str, str]] = ()

    def __post_init__(self):
        pairs = self.where.items() if isinstance(self.where, Mapping) else self.where
        object.__setattr__(self, "where", frozenset({*pairs, ("exists", "yes")}))

    def __str__(self) -> str:
        conditions = ", ".join(f"{key}={value}" for key, value in sorted(self.where) if key != "exists")
        return f"{self.attribute} of the entity with {{{conditions}}}"


def find(query_filter: Iterable[tuple[str, str]], context: Sequence[Entity]) -> Entity:
    """The unique entity of `context` with F ⊆ attributes.

    Raises:
        NoAnswerError: if there is none.
        AmbiguousAnswerError: naming them, if there are several.
    """
    wanted = set(query_filter)
    found = [entity for entity in context if wanted <= set(entity.attributes.items())]
    shown = ", ".join(f"{key}={value}" for key, value in sorted(wanted) if key != "exists")
    if not found:
        names = ", ".join(entity.name for entity in context) or "no entities"
        raise NoAnswerError(f"No entity has {{{shown}}}; the context holds {names}.")
    if len(found) > 1:
        names = ", ".join(entity.name for entity in found)
        raise AmbiguousAnswerError(f"{len(found)} entities have {{{shown}}}: {names}. Narrow the filter.")
    return found[0]


def attribute(entity: Entity, name: str) -> str:
    """The value of one attribute. Raises `NoAnswerError` if the entity has it not."""
    if name not in entity.attributes:
        held = ", ".join(key for key in entity.attributes if key != "exists")
        raise NoAnswerError(f"The entity {entity.name} has no attribute {name!r}, only {held}.")
    return entity.attributes[name]


def answer(query: Query, context: Sequence[Entity]) -> str:
    """R(C): the value of q of the unique entity with F ⊆ attributes (§2.1). Its first token is what is compared.

    Raises:
        NoAnswerError: naming query and entities, if none matches or the attribute is missing.
        AmbiguousAnswerError: if several match.
    """
    try:
        return attribute(find(query.where, context), query.attribute)
    except InputError as error:
        raise type(error)(f"The query for {query} has no single answer. {error}") from None

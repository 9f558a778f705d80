"""What a paper says about itself: its method, claims and commands. Standard library only, so that listing is instant.

A distribution describes each paper by one module-level `METHOD = Method(...)` in a `paper.py` that imports nothing but
this module, and names it in its metadata::

    [project.entry-points."iclr.methods"]
    hip = "iclr_hip.paper:METHOD"

Code is named by ``"module:attribute"`` strings, which are resolved only when a claim is checked or a verb is called.
"""

import re
from dataclasses import dataclass
from typing import Literal, get_args

Direction = Literal[">=", "<=", "in", "report"]
Tier = Literal["exact", "laptop", "full"]

#: Where the workers of a sweep run.
BACKENDS = ("loky", "dask", "ray")

_NAME = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")
_VERB = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
_REFERENCE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
_CLAIM_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


@dataclass(frozen=True, slots=True)
class Paper:
    """The publication behind a method.

    Args:
        title: as published.
        authors: full names, in order.
        year: of publication.
        venue: such as ``"ICLR 2025"``.
        arxiv: identifier such as ``"2311.02076"``, or None.
        openreview: forum identifier, or None.
        proceedings: address of its page in the proceedings, for a paper with neither of the two.
        code: address of the official code, or None.
        bibtex: one complete BibTeX entry.
    """

    title: str
    authors: tuple[str, ...]
    year: int
    venue: str
    arxiv: str | None = None
    openreview: str | None = None
    proceedings: str | None = None
    code: str | None = None
    bibtex: str = ""

    def __post_init__(self):
        _check(self.title and self.authors, "a paper needs a title and authors")
        _check(self.bibtex.lstrip().startswith("@"), f"the paper {self.title!r} needs a BibTeX entry")

    @property
    def links(self) -> list[str]:
        """Addresses of the paper and of its official code."""
        pages = (self.arxiv, "https://arxiv.org/abs/"), (self.openreview, "https://openreview.net/forum?id=")
        return [address + name for name, address in (*pages, (self.proceedings, ""), (self.code, "")) if name]

    @property
    def short(self) -> str:
        """Such as ``Zhou et al., ICLR 2025``."""
        surname = self.authors[0].split()[-1]
        others = {1: "", 2: f" and {self.authors[-1].split()[-1]}"}.get(len(self.authors), " et al.")
        return f"{surname}{others}, {self.venue}"


@dataclass(frozen=True, slots=True)
class Claim:
    """One checkable statement of a paper.

    Args:
        id: unique within the method.
        statement: one sentence a reader of the paper recognises.
        figure: where the paper makes it, such as ``"Fig. 2"``, or None.
        metric: name of the number that is measured.
        direction: how `measured` is held against `threshold`. ``"report"`` is for rows nobody knows to hold at this
            size: measured and shown with their control, but never a pass.
        threshold: a number; ``(low, high)``, both ends included, for ``"in"``; None for ``"report"``.
        unit: of the number, or None.
        tier: ``"exact"`` is mathematics in seconds, ``"laptop"`` takes at most 3 minutes and 4 GiB on two cores,
            ``"full"`` needs the paper's data or a GPU.
        check: ``"module:function"`` of the check, called as ``check(run: ClaimRun) -> Measurement``.
        seconds: how long the check takes on two cores.
    """

    id: str
    statement: str
    figure: str | None
    metric: str
    direction: Direction
    threshold: float | tuple[float, float] | None
    unit: str | None
    tier: Tier
    check: str
    seconds: float

    def __post_init__(self):
        name = f"claim {self.id}"
        _check(_CLAIM_ID.fullmatch(self.id), f"{name}: an id may hold letters, digits, '.', '_' and '-'")
        _check(self.statement and self.metric, f"{name} needs a statement and a metric")
        _check(self.direction in get_args(Direction), f"{name}: direction {self.direction!r}")
        _check(self.tier in get_args(Tier), f"{name}: tier {self.tier!r}")
        _check(_REFERENCE.fullmatch(self.check), f"{name}: check {self.check!r} is not 'module:name'")
        kind = {"in": tuple, "report": type(None)}.get(self.direction, int | float)
        fits = isinstance(self.threshold, kind) and (kind is not tuple or self.threshold[0] <= self.threshold[1])
        _check(fits, f"{name}: threshold {self.threshold!r} does not fit direction {self.direction!r}")

    @property
    def criterion(self) -> str:
        """The condition in words, such as ``relative error <= 1e-10``."""
        if self.direction == "report":
            return f"{self.metric}: reported"
        unit = f" {self.unit}" if self.unit else ""
        if self.direction == "in":
            low, high = self.threshold
            return f"{self.metric} in [{low:g}, {high:g}]{unit}"
        return f"{self.metric} {self.direction} {self.threshold:g}{unit}"


@dataclass(frozen=True, slots=True)
class Command:
    """A verb of a method: ``iclr METHOD VERB ...`` on the user's own files.

    Args:
        verb: lower case, words joined by ``-``.
        summary: one line.
        function: ``"module:function"`` of a typed function with a docstring; `tyro` makes its command line. It prints
            what it found, writes what ``--out`` names, and returns an exit code or None.
    """

    verb: str
    summary: str
    function: str

    def __post_init__(self):
        _check(_VERB.fullmatch(self.verb), f"verb {self.verb!r} must be lower case words joined by '-'")
        _check(_REFERENCE.fullmatch(self.function), f"{self.verb}: {self.function!r} is not 'module:name'")


@dataclass(frozen=True, slots=True)
class Method:
    """A paper's method as the `iclr` command sees it.

    Args:
        name: slug, lower case words joined by ``_``; on the command line ``-`` and ``_`` are alike.
        title: what it is called.
        summary: one line of at most 100 characters.
        paper: the publication.
        claims: what can be checked.
        commands: what it does on the user's own files.
        extras: optional features, as pip requirements such as ``"iclr-hip[cuda12]"``.
    """

    name: str
    title: str
    summary: str
    paper: Paper
    claims: tuple[Claim, ...]
    commands: tuple[Command, ...] = ()
    extras: tuple[str, ...] = ()

    def __post_init__(self):
        _check(_NAME.fullmatch(self.name), f"method name {self.name!r} must be lower case, words joined by '_'")
        _check(0 < len(self.summary) <= 100, f"{self.name}: the summary must have 1 to 100 characters")
        for what, names in (("claim", [c.id.lower() for c in self.claims]), ("verb", [c.verb for c in self.commands])):
            doubles = {name for name in names if names.count(name) > 1}
            _check(not doubles, f"{self.name}: {what} {', '.join(sorted(doubles))} is given twice")

    @property
    def slug(self) -> str:
        """The name as it is typed on the command line."""
        return self.name.replace("_", "-")


def _check(holds: object, message: str) -> None:
    if not holds:
        raise ValueError(message)

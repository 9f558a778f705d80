"""Which methods are installed: entry points of the group ``iclr.methods``, loaded so that none breaks another."""

import difflib
import importlib
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from iclr_shared.errors import InputError
from iclr_shared.spec import Method

GROUP = "iclr.methods"


@dataclass(frozen=True, slots=True)
class Entry:
    """An installed method, or what is left of it when it does not load.

    Args:
        name: of the entry point.
        distribution: that provides it.
        version: of that distribution.
        reference: ``"module:attribute"``.
        duplicate: whether another distribution provides the name, too.
        method: None where it is broken.
        error: the traceback where it is broken, else None.
        seconds: loading took.
    """

    name: str
    distribution: str
    version: str
    reference: str
    duplicate: bool
    method: Method | None
    error: str | None
    seconds: float

    @property
    def slug(self) -> str:
        """The name as it is typed."""
        return self.name.replace("_", "-")

    @property
    def reason(self) -> str | None:
        """Last line of the error, such as ``ImportError: ...``."""
        return self.error and self.error.strip().splitlines()[-1]

    @property
    def state(self) -> str:
        """``broken``, ``duplicate``, ``slow: ...`` or ``ok``."""
        slow = "slow: its paper.py should import iclr_shared.spec only" if self.seconds > 0.05 else "ok"
        return "broken" if self.error else "duplicate" if self.duplicate else slow


def entries() -> list[Entry]:
    """All installed methods by name, broken and duplicate ones included."""
    points = sorted(entry_points(group=GROUP), key=lambda point: (normal(point.name), point.dist.name))
    names = [normal(point.name) for point in points]
    return [_load(point, names.count(normal(point.name)) > 1) for point in points]


def matching(name: str) -> list[EntryPoint]:
    """Entry points called `name`; ``-`` and ``_``, upper and lower case are alike; ``distribution:name`` is exact."""
    distribution, _, short = name.rpartition(":")
    found = [point for point in entry_points(group=GROUP) if normal(point.name) == normal(short)]
    return [point for point in found if not distribution or normal(point.dist.name) == normal(distribution)]


def find(name: str) -> Entry:
    """The method that `matching` finds.

    Raises:
        InputError: if no method, more than one, or a broken one has this name; says what to type instead.
    """
    found = matching(name)
    if not found:
        known = [point.name for point in entry_points(group=GROUP)]
        raise InputError(f"There is no method {name!r} here.{suggestion(name, known)}")
    if len(found) > 1:
        choices = ", ".join(f"{point.dist.name}:{point.name}" for point in found)
        raise InputError(f"Several distributions provide {name!r}. Name one of: {choices}.")
    entry = _load(found[0], False)
    if entry.error:
        shown = f"{name!r} of {entry.distribution} does not load: {entry.reason}"
        raise InputError(f"{shown}. `iclr doctor` shows the traceback.")
    return entry


def resolve(reference: str) -> Callable[..., Any]:
    """The object that ``"module:attribute"`` names. Import errors propagate."""
    module, _, attribute = reference.partition(":")
    return getattr(importlib.import_module(module), attribute)


def suggestion(name: str, known: list[str]) -> str:
    """`` Did you mean 'x'?`` for the nearest known name, as typed on the command line; else what there is."""
    typed = sorted({other.replace("_", "-") for other in known})
    lower = {normal(other): other for other in typed}
    if near := difflib.get_close_matches(normal(name), lower, n=1):
        return f" Did you mean {lower[near[0]]!r}?"
    return f" There are: {', '.join(typed)}." if typed else " None is installed."


def normal(name: str) -> str:
    """The form in which names are compared."""
    return name.lower().replace("-", "_")


def _load(point: EntryPoint, duplicate: bool) -> Entry:
    start = time.perf_counter()
    method, error = None, None
    try:
        method = point.load()
        if not isinstance(method, Method):
            raise TypeError(f"{point.value} is a {type(method).__name__}, not a Method")
        if method.name != point.name:
            raise ValueError(f"the entry point is called {point.name!r}, its method {method.name!r}")
    except Exception:
        method, error = None, traceback.format_exc()
    seconds = time.perf_counter() - start
    return Entry(point.name, point.dist.name, point.dist.version, point.value, duplicate, method, error, seconds)

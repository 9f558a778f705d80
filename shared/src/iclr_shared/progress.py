"""Progress of long loops, and stopping them between two steps."""

import contextlib
import signal
import sys
import threading
import time
from collections.abc import Iterable, Iterator

from iclr_shared.errors import Interrupted

# Signals reach a process, not a call, so the request to stop is process-wide.
_stop = threading.Event()


def progress[T](
    iterable: Iterable[T], desc: str, total: int | None = None, quiet: bool = False, every: float = 10.0
) -> Iterator[T]:
    """Iterate over `iterable` and show how far it is: a bar on a terminal, else a line each `every` seconds on stderr.

    Args:
        iterable: what to go through.
        desc: what is being done, such as ``"training"``.
        total: number of items, where `iterable` has no length.
        quiet: show nothing.
        every: seconds between lines where stderr is no terminal.

    Raises:
        Interrupted: between two items, if SIGINT or SIGTERM came inside `interruptible`.
    """
    if total is None and hasattr(iterable, "__len__"):
        total = len(iterable)
    if quiet:
        for item in iterable:
            yield item
            raise_if_stopped()
    elif sys.stderr.isatty():
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
        with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task(desc, total=total)
            for item in iterable:
                yield item
                bar.advance(task)
                raise_if_stopped()
    else:
        start = last = time.monotonic()
        for done, item in enumerate(iterable, 1):
            yield item
            raise_if_stopped()
            if (now := time.monotonic()) - last >= every:
                last = now
                print(f"{desc}: {done}/{total or '?'} after {now - start:.0f} s", file=sys.stderr, flush=True)


@contextlib.contextmanager
def interruptible() -> Iterator[threading.Event]:
    """Let the first SIGINT or SIGTERM ask the work to stop at its next resumable point; the second stops it at once.

    Yields:
        The event that is set once a stop is asked for; `progress` and `raise_if_stopped` heed it.
    """
    if threading.current_thread() is not threading.main_thread():
        yield _stop
        return

    def ask(number, frame):
        if _stop.is_set():
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        _stop.set()
        print("\nstopping at the next resumable point; press Ctrl-C again to stop at once", file=sys.stderr, flush=True)

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield _stop
    finally:
        _stop.clear()
        for number, handler in before.items():
            signal.signal(number, handler)


def raise_if_stopped() -> None:
    """Raise `Interrupted` if a stop was asked for. Call it where the state has been saved."""
    if _stop.is_set():
        raise Interrupted

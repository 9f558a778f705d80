"""Timing several ways of doing one thing in one run: interleaved, outputs held equal first, ratios with an interval."""

import gc
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from iclr_shared.tables import print_table

# On Linux getrusage also counts the parent's memory at the time of the fork; VmHWM does not.
_PEAK = """
import resource, sys
try:
    print(next(int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith("VmHWM")))
except OSError:
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024))
"""


@dataclass(frozen=True)
class Comparison:
    """Times of one comparison.

    Args:
        seconds: per candidate, the time of one call in each round.
        reference: the candidate that ratios are taken of: the first one given.
        label: what was compared, such as a size.
    """

    seconds: Mapping[str, Sequence[float]]
    reference: str
    label: str = ""

    def median(self, name: str) -> float:
        """Median seconds of one call."""
        return statistics.median(self.seconds[name])

    def spread(self, name: str) -> float:
        """Median absolute deviation, seconds."""
        middle = self.median(name)
        return statistics.median(abs(s - middle) for s in self.seconds[name])

    def ratio(self, name: str, resamples: int = 2000) -> tuple[float, float, float]:
        """How many times longer `name` takes than the reference.

        Returns:
            Median over rounds of the round's ratio, and a bootstrap 95 % interval of that median.
        """
        rounds = [b / a for a, b in zip(self.seconds[self.reference], self.seconds[name], strict=True)]
        draw = random.Random(0)
        medians = sorted(statistics.median(draw.choices(rounds, k=len(rounds))) for _ in range(resamples))
        return statistics.median(rounds), medians[int(0.025 * resamples)], medians[int(0.975 * resamples)]

    def faster(self, name: str) -> bool:
        """Whether the reference is faster than `name`: the whole interval lies above 1."""
        return self.ratio(name)[1] > 1


def compare(
    candidates: Mapping[str, Callable[[], Any]],
    *,
    check: Callable[[Mapping[str, Any]], None],
    reps: int = 15,
    min_time: float = 0.05,
    warmup: int = 2,
    sync: Callable[[Any], Any] | None = None,
    label: str = "",
) -> Comparison:
    """Time `candidates` in rounds, each in random order, so that drift of the machine hits all alike.

    Args:
        candidates: what to time by name, ours first; each call does the whole job.
        check: gets all outputs by name and raises where they do not agree; nothing is timed then.
        reps: rounds.
        min_time: seconds; short calls are repeated within a round until they take this long.
        warmup: calls before the first round, at least 1 (compilation).
        sync: waits for an output of an asynchronous device, such as `jax.block_until_ready`.
        label: of the comparison.
    """
    wait = sync or (lambda output: output)
    outputs = {name: wait(function()) for name, function in candidates.items()}
    check(outputs)
    loops = {}
    for name, function in candidates.items():
        for _ in range(warmup - 1):
            wait(function())
        loops[name] = max(1, round(min_time / max(_timed(function, wait, 1), 1e-9)))
    seconds: dict[str, list[float]] = {name: [] for name in candidates}
    order = random.Random(0)
    for _ in range(reps):
        for name in order.sample(list(candidates), len(candidates)):
            seconds[name].append(_timed(candidates[name], wait, loops[name]))
    return Comparison(seconds, next(iter(candidates)), label)


def print_comparisons(comparisons: Sequence[Comparison], title: str | None = None) -> None:
    """A row for each candidate of each comparison: its time and its ratio to the reference."""
    rows = []
    for comparison in comparisons:
        for name in comparison.seconds:
            ratio, low, high = comparison.ratio(name)
            own = name == comparison.reference
            shown = ("1", "") if own else (f"{ratio:.3g}x", f"{low:.3g} to {high:.3g}")
            milliseconds = f"{1000 * comparison.median(name):.4g} ± {1000 * comparison.spread(name):.2g}"
            rows.append((comparison.label, name, milliseconds, *shown))
    print_table(("case", "what", "ms per call", "time relative to ours", "95 %"), rows, title)


def peak_memory(code: str) -> int:
    """Peak resident memory, in bytes, of a fresh interpreter that runs `code`.

    Raises:
        RuntimeError: with its error output if it fails.
    """
    done = subprocess.run([sys.executable, "-c", f"{code}\n{_PEAK}"], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr)
    return int(done.stdout.split()[-1])


def _timed(function: Callable[[], Any], wait: Callable[[Any], Any], loops: int) -> float:
    enabled = gc.isenabled()
    gc.disable()
    try:
        start = time.perf_counter()
        for _ in range(loops):
            wait(function())
        return (time.perf_counter() - start) / loops
    finally:
        if enabled:
            gc.enable()

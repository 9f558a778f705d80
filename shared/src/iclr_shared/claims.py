"""What a claim's check is given, and what it gives back.

A check is a plain function::

    def map_is_exact(run: ClaimRun, *, width: int = 64, steps: int = 200) -> Measurement: ...

Its keyword arguments are the sizes of the experiment, with the claim's own as defaults, so that tests can call it
small, or with its effect removed. It never decides whether the claim holds: `iclr_shared.records` does, from the
claim's direction and threshold.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, SupportsFloat

from iclr_shared.checkpoints import Checkpoint
from iclr_shared.progress import progress
from iclr_shared.seeds import SeedTree

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Measurement:
    """What a check measured.

    Args:
        measured: the claim's metric, a scalar of any framework. NaN and infinities fail.
        baseline: ``(name, value)`` of the control's same metric, measured in the same run; None where the claim is an
            identity that has no control.
        ci: interval of `measured`, and `n` the number of seeds or samples behind it.
        series: named columns (sequences or arrays) of equal length, for tables and for redrawing the figure.
        details: further named numbers or short texts that the record should hold: further controls, sizes, settings.
        note: one or two sentences for the reader of the report.
    """

    measured: SupportsFloat
    baseline: tuple[str, SupportsFloat] | None = None
    ci: tuple[SupportsFloat, SupportsFloat] | None = None
    n: int | None = None
    series: Mapping[str, Any] = field(default_factory=dict)
    details: Mapping[str, Any] = field(default_factory=dict)
    note: str = ""


@dataclass
class ClaimRun:
    """What a check may use: seeds, a place for its figures, progress, workers and checkpoints.

    Args:
        claim: id of the claim.
        seeds: the seed tree of this claim; it does not change when other claims are added or left out.
        folder: the run's folder. `figure` and `checkpoint` know where to write in it.
        jobs: worker processes for `sweep`.
        backend: joblib backend for `sweep`.
        quiet: whether to hide progress.
    """

    claim: str
    seeds: SeedTree
    folder: Path
    jobs: int = 1
    backend: str = "loky"
    quiet: bool = False
    figures: list[Path] = field(default_factory=list, init=False)

    def figure(self, name: str, figure: "Figure") -> None:
        """Save a matplotlib `Figure` as ``figures/CLAIM-NAME.png`` and show it in the report beside this claim."""
        from iclr_shared.files import atomic_path

        path = self.folder / "figures" / f"{self.claim}-{name}.png"
        with atomic_path(path) as temporary:
            figure.savefig(temporary, format="png", dpi=130)
        if path not in self.figures:
            self.figures.append(path)

    def progress[T](self, iterable: Iterable[T], desc: str, total: int | None = None) -> Iterator[T]:
        """Iterate with a progress bar; an interrupt (Ctrl-C) ends the loop cleanly between two items."""
        return progress(iterable, desc=desc, total=total, quiet=self.quiet)

    def checkpoint(self, name: str = "state", **options: Any) -> Checkpoint:
        """A checkpoint of this claim, kept in the run's folder so that ``--resume`` finds it."""
        return Checkpoint(self.folder / "checkpoints" / self.claim / name, **options)

    def sweep(self, function: Callable[..., Any], grid: Sequence[Mapping[str, Any]], name: str = "sweep") -> list[Any]:
        """``[function(**params) for params in grid]`` over this run's workers; finished points survive a kill.

        Args:
            function: importable (module-level) function returning JSON-able values.
            grid: keyword arguments of each call, JSON-able.
            name: of the folder for finished points.

        Returns:
            The values in the grid's order.

        Raises:
            RuntimeError: naming the first failed point, after all points were tried.
        """
        from iclr_shared.sweep import sweep, values

        out = self.folder / "checkpoints" / self.claim / name
        results = sweep(function, grid, jobs=self.jobs, backend=self.backend, out=out, quiet=self.quiet)
        return values(results)

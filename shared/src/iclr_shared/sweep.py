"""Many independent evaluations through joblib (loky, Dask or Ray); finished points are files, so resume is free."""

import hashlib
import importlib.metadata
import json
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from iclr_shared.errors import InputError, require
from iclr_shared.files import atomic_write
from iclr_shared.progress import progress
from iclr_shared.records import plain
from iclr_shared.spec import BACKENDS


@dataclass(frozen=True)
class Result:
    """One point of a sweep: its parameters, the value or the error (a traceback), and the seconds it took."""

    params: Mapping[str, Any]
    value: Any
    error: str | None
    seconds: float


def sweep(
    function: Callable[..., Any],
    grid: Sequence[Mapping[str, Any]],
    *,
    jobs: int = 1,
    backend: str = "loky",
    out: Path | None = None,
    quiet: bool = False,
    desc: str = "sweep",
) -> list[Result]:
    """Evaluate ``function(**params)`` for each of `grid`; an exception becomes that point's error and the rest goes on.

    Args:
        function: module-level, so that workers can import it; returns JSON-able values where `out` is given.
        grid: keyword arguments; JSON-able where `out` is given.
        jobs: worker processes; 1 stays in this one, which is faster below about 5 s of work in all.
        backend: ``"loky"``; ``"dask"`` uses the current `distributed.Client` or starts a local cluster; ``"ray"``
            uses the running Ray or starts a local one (which writes an access token into the user's home).
        out: folder with one file per finished point, named by a hash of the function, its distribution's version and
            the parameters. Points that are there already are not computed again.
        quiet: no progress.
        desc: of the progress bar.

    Returns:
        Results in the grid's order.

    Raises:
        InputError: if the backend is unknown or the parameters are not JSON-able.
        MissingExtra: if the backend is not installed.
    """
    if backend not in BACKENDS:
        raise InputError(f"Unknown backend {backend!r}. Choose one of: {', '.join(BACKENDS)}.")
    if jobs < 1:
        raise InputError(f"jobs must be at least 1, got {jobs}.")
    paths = [out / f"{_digest(function, params)}.json" if out else None for params in grid]
    results = {i: result for i, path in enumerate(paths) if path and (result := _read(path)) is not None}
    todo = [(i, function, grid[i], paths[i]) for i in range(len(grid)) if i not in results]
    results.update(progress(_evaluate_all(todo, jobs, backend), desc=desc, total=len(todo), quiet=quiet))
    return [results[i] for i in range(len(grid))]


def values(results: Sequence[Result]) -> list[Any]:
    """The values of `results`.

    Raises:
        RuntimeError: with the first error, if any point failed.
    """
    failed = [result for result in results if result.error]
    if failed:
        first = failed[0]
        raise RuntimeError(f"{len(failed)} of {len(results)} points failed, first {dict(first.params)}:\n{first.error}")
    return [result.value for result in results]


def _evaluate_all(todo: list[tuple], jobs: int, backend: str) -> Iterator[tuple[int, Result]]:
    if jobs == 1 and backend == "loky":
        yield from (_evaluate(*task) for task in todo)
        return
    joblib = require("joblib", "iclr-shared[sweep]")
    with _cluster(backend, jobs):
        # One thread per worker: processes share the cores. Ray's joblib backend does not take the option.
        threads = {"inner_max_num_threads": 1} if backend == "loky" else {}
        # As they finish, where the backend can: a kill then loses only what was under way.
        order = "list" if backend == "ray" else "generator_unordered"
        with joblib.parallel_config(backend, n_jobs=jobs, **threads):
            yield from joblib.Parallel(return_as=order)(joblib.delayed(_evaluate)(*task) for task in todo)


def _evaluate(i: int, function: Callable[..., Any], params: Mapping[str, Any], path: Path | None) -> tuple[int, Result]:
    start = time.monotonic()
    try:
        value = function(**params)
        seconds = time.monotonic() - start
        if path is None:
            return i, Result(params, value, None, seconds)
        # Read back at once, so that a resumed sweep gives the same types as one in a go. NaN stays NaN here.
        stored = {"params": plain(params, "params"), "value": plain(value, "value"), "seconds": seconds}
        atomic_write(path, json.dumps(stored))
        return i, _read(path)
    except Exception:
        return i, Result(params, None, traceback.format_exc(), time.monotonic() - start)


def _read(path: Path) -> Result | None:
    try:
        stored = json.loads(path.read_bytes())
        return Result(stored["params"], stored["value"], None, stored["seconds"])
    except (OSError, ValueError, KeyError):
        return None


def _digest(function: Callable[..., Any], params: Mapping[str, Any]) -> str:
    distribution = function.__module__.split(".")[0].replace("_", "-")
    try:
        version = importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        version = "0"
    try:
        key = json.dumps([function.__module__, function.__qualname__, version, params], sort_keys=True)
    except TypeError as error:
        raise InputError(f"The parameters {dict(params)} cannot be stored: {error}. Use JSON-able values.") from None
    return hashlib.blake2b(key.encode(), digest_size=16).hexdigest()


@contextmanager
def _cluster(backend: str, jobs: int) -> Iterator[None]:
    if backend == "dask":
        distributed = require("distributed", "iclr-shared[dask]")
        try:
            distributed.get_client()
        except ValueError:
            with (
                distributed.LocalCluster(n_workers=jobs, threads_per_worker=1, dashboard_address=None) as cluster,
                distributed.Client(cluster),
            ):
                yield
        else:
            yield
    elif backend == "ray":
        ray = require("ray", "iclr-shared[ray]")
        from ray.util.joblib import register_ray

        started = not ray.is_initialized()
        if started:
            ray.init(num_cpus=jobs, include_dashboard=False, log_to_driver=False)
        register_ray()
        try:
            yield
        finally:
            if started:
                ray.shutdown()
    else:
        yield

"""Helpers for the tests of every distribution."""

import json
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from iclr_shared import records
from iclr_shared.claims import ClaimRun, Measurement
from iclr_shared.seeds import root
from iclr_shared.spec import Method

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import ArrayLike

#: What a `paper.py` and `iclr list` must not load.
HEAVY = ("numpy", "scipy", "matplotlib", "pandas", "jax", "torch", "joblib", "sklearn", "transformers")


def assert_light_import(module: str, forbidden: Sequence[str] = HEAVY) -> None:
    """Import `module` in a fresh interpreter and fail if it loads one of `forbidden`."""
    code = f"import sys, {module}; print([m for m in {list(forbidden)!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]", f"importing {module} loads {done.stdout.strip()}"


def claim_run(folder: Path, claim: str = "C1", seed: int = 0) -> ClaimRun:
    """A quiet `ClaimRun` in `folder`."""
    return ClaimRun(claim, root(seed).child("test", claim), Path(folder), quiet=True)


def holds(method: Method, claim: str, measurement: Measurement) -> bool:
    """Whether `measurement` passes the threshold that `method` states for `claim`."""
    stated = next(c for c in method.claims if c.id == claim)
    nonfinite: dict[str, str] = {}
    return (
        records.verdict(stated.direction, stated.threshold, records.plain(measurement.measured, "m", nonfinite))[0]
        == "pass"
    )


def run_cli(*arguments: object) -> tuple[int, str, str]:
    """Run ``iclr ARGUMENTS...`` in this process.

    Returns:
        Exit code, standard output, standard error.
    """
    import contextlib
    import io

    from iclr_shared.cli import main

    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main([str(argument) for argument in arguments])
    return code, out.getvalue(), err.getvalue()


def readme_blocks(path: Path) -> list[tuple[str, str]]:
    """The fenced code blocks of a Markdown file as ``(language, code)``, in order."""
    return re.findall(r"^```(\w*)\n(.*?)^```", Path(path).read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


def gradcheck(
    function: Callable, x: "np.ndarray", gradient: "np.ndarray", eps: float = 1e-6, rtol: float = 1e-5
) -> None:
    """Hold `gradient` of a scalar `function` at `x` against central differences in float64.

    Raises:
        AssertionError: with both where they differ by more than `rtol`.
    """
    import numpy as np

    x = np.asarray(x, dtype=np.float64)
    numeric = np.empty_like(x)
    for index in np.ndindex(x.shape):
        step = np.zeros_like(x)
        step[index] = eps
        numeric[index] = (float(function(x + step)) - float(function(x - step))) / (2 * eps)
    scale = max(1.0, float(np.abs(numeric).max(initial=0.0)))
    np.testing.assert_allclose(np.asarray(gradient), numeric, rtol=rtol, atol=rtol * scale)


def assert_unbiased(draw: Callable[[int], "np.ndarray"], truth: "np.ndarray", n: int, sigmas: float = 4.0) -> None:
    """Fail if the mean of ``draw(0) ... draw(n-1)`` is over `sigmas` standard errors away from `truth` anywhere."""
    import numpy as np

    draws = np.stack([np.asarray(draw(i), dtype=np.float64) for i in range(n)])
    error = np.abs(draws.mean(0) - np.asarray(truth))
    allowed = sigmas * draws.std(0, ddof=1) / np.sqrt(n) + 1e-12
    assert np.all(error <= allowed), (
        f"biased: off by {error.max():.3g}, {sigmas} standard errors are {allowed.max():.3g}"
    )


def loglog_slope(x: "ArrayLike", y: "ArrayLike") -> tuple[float, float]:
    """Slope of ``log y`` against ``log x`` by least squares, and its standard error."""
    import numpy as np

    u, v = np.log(np.asarray(x, dtype=float)), np.log(np.asarray(y, dtype=float))
    centred = u - u.mean()
    slope = float(centred @ v / (centred @ centred))
    rest = v - v.mean() - slope * centred
    variance = float(rest @ rest) / max(len(u) - 2, 1) / float(centred @ centred)
    return slope, variance**0.5


class Killed(BaseException):
    """What `fault_inject` raises: no `except Exception` catches it, like a kill."""


def fault_inject[**P, R](function: Callable[P, R], at_call: int) -> Callable[P, R]:
    """`function`, which raises `Killed` instead of doing its work at call number `at_call` (from 0)."""
    calls = 0

    def injected(*args: P.args, **kwargs: P.kwargs) -> R:
        nonlocal calls
        calls += 1
        if calls == at_call + 1:
            raise Killed
        return function(*args, **kwargs)

    return injected


def assert_same_resume(command: Callable[[Path, bool], Any], folder: Path, interrupt: Callable[[], Any]) -> None:
    """Fail unless ``command(folder, resume)`` gives the same value interrupted and resumed as in one go.

    Args:
        command: does the work in a folder, resuming if told so, and returns a comparable result.
        folder: empty.
        interrupt: returns a context manager in which `command` is killed (it must raise).
    """
    whole = command(folder / "whole", False)
    try:
        with interrupt():
            command(folder / "cut", False)
    except (Killed, KeyboardInterrupt):
        pass
    else:
        raise AssertionError("the work was not interrupted")
    resumed = command(folder / "cut", True)
    assert json.dumps(whole, default=repr) == json.dumps(resumed, default=repr), "the resumed run differs"


def timeless(record: dict[str, Any]) -> dict[str, Any]:
    """A record without what differs between two runs of the same thing: times and the checksums of figures."""
    kept = {key: value for key, value in record.items() if key not in ("started", "seconds", "ended")}
    return {**kept, "artifacts": [artifact["path"] for artifact in record.get("artifacts", [])]}

import contextlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from iclr_shared.checkpoints import Checkpoint
from iclr_shared.claims import Measurement
from iclr_shared.spec import Claim, Method, Paper
from iclr_shared.testing import (
    Killed,
    assert_light_import,
    assert_same_resume,
    assert_unbiased,
    claim_run,
    fault_inject,
    gradcheck,
    holds,
    loglog_slope,
    readme_blocks,
)


def test_light_import():
    assert_light_import("iclr_shared.spec")
    with pytest.raises(AssertionError, match="json"):
        assert_light_import("json", ["json"])


def test_gradcheck():
    x = np.array([1.0, -2.0])
    gradcheck(lambda x: (x**3).sum(), x, 3 * x**2)
    with pytest.raises(AssertionError):
        gradcheck(lambda x: (x**3).sum(), x, 2.9 * x**2)


def test_unbiased():
    assert_unbiased(lambda i: np.random.default_rng(i).normal(1, 1, 3), np.ones(3), 500)
    with pytest.raises(AssertionError, match="biased"):
        assert_unbiased(lambda i: np.random.default_rng(i).normal(1.5, 1, 3), np.ones(3), 500)


@given(st.floats(-3, 3), st.floats(0.1, 10))
def test_slope_of_a_power_law(power, factor):
    x = np.array([1.0, 2.0, 5.0, 9.0])
    slope, error = loglog_slope(x, factor * x**power)
    assert slope == pytest.approx(power, abs=1e-9)
    assert error == pytest.approx(0, abs=1e-6)


def test_slope_error_matches_least_squares():
    draw = np.random.default_rng(0)
    x = np.exp(draw.normal(size=20))
    y = x**2 * np.exp(draw.normal(size=20))
    fit, covariance = np.polyfit(np.log(x), np.log(y), 1, cov=True)
    assert loglog_slope(x, y) == pytest.approx((fit[0], covariance[0, 0] ** 0.5))


def sum_up(folder: Path, resume: bool, work=lambda step: step, checkpointed: bool = True) -> int:
    checkpoint = Checkpoint(folder)
    start, state = (checkpoint.latest() if resume else None) or (0, {"total": 0})
    total = state["total"] if checkpointed else 0
    for step in range(start, 5):
        total += work(step)
        checkpoint.save(step + 1, {"total": total})
    return total


@pytest.mark.parametrize("right", [True, False])
def test_same_resume(tmp_path, right):
    faulty = fault_inject(lambda step: step, 2 + 5)

    def command(folder, resume):
        return sum_up(folder, resume, faulty, checkpointed=right)

    with contextlib.nullcontext() if right else pytest.raises(AssertionError, match="differs"):
        assert_same_resume(command, tmp_path, contextlib.nullcontext)
    with pytest.raises(AssertionError, match="not interrupted"):
        assert_same_resume(sum_up, tmp_path / "other", contextlib.nullcontext)


def test_killed_is_not_an_exception():
    assert not issubclass(Killed, Exception)


def test_holds(tmp_path):
    paper = Paper("T", ("A",), 2025, "v", bibtex="@misc{x}")
    claim = Claim("C1", "s", None, "m", "<=", 1, None, "exact", "a:b", 1)
    method = Method("m", "t", "s", paper, (claim,))
    assert holds(method, "C1", Measurement(1.0))
    assert not holds(method, "C1", Measurement(float("nan")))
    run = claim_run(tmp_path, "C1")
    assert run.sweep(dict, [{"x": 1}]) == [{"x": 1}]


def test_readme_blocks(tmp_path):
    (tmp_path / "R.md").write_text("a\n```python\nx = 1\n```\nb\n```\niclr list\n```\n")
    assert readme_blocks(tmp_path / "R.md") == [("python", "x = 1\n"), ("", "iclr list\n")]

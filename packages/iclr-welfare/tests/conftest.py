"""People that several tests share."""

from collections.abc import Callable, Iterator

import jax
import numpy as np
import pytest

import iclr_welfare as iw
from iclr_shared.testing import claim_run, holds
from iclr_welfare.paper import METHOD


@pytest.fixture(scope="module", autouse=True)
def quick_compilation() -> Iterator[None]:
    """Nearly all the time of these tests is compilation: leave out the costly optimisations, which small runs need
    not. It halves the suite's time and changes no result beyond rounding."""
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", before)


@pytest.fixture(scope="session")
def reference() -> iw.Population:
    """The population of the reference values: N = 40, f between -2000 and 600, g between -1900 and -1500."""
    return iw.homogeneous(np.random.default_rng(0).uniform(-100, 500, 40))


@pytest.fixture(scope="session")
def mixed() -> iw.Population:
    """Ten people, each with limits of their own, under the survival condition for M = 1 to 9."""
    rng = np.random.default_rng(1)
    f_minus = rng.uniform(700.0, 900.0, 10)
    return iw.linear(
        rng.uniform(0.0, 100.0, 10), f_minus, f_minus * 2.0, rng.uniform(50.0, 70.0, 10), rng.uniform(5.0, 15.0, 10)
    )


@pytest.fixture
def holds_only_with_its_effect(tmp_path) -> Callable[..., None]:
    """Assert that a claim's check meets the threshold at small `sizes`, with a control, and misses it when `removed`
    takes its effect away."""

    def judge(claim, check, sizes, removed) -> None:
        measurement = check(claim_run(tmp_path, claim), **sizes)
        assert holds(METHOD, claim, measurement), measurement
        assert measurement.baseline is not None
        without = claim_run(tmp_path / "removed", claim)
        without.figure = lambda name, figure: None  # drawn once already
        assert not holds(METHOD, claim, check(without, **sizes | removed))

    return judge

"""People that several tests share."""

from collections.abc import Iterator

import jax
import numpy as np
import pytest

import iclr_welfare as iw


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

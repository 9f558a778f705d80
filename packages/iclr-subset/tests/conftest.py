from collections.abc import Iterator

import jax
import numpy as np
import pytest


@pytest.fixture(scope="session", autouse=True)
def quick_compilation() -> Iterator[None]:
    """Most time of the JAX tests is compilation: leave out the costly optimisations."""
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", before)


@pytest.fixture
def rng():
    return np.random.default_rng(0)

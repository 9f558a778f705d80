import jax
import pytest


@pytest.fixture(autouse=True, scope="module")
def quick_compilation():
    """Most of these tests' time is XLA optimising programs that run for milliseconds."""
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", before)

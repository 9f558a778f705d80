import jax
import pytest


@pytest.fixture
def x64():
    """float64 for the duration of one test."""
    with jax.enable_x64(True):
        yield

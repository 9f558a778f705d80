"""The compiled loop against the ask/tell loop, and what it finds."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from iclr_shared.errors import InputError
from iclr_subset.descent import descend, descend_many, exact_gradient
from iclr_subset.optimizer import Settings, SubsetOptimizer
from iclr_subset.schedules import Power

WANTED = jnp.zeros(8, bool).at[jnp.array([1, 4, 6])].set(True)


def cost(member, key):
    return 1 - jnp.sum(member & WANTED) / 3 + jnp.maximum(0, member.sum() - 3) / 3


@pytest.mark.parametrize(("method", "batch"), [("exact", 1), ("expected", 3)])
def test_finds_what_was_planted(method, batch):
    eta = {"exact": 0.01, "expected": 0.1}[method]
    settings = Settings(n=8, k=3, method=method, batch=batch, eta=eta, steps=600)
    trace = descend_many(cost, 3, 0, settings)
    assert trace.w.shape == (3, 8)
    np.testing.assert_array_equal(np.sort(np.argsort(-trace.w, axis=1)[:, :3], axis=1), [[1, 4, 6]] * 3)
    np.testing.assert_array_equal(trace.best, np.tile(WANTED, (3, 1)))
    assert trace.mean_cost[:, -100:].mean() < trace.mean_cost[:, :100].mean() - 0.3


def test_one_step_is_the_optimizers():
    """From the same draw both take the same step."""
    with jax.enable_x64(True):
        settings = Settings(n=8, k=3, eta=0.05, steps=1, baseline="none")
        seen = []

        def watching(member, key):
            jax.debug.callback(lambda m: seen.append(np.flatnonzero(m)), member)
            return cost(member, key)

        trace = descend(watching, jax.random.key(3), settings, dtype=jnp.float64)
        jax.effects_barrier()
    optimizer = SubsetOptimizer(settings)
    optimizer._asked = seen[0][None]
    optimizer.tell(optimizer.ask(), [float(trace.mean_cost[0])])
    np.testing.assert_allclose(trace.w, optimizer.w, rtol=1e-9)


def test_exact_gradient():
    from iclr_subset.claims import GRADIENT, SETS, A, W

    with jax.enable_x64(True):
        found = exact_gradient(jnp.asarray((A[SETS].sum(1) - 8) ** 2 / 10), SETS, jnp.asarray(W))
    np.testing.assert_allclose(found, GRADIENT, atol=1e-10)


def test_bad_input():
    for options in ({"normalise": True}, {"batch": Power(1, 0.5)}):
        with pytest.raises(InputError, match="constant batch"):
            descend(cost, jax.random.key(0), Settings(n=8, k=3, **options))

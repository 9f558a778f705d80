"""Mirror steps: reference values, optimality conditions, an outside solver."""

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq, minimize

from iclr_shared.errors import InputError
from iclr_subset import mirror
from iclr_subset.mirror import mirror_step

G = np.array([0.0, 1, 2, 3, 40])


def test_reference_values():
    kl = mirror_step(np.full(5, 0.2), G, 1.0, "kl", 0.02).w
    np.testing.assert_allclose(kl, (0.631035974690, 0.232145161728, 0.0854014323672, 0.0314174312145, 0.02), rtol=1e-11)
    box = mirror_step(np.full(5, 0.4), G, 1.0, "fermi_dirac", 0.05, 2).w
    np.testing.assert_allclose(box, (0.807665451382, 0.607045908627, 0.362370928745, 0.172917711246, 0.05), rtol=1e-11)


@given(st.integers(2, 40), st.integers(0, 2**32 - 1), st.floats(0.01, 200), st.floats(0, 1))
@settings(max_examples=60, deadline=None)
def test_optimality(n, seed, scale, floor):
    rng = np.random.default_rng(seed)
    g = scale * rng.standard_normal(n)
    w, c = rng.dirichlet(np.ones(n)) + 1e-6, floor / n
    step = mirror.kl_step(w / w.sum(), g, 1.0, c)
    assert abs(step.w.sum() - 1) < 1e-12
    assert step.w.min() >= c
    y = np.exp(np.log(w / w.sum()) - g - step.dual)  # y / t
    np.testing.assert_allclose(step.w, np.maximum(y, c), atol=1e-12)
    k = float(rng.uniform(0.2, n - 0.2))
    c = 0.9 * floor * min(k / n, 1 - k / n)
    start = np.clip(rng.random(n), 0.01, 0.99)
    step = mirror.fermi_dirac_step(start, g, 1.0, c, k)
    assert abs(step.w.sum() - k) < 1e-12 * n
    logits = np.log(start / (1 - start)) - g - step.dual
    np.testing.assert_allclose(step.w, np.clip(1 / (1 + np.exp(-np.clip(logits, -700, 700))), c, 1 - c), atol=1e-12)
    step = mirror.entropy_step(start, g, 1.0, c, k)
    assert abs(step.w.sum() - k) < 1e-12 * n
    np.testing.assert_allclose(
        step.w, np.clip(np.exp(np.minimum(np.log(start) - g - step.dual, 1)), c, 1 - c), atol=1e-12
    )
    step = mirror.euclidean_projection(g, c, 1 - c, k)
    assert abs(step.w.sum() - k) < 1e-12 * n * max(1, scale)
    np.testing.assert_allclose(step.w, np.clip(g - step.dual, c, 1 - c))


def test_outside_solvers(rng):
    w, g = rng.dirichlet(np.ones(6)), 3 * rng.standard_normal(6)
    ours = mirror_step(w, g, 0.7, "kl", 0.03).w

    def objective(v):
        return g @ v + np.sum(v * np.log(v / w)) / 0.7

    constraint = {"type": "eq", "fun": lambda v: v.sum() - 1}
    found = minimize(
        objective, np.full(6, 1 / 6), bounds=[(0.03, 1)] * 6, constraints=constraint, options={"ftol": 1e-15}
    )
    np.testing.assert_allclose(ours, found.x, atol=1e-6)
    v = 2 * rng.standard_normal(9)
    nu = brentq(lambda nu: np.clip(v - nu, 0.1, 0.9).sum() - 4, -10, 10, xtol=1e-14)
    np.testing.assert_allclose(mirror.euclidean_projection(v, 0.1, 0.9, 4).w, np.clip(v - nu, 0.1, 0.9), atol=1e-12)


def test_nothing_moves_without_gradient():
    w = np.array([0.1, 0.2, 0.3, 0.4])
    still = np.zeros(4)
    for geometry, k in (("kl", None), ("euclidean", None), ("euclidean", 1), ("fermi_dirac", 1), ("entropy", 1)):
        np.testing.assert_allclose(mirror_step(w, still, 1.0, geometry, 0.05, k).w, w, atol=1e-14)
    assert mirror_step(w, np.array([1.0, 0, 0, 0]), 0.5, "kl", 0.01).w[0] < 0.1  # a positive gradient lowers


def test_the_floor_at_its_limit():
    np.testing.assert_allclose(mirror_step(np.full(7, 1 / 7), 5 * np.arange(7.0), 1.0, "kl", 1 / 7).w, 1 / 7)
    np.testing.assert_allclose(mirror_step(np.full(4, 0.5), np.arange(4.0), 1.0, "fermi_dirac", 0.5, 2).w, 0.5)


def test_jax_gives_the_same():
    with jax.enable_x64(True):
        g = jax.numpy.asarray(G)
        for geometry, c, k, total in (
            ("kl", 0.02, None, 1), ("euclidean", 0.02, None, 1), ("fermi_dirac", 0.05, 2, 2), ("entropy", 0.05, 2, 2)
        ):  # fmt: skip
            w = np.full(5, total / 5)
            traced = jax.jit(lambda v, a=(geometry, c, k): mirror_step(v, g, 1.0, *a).w)(jax.numpy.asarray(w))
            np.testing.assert_allclose(traced, mirror_step(w, G, 1.0, geometry, c, k).w, atol=1e-13)
        many = jax.vmap(lambda s: mirror_step(jax.numpy.full(5, 0.4), s * g, 1.0, "fermi_dirac", 0.05, 2).w)
        np.testing.assert_allclose(many(jax.numpy.asarray([0.1, 1.0, 9.0])).sum(1), 2, rtol=1e-12)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"geometry": "kl", "c": 0.3}, r"\[0, 1/n\]"),
        ({"geometry": "fermi_dirac", "c": 0.3, "k": 1}, r"min\(k/n, 1 - k/n\)"),
        ({"geometry": "fermi_dirac", "c": 0.1}, "needs k"),
        ({"geometry": "round"}, "A geometry is one of"),
    ],
)
def test_bad_input(options, message):
    with pytest.raises(InputError, match=message):
        mirror_step(np.full(4, 0.25), np.zeros(4), 1.0, **options)

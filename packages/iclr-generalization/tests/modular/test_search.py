"""The search finds planted modules, stops where there are none, refuses bad input, and resumes."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from iclr_generalization.modular import search as module
from iclr_generalization.modular.recovery import module_recovery
from iclr_generalization.modular.search import NoModuleFound, Search, find_modules
from iclr_shared.errors import InputError
from iclr_shared.testing import Killed, fault_inject

QUICK = Search(steps=60, learning_rate=0.1, null=16, group=4)


def planted(n=150, m=6, seed=0):
    """Two modules of one dimension, orthogonal."""
    rng = np.random.default_rng(seed)
    U = np.linalg.qr(rng.normal(size=(m, 2)))[0].T[:, None]
    x = rng.normal(size=(n, m))
    y = np.sin(2 * x @ U[0, 0]) + 0.7 * np.cos(1.5 * x @ U[1, 0])
    return x, y, U


@pytest.fixture(scope="module")
def found():
    x, y, U = planted()
    return x, y, U, find_modules(x, y, 2, restarts=8, key=jax.random.key(1), search=QUICK)


def test_planted_modules_are_found(found):
    x, _, U, modules = found
    assert module_recovery(modules.U, U) > 0.95
    assert np.all(modules.J / modules.null < 0.9)
    assert np.all(np.diff(modules.round) >= 0)
    assert modules.trace.shape[1:] == (8, 60)
    assert modules.lam == 1.0
    np.testing.assert_allclose(np.linalg.norm(modules.U, axis=2), 1, atol=1e-5)
    np.testing.assert_allclose(modules.project(x)[:, 0, 0], x @ modules.U[0, 0])


def test_descents_go_down(found):
    trace = found[3].trace
    assert np.all(trace[:, :, -1].min(1) < trace[:, :, 0].min(1))


def test_deflation_finds_what_one_round_misses():
    """A strong module takes every start of the first round; the weak one comes after it is explained away."""
    rng = np.random.default_rng(3)
    x = rng.normal(size=(150, 6))
    y = 3 * np.sin(1.5 * x[:, 0]) + 0.8 * np.sin(1.5 * x[:, 1])
    strict = replace(QUICK, accept=0.9)
    modules = find_modules(x, y, 2, restarts=8, key=jax.random.key(0), search=strict, lam=0.1)
    assert module_recovery(modules.U, np.eye(6)[:2, None]) > 0.9
    assert modules.round.tolist() == [0, 1]


def test_two_dimensions_at_once():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 5))
    y = np.sin(2 * x[:, 0]) * np.sin(2 * x[:, 1])
    modules = find_modules(x, y, 1, 2, restarts=8, key=jax.random.key(0), search=Search(steps=120, null=16), lam=0.1)
    assert module_recovery(modules.U, np.eye(5)[None, :2]) > 0.9


def test_it_stops_with_a_note(found):
    x = found[0]
    y = np.sin(2 * x[:, 0])
    strict = replace(QUICK, accept=0.9)
    modules = find_modules(x, y, 3, restarts=8, key=jax.random.key(1), search=strict, lam=0.1)
    assert 1 <= len(modules.U) < 3
    assert "No further module" in modules.note


def test_noise_has_no_module():
    rng = np.random.default_rng(0)
    with pytest.raises(NoModuleFound, match="No module found"):
        find_modules(rng.normal(size=(150, 6)), rng.normal(size=150), 2, restarts=8, search=QUICK)


@pytest.mark.parametrize("seed", range(2, 6))
def test_what_a_descent_finds_in_noise_is_no_module(seed):
    """150 samples are few enough for objectives below 0.9 of the null level; shuffled labels do as well."""
    rng = np.random.default_rng(seed)
    x, y = rng.normal(size=(150, 6)), rng.normal(size=150)
    with pytest.raises(NoModuleFound, match="No module found"):
        find_modules(x, y, 2, restarts=8, key=jax.random.key(seed), search=QUICK)
    loose = replace(QUICK, improve=1.0, doubtful=1.0)
    assert find_modules(x, y, 1, restarts=8, key=jax.random.key(seed), search=loose).J[0] < 0.92


def test_the_null_level_is_that_of_random_projections(found):
    x, y, _, modules = found
    y = (y - y.mean()) / y.std()
    V = np.random.default_rng(0).normal(size=(200, 1, x.shape[1]))
    V /= np.linalg.norm(V, axis=2, keepdims=True)
    values = module.objectives(V, jnp.asarray(x), jnp.asarray(y[:, None]), 1.0, "rbf", 1.0)
    assert modules.null[0] == pytest.approx(np.median(values), rel=0.05)


def test_the_same_seed_gives_the_same_modules(found):
    x, y, _, modules = found
    again = find_modules(x, y, 2, restarts=8, key=jax.random.key(1), search=QUICK)
    np.testing.assert_array_equal(again.U, modules.U)


def test_minibatches():
    x, y, U = planted(n=400)
    quick = Search(steps=60, learning_rate=0.1, null=16, group=4, batch=150)
    modules = find_modules(x, y, 2, restarts=8, key=jax.random.key(1), search=quick)
    assert module_recovery(modules.U, U) > 0.9


def test_scale_of_labels_and_inputs_does_not_matter(found):
    x, y, _, _ = found
    scale = np.array([1e-3, 1, 10, 2e3, 5, 0.1])
    scaled = find_modules(
        x * scale + 5, 1000 * y + 3, 2, restarts=8, key=jax.random.key(1), search=QUICK, standardize=True
    )
    plain = find_modules((x - x.mean(0)) / x.std(0), y, 2, restarts=8, key=jax.random.key(1), search=QUICK)
    assert module_recovery(scaled.U, plain.U) > 0.999


def test_a_failed_factorisation_raises_the_ridge():
    x = np.repeat(np.random.default_rng(0).normal(size=(75, 6)), 2, 0)  # duplicates: singular without a ridge
    y = np.sin(2 * x[:, 0]) + 0.01 * np.random.default_rng(1).normal(size=150)
    modules = find_modules(x, y, 1, restarts=4, search=replace(QUICK, doubtful=1.0), lam=1e-7)
    assert 1e-7 < modules.lam <= 1e-4


def test_a_factorisation_that_never_succeeds(monkeypatch):
    monkeypatch.setattr(module, "objectives", lambda V, *_: np.full(len(V), np.nan))
    x, y, _ = planted()
    with pytest.raises(InputError, match="lam=1000"):
        find_modules(x, y, 2, restarts=8, search=QUICK)


def test_duplicates_with_other_labels_are_fine():
    x, y, U = planted()
    x, y = np.concatenate([x[:75], x[:75]]), np.concatenate([y[:75], y[:75] + 0.1])
    assert module_recovery(find_modules(x, y, 2, restarts=8, key=jax.random.key(1), search=QUICK).U, U) > 0.8


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"n": 9}, "9 samples are too few"),
        ({"b": 7}, "7 dimensions where the input has 6"),
        ({"y": 1.0}, "nothing to explain"),
        ({"y": np.nan}, "Y is not finite"),
        ({"x": np.inf}, r"X is not finite .* row 3, column 2"),
        ({"kernel": "cubic"}, "no kernel 'cubic'"),
        ({"restarts": 3}, "twice as many restarts"),
        ({"K": 0}, "at least 1"),
        ({"lam": -1.0}, "must not be negative"),
        ({"short": True}, "got shapes"),
        ({"text": True}, "must hold numbers"),
    ],
)
def test_bad_input(change, words):
    x, y, _ = planted()
    x, y = x.copy(), y.copy()
    if "n" in change:
        x, y = x[: change["n"]], y[: change["n"]]
    if "y" in change:
        y[:] = change["y"]
    if "x" in change:
        x[3, 2] = change["x"]
    if "short" in change:
        y = y[1:]
    if "text" in change:
        x = np.full(x.shape, "red")
    with pytest.raises(InputError, match=words):
        find_modules(
            x, y, change.get("K", 2), change.get("b", 1), change.get("kernel", "rbf"), change.get("lam", 1.0),
            change.get("restarts", 8), search=QUICK,
        )  # fmt: skip


def test_warnings():
    x, y, _ = planted()
    with pytest.warns(UserWarning, match="overlap in 6 inputs"):
        find_modules(x, y, 8, restarts=16, search=replace(QUICK, improve=10.0, doubtful=10.0))
    x[:, 0] *= 1e4
    with pytest.warns(UserWarning, match="standardize=True"):
        find_modules(x, y, 1, restarts=8, search=replace(QUICK, improve=10.0, doubtful=10.0))


def test_a_killed_search_goes_on(found, tmp_path, monkeypatch):
    x, y, _, whole = found

    def search():
        return find_modules(x, y, 2, restarts=8, key=jax.random.key(1), search=QUICK, folder=tmp_path)

    original = module._descend
    monkeypatch.setattr(module, "_descend", fault_inject(original, at_call=1))
    with pytest.raises(Killed):
        search()
    calls = []
    monkeypatch.setattr(module, "_descend", lambda *a: calls.append(1) or original(*a))
    np.testing.assert_array_equal(search().U, whole.U)
    first = len(calls)
    np.testing.assert_array_equal(search().U, whole.U)
    assert len(calls) == first  # all from disk
    find_modules(x, 2 * y + x[:, 0], 2, restarts=8, key=jax.random.key(1), search=QUICK, folder=tmp_path)
    assert len(calls) > first  # other labels: other results

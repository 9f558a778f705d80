"""Masks, inner runs, and the transfer experiment."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from iclr_shared.errors import InputError
from iclr_shared.seeds import root
from iclr_subset import layers, transfer

DEPTH, K = 4, 2


@pytest.fixture(scope="module")
def task():
    return transfer.digits_task(root(0), labels=40)


@pytest.fixture(scope="module")
def model(task):
    return transfer.pretrain(task, root(0), width=8, depth=DEPTH, steps=40)


def test_only_the_chosen_move(task, model):
    mask = layers.layer_mask(model, (1, 3))
    tuned = layers.finetune(model, mask, *task.train, steps=3)
    for i, (before, after) in enumerate(zip(model.blocks, tuned.blocks, strict=True)):
        moved = not np.array_equal(before.inner.weight, after.inner.weight)
        assert moved == (i in (1, 3))
    assert np.array_equal(model.stem.weight, tuned.stem.weight)
    assert not np.array_equal(model.head.weight, tuned.head.weight)
    still = layers.layer_mask(model, (), always=None)
    assert not any(jax.tree.leaves(still))


def test_frozen_optimizer(task, model):
    """optax.multi_transform gives the stock inner run's result."""
    mask = layers.layer_mask(model, (0, 2))
    optimizer = layers.frozen_optimizer(optax.adam(2e-3), mask)
    arrays, rest = eqx.partition(model, eqx.is_inexact_array)
    X, y = task.train

    @jax.jit
    def step(arrays, state):
        def loss(arrays):
            logits = jax.vmap(eqx.combine(arrays, rest))(X)
            return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()

        updates, state = optimizer.update(jax.grad(loss)(arrays), state)
        return optax.apply_updates(arrays, updates), state

    state = optimizer.init(arrays)
    for _ in range(3):
        arrays, state = step(arrays, state)
    other = layers.finetune(model, mask, X, y, steps=3, lr=2e-3)
    np.testing.assert_allclose(arrays.blocks[2].inner.weight, other.blocks[2].inner.weight, atol=1e-6)
    assert np.array_equal(arrays.blocks[1].inner.weight, model.blocks[1].inner.weight)


def test_all_at_once_is_one_by_one(task, model):
    found = transfer.truth(model, task, K, steps=5)
    assert len(found.subsets) == 6
    for i in (0, 4):
        tuned = layers.finetune(model, layers.layer_mask(model, found.subsets[i]), *task.train, steps=5)
        for (X, y), errors in ((task.validation, found.validation), (task.test, found.test)):
            one = float(jnp.mean(jax.vmap(tuned)(X).argmax(1) != y))
            assert one == pytest.approx(float(errors[i]), abs=0.011)  # float32, ties at the border
    assert found.rank(found.subsets[int(found.test.argmin())]) == 1


def test_select(task, model):
    seen = []

    def fit(ready, mask):
        seen.append(ready)
        return layers.finetune(ready, mask, *task.train, steps=2)

    def judge(tuned):
        X, y = task.validation
        return jnp.mean(jax.vmap(tuned)(X).argmax(1) != y)

    found = layers.select(model, K, fit, judge, budget=4)
    assert len(found.subset) == K
    assert len(seen) == found.evaluations <= 4
    for ready in seen:  # always the pre-trained weights
        assert np.array_equal(ready.blocks[0].inner.weight, model.blocks[0].inner.weight)
    assert layers.select(model, K, fit, judge, strategy="last").subset == (2, 3)


class Normed(eqx.Module):
    blocks: tuple[eqx.nn.BatchNorm, ...]
    head: eqx.nn.Linear


def test_statistics_stay_frozen():
    norms = tuple(eqx.nn.BatchNorm(3, "batch", mode="batch") for _ in range(3))
    model = Normed(norms, eqx.nn.Linear(3, 2, key=jax.random.key(0)))
    ready = layers.freeze_statistics(model, (1,))
    assert [norm.inference for norm in ready.blocks] == [True, False, True]


def test_tables():
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((60, 3)), np.array(["a", "b"] * 30)
    task = transfer.table_task((X, y), (X + 1, y), root(0), labels=20)
    assert [len(part[1]) for part in (task.source, task.train, task.validation, task.test)] == [60, 20, 16, 24]
    assert task.classes == 2


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m, t: layers.layer_mask(m, (4,)), "Blocks go from 0 to 3"),
        (lambda m, t: transfer.truth(m, t, 4), "below the network's 4 blocks"),
        (lambda m, t: layers.select(m, 5, lambda m, mask: m, lambda m: 0.0), "below n = 4"),
        (lambda m, t: transfer.digits_task(root(0), 5), "10 to 400"),
        (lambda m, t: transfer.digits_task(root(0), shift="tilt"), "A shift is one of"),
        (lambda m, t: transfer.pretrain(t, root(0), 0), "width of 1"),
        (
            lambda m, t: transfer.table_task((np.ones((9, 2)), np.ones(9)), (np.ones((9, 3)), np.ones(9)), root(0)),
            "same",
        ),
        (
            lambda m, t: transfer.table_task((np.ones((9, 2)), np.ones(9)), (np.ones((9, 2)), np.ones(9)), root(0)),
            "rows",
        ),
    ],
)
def test_bad_input(call, message, model, task):
    with pytest.raises(InputError, match=message):
        call(model, task)

import dataclasses
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from iclr_dynamics.late_sam.attack import Attack
from iclr_dynamics.late_sam.objective import cross_entropy, flax_model, function_model, one_hot, training_loss
from iclr_dynamics.late_sam.schedule import LearningRate, SwitchSchedule
from iclr_dynamics.late_sam.sweep import switch_sweep
from iclr_dynamics.late_sam.training import Training, _batches, _stretches, fit
from iclr_dynamics.networks import MLP, Split
from iclr_shared.checkpoints import Checkpoint
from iclr_shared.errors import InputError

KEY = jax.random.key(0)
X = jnp.asarray(np.random.default_rng(1).random((22, 3), np.float32))
Y = one_hot(np.arange(22) % 2, 2)
DATA = Split(X, Y, X[:4], Y[:4])
MODEL = flax_model(MLP((4, 2), activation="tanh"))
TRAINING = Training(epochs=4, learning_rate=0.1, batch_size=5, rho=0.2, smoothing=0.0, attack=Attack(0.1, 0.05, 2))


def train(schedule, training=TRAINING, **options):
    return fit(MODEL, DATA, schedule, training, key=KEY, **options)


def equal(one, two):
    jax.tree.map(np.testing.assert_array_equal, one.params, two.params)


def close(one, two):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7), one.params, two.params)


def differ(one, two):
    return not all(jax.tree.leaves(jax.tree.map(lambda a, b: np.allclose(a, b, atol=1e-7), one.params, two.params)))


def norm(params):
    return float(np.sqrt(sum((np.asarray(leaf) ** 2).sum() for leaf in jax.tree.leaves(params))))


def test_a_run_is_reproducible_and_depends_on_its_key():
    run = train(SwitchSchedule.late_from(2))
    equal(run, train(SwitchSchedule.late_from(2)))
    assert differ(run, fit(MODEL, DATA, SwitchSchedule.late_from(2), TRAINING, key=jax.random.key(9)))
    assert len(run.losses) == 4 * 4
    assert run.epoch_losses.shape == (4,)
    assert run.norms[0] == pytest.approx(norm(MODEL.init(jax.random.split(KEY, 3)[0], X[:1])[0]), rel=1e-6)


def test_prefix_does_not_depend_on_the_switch():
    plain, late = train(SwitchSchedule.never()), train(SwitchSchedule.late_from(3))
    np.testing.assert_array_equal(plain.losses[:12], late.losses[:12])
    # The first late step starts at the same weights on the same batch.
    assert plain.losses[12] == late.losses[12]
    assert differ(plain, late)


@pytest.mark.parametrize("mode", ["sam", "usam", "asam"])
def test_rho_zero_is_sgd_bit_for_bit(mode):
    nothing = dataclasses.replace(TRAINING, rho=0.0)
    equal(train(SwitchSchedule.always(mode), nothing), train(SwitchSchedule.never(), nothing))
    carried = dataclasses.replace(nothing, carry_momentum=True)
    equal(train(SwitchSchedule(1, 2, late=mode), carried), train(SwitchSchedule.never(), nothing))


def test_momentum_starts_at_zero_at_the_switch_unless_carried():
    nothing = dataclasses.replace(TRAINING, rho=0.0)
    plain = train(SwitchSchedule.never(), nothing)
    reset = train(SwitchSchedule.late_from(2), nothing)
    assert differ(plain, reset)
    # By hand: SGD up to the switch, then SGD from these weights with a fresh buffer.
    first = train(SwitchSchedule.never(), nothing, until=2)
    course = first.course._replace(optimizers={})
    equal(reset, train(SwitchSchedule.never(), nothing, start=dataclasses.replace(first, course=course)))


def test_sgd_keeps_its_own_stale_momentum_after_the_window():
    """Two optimisers exist, each with its buffer: after the window SGD goes on with the one it had."""
    nothing = dataclasses.replace(TRAINING, rho=0.0)
    run = train(SwitchSchedule(1, 1), nothing)
    before = train(SwitchSchedule.never(), nothing, until=1)
    inside = train(SwitchSchedule.always(), nothing, start=before, until=2)
    kept = inside.course._replace(optimizers=before.course.optimizers)
    equal(run, train(SwitchSchedule.never(), nothing, start=dataclasses.replace(inside, course=kept)))


def test_a_switch_that_rounds_to_the_end_is_said():
    with pytest.warns(UserWarning, match="no epoch of sam"):
        run = train(SwitchSchedule.late_from(0.9, unit="fraction"))
    equal(run, train(SwitchSchedule.never()))


def test_switch_inside_an_epoch():
    run = train(SwitchSchedule(6, unit="steps"))
    equal(run, train(SwitchSchedule(6, 16, unit="steps")))
    np.testing.assert_array_equal(run.losses[:7], train(SwitchSchedule.never()).losses[:7])
    assert run.losses[8] != train(SwitchSchedule.never()).losses[8]


def test_against_a_loop_written_out():
    """Shuffled batches, momentum, coupled decay and a rate that drops, against plain NumPy on a linear model."""
    model = function_model(lambda w, x: x @ w)
    training = Training(
        epochs=3,
        learning_rate=LearningRate(0.1, "multistep", (1,), 0.5),
        batch_size=5,
        momentum=0.9,
        weight_decay=0.01,
        loss="mse",
    )
    start = jnp.ones((3, 2))
    run = fit(model, DATA, SwitchSchedule.never(), training, key=KEY, init=start)
    w, velocity = np.ones((3, 2)), np.zeros((3, 2))
    order_key = jax.random.split(KEY, 3)[1]
    for epoch in range(3):
        order = np.asarray(jax.random.permutation(jax.random.fold_in(order_key, epoch), 22))
        for batch in range(4):
            chosen = order[5 * batch : 5 * batch + 5]
            x, y = np.asarray(X)[chosen], np.asarray(Y)[chosen]
            velocity = 0.9 * velocity + x.T @ (x @ w - y) / 5 + 0.01 * w
            w = w - (0.1 if epoch < 1 else 0.05) * velocity
    np.testing.assert_allclose(run.params, w, rtol=1e-5)


def test_batches_of_an_epoch_are_a_permutation():
    """Whatever part of the run is asked for: three batches at a time where an epoch has four."""
    whole = np.asarray(_batches(22, 5, "shuffle", 16, KEY, 0, 16))
    for epoch in whole.reshape(4, 20):
        assert len(set(epoch.tolist())) == 20
    assert not np.array_equal(whole[:4], whole[4:8])
    for piece, stop in _stretches(0, 16, 4, [], (0, 16), 3):
        part = np.asarray(_batches(22, 5, "shuffle", 3, KEY, piece, stop - piece))
        np.testing.assert_array_equal(part[: stop - piece], whole[piece:stop])


def test_batches_with_replacement():
    drawn = np.asarray(_batches(22, 5, "replacement", 40, KEY, 0, 40))
    assert set(drawn.ravel().tolist()) == set(range(22))
    assert any(len(set(batch.tolist())) < 5 for batch in drawn)
    np.testing.assert_array_equal(_batches(22, 5, "replacement", 40, KEY, 30, 10)[:10], drawn[30:])


@pytest.mark.parametrize("stop", [1, 3])
def test_resume_gives_the_same_run(tmp_path, stop):
    """Stopped before or inside the SAM phase; momentum, batches, rate and mode have to come back."""
    training = dataclasses.replace(TRAINING, learning_rate=LearningRate(0.1, "multistep", (3,)))
    schedule = SwitchSchedule.late_from(2)
    options = {"measure": lambda params, extra: {"norm": norm(params)}}
    whole = train(schedule, training, **options)
    train(schedule, training, checkpoint=Checkpoint(tmp_path), until=stop, **options)
    resumed = train(schedule, training, checkpoint=Checkpoint(tmp_path), **options)
    equal(whole, resumed)
    np.testing.assert_array_equal(whole.losses, resumed.losses)
    assert whole.measurements == resumed.measurements
    assert [values["epoch"] for values in whole.measurements] == [1, 2, 3, 4]


def test_resume_after_a_fault(tmp_path):
    """The process dies in the third epoch, after two were saved."""

    class Killed(BaseException):
        pass

    calls = []

    def measure(params, extra):
        calls.append(1)
        if len(calls) == 3:
            raise Killed
        return {}

    with pytest.raises(Killed):
        train(SwitchSchedule.late_from(2), checkpoint=Checkpoint(tmp_path), measure=measure)
    assert Checkpoint(tmp_path).latest()[0] == 8
    resumed = train(SwitchSchedule.late_from(2), checkpoint=Checkpoint(tmp_path), measure=measure)
    equal(resumed, train(SwitchSchedule.late_from(2)))


def test_checkpoint_of_another_run_is_refused(tmp_path):
    train(SwitchSchedule.late_from(2), checkpoint=Checkpoint(tmp_path), until=1)
    other = DATA._replace(x=X[::-1])
    with pytest.raises(InputError, match="another data"):
        fit(MODEL, other, SwitchSchedule.late_from(2), TRAINING, key=KEY, checkpoint=Checkpoint(tmp_path))
    with pytest.raises(InputError, match="another init"):
        train(SwitchSchedule.late_from(2), init=MODEL.init(KEY, X[:1]), checkpoint=Checkpoint(tmp_path))
    with pytest.raises(InputError, match="another rho, switch_start"):
        train(SwitchSchedule.late_from(3), dataclasses.replace(TRAINING, rho=0.1), checkpoint=Checkpoint(tmp_path))


def test_late_fine_tuning_of_given_weights():
    params = jax.tree.map(lambda leaf: np.asarray(leaf) + np.float32(0.1), MODEL.init(KEY, X[:1])[0])
    run = train(SwitchSchedule.always("sam"), init=params)
    assert run.norms[0] == pytest.approx(norm(params), rel=1e-6)
    equal(run, train(SwitchSchedule.always("sam"), init=(params, {})))


def test_own_optimizer_on_the_full_batch():
    whole = dataclasses.replace(TRAINING, batch_size=None)
    run = train(SwitchSchedule.never(), whole, optimizer=adam)
    params = start = MODEL.init(jax.random.split(KEY, 3)[0], X[:1])[0]
    optimizer, gradient = optax.adam(0.1), jax.jit(jax.grad(training_loss(MODEL, cross_entropy)))

    @jax.jit
    def step(params, state):
        updates, state = optimizer.update(gradient(params, {}, X, Y), state)
        return optax.apply_updates(params, updates), state

    state = jax.jit(optimizer.init)(start)
    for _ in range(4):
        params, state = step(params, state)
    assert len(run.losses) == 4
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), run.params, params)


def adam(rate):
    return optax.inject_hyperparams(optax.adam)(learning_rate=rate)


def test_adversarial_training_carries_momentum():
    """An attack without a radius is harmless: with one momentum buffer the run is that of SGD."""
    harmless = dataclasses.replace(TRAINING, attack=Attack(0.0, 0.0, 1))
    plain = train(SwitchSchedule.never(), harmless)
    close(train(SwitchSchedule.late_from(2, "at"), harmless), plain)
    reset = dataclasses.replace(harmless, carry_momentum=False)
    assert differ(train(SwitchSchedule.late_from(2, "at"), reset), plain)
    # Adversarial steps have the plain cross-entropy, whatever the smoothing of the others.
    smoothed = dataclasses.replace(harmless, smoothing=0.1)
    equal(train(SwitchSchedule.always("at"), smoothed), train(SwitchSchedule.always("at"), harmless))


def test_sweep_branches_are_whole_runs(tmp_path):
    runs = switch_sweep(MODEL, DATA, TRAINING, [0, 2, 4], key=KEY, folder=tmp_path)
    assert list(runs) == [0, 2, 4]
    for switch, run in runs.items():
        alone = train(SwitchSchedule(switch))
        equal(run, alone)
        np.testing.assert_array_equal(run.losses, alone.losses)
    again = switch_sweep(MODEL, DATA, TRAINING, [0, 2, 4], key=KEY, folder=tmp_path)
    for switch in runs:
        equal(runs[switch], again[switch])
    early = switch_sweep(MODEL, DATA, TRAINING, [2], key=KEY, first="sam", late="sgd")
    equal(early[2], train(SwitchSchedule.early_until(2)))
    with pytest.raises(InputError, match="epochs from 0 to 4"):
        switch_sweep(MODEL, DATA, TRAINING, [5], key=KEY)


def test_mesh_of_one_device_is_no_mesh():
    mesh = jax.make_mesh((1,), ("data",), devices=jax.devices()[:1])
    close(train(SwitchSchedule.always("sam"), mesh=mesh), train(SwitchSchedule.always("sam")))


@pytest.mark.slow
def test_two_devices_give_the_run_of_one():
    code = """
import jax, numpy as np
jax.config.update("jax_num_cpu_devices", 2)
from iclr_dynamics.late_sam import *
from iclr_dynamics.networks import MLP, Split
x = jax.random.uniform(jax.random.key(1), (22, 3)); y = one_hot(np.arange(22) % 2, 2)
model, data = flax_model(MLP((4, 2), activation="tanh")), Split(x, y, x, y)
training = Training(epochs=2, learning_rate=0.1, batch_size=6, rho=0.2)
runs = [fit(model, data, SwitchSchedule.late_from(1), training, key=jax.random.key(0), **options) for options in (
    {}, {"mesh": jax.make_mesh((2,), ("data",))}, {"mesh": jax.make_mesh((2,), ("data",)), "sync_perturbation": False})]
one, two, other = (np.concatenate([leaf.ravel() for leaf in jax.tree.leaves(run.params)]) for run in runs)
np.testing.assert_allclose(one, two, rtol=1e-4, atol=1e-6)
assert not np.allclose(one, other, rtol=1e-4, atol=1e-6)
"""
    subprocess.run([sys.executable, "-c", code], env=os.environ | {"JAX_PLATFORMS": "cpu"}, check=True)


def test_bad_input():
    whole = dataclasses.replace(TRAINING, batch_size=None)
    with pytest.raises(InputError, match="each of 0 samples"):
        fit(MODEL, Split(X[:0], Y[:0], X, Y), SwitchSchedule.never(), whole, key=KEY)
    with pytest.raises(InputError, match="batch_size=50 is larger"):
        train(SwitchSchedule.never(), dataclasses.replace(TRAINING, batch_size=50))
    with pytest.raises(InputError, match="beyond the training"):
        train(SwitchSchedule(9))
    with pytest.raises(InputError, match="one-hot rows"):
        fit(MODEL, Split(X, Y[:3], X, Y), SwitchSchedule.never(), TRAINING, key=KEY)
    with pytest.raises(InputError, match=r"stopped being finite in steps 0 to 16 \(epoch 0, mode sgd"):
        train(SwitchSchedule.never(), dataclasses.replace(TRAINING, learning_rate=1e30))
    with pytest.raises(InputError, match="data or the first weights are not finite"):
        fit(MODEL, DATA._replace(x=X.at[0, 0].set(np.nan)), SwitchSchedule.never(), TRAINING, key=KEY)
    with pytest.raises(InputError, match="until=0"):
        train(SwitchSchedule.never(), until=0)
    with pytest.raises(InputError, match=r"inputs in \[0, 1\]"):
        fit(MODEL, DATA._replace(x=X * 9), SwitchSchedule.always("at"), TRAINING, key=KEY)
    for changes, message in (
        ({"rho": -0.1}, "at least 0"),
        ({"epochs": 0}, "at least one epoch"),
        ({"momentum": 1.0}, "in .0, 1."),
        ({"weight_decay": float("nan")}, "at least 0"),
        ({"batch_size": 0}, "at least 1"),
        ({"sampling": "sorted"}, "'sorted' is unknown"),
    ):
        with pytest.raises(InputError, match=message):
            dataclasses.replace(TRAINING, **changes)

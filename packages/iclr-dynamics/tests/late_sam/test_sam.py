import jax
import jax.numpy as jnp
import numpy as np
import optax
import optax.contrib
import pytest

from iclr_dynamics.late_sam.sam import (
    PERTURBATIONS,
    TrainState,
    asam_perturbation,
    base_optimizer,
    make_step,
    sam,
    sam_perturbation,
    usam_perturbation,
    with_learning_rate,
)
from iclr_shared.errors import InputError


def quartic(params, target):
    return jnp.sum((params["a"] ** 2 - target) ** 2) + jnp.sum(params["b"] * params["a"][0]) ** 2


PARAMS = {"a": jnp.array([0.5, -1.0, 2.0]), "b": jnp.array([[0.3, 0.1]])}
TARGET = jnp.array([1.0, 2.0, 3.0])
GRADS = jax.jit(jax.grad(quartic))(PARAMS, TARGET)


def objective(params, extra, batch, key):
    return quartic(params, batch), (extra, None)


def run(optimizer, steps=3, params=PARAMS, **options):
    step = jax.jit(make_step(objective, optimizer, **options))
    state = TrainState(params, (), optimizer.init(params))
    for _ in range(steps):
        state, _ = step(state, TARGET, None)
    return state.params


def close(one, two, **tolerance):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, **tolerance), one, two)


def test_single_step_by_hand():
    optimizer = sam(optax.sgd(0.1), 0.5)
    step = make_step(lambda w, extra, batch, key: (w**2 / 2, (extra, None)), optimizer)
    w = jnp.asarray(1.0)
    state, (loss, _) = step(TrainState(w, (), optimizer.init(w)), None, None)
    assert float(state.params) == pytest.approx(0.85)
    assert float(loss) == 0.5


@pytest.mark.parametrize("rho", [0.05, 0.3])
def test_perturbations_have_their_norms(rho):
    grads = GRADS
    assert float(optax.tree.norm(sam_perturbation(grads, PARAMS, rho))) == pytest.approx(rho, rel=1e-6)
    close(usam_perturbation(grads, PARAMS, rho), jax.tree.map(lambda g: rho * g, grads), rtol=1e-7)
    # ASAM lies on the ellipsoid | e / |w| | = rho, and climbs furthest on it.
    adaptive = asam_perturbation(grads, PARAMS, rho)
    ratio = jax.tree.map(lambda e, w: e / jnp.abs(w), adaptive, PARAMS)
    assert float(optax.tree.norm(ratio)) == pytest.approx(rho, rel=1e-6)
    weighted = jax.tree.map(lambda w, g: jnp.abs(w) * g, PARAMS, grads)
    assert float(optax.tree.vdot(adaptive, grads)) == pytest.approx(rho * float(optax.tree.norm(weighted)), rel=1e-6)


@pytest.mark.parametrize("name", PERTURBATIONS)
def test_zero_gradient_or_weights_do_not_move(name):
    zeros = jax.tree.map(jnp.zeros_like, PARAMS)
    close(PERTURBATIONS[name](zeros, PARAMS, 0.1), zeros)
    if name == "asam":
        close(asam_perturbation(GRADS, zeros, 0.1), zeros)


def test_against_the_loop_written_out():
    """Two steps with momentum and coupled decay in NumPy, in the order of the official code."""
    rate, momentum, decay, rho = 0.01, 0.9, 0.1, 0.2
    w = np.concatenate([np.ravel(PARAMS["a"]), np.ravel(PARAMS["b"])]).astype(np.float64)
    velocity = np.zeros_like(w)

    def gradient(w):
        a, b = w[:3], w[3:]
        inner = b.sum() * a[0]
        ga = 4 * a * (a**2 - np.array(TARGET))
        ga[0] += 2 * inner * b.sum()
        return np.concatenate([ga, np.full(2, 2 * inner * a[0])])

    for _ in range(2):
        g = gradient(w)
        second = gradient(w + rho * g / (np.linalg.norm(g) + 1e-12))
        velocity = momentum * velocity + second + decay * w
        w = w - rate * velocity
    ours = run(sam(base_optimizer(rate, momentum, decay), rho), steps=2)
    np.testing.assert_allclose(np.concatenate([np.ravel(ours["a"]), np.ravel(ours["b"])]), w, rtol=1e-5)


def test_against_optax_sam_in_its_other_mode():
    rate, rho = 0.01, 0.2
    reference = optax.contrib.sam(
        optax.sgd(rate, momentum=0.9), optax.chain(optax.contrib.normalize(), optax.sgd(rho)), sync_period=2
    )
    params, state = PARAMS, reference.init(PARAMS)

    @jax.jit
    def half(params, state):
        updates, state = reference.update(jax.grad(quartic)(params, TARGET), state, params)
        return optax.apply_updates(params, updates), state

    for _ in range(6):
        params, state = half(params, state)
    close(run(sam(base_optimizer(rate, 0.9), rho), steps=3), params, rtol=1e-5)


def test_rho_zero_is_sgd_bit_for_bit():
    close(run(sam(optax.sgd(0.01, momentum=0.9), 0.0)), run(optax.sgd(0.01, momentum=0.9)), rtol=0, atol=0)


def test_decay_is_no_part_of_the_perturbation():
    """At a stationary point of the loss only decay moves the weights, straight towards zero."""
    optimizer = sam(base_optimizer(0.1, 0.0, 0.5), 0.3)
    step = make_step(lambda w, extra, batch, key: (jnp.sum((w - 1) ** 2), (extra, None)), optimizer)
    w = jnp.ones(2)
    state, _ = step(TrainState(w, (), optimizer.init(w)), None, None)
    np.testing.assert_allclose(state.params, 0.95 * np.ones(2), rtol=1e-6)


def test_normalised_sam_two_cycle():
    """Amplitude eta h rho / (2 - eta h) = 0.0333333 for eta 0.1, h 5, rho 0.1."""
    optimizer = sam(optax.sgd(0.1), 0.1)
    step = jax.jit(make_step(lambda w, extra, batch, key: (5 * w**2 / 2, (extra, None)), optimizer))
    state = TrainState(jnp.asarray(1.0), (), optimizer.init(jnp.asarray(1.0)))
    for _ in range(200):
        state, _ = step(state, None, None)
    assert abs(float(state.params)) == pytest.approx(0.0333333, rel=1e-4)


def test_running_statistics_come_from_the_first_pass():
    seen = []

    def loss(w, extra, batch, key):
        return jnp.sum(w * batch), ({"mean": jnp.sum(w)}, None)

    optimizer = sam(optax.sgd(0.1), 0.5)
    state = TrainState(jnp.ones(2), {"mean": jnp.asarray(0.0)}, optimizer.init(jnp.ones(2)))
    state, _ = make_step(loss, optimizer)(state, jnp.ones(2), None)
    seen.append(float(state.extra["mean"]))
    assert seen == [2.0]  # at w, not at w + e


def split(sync, rho=0.2, parts=2):
    """One step over a batch that `vmap` splits like devices do."""

    def loss(params, extra, batch, key):
        return jnp.mean((batch @ params) ** 2 + jnp.cos(batch @ params)), (extra, None)

    data = jnp.asarray(np.random.default_rng(1).standard_normal((8, 3), np.float32))
    params = jnp.array([0.4, -0.2, 0.1])
    axis = "data" if parts > 1 else None
    optimizer = sam(optax.sgd(0.1), rho, axis_name=axis)
    step = make_step(loss, optimizer, axis_name=axis, sync_perturbation=sync)
    state = TrainState(params, (), optimizer.init(params))
    if parts == 1:
        return jax.jit(step)(state, data, None)[0].params
    step = jax.jit(jax.vmap(step, in_axes=(None, 0, None), axis_name="data"))
    outcome = step(state, data.reshape(parts, -1, 3), None)[0].params
    np.testing.assert_allclose(outcome[0], outcome[1])
    return outcome[0]


def test_devices_share_the_perturbation_or_not():
    np.testing.assert_allclose(split(True), split(True, parts=1), rtol=1e-5)
    assert not np.allclose(split(False), split(True), rtol=1e-4)  # m-sharpness is another method
    np.testing.assert_allclose(split(False, rho=0.0), split(True, rho=0.0, parts=1), rtol=1e-5)


def test_learning_rate_can_be_set():
    state = sam(base_optimizer(0.1, 0.9), 0.1).init(PARAMS)
    assert float(optax.tree.get(with_learning_rate(state, 0.5), "learning_rate")) == 0.5
    plain = optax.sgd(0.1).init(PARAMS)
    assert with_learning_rate(plain, 0.5) is plain


def test_bad_radii():
    with pytest.raises(InputError, match="at least 0"):
        sam(optax.sgd(0.1), -0.1)
    with pytest.raises(InputError, match="at least 0"):
        sam(optax.sgd(0.1), float("nan"))
    with pytest.raises(InputError, match="adaptive=False"):
        sam(optax.sgd(0.1), 0.1, adaptive=True, normalize=False)
    with pytest.warns(UserWarning, match="large for SAM that is not adaptive"):
        sam(optax.sgd(0.1), 2.0)
    sam(optax.sgd(0.1), 2.0, adaptive=True)

import functools
import json
import os
import subprocess
import sys

import jax
import numpy as np
import pytest

import iclr_welfare as iw
from iclr_shared.checkpoints import Checkpoint
from iclr_shared.errors import InputError
from iclr_shared.testing import Killed
from iclr_welfare import simulation

KEY = jax.random.key(7)


def by_loop(people, policy, M, T):
    """The dynamics without noise, person by person in Python floats."""
    U = people.U0.tolist()
    means = [np.mean(U)]
    f, g = (lambda u, r=r: r(np.full(people.N, u)) for r in (people.f, people.g))
    for _ in range(T):
        fU, gU = ([float(r(U[i])[i]) for i in range(people.N)] for r in (f, g))
        keys = {
            "rawlsian": [(U[i], i) for i in range(people.N)],
            "util_gain": [(-fU[i] - gU[i], i) for i in range(people.N)],
            "util_return": [(-fU[i], i) for i in range(people.N)],
            "util_need": [(-gU[i], U[i], i) for i in range(people.N)],
            "max_welfare": [(-U[i], i) for i in range(people.N)],
        }
        S = [key[-1] for key in sorted(keys[policy])[:M]]
        U = [U[i] + fU[i] if i in S else U[i] - gU[i] for i in range(people.N)]
        means.append(np.mean(U))
    return np.array(means), np.array(U)


@pytest.mark.parametrize("policy", [p for p in iw.POLICIES if p != "random"])
@pytest.mark.parametrize("M", [1, 3])
def test_against_a_loop_over_people(mixed, policy, M):
    means, U = by_loop(mixed, policy, M, 40)
    result = iw.simulate(mixed, policy, M, 40, key=KEY)
    np.testing.assert_allclose(result.mean, means, rtol=1e-12)
    np.testing.assert_allclose(result.U_T, U, rtol=1e-12)
    assert result.selected_counts.sum() == 40 * M


def test_reference_values_of_the_noise_free_run(reference):
    ends = {}
    for policy in ("rawlsian", "util_gain", "util_need"):
        result = iw.simulate(reference, policy, 1, 6000, key=KEY, record=())
        ends[policy] = (float(result.growth_at(10)), float(result.growth_at(6000)), float(result.late_slope()))
    assert ends["rawlsian"] == pytest.approx((256.1312, 265.1986, 265.25), abs=5e-5)
    assert ends["util_gain"] == pytest.approx((265.1131, 217.9765, 216.5), abs=5e-5)
    assert ends["util_need"][2] == pytest.approx(265.25, abs=1e-6)


def test_late_slopes_are_the_closed_forms_for_every_family():
    U0 = np.random.default_rng(2).uniform(0, 100, 8)
    families = {
        "step": (iw.Step(400.0, 500.0, 0.0), iw.Step(20.0, 5.0, 0.0)),
        "logistic": (iw.Logistic(400.0, 500.0, 0.0, 20.0), iw.Logistic(20.0, 5.0, 0.0, 20.0)),
        "constant": (iw.Constant(450.0), iw.Constant(10.0)),
    }
    for f, g in families.values():
        people = iw.Population(U0, f, g)
        for policy in ("rawlsian", "util_gain"):
            result = iw.simulate(people, policy, 2, 2000, key=KEY, record=())
            S = result.locked_set
            target = iw.rate_rawls(people, 2) if policy == "rawlsian" else iw.rate_locked(people, S)
            assert float(result.late_slope()) == pytest.approx(target, rel=1e-9)


def test_simulation_agrees_with_the_exact_condition(mixed):
    for M in (1, 3):
        late = {
            p: iw.simulate(mixed, p, M, 4000, key=KEY, record=(), record_every=100) for p in ("rawlsian", "util_gain")
        }
        verdict = iw.who_wins(mixed, M, late["util_gain"].locked_set)
        assert late["util_gain"].is_locked
        gap = float(late["rawlsian"].late_slope() - late["util_gain"].late_slope())
        assert gap == pytest.approx(verdict.gap, rel=2e-2)
        assert np.ptp(late["rawlsian"].rates) / verdict.rawls < 0.05


def test_in_between_the_start_decides():
    people = [iw.linear(np.full(4, u), 10.0, 110.0, 20.0, 5.0) for u in (-4000.0, 4000.0)]
    assert iw.regime(people[0], 1) == "indeterminate"
    low, high = (float(iw.simulate(p, "rawlsian", 1, 2000, key=KEY, record=()).late_slope()) for p in people)
    assert low == pytest.approx(iw.rate_rawls_down(people[0], 1))
    assert high == pytest.approx(iw.rate_rawls_up(people[0], 1))


def run(people, **options):
    noise = iw.Noise(400.0)
    record = ("mean", "average", "min")
    return iw.simulate(
        people, "random", 3, 60, key=KEY, **{"seeds": 4, "noise": noise, "record": record, "record_every": 4} | options
    )


def test_the_same_however_the_work_is_divided(mixed):
    whole = run(mixed)
    other = run(mixed, chunk=20)
    for name in ("mean", "average", "min", "U_T", "U_half", "late_counts"):
        np.testing.assert_array_equal(getattr(other, name), getattr(whole, name), err_msg=name)
    part = run(mixed, seeds=[2, 3])
    np.testing.assert_allclose(part.U_T, whole.U_T[2:], rtol=1e-12)
    assert whole[1].U_T.shape == (10,)


def test_what_is_recorded(mixed):
    result = run(mixed, record=("average", "min", "welfare"), record_every=7)
    np.testing.assert_array_equal(result.times, [0, 7, 14, 21, 28, 35, 42, 49, 56, 60])
    np.testing.assert_allclose(result.welfare.mean(-1), result.mean, rtol=1e-12)
    np.testing.assert_allclose(result.welfare.min(-1), result.min)
    np.testing.assert_array_equal(result.welfare[:, 0], np.broadcast_to(mixed.U0, (4, 10)))
    np.testing.assert_array_equal(result.welfare[:, -1], result.U_T)
    every = run(mixed, record=iw.RECORDS, record_every=1)
    np.testing.assert_allclose(every.average[:, -1], every.mean[:, 1:].mean(-1), rtol=1e-12)
    np.testing.assert_array_equal(every.welfare[:, 30], every.U_half)
    np.testing.assert_allclose(result.average[:, -1], every.average[:, -1], rtol=1e-12)
    known = ~np.isnan(every.gini)
    np.testing.assert_array_equal(known, every.min >= 0)
    np.testing.assert_allclose(every.gini[known], iw.gini(every.welfare[known]), rtol=1e-10)
    assert (every.selected_counts.sum(-1) == 180).all()
    assert (every.late_counts.sum(-1) == 90).all()


def test_float32_follows_the_input(reference):
    people = iw.Population(reference.U0.astype(np.float32), reference.f, reference.g)
    result = iw.simulate(people, "util_gain", 1, 300, key=KEY)
    assert result.mean.dtype == np.float32
    double = iw.simulate(reference, "util_gain", 1, 300, key=KEY)
    np.testing.assert_allclose(result.mean, double.mean, rtol=1e-4, atol=1.0)


def test_many_populations_are_each_as_alone(mixed, reference):
    people = [iw.linear(mixed.U0 + shift, mixed.f_minus, mixed.f_plus, 60.0 + shift, 10.0) for shift in (0.0, 1.0, 2.0)]
    noise = [iw.Noise(v) for v in (100.0, 200.0, 300.0)]
    many = iw.simulate_many(people, "rawlsian", 2, 30, key=KEY, seeds=2, noise=noise)
    assert many.mean.shape == (3, 2, 31)
    alone = iw.simulate(people[2], "rawlsian", 2, 30, key=KEY, seeds=2, noise=noise[2])
    np.testing.assert_allclose(many[2].mean, alone.mean, rtol=1e-12)
    with pytest.raises(InputError, match="share size"):
        iw.simulate_many([mixed, reference], "rawlsian", 1, 10, key=KEY)
    with pytest.raises(InputError, match="No population"):
        iw.simulate_many([], "rawlsian", 1, 10, key=KEY)


def test_common_noise_and_independent_noise(mixed):
    noise = iw.Noise(100.0)
    flat = iw.Population(np.zeros(10), 1e-9, 1e-9)
    common = iw.compare(flat, ["rawlsian", "random"], 1, 10, 3, key=KEY, noise=noise)
    np.testing.assert_allclose(common["rawlsian"].mean, common["random"].mean, atol=1e-7)
    own = iw.compare(flat, ["rawlsian", "random"], 1, 10, 3, key=KEY, noise=noise, common_noise=False)
    assert np.abs(own["rawlsian"].mean - own["random"].mean)[:, 1:].min() > 1e-3
    alone = iw.compare(flat, ["random"], 1, 10, 3, key=KEY, noise=noise, common_noise=False)
    np.testing.assert_array_equal(alone["random"].mean, own["random"].mean)
    assert list(common) == ["rawlsian", "random"]
    with pytest.raises(InputError, match="No policy to compare"):
        iw.compare(flat, [], 1, 10, 3, key=KEY)


def test_killed_and_resumed_equals_uninterrupted(mixed, tmp_path, monkeypatch):
    whole = run(mixed, chunk=20, checkpoint=Checkpoint(tmp_path / "whole", every_s=0))
    calls = 0
    real = simulation.advance_many

    def killed(*args, **kwargs):
        nonlocal calls
        calls += 1
        if calls == 2:
            raise Killed
        return real(*args, **kwargs)

    monkeypatch.setattr(simulation, "advance_many", killed)
    with pytest.raises(Killed):
        run(mixed, chunk=20, checkpoint=Checkpoint(tmp_path / "cut", every_s=0))
    monkeypatch.setattr(simulation, "advance_many", real)
    assert Checkpoint(tmp_path / "cut").latest()[0] == 20
    seen = []
    resumed = run(
        mixed,
        chunk=20,
        checkpoint=Checkpoint(tmp_path / "cut", every_s=0),
        progress=lambda ends: seen.extend(ends) or ends,
    )
    assert seen == [40, 60]
    for name in ("times", "mean", "average", "min", "U_half", "U_T", "selected_counts", "late_counts"):
        np.testing.assert_array_equal(getattr(resumed, name), getattr(whole, name), err_msg=name)
    with pytest.raises(InputError, match="checkpoint belongs to a run with other"):
        run(mixed, chunk=20, noise=iw.Noise(401.0), checkpoint=Checkpoint(tmp_path / "cut"))


def test_parameters_are_in_the_record_and_repeat_the_run(mixed):
    result = run(mixed)
    stored = json.loads(json.dumps(result.parameters))
    families = {"LinearClipped": iw.LinearClipped}
    f, g = (
        families[stored[name].pop("family")](**{k: np.array(v) for k, v in stored[name].items()}) for name in ("f", "g")
    )
    people = iw.Population(np.array(stored["U0"]), f, g)
    again = run(people, seeds=stored["seeds"], noise=iw.Noise(stored["noise_variance"][0], stored["noise_bound"][0]))
    np.testing.assert_array_equal(again.U_T, result.U_T)
    assert again.parameters["fingerprint"] != run(mixed, noise=iw.Noise(401.0)).parameters["fingerprint"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"M": 0}, "M = 0"),
        ({"M": 10}, "M = 10"),
        ({"policy": "maximax"}, "no policy 'maximax'"),
        ({"T": 1}, "T >= 2"),
        ({"record": ("median",)}, "Cannot record 'median'"),
        ({"record_every": 0}, "record_every"),
        ({"gini_shift": np.inf}, "finite number"),
        ({"seeds": 0}, "At least one seed"),
        ({"seeds": [3, -1]}, "between 0 and 2"),
        ({"record_every": 4, "chunk": 6}, "multiple of record_every"),
    ],
)
def test_bad_arguments(mixed, change, message):
    arguments = {"policy": "rawlsian", "M": 1, "T": 10} | change
    with pytest.raises(InputError, match=message):
        iw.simulate(mixed, **arguments, key=KEY)


@pytest.mark.parametrize("U0", [1e18, 1e308])
def test_welfare_beyond_the_resolution_is_refused(U0):
    with pytest.raises(InputError, match=r"The welfare of person 1 reaches .*float64 cannot resolve one step"):
        iw.simulate(iw.Population(np.array([0.0, U0]), 5.0, 1.0), "rawlsian", 1, 10, key=KEY)


def test_strong_heterogeneity_reverses_the_order_in_simulation(reference):
    # One person whose help brings far more than that of the others: survival alone does not make Rawlsian win.
    f_plus = np.full(40, 11000.0)
    f_plus[24] = 15000.0
    people = iw.linear(reference.U0, 9600.0, f_plus, 60.0, 10.0)
    slopes = {}
    for policy in ("rawlsian", "util_gain"):
        result = iw.simulate(people, policy, 1, 6000, key=KEY, record=(), record_every=3000)
        slopes[policy] = float(result.late_slope())
    assert result.locked_set == [24]
    verdict = iw.who_wins(people, 1, [24])
    assert (slopes["rawlsian"], slopes["util_gain"]) == pytest.approx((verdict.rawls, verdict.locked), rel=1e-3)
    assert slopes["util_gain"] > slopes["rawlsian"]


_SHARDED = """
import jax, numpy as np, iclr_welfare as iw
assert len(jax.devices()) == 2
mesh = jax.make_mesh((2,), ("seeds",))
where = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("seeds"))
people = iw.homogeneous(np.arange(6.0), f_minus=300.0, f_plus=800.0)
run = lambda **o: iw.simulate(people, "random", 2, 20, key=jax.random.key(0), seeds=4, noise=iw.Noise(9.0), **o)
np.testing.assert_allclose(run(sharding=where).U_T, run().U_T, rtol=1e-12)
"""


def test_seeds_over_two_devices():
    flags = {"XLA_FLAGS": "--xla_force_host_platform_device_count=2", "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}
    subprocess.run([sys.executable, "-c", _SHARDED], check=True, env=os.environ | flags)


@functools.cache
def _trace_size(T, record):
    people = iw.homogeneous(np.arange(20.0))
    with jax.enable_x64(True):
        result = iw.simulate(people, "rawlsian", 1, T, key=KEY, seeds=2, record=record, record_every=T // 4)
    return sum(v.nbytes for v in (result.mean, result.min, result.welfare, result.U_T) if v is not None)


def test_memory_of_a_result_does_not_grow_with_the_horizon():
    assert _trace_size(40, ("min",)) == _trace_size(400, ("min",))
    assert _trace_size(40, ("min", "welfare")) > 2 * _trace_size(40, ("min",))

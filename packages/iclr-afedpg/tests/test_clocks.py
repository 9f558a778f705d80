from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from iclr_afedpg.clocks import (
    EventClock,
    Exponential,
    Failure,
    Lognormal,
    Trace,
    async_rate,
    largest_delay,
    speedup,
    sync_rate,
    timeline,
)
from iclr_shared.errors import InputError

CLOCKS = [(1, 1, 1, 10), (1, 2, 3, 4), (1, 1, 1, 1), (0.5, 1, 1, 2, 4, 8)]


@pytest.mark.parametrize(
    ("times", "rate", "gain", "largest"),
    [(CLOCKS[0], 3.1, 7.75, 30), (CLOCKS[1], 25 / 12, 25 / 12, 8), (CLOCKS[2], 4, 1, 3), (CLOCKS[3], 4.875, 6.5, 38)],
)
def test_reference_values(times, rate, gain, largest):
    assert async_rate(times) == pytest.approx(rate)
    assert speedup(times) == pytest.approx(gain)
    found = timeline(EventClock(times), 20_000)
    assert 20_000 / found.time[-1] == pytest.approx(rate, rel=1e-3)
    assert found.delay.max() == largest
    assert found.delay.sum() + found.ages.sum() == 20_000 * (len(times) - 1)


@given(st.lists(st.floats(0.01, 100), min_size=1, max_size=8), st.integers(1, 300))
@settings(max_examples=50)
def test_delays_and_ages_add_up_whatever_the_times(times, updates):
    found = timeline(EventClock(times), updates)
    assert found.delay.sum() + found.ages.sum() == updates * (len(times) - 1)
    assert (np.diff(found.time) >= 0).all()
    assert speedup(times) >= 1 - 1e-12
    assert speedup(times) == pytest.approx(max(times) * np.mean(1 / np.array(times)))
    assert sync_rate(times) == pytest.approx(len(times) / max(times))


@given(st.lists(st.integers(1, 20), min_size=2, max_size=6))
@settings(max_examples=50)
def test_no_delay_above_its_bound(times):
    assert timeline(EventClock(times), 300).delay.max() <= largest_delay(times)


def test_exact_times_keep_ties():
    times = [Fraction(1, 10), Fraction(1, 10), 1]
    found = timeline(EventClock(times), 63)
    tied = found.agent[np.isclose(found.time, 1.0)]
    np.testing.assert_array_equal(tied, [0, 1, 2])  # by agent, not by rounding: 0.1 added ten times is not 1


def test_random_times_are_reproducible_and_have_their_mean():
    clock = EventClock([Lognormal(2.0, 0.5), Exponential(3.0)])
    np.testing.assert_array_equal(timeline(clock, 200, 1).time, timeline(clock, 200, 1).time)
    assert (timeline(clock, 200, 1).time != timeline(clock, 200, 2).time).any()
    for agent, mean in ((0, 2.0), (1, 3.0)):
        draws = [clock.duration(agent, n) for n in range(2000)]
        assert np.mean(draws) == pytest.approx(mean, abs=4 * np.std(draws) / 2000**0.5)


def test_trace(tmp_path):
    file = tmp_path / "trace.csv"
    file.write_text("agent,iteration,seconds\n0,1,2\n0,0,1\n1,0,4\n")
    clock = EventClock.from_trace(file)
    assert [clock.duration(0, n) for n in range(3)] == [1, 2, 1]
    assert clock.agents == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("agent,seconds\n0,1\n", "needs the columns"),
        ("agent,iteration,seconds\n0,0,slow\n", "line 2"),
        ("agent,iteration,seconds\n0,0,-1\n", "time of agent 0"),
        ("agent,iteration,seconds\n1,0,1\n", "without a gap"),
        ("agent,iteration,seconds\n", "without a gap"),
        ("agent,iteration,seconds\n0,0,\xff\n", "is no text"),
    ],
)
def test_bad_traces(tmp_path, text, message):
    file = tmp_path / "trace.csv"
    file.write_bytes(text.encode("latin-1"))
    with pytest.raises(InputError, match=message):
        EventClock.from_trace(file)


@pytest.mark.parametrize("bad", [0, -1, float("nan"), float("inf")])
def test_bad_times_name_the_agent(bad):
    with pytest.raises(InputError, match="time of agent 1 must be a positive number of seconds"):
        EventClock([1, bad])


def test_other_bad_clocks():
    with pytest.raises(InputError, match="at least one agent"):
        EventClock([])
    with pytest.raises(InputError, match="names agent 2"):
        EventClock([1, 1], [Failure(2, 1.0)])
    with pytest.raises(InputError, match="join after it dies"):
        EventClock([1, 1], [Failure(0, 2.0, 1.0)])
    with pytest.raises(InputError, match="at least one iteration"):
        Trace(())
    with pytest.raises(InputError, match="do not fail"):
        timeline(EventClock([1, 1], [Failure(0, 2.0)]), 10)
    with pytest.raises(InputError, match="time of agent 0"):
        timeline(EventClock([lambda agent, n, rng: -1.0]), 2)

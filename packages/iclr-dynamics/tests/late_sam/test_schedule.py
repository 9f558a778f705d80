import pytest
from hypothesis import given
from hypothesis import strategies as st

from iclr_dynamics.late_sam.schedule import LearningRate, SwitchSchedule
from iclr_shared.errors import InputError


def modes(schedule, epochs, per_epoch=1):
    return [schedule.mode(step, epochs, per_epoch) for step in range(epochs * per_epoch)]


def test_official_window_is_the_last_ten_epochs():
    schedule = SwitchSchedule(150, 160)
    assert modes(schedule, 160) == ["sgd"] * 150 + ["sam"] * 10
    assert schedule.late_epochs(160) == 10


def test_both_ends_are_inside():
    assert modes(SwitchSchedule(2, 4), 7) == ["sgd"] * 2 + ["sam"] * 3 + ["sgd"] * 2


def test_hybrids():
    assert modes(SwitchSchedule.late_from(3, "usam"), 5) == ["sgd"] * 3 + ["usam"] * 2
    assert modes(SwitchSchedule.early_until(3), 5) == ["sam"] * 3 + ["sgd"] * 2
    assert modes(SwitchSchedule.never(), 3) == ["sgd"] * 3
    assert modes(SwitchSchedule.always("asam"), 3) == ["asam"] * 3
    assert modes(SwitchSchedule(5, 5), 5) == ["sgd"] * 5  # the official full SGD: start = end = T


def test_units():
    assert modes(SwitchSchedule(0.75, unit="fraction"), 4, 2) == ["sgd"] * 6 + ["sam"] * 2
    assert modes(SwitchSchedule(3, 4, unit="steps"), 3, 2) == ["sgd"] * 3 + ["sam"] * 2 + ["sgd"]
    assert SwitchSchedule(3, 4, unit="steps").late_epochs(3, 2) == 1.0


def test_gradients_of_the_last_tenth():
    assert SwitchSchedule.late_from(0.9, unit="fraction").gradient_evaluations(160, 10) == 1760
    assert SwitchSchedule.always("at").gradient_evaluations(2, 3, attack_steps=7) == 48


def test_room_of_the_late_phase():
    """Steps times the rate of their epoch: it drops within this window, which starts inside an epoch."""
    rate = LearningRate(0.1, "multistep", (3,))
    assert SwitchSchedule(5, 7, unit="steps").room(rate, 4, 2) == pytest.approx(0.1 + 2 * 0.01)
    assert SwitchSchedule.late_from(0.5, unit="fraction").room(rate, 4, 2) == pytest.approx(2 * 0.1 + 2 * 0.01)
    assert SwitchSchedule.never().room(rate, 4, 2) == 0


@given(st.integers(1, 30), st.integers(1, 7), st.data())
def test_window_counts_what_mode_says(epochs, per_epoch, data):
    start = data.draw(st.integers(0, epochs))
    end = data.draw(st.integers(start, epochs) | st.none())
    schedule = SwitchSchedule(start, end)
    inside = modes(schedule, epochs, per_epoch).count("sam")
    assert inside == schedule.late_epochs(epochs, per_epoch) * per_epoch
    assert schedule.gradient_evaluations(epochs, per_epoch) == epochs * per_epoch + inside


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"start": 5, "end": 4}, "0 <= start <= end"),
        ({"start": -1}, "0 <= start <= end"),
        ({"start": float("nan"), "unit": "fraction"}, "0 <= start <= end"),
        ({"start": 1.5, "unit": "fraction"}, "0 to 1"),
        ({"start": 1.5}, "whole epochs"),
        ({"start": 1, "late": "adam"}, "'adam' is unknown"),
        ({"start": 1, "unit": "hours"}, "'hours' is unknown"),
    ],
)
def test_bad_windows(arguments, message):
    with pytest.raises(InputError, match=message):
        SwitchSchedule(**arguments)


def test_window_beyond_the_training():
    with pytest.raises(InputError, match="beyond the training of 10 epochs"):
        SwitchSchedule(11).window(10, 5)
    for stop, options in ((0, {}), (0.5, {"unit": "fraction"}), (float("nan"), {})):
        with pytest.raises(InputError, match="whole epochs or steps"):
            SwitchSchedule.early_until(stop, **options)


def test_multistep_drops_at_the_milestone():
    rate = LearningRate(0.01, "multistep", (80, 160))
    assert [rate.at(epoch, 160) for epoch in (0, 79)] == [0.01, 0.01]
    assert [rate.at(epoch, 160) for epoch in (80, 159)] == pytest.approx([0.001, 0.001])


def test_wide_resnet_reference_values():
    rate = LearningRate(0.1, "wrn")
    assert [rate.at(epoch, 200) for epoch in (0, 60, 61, 120, 121, 199)] == pytest.approx(
        [0.1, 0.1, 0.02, 0.02, 0.004, 0.004]
    )


def test_bad_rates():
    with pytest.raises(InputError, match="must be positive"):
        LearningRate(0.0)
    with pytest.raises(InputError, match="must be positive"):
        LearningRate(0.1, factor=float("nan"))
    for shape, milestones in (("constant", (80,)), ("multistep", (0, 80))):
        with pytest.raises(InputError, match="must be epochs from 1 on"):
            LearningRate(0.1, shape, milestones)
    with pytest.raises(InputError, match="'cosine' is unknown"):
        LearningRate(0.1, "cosine")

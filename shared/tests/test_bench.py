import numpy as np
import pytest

from iclr_shared.bench import Comparison, compare, peak_memory, print_comparisons
from iclr_shared.plots import new_figure
from iclr_shared.tables import print_table


class Clock:
    """A clock that only moves when told to: timing is tested without a race against other processes."""

    def __init__(self, monkeypatch):
        self.now = 0.0
        monkeypatch.setattr("time.perf_counter", lambda: self.now)
        self.draw = np.random.default_rng(0)

    def work(self, seconds):
        """A function that takes about `seconds`, ten per cent up or down."""

        def function():
            self.now += seconds * self.draw.uniform(0.9, 1.1)
            return True

        return function


def agree(outputs):
    assert len(set(outputs.values())) == 1, "outputs differ"


def test_a_slower_loop_is_found(capsys, monkeypatch):
    clock = Clock(monkeypatch)
    candidates = {"short": clock.work(0.001), "long": clock.work(0.0013), "same": clock.work(0.001)}
    comparison = compare(candidates, check=agree, reps=15, min_time=0.002, label="spin")
    ratio, low, high = comparison.ratio("long")
    assert 1.2 < low <= ratio <= high < 1.4
    assert comparison.faster("long")
    assert not comparison.faster("same")
    print_comparisons([comparison], "loops")
    out = capsys.readouterr().out
    assert "loops" in out
    assert "long" in out


def test_nothing_is_found_between_equal_times():
    draw = np.random.default_rng(0)
    found = 0
    for _ in range(100):
        rounds = draw.lognormal(0, 0.1, (2, 15))
        found += Comparison({"a": rounds[0].tolist(), "b": rounds[1].tolist()}, "a").faster("b")
    assert found <= 5


def test_different_outputs_are_not_timed():
    with pytest.raises(AssertionError, match="outputs differ"):
        compare({"a": lambda: 1, "b": lambda: 2}, check=agree)


def test_every_output_is_waited_for():
    waited = []
    compare({"a": lambda: 1}, check=agree, reps=2, min_time=0.0, sync=lambda output: waited.append(output) or output)
    assert len(waited) == 5  # outputs, one more warm-up, calibration, two rounds


def test_median_and_spread():
    comparison = Comparison({"a": [1.0, 2.0, 9.0]}, "a")
    assert (comparison.median("a"), comparison.spread("a")) == (2.0, 1.0)


def test_peak_memory():
    small, large = peak_memory("pass"), peak_memory("x = b'x' * 80_000_000")
    assert 60e6 < large - small < 120e6
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        peak_memory("1 / 0")


def test_tables(capsys, monkeypatch):
    rows = [("a", 1.0, None), ("bb", 1234567.0, "x")]
    print_table(("name", "number", "what"), rows, title="Title")
    assert capsys.readouterr().out == "Title\nname       number  what\na               1  -\nbb    1.23457e+06  x\n"
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    print_table(("name", "verdict"), [("[red]", "pass")])
    assert "[red]" in capsys.readouterr().out


def test_figures(tmp_path):
    figure, axes = new_figure(2, 2)
    assert axes.shape == (2, 2)
    assert new_figure(1, 3)[1].shape == (3,)
    assert new_figure(3, 1)[1].shape == (3,)
    figure.savefig(tmp_path / "f.png")
    assert (tmp_path / "f.png").read_bytes()[:4] == b"\x89PNG"

import torch

from iclr_hip import cost
from iclr_hip.layout import chunk_rows


def test_allocations():
    """A tensor that was there before is not counted, nor are its views; what goes is subtracted."""
    old = torch.zeros(1000)
    with cost.Allocations() as made:
        old.view(10, 100).add_(1.0)
        a = old[:50] + 1.0
        b = a.double()
        assert (made.alive, made.most, made.entries) == (600, 600, 50)
        del a
        c = b[:25] * 2.0
        assert (made.alive, made.most) == (600, 600)
        del b, c
    assert (made.alive, made.entries) == (0, 50)


def test_peak_bytes():
    def function():
        x = torch.ones(64, 64)
        return (x @ x).sum()

    assert cost.peak_bytes(function) == 2 * 4 * 64**2 + 4


def test_chunks_fit_the_device():
    assert chunk_rows(2**20, torch.device("cpu")) == 4
    assert chunk_rows(2**20, torch.device("cuda")) == 256
    assert chunk_rows(2**20, torch.device("cpu"), 2**21) == 2
    assert chunk_rows(2**40, torch.device("cpu")) == 1

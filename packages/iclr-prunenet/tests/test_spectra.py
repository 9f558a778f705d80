import numpy as np
import pytest
import scipy.stats
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from iclr_prunenet.spectra import (
    Spectrum,
    gram_singular_values,
    interlacing_gap,
    interlacing_of,
    ks_statistic,
    singular_values,
    spectral_ks,
)

DIAGONAL = torch.diag(torch.tensor([4.0, 3.0, 2.0, 1.0]))


@pytest.mark.parametrize(
    ("rows", "distance"),
    [
        ([1, 2, 3], 1 / 4),
        ([0, 1, 2], 1 / 4),
        ([0, 2, 3], 1 / 6),
        ([0, 1, 3], 1 / 6),
        ([0, 2], 1 / 4),
        ([0, 1, 2, 3], 0),
    ],
)
def test_reference_distances(rows, distance):
    assert spectral_ks(DIAGONAL, torch.tensor(rows)) == pytest.approx(distance, abs=1e-12)
    assert Spectrum.of(DIAGONAL).ks(DIAGONAL, torch.tensor(rows)) == pytest.approx(distance, abs=1e-12)


def test_distance_is_scipys():
    numbers = np.random.default_rng(0)
    for size in ((7, 5), (12, 12), (3, 20)):
        a, b = (np.sort(numbers.random(k))[::-1].copy() for k in size)
        found = ks_statistic(torch.from_numpy(a), torch.from_numpy(b))
        assert found == pytest.approx(scipy.stats.ks_2samp(a, b).statistic)


def test_more_rows_removed_more_lost():
    """Reference value 5: the trend over the share kept."""
    matrix = torch.from_numpy(np.random.default_rng(7).standard_normal((64, 32)))
    generator = torch.Generator().manual_seed(0)
    order = torch.randperm(64, generator=generator)
    distances = [spectral_ks(matrix, order[:kept]) for kept in (57, 48, 38, 32)]
    assert distances == sorted(distances)
    assert 0.05 < distances[0] < 0.2 < distances[-1] < 0.5


@given(st.integers(1, 24), st.integers(1, 24), st.integers(0, 10_000), st.data())
@settings(max_examples=40, deadline=None)
def test_gram_route_agrees_with_svd(n, h, seed, data):
    generator = torch.Generator().manual_seed(seed)
    matrix = torch.randn(n, h, generator=generator)
    count = data.draw(st.integers(1, n))
    rows = torch.randperm(n, generator=generator)[:count].sort().values
    exact = ks_statistic(singular_values(matrix.double()), singular_values(matrix[rows].double()))
    for keep in (True, False):
        assert Spectrum.of(matrix, keep).ks(matrix, rows) == pytest.approx(exact, abs=1e-12)
    wide = matrix.double()
    np.testing.assert_allclose(
        gram_singular_values(wide.T @ wide, min(n, h)),
        singular_values(wide),
        atol=1e-6 * float(singular_values(wide)[0]),
    )


@given(st.integers(1, 20), st.integers(1, 20), st.integers(0, 10_000), st.data())
@settings(max_examples=40, deadline=None)
def test_interlacing(n, h, seed, data):
    matrix = torch.randn(n, h, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    rows = torch.arange(n)[: data.draw(st.integers(1, n))]
    assert interlacing_gap(matrix, rows) <= 1e-12


def test_a_stranger_does_not_interlace():
    whole = torch.tensor([3.0, 2.0, 1.0])
    assert interlacing_of(whole, torch.tensor([4.0, 1.0]), 1) == pytest.approx(1 / 3)
    assert interlacing_of(whole, torch.tensor([3.0, 0.5]), 1) == pytest.approx(1 / 6)


def test_nothing_left_of_nothing():
    zero = torch.zeros(6, 4)
    assert spectral_ks(zero, torch.tensor([1, 2])) == 0
    assert Spectrum.of(zero).ks(zero, torch.tensor([0, 1, 2, 3])) == 0


def test_ties_survive_rounding():
    """All singular values of an orthogonal matrix are 1: removing rows of a square one changes nothing."""
    matrix = torch.linalg.qr(torch.randn(16, 16, generator=torch.Generator().manual_seed(0)))[0]
    assert spectral_ks(matrix, torch.arange(9)) == 0

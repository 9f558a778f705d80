import numpy as np
import pytest
import torch

from iclr_hip import locality


def test_smooth_is_stationary():
    values = locality.smooth(np.random.default_rng(0), (20_000, 12), 4.0).numpy()
    covariance = np.cov(values.T)
    distance = np.abs(np.subtract.outer(np.arange(12), np.arange(12)))
    np.testing.assert_allclose(covariance, np.exp(-distance / 4.0), atol=0.05)


#: Reference values 3: length -> m -> (P(top-1 found), recall of the top m).
FOUND = {
    4.0: {1: (0.072, 0.072), 4: (0.384, 0.366), 16: (0.883, 0.764)},
    16.0: {1: (0.137, 0.137), 4: (0.685, 0.643), 16: (0.987, 0.928)},
    64.0: {1: (0.209, 0.209), 4: (0.806, 0.761), 16: (0.995, 0.966)},
    0.01: {1: (0.019, 0.019), 4: (0.057, 0.063), 16: (0.238, 0.235)},
}


@pytest.mark.parametrize("length", FOUND)
def test_top_found(length):
    scores = locality.smooth(np.random.default_rng(1), (2000, 256), length)
    for m, wanted in FOUND[length].items():
        assert locality.top_found(scores, m) == pytest.approx(wanted, abs=0.04)  # the tolerance at 2,000 draws
    drawn = locality.random_found(scores, 16, torch.Generator().manual_seed(0))
    assert drawn == pytest.approx(16 / 256, abs=0.02)


def test_differences_rise_where_keys_are_smooth():
    rng = np.random.default_rng(2)
    q = torch.randn(2, 200, 8, generator=torch.Generator().manual_seed(0))
    k = locality.smooth(rng, (2, 8, 200), 30.0).transpose(1, 2)
    assert (locality.rank_correlations(locality.score_differences(q, k)) > 0.9).all()
    differences = locality.score_differences(q[:1], k[:1], 2)
    scores = (q[0] @ k[0].T / 8**0.5).numpy()
    pairs = [abs(scores[i, j] - scores[i, j - 2]) for i in range(200) for j in range(2, i + 1)]
    assert differences[0, 1] == pytest.approx(np.mean(pairs), rel=1e-5)


@pytest.mark.parametrize("shape", ["gaussian", "box"])
def test_needle(shape):
    q, k, place = locality.needle(np.random.default_rng(3), 2000, 8.0, shape=shape)
    assert (q.shape, k.shape) == ((1, 1, 1, 64), (1, 1, 2000, 64))
    assert abs(int((q @ k.transpose(2, 3)).argmax()) - place) <= 8
    assert 272 <= place < 1488

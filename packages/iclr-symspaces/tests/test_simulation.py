import numpy as np
import torch

from iclr_symspaces.manifolds import PoincareBall
from iclr_symspaces.simulation import noisy_tree, simulate_eeg


def test_recordings():
    one, moved = simulate_eeg(1, 0.0, 0.1, train=5, test=4), simulate_eeg(1, 0.3, 0.1, train=5, test=4)
    assert one.train.shape == (20, 8, 256)
    assert one.test.shape == (16, 8, 256)
    assert np.bincount(one.test_labels).tolist() == [4] * 4
    np.testing.assert_array_equal(one.train, moved.train)
    # the shift is one matrix for all test trials, noise included
    g = np.linalg.lstsq(one.test[0].T, moved.test[0].T, rcond=None)[0].T
    np.testing.assert_allclose(g @ one.test[7], moved.test[7], atol=1e-9)
    np.testing.assert_allclose(g, g.T, atol=1e-9)


def test_tree():
    x, y = noisy_tree(torch.Generator().manual_seed(0), 2)
    assert x.shape == (10 * (8 + 16 + 32), 2)
    assert torch.bincount(y).tolist() == [140] * 4
    PoincareBall(2).check(x)
    still, labels = noisy_tree(torch.Generator().manual_seed(0), 2, noise=0.0, depth=3, copies=2)
    assert torch.equal(still[0], still[1])
    assert labels.tolist() == [0] * 4 + [1] * 4 + [2] * 4 + [3] * 4

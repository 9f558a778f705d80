import math
from itertools import pairwise

import numpy as np
import pytest
import torch

from iclr_prunenet import training
from iclr_prunenet.official import official_episode
from iclr_prunenet.planted import planted
from iclr_prunenet.training import Settings, discounted, log_probability, reward_of, train_policy
from iclr_shared.checkpoints import Checkpoint
from iclr_shared.errors import InputError
from iclr_shared.testing import Killed, fault_inject


def test_discounted_rewards():
    """Reference value 3."""
    rewards = [5.0, 4.0, 3.0, 2.0]
    np.testing.assert_allclose(discounted(rewards, 0.99), [5, 3.96, 2.9403, 1.940598], rtol=1e-12)
    by_hand = [sum(0.99 ** (j - i) * rewards[j] for j in range(i, 4)) for i in range(4)]
    np.testing.assert_allclose(discounted(rewards, 0.99, "cumulative"), by_hand, rtol=1e-12)


def test_reward():
    """Reference value 1: D = 1/4 pays 4; D = 0 pays 99999 officially, min(n, h) here."""
    assert reward_of(0.25, Settings(), 32) == 4
    assert reward_of(0.0, Settings(), 32) == 32
    assert reward_of(0.0, Settings(cap=None), 32) == 99999
    assert reward_of(0.25, Settings(cap=None), 32) == 4
    assert reward_of(0.25, Settings(reward="neg_ks"), 32) == -0.25


def test_log_probability_by_hand():
    log_mask = torch.tensor([0.5, 0.3, 0.2]).log()
    rows = torch.tensor([2, 0])
    assert float(log_probability(log_mask, rows, "surrogate")) == pytest.approx(math.log(0.2 * 0.5))
    expected = math.log(0.2 / 1.0) + math.log(0.5 / 0.8)
    assert float(log_probability(log_mask, rows, "plackett_luce")) == pytest.approx(expected, abs=1e-6)


def test_plackett_luce_sums_to_one():
    log_mask = torch.tensor([0.9, 0.3, 0.2, 0.7]).log()
    total = sum(
        float(log_probability(log_mask, torch.tensor([i, j]), "plackett_luce").exp())
        for i in range(4)
        for j in range(4)
        if i != j
    )
    assert total == pytest.approx(1, abs=1e-6)


def test_learns_planted_direction():
    task = planted(1)
    policy, history = train_policy(task.matrices, seed=3)
    kept = [task.strong[l][policy.scores(w).topk(89).indices].float().sum() / 64 for l, w in enumerate(task.matrices)]
    assert np.mean(kept) >= 0.95
    assert len(history) == 20
    assert all(len(episode.ks) == 8 for episode in history)


def test_seed_decides():
    task = planted(0, layers=2, n=32, h=8)
    (a, first), (b, second), (_, other) = (train_policy(task.matrices, episodes=2, seed=s) for s in (1, 1, 2))
    assert first == second != other
    for left, right in zip(a.parameters(), b.parameters(), strict=True):
        assert torch.equal(left, right)


def test_best_episode_is_kept():
    """What comes back is the state after the episode of the largest reward, not the last one."""
    task = planted(0, layers=2, n=32, h=8)
    policy, history = train_policy(task.matrices, episodes=8, seed=5)
    best = int(np.argmax([sum(episode.reward) for episode in history]))
    again, _ = train_policy(task.matrices, episodes=best + 1, seed=5)
    assert torch.equal(policy.row_sparsities, again.row_sparsities)


@pytest.mark.parametrize(
    "options",
    [
        {"reward": "neg_ks"},
        {"cap": None},
        {"returns": "cumulative", "baseline": "mean_std"},
        {"logprob": "plackett_luce"},
        {"kl": True},
        {"gamma": 0.0},
    ],
)
def test_variants_run(options):
    _, history = train_policy(planted(0, layers=2, n=32, h=8).matrices, episodes=2, **options)
    assert all(math.isfinite(loss) for episode in history for loss in episode.loss)


def test_gradients_are_clipped(monkeypatch):
    norms = []
    original = torch.nn.utils.clip_grad_norm_

    def clip(parameters, most):
        parameters = list(parameters)
        original(parameters, most)
        norms.append(torch.stack([p.grad.norm() for p in parameters]).norm().item())

    monkeypatch.setattr(torch.nn.utils, "clip_grad_norm_", clip)
    train_policy(planted(0, layers=2, n=32, h=8).matrices, episodes=2, clip=0.5)
    assert max(norms) <= 0.5 + 1e-5


def test_killed_and_resumed(tmp_path, monkeypatch):
    matrices = planted(0, layers=3, n=32, h=8).matrices
    whole, history = train_policy(matrices, episodes=5, seed=1)
    original = training._Training.episode
    monkeypatch.setattr(training._Training, "episode", fault_inject(original, at_call=3))
    with pytest.raises(Killed):
        train_policy(matrices, episodes=5, seed=1, checkpoint=Checkpoint(tmp_path))
    monkeypatch.setattr(training._Training, "episode", original)
    resumed, again = train_policy(matrices, episodes=5, seed=1, checkpoint=Checkpoint(tmp_path))
    assert again == history
    assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), resumed.parameters(), strict=True))


def test_more_episodes_later(tmp_path):
    matrices = planted(0, layers=2, n=32, h=8).matrices
    train_policy(matrices, episodes=2, seed=1, checkpoint=Checkpoint(tmp_path))
    _, history = train_policy(matrices, episodes=4, seed=1, checkpoint=Checkpoint(tmp_path))
    assert history == train_policy(matrices, episodes=4, seed=1)[1]


def test_fewer_episodes_later(tmp_path):
    matrices = planted(0, layers=2, n=32, h=8).matrices
    train_policy(matrices, episodes=2, checkpoint=Checkpoint(tmp_path))
    with pytest.raises(InputError, match="has seen 2 episodes already, more than the 1 asked for"):
        train_policy(matrices, episodes=1, checkpoint=Checkpoint(tmp_path))


@pytest.mark.parametrize(("weights", "ratio"), [(1, 0.3), (0, 0.4)])
def test_checkpoint_of_another_training(tmp_path, weights, ratio):
    train_policy(planted(0, layers=2, n=32, h=8).matrices, 0.3, episodes=1, checkpoint=Checkpoint(tmp_path))
    matrices = planted(weights, layers=2, n=32, h=8).matrices
    with pytest.raises(InputError, match="another model or of other settings"):
        train_policy(matrices, ratio, episodes=1, checkpoint=Checkpoint(tmp_path))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ratio": 1.0}, "below 1"),
        ({"episodes": 0}, "episodes must be at least 1"),
        ({"lr": 0.0}, "must be positive"),
        ({"lr": float("nan")}, "must be positive"),
        ({"gamma": 1.5}, "gamma must lie"),
        ({"seed": -1}, "seed must be"),
        ({"reward": "ks"}, "reward must be one of inverse_ks, neg_ks, got 'ks'"),
        ({"clip": 0.0}, "must be positive"),
    ],
)
def test_bad_settings(options, message):
    with pytest.raises(InputError, match=message):
        train_policy(planted(0, layers=1, n=16, h=4).matrices, **options)


def test_bad_matrices():
    good = torch.randn(16, 4, generator=torch.Generator().manual_seed(0))
    bad = good.clone()
    bad[3, 2] = float("nan")
    with pytest.raises(InputError, match="Layer 1 holds NaN"):
        train_policy([good, bad])
    with pytest.raises(InputError, match=r"Layer 1 is \(4, 16\), layer 0 is \(16, 4\)"):
        train_policy([good, good.T])
    with pytest.raises(InputError, match="no matrix"):
        train_policy([])


def test_zero_matrix_pays_the_cap():
    with pytest.warns(UserWarning, match="Layer 0 is all zero"):
        _, history = train_policy([torch.zeros(16, 4)], episodes=1)
    assert history[0].reward == (4.0,)


def test_gram_matrices_may_be_too_large_to_keep(monkeypatch):
    matrices = planted(0, layers=2, n=32, h=8).matrices
    kept = train_policy(matrices, episodes=2)[1]
    monkeypatch.setattr(training, "GRAM_BYTES", 0)
    assert train_policy(matrices, episodes=2)[1] == kept


def test_official_episode_sees_like_distances(llama):
    ours = np.mean([e.ks for e in train_policy(llama, episodes=3)[1]])
    theirs = np.mean(official_episode(llama, 0))
    assert ours == pytest.approx(theirs, abs=0.15)


def test_planted_layers_share_one_direction():
    task = planted(0)
    means = torch.stack([w[s].mean(0) for w, s in zip(task.matrices, task.strong, strict=True)])
    cosines = [float(torch.cosine_similarity(a, b, dim=0)) for a, b in pairwise(means)]
    assert min(cosines) > 0.8

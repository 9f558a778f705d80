import math

import numpy as np
import pytest
import torch

from iclr_prunenet.official import product_mask
from iclr_prunenet.policy import PruneNetPolicy, draw_rows, rows_kept, top_rows
from iclr_shared.errors import InputError


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.fixture
def policy():
    return PruneNetPolicy(8, 20, generator())


def test_size():
    """Reference value 7: OPT-125m."""
    policy = PruneNetPolicy(768, 3072)
    assert sum(p.numel() for p in policy.parameters()) == 2_365_440
    assert rows_kept(3072, 0.3) == 2150


def test_linear_score_is_the_product(policy):
    matrix = torch.randn(20, 8, generator=generator(1))
    z, products = policy(matrix, generator(2)), product_mask(policy, matrix, generator(2))
    torch.testing.assert_close(z, products, rtol=1e-4, atol=1e-6)
    grads = [torch.autograd.grad(value.log().sum(), list(policy.parameters())) for value in (z, products)]
    for fast, slow in zip(*grads, strict=True):
        torch.testing.assert_close(fast, slow, rtol=1e-3, atol=1e-5)


def _with_alpha(alpha):
    """A policy that gives every row of a zero matrix the importance alpha."""
    policy = PruneNetPolicy(1, 4000)
    with torch.no_grad():
        policy.row_sparsities.fill_(1 / 4000)
        policy.proj_intermediate.bias.fill_(math.log(alpha / (1 - alpha)))
    return policy, torch.zeros(4000, 1)


@pytest.mark.parametrize(
    ("alpha", "mean"), [(0.1, 0.18398), (0.3, 0.36208), (0.5, 0.5), (0.7, 0.63792), (0.9, 0.81602)]
)
def test_relaxed_bernoulli(alpha, mean):
    """Reference value 2: P(z > 1/2) = alpha and E z."""
    policy, matrix = _with_alpha(alpha)
    z = torch.stack([policy(matrix, generator(seed)) for seed in range(25)]).detach()
    assert float((z > 0.5).float().mean()) == pytest.approx(alpha, abs=5 * (alpha * (1 - alpha) / 1e5) ** 0.5)
    assert float(z.mean()) == pytest.approx(mean, abs=5e-3)
    rho = alpha / (1 - alpha)
    if alpha != 0.5:
        assert rho * (rho - 1 - math.log(rho)) / (rho - 1) ** 2 == pytest.approx(mean, abs=1e-5)


@pytest.mark.parametrize(("alpha", "term"), [(0.5, 0.0), (0.1, 1.38971), (0.9, 1.38971)])
def test_kl(alpha, term):
    """Reference value 4."""
    policy, matrix = _with_alpha(alpha)
    assert policy.kl(matrix).item() / 4000 == pytest.approx(term, abs=1e-5)


def test_scores_stay_inside(policy):
    scores = policy.scores(1e6 * torch.ones(20, 8))
    assert (scores > 0).all()
    assert (scores < 1).all()
    assert torch.isfinite(policy.log_mask(1e6 * torch.ones(20, 8), generator())).all()


def test_half_precision_weights(policy):
    matrix = torch.randn(20, 8, generator=generator(1)).bfloat16()
    torch.testing.assert_close(policy.scores(matrix), policy.scores(matrix.float()))


@pytest.mark.parametrize(
    ("n", "ratio", "kept"), [(10, 0.9, 1), (11008, 0.3, 7705), (3072, 0.3, 2150), (10, 0.0, 10), (7, 0.5, 3)]
)
def test_rows_kept(n, ratio, kept):
    assert rows_kept(n, ratio) == kept


@pytest.mark.parametrize("ratio", [-0.1, 1.0, 1.5, float("nan")])
def test_ratio_out_of_range(ratio):
    with pytest.raises(InputError, match=r"at least 0 and below 1"):
        rows_kept(10, ratio)


def test_ratio_leaves_nothing():
    with pytest.raises(InputError, match="leaves none of 10"):
        rows_kept(10, 0.95)


def test_draws_follow_the_weights():
    """Without replacement: the first draw has probability w_i / sum w, the pair (0, 1) in order w0/S w1/(S - w0)."""
    weights = torch.tensor([0.5, 0.3, 0.2])
    draws = torch.stack([draw_rows(weights, 2, generator(seed)) for seed in range(4000)])
    first = torch.bincount(draws[:, 0], minlength=3) / 4000
    np.testing.assert_allclose(first, weights, atol=0.03)
    pair = float(((draws[:, 0] == 0) & (draws[:, 1] == 1)).float().mean())
    assert pair == pytest.approx(0.5 * 0.3 / 0.5, abs=0.03)


def test_draws_need_no_positive_weights():
    rows = draw_rows(torch.tensor([1.0, 0.0, 0.0, 0.0]), 3, generator())
    assert len(set(rows.tolist())) == 3
    assert rows[0] == 0


def test_top_rows_break_ties_by_index():
    assert top_rows(torch.tensor([1.0, 2.0, 1.0, 1.0]), 3).tolist() == [0, 1, 2]


def test_other_shape(policy):
    with pytest.raises(InputError, match=r"\(n, h\) = \(20, 8\), this one is \(8, 20\)"):
        policy.scores(torch.zeros(8, 20))


def test_round_trip(policy, tmp_path):
    policy.save_pretrained(tmp_path, {"seed": 3})
    matrix = torch.randn(20, 8, generator=generator(1))
    torch.testing.assert_close(PruneNetPolicy.from_pretrained(tmp_path).scores(matrix), policy.scores(matrix))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["policy.json", "policy.safetensors"]


@pytest.mark.parametrize("damage", ["missing", "cut", "not json", "other sizes"])
def test_damaged_policy(policy, tmp_path, damage):
    policy.save_pretrained(tmp_path)
    tensors, described = tmp_path / "policy.safetensors", tmp_path / "policy.json"
    match damage:
        case "missing":
            tensors.unlink()
        case "cut":
            tensors.write_bytes(tensors.read_bytes()[:100])
        case "not json":
            described.write_text("{")
        case "other sizes":
            described.write_text('{"hidden_size": 4, "intermediate_size": 20}')
    with pytest.raises(InputError, match=r"holds no policy|is damaged"):
        PruneNetPolicy.from_pretrained(tmp_path)


def test_policy_of_no_numbers(policy, tmp_path):
    with torch.no_grad():
        policy.row_sparsities[0] = float("nan")
    policy.save_pretrained(tmp_path)
    with pytest.raises(InputError, match="damaged: it holds NaN"):
        PruneNetPolicy.from_pretrained(tmp_path)


def test_the_process_generator_is_left_alone(policy, tmp_path):
    before = torch.get_rng_state()
    policy.save_pretrained(tmp_path)
    PruneNetPolicy.from_pretrained(tmp_path)
    PruneNetPolicy(4, 8, torch.Generator().manual_seed(0))
    assert torch.equal(torch.get_rng_state(), before)

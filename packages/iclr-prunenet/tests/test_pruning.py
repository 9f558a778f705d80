from copy import deepcopy

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from iclr_prunenet.feed_forward import scored_matrices
from iclr_prunenet.policy import PruneNetPolicy
from iclr_prunenet.pruning import by_policy, magnitude_prune, prune_model, random_prune
from iclr_prunenet.spectra import spectral_ks
from iclr_shared.errors import InputError


@pytest.fixture
def policy():
    return PruneNetPolicy(16, 48, torch.Generator().manual_seed(0))


def test_keeps_the_most_important(llama, policy):
    dense = deepcopy(llama)
    report = prune_model(llama, policy, 0.25)
    assert report.intermediate_size == (48, 36)
    for rows, matrix, distance in zip(report.rows, scored_matrices(dense), report.ks, strict=True):
        assert set(rows.tolist()) == set(policy.scores(matrix).topk(36).indices.tolist())
        assert rows.tolist() == sorted(rows.tolist())
        assert distance == spectral_ks(matrix, rows)
    assert report.parameters[0] - report.parameters[1] == 3 * 3 * 16 * 12
    assert report.parameter_reduction == pytest.approx(3 * 3 * 16 * 12 / report.parameters[0])
    assert llama.config.intermediate_size == 36


def test_sampling_follows_the_seed(llama, policy):
    reports = [prune_model(deepcopy(llama), policy, 0.5, "sample", seed) for seed in (1, 1, 2)]
    first, second, other = ([rows.tolist() for rows in report.rows] for report in reports)
    assert first == second != other


def test_the_same_after_reload(llama, policy, tmp_path):
    policy.save_pretrained(tmp_path)
    a = prune_model(deepcopy(llama), policy, 0.3, "sample")
    b = prune_model(llama, PruneNetPolicy.from_pretrained(tmp_path), 0.3, "sample")
    assert all(torch.equal(x, y) for x, y in zip(a.rows, b.rows, strict=True))


def test_ratio_zero_changes_nothing(llama, policy):
    before = {name: value.clone() for name, value in llama.state_dict().items()}
    report = prune_model(llama, policy, 0.0)
    assert report.parameter_reduction == 0
    assert report.mean_ks == 0
    assert all(torch.equal(value, before[name]) for name, value in llama.state_dict().items())


def test_magnitude(llama):
    with torch.no_grad():
        llama.model.layers[0].mlp.gate_proj.weight[::2] *= 100
    assert magnitude_prune(llama, 0.5).rows[0].tolist() == list(range(0, 48, 2))


def test_random_is_uniform(llama):
    counts = torch.zeros(48)
    for seed in range(200):
        counts[random_prune(deepcopy(llama), 0.5, seed).rows[0]] += 1
    assert (counts / 200 - 0.5).abs().max() < 0.17


def test_other_sizes(llama):
    with pytest.raises(InputError, match=r"\(n, h\) = \(32, 16\), this one is \(48, 16\)"):
        prune_model(llama, PruneNetPolicy(16, 32), 0.3)
    assert llama.config.intermediate_size == 48


def test_bad_mode(llama, policy):
    with pytest.raises(InputError, match="'topk' or 'sample'"):
        by_policy(policy, "best")


def test_llama_2_7b_arithmetic():
    """Reference value 6, without weights."""
    with torch.device("meta"):
        config = LlamaConfig(num_hidden_layers=1, intermediate_size=11008, hidden_size=4096, num_attention_heads=32)
        layer = LlamaForCausalLM(config)
        dense = sum(p.numel() for n, p in layer.named_parameters() if "mlp" in n)
        config.intermediate_size = 7705
        cut = sum(p.numel() for n, p in LlamaForCausalLM(config).named_parameters() if "mlp" in n)
    assert 32 * (dense - cut) == 1_298_792_448

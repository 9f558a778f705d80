import copy
import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from iclr_interp.orion import (
    LanguageModel,
    compiled_dataset,
    compiled_model,
    draw_pairs,
    make_task,
    residual_patch_sweep,
)
from iclr_interp.orion.patching import METRICS, PatchTable, score
from iclr_shared.errors import InputError
from iclr_shared.testing import Killed, fault_inject


@pytest.fixture(scope="module")
def table(learned, stories):
    return residual_patch_sweep(learned, stories, n_inter=200, batch_size=64, distinct=True)


def test_compiled_model():
    """The layers that the weights were written for (§9)."""
    model = compiled_model()
    found = residual_patch_sweep(model, compiled_dataset(model, 60), n_inter=80, distinct=True)
    for layer in range(3):
        assert found.scores["probability"][layer, :, layer].min() > 0.999
    assert found.layers()[:3] == (0, 1, 2)
    assert found.layers().ordered
    assert found.method == "naive"
    assert found.baseline["accuracy"].mean() == 1
    residuals = model.residuals(model.batch_tokens(compiled_dataset(model, 1).tokens))[1]
    assert residuals[0, 2, model.module.answer].max() == pytest.approx(0.5, abs=1e-6)


@pytest.mark.parametrize("family", ["gpt2", "neox", "llama"])
def test_both_methods_give_the_same_table(family, make, tokenizer):
    dataset = make_task("type_hints/banking", tokenizer, 10)
    tables = [
        residual_patch_sweep(make(family), dataset, n_inter=12, batch_size=4, method=method)
        for method in ("auto", "naive")
    ]
    assert [found.method for found in tables] == ["cached", "naive"]
    for metric in METRICS:
        one, two = (found.scores[metric] for found in tables)
        np.testing.assert_allclose(one, two, atol=2e-4, rtol=2e-3)


def test_a_trained_model(table):
    values = table.normalised()
    assert table.method == "cached"
    assert table.eligible
    np.testing.assert_allclose(values[0, 0], 1, atol=0.1)
    np.testing.assert_allclose(values[-1, 2], 1, atol=0.1)
    np.testing.assert_allclose(values[0, 1:], 0, atol=0.02)
    assert 0 < values[1:-1, 1].max() < 1.1
    frame = table.frame()
    assert len(frame) == 4 * 200 * 3
    mean = frame[frame.hypothesis == "query"].groupby("layer").probability.mean()
    np.testing.assert_allclose(mean, table.mean()[:, 1], rtol=1e-4)


def test_controls_carry_no_request(learned, stories, table):
    peak = table.layers().L2
    for control in ("same_request", "zero", "mean"):
        found = residual_patch_sweep(learned, stories, [peak], 200, batch_size=64, distinct=True, control=control)
        assert found.normalised()[0, 1] < table.normalised()[peak, 1] - 0.2


def test_pairs(stories):
    pairs = draw_pairs(stories, 500, 1, distinct=True)
    assert all(stories.queries[a] != stories.queries[b] and stories.answers[a] != stories.answers[b] for a, b in pairs)
    official = draw_pairs(stories, 500, 1)
    assert any(stories.queries[a] == stories.queries[b] for a, b in official)
    np.testing.assert_array_equal(official, draw_pairs(stories, 500, 1))


def test_score():
    logits = torch.tensor([[0.0, 2.0, 1.0]])
    found = score(
        logits, torch.tensor([[1, 2, -1]]), torch.tensor([[2, -1, 0]]), [["Paris", "Rom", ""]], "xpr".__getitem__
    )
    probability = math.e**2 / (1 + math.e**2 + math.e)
    np.testing.assert_allclose(found["probability"][0, 0], probability, rtol=1e-6)
    np.testing.assert_array_equal(found["accuracy"], [[1, 0, np.nan]])
    np.testing.assert_array_equal(found["soft"], [[1, 0, np.nan]])
    np.testing.assert_array_equal(found["logit_difference"], [[1, np.nan, np.nan]])


def made_up(baseline, probability, layers=(0, 1, 2, 3)):
    scores = {metric: np.asarray(probability, np.float32)[:, None] for metric in METRICS}
    base = {metric: np.asarray(baseline, np.float32) for metric in METRICS}
    return PatchTable("m", "t", 3, layers, np.zeros((1, 2), int), scores, base, 0.25)


def test_normalisation_and_layers():
    profile = [[0.8, 0, 0], [0.7, 0.1, 0], [0.1, 0.6, 0.1], [0, 0.1, 0.7]]
    found = made_up([0.7, 0.9], profile)  # the mean baseline 0.8 divides
    np.testing.assert_allclose(found.normalised()[0, 0], 1, rtol=1e-6)
    np.testing.assert_allclose(found.normalised("accuracy")[0, 0], 1, rtol=1e-6)
    np.testing.assert_allclose(found.normalised("accuracy")[3, 0], -0.25 / 0.55, rtol=1e-6)
    assert found.layers()[:3] == (1, 2, 3)
    assert found.layers().height == pytest.approx(0.75)
    never = made_up([0.8], [[0.8, 0, 0], [0.1, 0.6, 0.1], [0.1, 0.1, 0.1], [0, 0.1, 0.2]])
    assert never.layers()[:3] == (0, 1, None)
    assert not never.layers().ordered


def test_tasks_that_the_model_does_not_know_have_no_layers():
    found = made_up([0.7, 0.7], [[0.7, 0, 0]] * 4)
    assert not found.eligible
    assert found.layers() == (None, None, None, None)


def test_zero_baseline_is_nan_and_warns():
    found = made_up([0.0], [[0.0, 0, 0]] * 4)
    with pytest.warns(UserWarning, match="baseline probability is the chance level"):
        assert np.isnan(found.normalised()).all()


def test_killed_and_resumed(learned, stories, tmp_path, monkeypatch):
    """A killed sweep repeats no finished part, gives the same table, and survives a line cut short."""
    options = {"n_inter": 40, "batch_size": 16}
    whole = residual_patch_sweep(learned, stories, **options)
    record = tmp_path / "scores.jsonl"
    calls = []
    from iclr_interp.orion import language_model

    original = language_model.Rerun.__call__

    def counted(self, layer, patch):
        calls.append(layer)
        return original(self, layer, patch)

    with monkeypatch.context() as patched:
        patched.setattr(language_model.Rerun, "__call__", fault_inject(counted, 7))
        with pytest.raises(Killed):
            residual_patch_sweep(learned, stories, record=record, **options)
    done = len(record.read_text().splitlines())
    assert done == 5  # the eighth call; one of each batch's calls tests the cache
    with record.open("a") as file:
        file.write('{"key": "cut sho')
    monkeypatch.setattr(language_model.Rerun, "__call__", counted)
    resumed = residual_patch_sweep(learned, stories, record=record, **options)
    for metric in METRICS:
        np.testing.assert_array_equal(resumed.scores[metric], whole.scores[metric])
    lines = [json.loads(line) for line in record.read_text().splitlines()]
    assert len({(line["part"], line["layer"]) for line in lines}) == len(lines)
    assert {"model", "task", "layer"} <= set(lines[0])
    calls.clear()
    again = residual_patch_sweep(learned, stories, record=record, **options)
    assert calls == []
    np.testing.assert_array_equal(again.mean(), whole.mean())
    words = [item.answer for item in stories.items]
    other = [
        replace(item, query=q) for item, q in zip(stories.items, stories.queries[1:] + stories.queries[:1], strict=True)
    ]
    assert words != [item.answer for item in other]  # the same texts with another meaning are another sweep
    residual_patch_sweep(learned, type(stories)(stories.name, stories.tokenizer, other), record=record, **options)
    assert len(calls) > 0
    record.write_text("hello\n")
    with pytest.raises(InputError, match="no record of a sweep"):
        residual_patch_sweep(learned, stories, record=record, **options)
    with pytest.raises(InputError, match="cannot be read and written"):
        residual_patch_sweep(learned, stories, record=record / "below.jsonl", **options)


def test_a_cache_that_misleads_is_not_used(learned, stories, monkeypatch):
    from iclr_interp.orion import language_model

    original = language_model.Rerun.__call__
    monkeypatch.setattr(language_model.Rerun, "__call__", lambda self, layer, patch: original(self, layer, patch) + 1)
    options = {"n_inter": 10, "layers": [1]}
    found = residual_patch_sweep(learned, stories, **options)
    assert found.method == "naive"
    np.testing.assert_array_equal(
        found.mean(), residual_patch_sweep(learned, stories, method="naive", **options).mean()
    )


def test_weights_that_are_offloaded(learned, stories, tmp_path):
    """accelerate leaves meta tensors in their place."""
    module = copy.deepcopy(learned.module)
    module.register_parameter("elsewhere", torch.nn.Parameter(torch.empty(1, device="meta")))
    model = LanguageModel(module, learned.tokenizer)
    assert model.device == learned.device
    found = residual_patch_sweep(model, stories, [1], 10, record=tmp_path / "scores.jsonl")
    np.testing.assert_array_equal(found.mean(), residual_patch_sweep(learned, stories, [1], 10).mean())


def test_plot(table, tmp_path):
    table.plot(tmp_path / "layers.png")
    assert (tmp_path / "layers.png").stat().st_size > 10_000


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"layers": [4]}, r"Layer 4 is not in 0 … N = 3"),
        ({"n_inter": 0}, "at least one pair"),
        ({"batch_size": 0}, "batch_size must be at least 1"),
        ({"seed": -1}, "must not be negative"),
    ],
)
def test_bad_sweeps(options, message, learned, stories):
    with pytest.raises(InputError, match=message):
        residual_patch_sweep(learned, stories, **options)


def test_no_distinct_pairs(learned, stories):
    one = type(stories)("one", stories.tokenizer, stories.items[:1])
    with pytest.raises(InputError, match="no pairs with different requests"):
        draw_pairs(one, 3, distinct=True)
    assert isinstance(learned, LanguageModel)


def test_unknown_metric(table):
    with pytest.raises(InputError, match="no metric 'kl'"):
        table.mean("kl")

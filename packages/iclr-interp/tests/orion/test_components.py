import numpy as np
import pytest
import torch

from iclr_interp.orion import (
    Component,
    LanguageModel,
    ablated_accuracy,
    attention_to_entities,
    compare_patterns,
    compiled_dataset,
    compiled_model,
    component_overlap,
    direct_effects,
    end_patterns,
    make_task,
    movers,
    run_with_patterns,
)
from iclr_interp.orion.components import _gradient, _outputs, _targets
from iclr_interp.orion.retrieval import find
from iclr_shared.errors import InputError


@pytest.fixture(scope="module")
def few(stories):
    return type(stories)("few", stories.tokenizer, stories.items[:40])


@pytest.mark.parametrize("family", ["gpt2", "neox", "llama"])
def test_what_components_write_adds_up_to_the_residual(family, make, tokenizer):
    """Differences between two prompts, so that biases cancel."""
    model, dataset = make(family), make_task("variable_binding/recipe", tokenizer, 6)
    writes, last = _outputs(model, dataset, 4)
    assert len(writes.components) == 1 + 3 * (4 + 1)
    total = sum(writes[c] for c in range(len(writes.components)))
    torch.testing.assert_close(total[1:] - total[:1], last[1:] - last[:1], atol=1e-4, rtol=1e-4)


def test_linear_effects_add_up(learned, few):
    """Their sum is the gradient of the metric times r − r″."""
    found = direct_effects(learned, few, mode="linear", seed=3)
    _, last = _outputs(learned, few, 16)
    answers, others = _targets(few)
    slope = _gradient(learned, last, answers, others, "logit_difference")
    rng = np.random.default_rng(3)
    choices = [[j for j, other in enumerate(few.queries) if other != query] for query in few.queries]
    resampled = [int(rng.choice(rows)) for rows in choices]
    expected = (slope * (last - last[resampled])).sum(-1).numpy()
    np.testing.assert_allclose(found.effects.sum(1), expected, rtol=1e-3, atol=1e-3)


def test_small_changes_have_linear_effects(learned, few):
    """The gradient against finite differences of the exact measure."""
    from iclr_interp.orion.components import _measure, _unembedded

    _, last = _outputs(learned, few, 16)
    answers, others = _targets(few)
    for metric in ("logit_difference", "log_probability"):
        slope = _gradient(learned, last, answers, others, metric)
        change = 1e-2 * torch.randn(last.shape, generator=torch.Generator().manual_seed(0))
        ends = [_measure(_unembedded(learned, last + s * change, 16), answers, others, metric) for s in (1, -1)]
        torch.testing.assert_close((ends[0] - ends[1]) / 2, (slope * change).sum(-1), rtol=2e-2, atol=2e-3)


def test_effects_by_variable(learned, few):
    found = direct_effects(learned, few, resamples=2)
    by_variable = found.by_variable()
    assert len(by_variable) == 4
    counts = {variable: found.variables.count(variable) for variable in by_variable}
    mean = sum(counts[v] * values for v, values in by_variable.items()) / len(few)
    np.testing.assert_allclose(mean, found.mean)
    overlap = component_overlap(by_variable, 3)
    np.testing.assert_allclose(np.diag(overlap), 1)
    np.testing.assert_allclose(overlap, overlap.T)
    assert found.top(2)[0] == found.components[int(found.mean.argmax())]
    assert found.mean[0] == 0  # the embedding of ":" is the same in all prompts
    assert str(Component("head", 2, 1)) == "head 2.1"


def test_attention_on_entities(learned, few):
    attention, answering = attention_to_entities(learned, few, 16)
    assert attention.shape == (40, 3, 2, 4)
    assert attention.min() >= 0
    assert attention.sum(-1).max() <= 1 + 1e-5
    pattern = end_patterns(learned, learned.batch_tokens(few.tokens[:1]))[0]
    words = few.items[0].text.split()
    for e, entity in enumerate(few.contexts[0]):
        np.testing.assert_allclose(attention[0, ..., e], pattern[..., words.index(entity.name)], atol=1e-6)
    assert few.contexts[0][answering[0]].name == few.answers[0].strip()
    top = movers(direct_effects(learned, few), attention, answering, 2)
    assert top[0].effect >= top[1].effect
    assert {mover.head.block for mover in movers(direct_effects(learned, few), attention, answering, 5, [2])} == {2}


def test_request_patching_moves_attention(learned, few):
    """Patched at the layer of the request, heads of the last block look at what the source asks for."""
    asked = [
        next(i for i, e in enumerate(c) if e is find(q.where, c))
        for q, c in zip(few.queries, few.contexts, strict=True)
    ]
    sources = [next(j for j, other in enumerate(asked) if other != own) for own in asked]
    plain, answering = attention_to_entities(learned, few)
    assert answering.tolist() == asked
    own, _ = attention_to_entities(learned, few, 16, 1, range(len(few)))
    np.testing.assert_allclose(own, plain, atol=1e-5)
    moved, _ = attention_to_entities(learned, few, 16, 1, sources)
    rows = np.arange(len(few))
    gain = (moved - plain)[rows, 1:, :, [asked[j] for j in sources]].mean(0)
    assert gain.max() > 0.2
    with pytest.raises(InputError, match="a source for each prompt"):
        attention_to_entities(learned, few, layer=1)


@pytest.mark.parametrize("family", ["gpt2", "neox", "llama"])
def test_own_patterns_change_nothing(family, make, tokenizer):
    model, dataset = make(family), make_task("type_hints/animals", tokenizer, 2)
    before = model.config._attn_implementation
    batch = model.batch_tokens(dataset.tokens)
    patterns = end_patterns(model, batch)
    torch.testing.assert_close(patterns.sum(-1), torch.ones(2, 3, 4))
    logits = model.run(batch)
    torch.testing.assert_close(run_with_patterns(model, batch, patterns), logits, atol=1e-4, rtol=1e-4)
    assert (run_with_patterns(model, batch, patterns.flip(0)) - logits).abs().max() > 1e-3
    assert model.config._attn_implementation == before
    attention, _ = attention_to_entities(model, dataset, 2)  # several tokens, byte-level offsets
    assert (attention > 0).all()


def test_patterns_of_the_chimera(learned, stories):
    pairs = [(i, i + 1) for i in range(12) if stories.queries[i] != stories.queries[i + 1]]
    found = compare_patterns(learned, stories, 2, pairs)
    assert found.top1[0, 0] == 1  # the clean target answers its own request
    assert found.top1[1, 1] == 1  # the chimera answers request 1 on context 2
    assert found.rank[1, 1] == 0
    assert found.probability[1, 2] > found.probability[1, 0]  # the pattern alone moves the answer there
    assert found.probability[3, 0] < 0.1  # what nobody asks for
    frame = found.frame()
    assert frame.loc[("R1(C2)", "chimera"), "top1"] == 1
    assert len(frame) == 16
    with pytest.raises(InputError, match="Layer 9"):
        compare_patterns(learned, stories, 9, pairs)


def test_ablation(learned, few):
    assert ablated_accuracy(learned, few, []) == 1
    everything = [Component("head", b, h) for b in range(3) for h in range(2)]
    assert ablated_accuracy(learned, few, everything) < 0.6
    assert not [m for m in learned.module.modules() if m._forward_pre_hooks]


def test_models_without_these_parts(few, stories):
    model = compiled_model()
    dataset = compiled_dataset(model, 5)
    with pytest.raises(InputError, match="no attention output is found in SlotBlock"):
        direct_effects(model, dataset)
    with pytest.raises(InputError, match="no model of transformers; its attention cannot be read"):
        end_patterns(model, model.batch_tokens(dataset.tokens))


def test_prompts_that_all_ask_the_same(learned, stories):
    same = [item for item in stories.items if item.query == stories.queries[0]]
    with pytest.raises(InputError, match="ask the same"):
        direct_effects(learned, type(stories)("same", stories.tokenizer, same))
    assert isinstance(learned, LanguageModel)

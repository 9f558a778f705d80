import copy

import pytest
import torch

from iclr_interp.orion import LanguageModel, NonFiniteError, layer_after, make_task, request_patch, residual_patch_sweep
from iclr_shared.errors import InputError

TEXTS = ("In the city of", "The story takes place in the city of", "Question: What is the capital of Japan?\nAnswer:")
FAMILIES = ("gpt2", "neox", "llama", "falcon", "opt")


class Plain(torch.nn.Module):
    """What a HookedTransformer looks like from outside: `blocks`, and logits as a tensor; blocks may give tuples."""

    class Block(torch.nn.Module):
        def __init__(self, width, as_tuple):
            super().__init__()
            self.inner, self.as_tuple = torch.nn.Linear(width, width), as_tuple

        def forward(self, x):
            out = x + torch.tanh(self.inner(x.cumsum(1)))
            return (out, None) if self.as_tuple else out

    def __init__(self, as_tuple=False):
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.head = torch.nn.Embedding(3000, 8), torch.nn.Linear(8, 3000)
        self.blocks = torch.nn.ModuleList([self.Block(8, as_tuple) for _ in range(2)])

    def forward(self, ids, attention_mask=None):
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
            x = x[0] if isinstance(x, tuple) else x
        return self.head(x)


@pytest.mark.parametrize("family", FAMILIES)
def test_end_alone_gives_what_the_whole_prompt_gives(family, make):
    """Cached patching against naive hooks at every layer, prompts of unequal length, to 1e-4 on logits (§5)."""
    model = make(family)
    batch = model.batch(TEXTS)
    assert len(set(batch.ends.tolist())) == 3
    prefix = model.prefill(batch)
    logits, residuals = model.residuals(batch)
    assert prefix.residuals.shape == residuals.shape == (3, model.depth + 1, 24)
    torch.testing.assert_close(prefix.logits, logits)
    rows = torch.tensor([2, 0, 0, 1])
    sources = residuals[torch.tensor([0, 1, 2, 1])]
    run = model.rerun(prefix, rows, range(model.depth + 1))
    expanded = model.batch([TEXTS[i] for i in rows.tolist()])
    for layer in (3, 0, 2, 1):
        naive = model.run(expanded, layer, sources[:, layer])
        torch.testing.assert_close(run(layer, sources[:, layer]), naive, atol=1e-4, rtol=1e-4)
        assert (naive - logits[rows]).abs().max() > 0.01  # the patch does something
    torch.testing.assert_close(run(0, residuals[rows, 0]), logits[rows], atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(model.unembed(residuals[:, -1]), logits, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("family", FAMILIES)
def test_batching_changes_nothing(family, make):
    model = make(family)
    together = model.run(model.batch(TEXTS))
    alone = torch.cat([model.run(model.batch([text])) for text in TEXTS])
    torch.testing.assert_close(together, alone, atol=1e-4, rtol=1e-4)
    whole = model.module(model.batch(TEXTS[:1]).ids).logits[:, -1]
    torch.testing.assert_close(alone[:1], whole, atol=1e-4, rtol=1e-4)


def test_request_patch_at_the_ends(make):
    model = make("gpt2")
    own = model.run(model.batch(TEXTS[:1]))[0]
    torch.testing.assert_close(request_patch(model, TEXTS[0], TEXTS[1], model.depth), own, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(request_patch(model, TEXTS[1], TEXTS[1], 1), model.run(model.batch(TEXTS[1:2]))[0])


@pytest.mark.parametrize("as_tuple", [False, True])
def test_modules_of_another_make(as_tuple, tokenizer):
    model = LanguageModel(Plain(as_tuple), tokenizer)
    assert not model.can_rerun
    batch = model.batch(TEXTS)
    logits, residuals = model.residuals(batch)
    torch.testing.assert_close(model.run(batch, 2, residuals[:, 2]), logits)
    swapped = model.run(batch, 2, residuals[[1, 2, 0], 2])
    torch.testing.assert_close(swapped, logits[[1, 2, 0]])
    torch.testing.assert_close(model.run(batch, 0, residuals[:, 0]), logits)


def test_sliding_windows_are_patched_naively(make):
    model = make("mistral")
    assert not model.can_rerun
    table = residual_patch_sweep(model, make_task("variable_binding/recipe", model.tokenizer, 4), n_inter=4)
    assert table.method == "naive"
    assert all(make(family).can_rerun for family in FAMILIES)
    with pytest.raises(InputError, match="use method='naive'"):
        residual_patch_sweep(model, make_task("variable_binding/recipe", model.tokenizer, 4), method="cached")


def test_hooks_go_even_on_errors(make, monkeypatch):
    model = make("gpt2")
    before = model.blocks
    batch = model.batch(TEXTS)
    _, residuals = model.residuals(batch)

    def explode(*args, **kwargs):
        raise RuntimeError("boom")

    prefix = model.prefill(batch)
    run = model.rerun(prefix, torch.arange(3), [1])
    with monkeypatch.context() as patched:
        patched.setattr(model.module.transformer.ln_f, "forward", explode)
        for attempt in (
            lambda: model.run(batch, 1, residuals[:, 1]),
            lambda: model.residuals(batch),
            lambda: run(1, residuals[:, 1]),
        ):
            with pytest.raises(RuntimeError, match="boom"):
                attempt()
    assert model.blocks is before
    hooked = [m for m in model.module.modules() if m._forward_hooks or m._forward_pre_hooks]
    assert not hooked


def test_the_models_own_tensor_is_not_written_to(make):
    model = make("llama")
    batch = model.batch(TEXTS)
    kept = []
    handle = model.blocks[0].register_forward_hook(lambda *a: kept.append(a[2][0] if isinstance(a[2], tuple) else a[2]))
    try:
        model.run(batch, 1, torch.zeros(3, 24))
    finally:
        handle.remove()
    assert kept[0][0, batch.ends[0]].abs().max() > 0


def test_layers(make):
    model = make("neox")
    assert layer_after(16) == 17
    for layer in (-1, 4):
        with pytest.raises(ValueError, match=rf"Layer {layer} is not in 0 … N = 3 of neox"):
            model.run(model.batch(TEXTS), layer, torch.zeros(3, 24))


def test_prompts_longer_than_the_window(make):
    with pytest.raises(InputError, match=r"1 of 2 prompts do not fit.*512 tokens, the longest has 5\d\d"):
        make("gpt2").batch_tokens([[1] * 520, [1]])


def test_logits_that_are_not_finite_name_the_layer(make):
    model = make("gpt2")
    broken = LanguageModel(copy.deepcopy(model.module).to(torch.bfloat16), model.tokenizer, "broken")
    batch = broken.batch(TEXTS)
    with pytest.raises(NonFiniteError, match=r"layer 2 patched \(torch.bfloat16\).*wider dtype"):
        broken.run(batch, 2, torch.full((3, 24), torch.nan))
    run = broken.rerun(broken.prefill(batch), torch.arange(3), [3])
    with pytest.raises(NonFiniteError, match="layer 3"):
        run(3, torch.full((3, 24), torch.inf))
    broken.blocks[1].mlp.c_proj.weight.data.fill_(torch.nan)
    for clean in (broken.run, broken.residuals, broken.prefill):
        with pytest.raises(NonFiniteError, match="clean pass, first after layer 2"):
            clean(batch)


def test_load(directory, make, tmp_path):
    model = LanguageModel.load(directory("neox"))
    assert (model.name, model.depth, model.window) == ("neox", 3, 512)
    texts = make_task("variable_binding/recipe", model.tokenizer, 3).prompts
    ours = make("neox")
    torch.testing.assert_close(model.run(model.batch(texts)), ours.run(ours.batch(texts)))
    assert LanguageModel.load(directory("neox"), "bfloat16").run(model.batch(texts)).dtype == torch.bfloat16
    with pytest.raises(InputError, match=r"no model directory: it has no config\.json"):
        LanguageModel.load(tmp_path)
    with pytest.raises(InputError, match="dtype must be"):
        LanguageModel.load(directory("gpt2"), "float8")
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(InputError, match="cannot be loaded"):
        LanguageModel.load(tmp_path)


def test_a_module_without_blocks():
    with pytest.raises(InputError, match="No list of transformer blocks is found in Linear"):
        LanguageModel(torch.nn.Linear(2, 2))

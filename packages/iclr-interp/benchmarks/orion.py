"""Cached patching against re-running each pair's whole prompt, and oversight's cost: `python benchmarks/orion.py`."""

import numpy as np
import torch
from transformers import AutoModelForCausalLM, GPT2Config, GPTNeoXConfig, LlamaConfig

from iclr_interp.orion import LanguageModel
from iclr_shared.bench import compare, print_comparisons

VOCABULARY = 500


def model(family: str, blocks: int, width: int, window: int) -> LanguageModel:
    """An untrained model of a family."""
    sizes = {"vocab_size": VOCABULARY, "hidden_size": width, "num_hidden_layers": blocks, "num_attention_heads": 4}
    sizes |= {"max_position_embeddings": window, "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}
    wide = sizes | {"intermediate_size": 4 * width}
    torch.manual_seed(0)
    chosen = {"GPT-2": GPT2Config(**sizes), "GPT-NeoX": GPTNeoXConfig(**wide), "Llama": LlamaConfig(**wide)}[family]
    return LanguageModel(AutoModelForCausalLM.from_config(chosen), name=family)


def prompts(tokens: int, n: int) -> list[list[int]]:
    """Random prompts of slightly unequal length."""
    rng = np.random.default_rng(0)
    return [rng.integers(1, VOCABULARY, tokens - i % 3).tolist() for i in range(n)]


def sweeps() -> None:
    """All layers of n pairs: one source pass and END alone, against hooks in whole passes, sources cached or not."""
    comparisons = []
    cases = [("GPT-2", 6, 48, tokens) for tokens in (64, 128, 256)]
    cases += [("GPT-2", 12, 48, 256), ("GPT-NeoX", 6, 48, 256), ("Llama", 6, 48, 256), ("GPT-2", 6, 192, 256)]
    for family, blocks, width, tokens in cases:
        language_model, rows = model(family, blocks, width, tokens), prompts(tokens, 8)
        batch = language_model.batch_tokens(rows)
        order = torch.arange(len(rows)).roll(1)

        def ours(language_model=language_model, batch=batch, order=order):
            prefix = language_model.prefill(batch)
            run = language_model.rerun(prefix, torch.arange(len(order)), range(language_model.depth + 1))
            return [run(layer, prefix.residuals[order, layer]) for layer in range(language_model.depth + 1)]

        def naive(language_model=language_model, batch=batch, order=order):
            found = []
            for layer in range(language_model.depth + 1):
                _, residuals = language_model.residuals(batch)  # the source again for each layer
                found.append(language_model.run(batch, layer, residuals[order, layer]))
            return found

        def sources_once(language_model=language_model, batch=batch, order=order):
            _, residuals = language_model.residuals(batch)
            return [language_model.run(batch, l, residuals[order, l]) for l in range(language_model.depth + 1)]

        def same(outputs):
            for other in ("re-running each pair", "sources cached only"):
                for a, b in zip(outputs["ours"], outputs[other], strict=True):
                    torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-4)

        label = f"{family}, {blocks} blocks, width {width}, {tokens} tokens"
        candidates = {"ours": ours, "re-running each pair": naive, "sources cached only": sources_once}
        comparisons.append(compare(candidates, check=same, reps=3, warmup=1, min_time=0, label=label))
    print_comparisons(comparisons, "patching at every layer, 8 pairs")


def oversight() -> None:
    """What repair costs beside the plain answer: the trusted residual is computed once."""
    language_model, rows = model("GPT-2", 6, 192, 128), prompts(128, 8)
    batch = language_model.batch_tokens(rows)
    _, residuals = language_model.residuals(batch)
    trusted = residuals[0, 3]  # what a TrustedRequest keeps

    def plain():
        return language_model.run(batch)

    def repair():
        return language_model.run(batch, 3, trusted.expand(len(rows), -1))

    comparison = compare(
        {"plain answer": plain, "repaired answer": repair}, check=lambda outputs: None, reps=9, label="8 prompts"
    )
    print_comparisons([comparison], "oversight, GPT-2 with 6 blocks, width 192, 128 tokens")


if __name__ == "__main__":
    torch.set_num_threads(1)
    sweeps()
    oversight()

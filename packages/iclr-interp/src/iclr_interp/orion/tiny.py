"""Language models small enough to be trained on the spot, on the typed story (§4)."""

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from iclr_interp.orion.datasets import RetrievalDataset
from iclr_interp.orion.language_model import LanguageModel
from iclr_interp.orion.tasks.typed_story import WORDS, Attack, Grammar, Sample, story_tokenizer
from iclr_shared.adapters import torch_bytes, torch_restore
from iclr_shared.checkpoints import Checkpoint
from iclr_shared.seeds import root


@dataclass(frozen=True)
class Recipe:
    """A GPT-2-type model and how it is trained (§4): pre-norm, GELU MLP of 4 d, learned positions.

    Args:
        first: whether the request stands before the story.
        attack: which attack the training prompts carry; they have two more words then.
        share: of prompts with the attack.
        blocks, width, heads: of the transformer.
        steps: of AdamW, each on fresh prompts, loss at the last token only.
        batch: prompts in a step.
        rate: learning rate.
        decay: weight decay.
        init: initial weights, of which §4 says nothing: ``torch`` as PyTorch's own modules draw them, chosen after
            results had been seen (see Departures in the README), or ``gpt2`` with standard deviation 0.02.
    """

    first: bool = False
    attack: Attack = "none"
    share: float = 0.3
    blocks: int = 4
    width: int = 48
    heads: int = 4
    steps: int = 300
    batch: int = 64
    rate: float = 2e-3
    decay: float = 0.01
    init: Literal["torch", "gpt2"] = "torch"

    @property
    def grammar(self) -> Grammar:
        """Of its prompts."""
        return Grammar(self.first, self.attack != "none")

    @property
    def name(self) -> str:
        """Such as ``tiny-last-4``."""
        attack = "" if self.attack == "none" else f"-{self.attack}-attack"
        init = "" if self.init == "torch" else f"-{self.init}-init"
        return f"tiny-{'first' if self.first else 'last'}-{self.blocks}{attack}{init}"


def tiny_gpt2(recipe: Recipe, seed: int) -> LanguageModel:
    """An untrained model of `transformers`' GPT-2 class; global random state is left as it was."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=len(WORDS), n_positions=16, n_embd=recipe.width, n_layer=recipe.blocks, n_head=recipe.heads,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, tie_word_embeddings=False,
        bos_token_id=None, eos_token_id=None, pad_token_id=len(WORDS) - 1,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module = GPT2LMHeadModel(config)
        if recipe.init == "torch":
            _as_torch_modules(module)
    return LanguageModel(module, story_tokenizer(), recipe.name)


@torch.no_grad()
def _as_torch_modules(module: torch.nn.Module) -> None:
    """Embeddings N(0, 1), linear maps U(±1/√inputs): what `torch.nn.Embedding` and `torch.nn.Linear` begin with."""
    for part in module.modules():
        weight = getattr(part, "weight", None)
        if isinstance(part, torch.nn.Embedding):
            weight.normal_()
        elif weight is not None and weight.ndim == 2:  # Linear has (out, in), Conv1D of GPT-2 (in, out)
            bound = weight.shape[1 if isinstance(part, torch.nn.Linear) else 0] ** -0.5
            weight.uniform_(-bound, bound)
            if part.bias is not None:
                part.bias.uniform_(-bound, bound)


def train(recipe: Recipe, seed: int = 0, progress: Callable[[Any], Iterator[Any]] = iter) -> LanguageModel:
    """Train a model from scratch: seconds on one core."""
    tree = root(seed).child("tiny", recipe.name)
    model, generator = tiny_gpt2(recipe, tree.child("weights").int32()), tree.child("data").torch()
    module = model.module.train()
    optimiser = torch.optim.AdamW(module.parameters(), lr=recipe.rate, weight_decay=recipe.decay, fused=True)
    for _ in progress(range(recipe.steps)):
        sample = recipe.grammar.sample(recipe.batch, generator, recipe.attack, recipe.share)
        logits = module(sample.ids, logits_to_keep=1).logits[:, 0]
        loss = torch.nn.functional.cross_entropy(logits, sample.labels)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    module.eval()
    return model


def trained(
    recipe: Recipe, seed: int, folder: Path | None = None, progress: Callable[[Any], Iterator[Any]] = iter
) -> LanguageModel:
    """The model of `train`, kept in `folder`, so that several experiments share it."""
    if folder is None:
        return train(recipe, seed, progress)
    checkpoint = Checkpoint(folder / f"{recipe.name}-seed{seed}-{recipe.steps}-{recipe.width}", keep=1)
    if (found := checkpoint.latest()) is not None and found[1]["recipe"] == asdict(recipe):
        model = tiny_gpt2(recipe, 0)
        model.module.load_state_dict(torch_restore(found[1]["weights"]))
        return model
    model = train(recipe, seed, progress)
    checkpoint.save(recipe.steps, {"recipe": asdict(recipe), "weights": torch_bytes(model.module.state_dict())})
    return model


def story_dataset(model: LanguageModel, sample: Sample, name: str = "typed_story") -> RetrievalDataset:
    """Prompts of a sample as a data set of the model."""
    return RetrievalDataset(name, model.tokenizer, sample.prompts())

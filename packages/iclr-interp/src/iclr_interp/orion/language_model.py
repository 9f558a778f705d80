"""A causal language model whose residual stream at the last token can be read and overwritten, block by block.

Layers are counted as in §2.1: layer l is the residual after block l, l = 1 … N; layer 0 is what enters the first block.
`layer_after` converts the 0-based block indices of the supervision experiments.
"""

import contextlib
import inspect
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import nn

from iclr_interp.orion.tokens import Batch, Tokenizer, encode, pad
from iclr_shared.errors import InputError

#: Where the blocks are, by family: GPT-2 and Falcon, GPT-NeoX, Llama, OPT, MPT, HookedTransformer and our own.
BLOCKS = (
    "transformer.h", "gpt_neox.layers", "model.layers", "model.decoder.layers", "transformer.blocks",
    "backbone.layers", "blocks",
)  # fmt: skip


class NonFiniteError(InputError):
    """Logits that are NaN or infinite."""


def layer_after(block: int) -> int:
    """The layer (1 … N) that holds the output of the block with this 0-based index."""
    return block + 1


@dataclass
class Prefix:
    """A clean pass over a batch: all that re-running END needs.

    Args:
        batch: the prompts.
        logits: at END.
        residuals: at END, by layer.
        keys_values: by block, for all positions, (prompts, heads, tokens, head width) each.
    """

    batch: Batch
    logits: Float[torch.Tensor, "n V"]
    residuals: Float[torch.Tensor, "n L d"]
    keys_values: list[tuple[torch.Tensor, torch.Tensor]]


class LanguageModel:
    """Any causal language model of `transformers`, or a module with a list of blocks that maps ids to logits.

    Args:
        module: a `PreTrainedModel`; or a module called as ``module(ids, attention_mask=mask)`` that returns logits
            (prompts, tokens, words), such as a `HookedTransformer` of TransformerLens before 4.0.
        tokenizer: its tokenizer.
        name: for records.

    Raises:
        InputError: if no list of blocks is found.
    """

    def __init__(self, module: nn.Module, tokenizer: Tokenizer = None, name: str = "model"):
        self.module, self.tokenizer, self.name = module.eval(), tokenizer, name
        self._parent, self._attribute = _find_blocks(module)
        self.config = getattr(module, "config", getattr(module, "cfg", None))
        self.is_pretrained = hasattr(module, "get_output_embeddings") and hasattr(
            module, "prepare_inputs_for_generation"
        )

    @classmethod
    def load(cls, path: str | Path, dtype: str = "float32", device: str = "cpu") -> "LanguageModel":
        """Read a model and its tokenizer from a local directory in Hugging Face's format.

        Args:
            path: the directory.
            dtype: float32, bfloat16 or float16.
            device: such as ``cuda``; ``auto`` spreads the blocks over all GPUs (needs accelerate).

        Raises:
            InputError: if the directory or the device cannot be used.
        """
        from transformers import AutoModelForCausalLM, AutoTokenizer

        if not (Path(path) / "config.json").is_file():
            raise InputError(f"{path} is no model directory: it has no config.json.")
        if dtype not in ("float32", "bfloat16", "float16"):
            raise InputError(f"dtype must be float32, bfloat16 or float16, got {dtype!r}.")
        options: dict[str, Any] = {"local_files_only": True} | ({"device_map": "auto"} if device == "auto" else {})
        try:
            tokenizer = AutoTokenizer.from_pretrained(str(path), local_files_only=True)
            module = AutoModelForCausalLM.from_pretrained(str(path), dtype=getattr(torch, dtype), **options)
            if device != "auto":
                module = module.to(device)
        except (OSError, ValueError, KeyError, RuntimeError, AssertionError, ImportError) as error:
            raise InputError(f"The model in {path} cannot be loaded: {error}") from error
        if tokenizer.pad_token is None:
            tokenizer.pad_token = tokenizer.eos_token
        return cls(module, tokenizer, Path(path).resolve().name)

    @property
    def blocks(self) -> nn.ModuleList:
        """The transformer blocks."""
        return getattr(self._parent, self._attribute)

    @property
    def depth(self) -> int:
        """N, the number of blocks."""
        return len(self.blocks)

    @property
    def device(self) -> torch.device:
        """Where ids go: that of the first weights that are not offloaded."""
        return next(p.device for p in self.module.parameters() if not p.is_meta)

    @property
    def dtype(self) -> torch.dtype:
        """Of the weights."""
        return next(self.module.parameters()).dtype

    @property
    def fingerprint(self) -> str:
        """Sum of all weights' sizes, which tells models apart whatever their directory is called."""
        with torch.no_grad():
            sizes = (p.abs().sum(dtype=torch.float64).item() for p in self.module.parameters() if not p.is_meta)
            return f"{math.fsum(sizes):.8e}"

    @property
    def window(self) -> int | None:
        """Largest number of tokens, where the configuration names one."""
        for name in ("max_position_embeddings", "n_positions", "n_ctx"):
            if isinstance(value := getattr(self.config, name, None), int):
                return value
        return None

    @property
    def can_rerun(self) -> bool:
        """Whether END alone can be re-run on cached keys and values: full causal attention with a plain cache."""
        if not self.is_pretrained or getattr(self.config, "is_encoder_decoder", False):
            return False
        kinds = set(getattr(self.config, "layer_types", None) or ["full_attention"])
        window = (
            getattr(self.config, "sliding_window", None) if getattr(self.config, "use_sliding_window", True) else None
        )
        return kinds == {"full_attention"} and window is None

    def check_layer(self, layer: int) -> int:
        """Return `layer`, or raise `InputError` stating N."""
        if not 0 <= layer <= self.depth:
            raise InputError(f"Layer {layer} is not in 0 … N = {self.depth} of {self.name}.")
        return layer

    def batch(self, texts: Sequence[str]) -> Batch:
        """Tokenise texts, opening token once, padded on the right. Raises `InputError` if a prompt is too long."""
        return self.batch_tokens([encode(self.tokenizer, text) for text in texts])

    def batch_tokens(self, rows: Sequence[Sequence[int]]) -> Batch:
        """Pad token lists. Raises `InputError` with the lengths where one exceeds the model's window."""
        longest = max(map(len, rows), default=0)
        if self.window is not None and longest > self.window:
            long = sum(len(row) > self.window for row in rows)
            raise InputError(
                f"{long} of {len(rows)} prompts do not fit into the context window of {self.name}: {self.window} "
                f"tokens, the longest has {longest}."
            )
        return pad(rows, 0, self.device)

    # --- whole passes ----------------------------------------------------------------------------------------------

    @torch.no_grad()
    def run(
        self, batch: Batch, layer: int | None = None, patch: Float[torch.Tensor, "n d"] | None = None
    ) -> Float[torch.Tensor, "n V"]:
        """Logits at END; with `patch`, M(x | z_layer ← patch), computed by a hook in a whole pass.

        Args:
            batch: prompts.
            layer: where to overwrite.
            patch: END residuals, one for each prompt.

        Raises:
            InputError: if the layer is out of range.
            NonFiniteError: naming the layer, if logits are not finite.
        """
        if layer is None or patch is None:
            return self.residuals(batch)[0]
        with self.patched(self.check_layer(layer), batch.ends, patch):
            return self._finite(self._logits(batch), f"with the residual of layer {layer} patched")

    @torch.no_grad()
    def residuals(self, batch: Batch) -> tuple[Float[torch.Tensor, "n V"], Float[torch.Tensor, "n L d"]]:
        """Logits and residuals z_0 … z_N at END, from one pass."""
        return self._clean(batch)

    @contextlib.contextmanager
    def patched(self, layer: int, ends: Int[torch.Tensor, " n"], patch: Float[torch.Tensor, "n d"]) -> Iterator[None]:
        """Overwrite the residual at END after block `layer` in every pass inside. The hook goes even on an error."""

        def overwrite(hidden: torch.Tensor) -> torch.Tensor:
            hidden = hidden.clone()
            rows = torch.arange(len(hidden), device=hidden.device)
            hidden[rows, ends.to(hidden.device)] = patch.to(hidden)
            return hidden

        if layer == 0:
            handle = self.blocks[0].register_forward_pre_hook(
                lambda _, args, kwargs: _with_input(args, kwargs, overwrite(_input(args, kwargs))), with_kwargs=True
            )
        else:
            handle = self.blocks[layer - 1].register_forward_hook(
                lambda _, args, output: (
                    (overwrite(output[0]), *output[1:]) if isinstance(output, tuple) else overwrite(output)
                )
            )
        try:
            yield
        finally:
            handle.remove()

    @contextlib.contextmanager
    def _captured(self, ends: torch.Tensor) -> Iterator[dict[int, torch.Tensor]]:
        found: dict[int, torch.Tensor] = {}

        def keep(layer: int, hidden: torch.Tensor) -> None:
            found[layer] = hidden[torch.arange(len(hidden), device=hidden.device), ends.to(hidden.device)].clone()

        def before(layer):
            return lambda _, args, kwargs: keep(layer, _input(args, kwargs))

        def after(_, args, output):
            keep(self.depth, output[0] if isinstance(output, tuple) else output)

        handles = [
            block.register_forward_pre_hook(before(layer), with_kwargs=True) for layer, block in enumerate(self.blocks)
        ]
        handles.append(self.blocks[-1].register_forward_hook(after))
        try:
            yield found
        finally:
            for handle in handles:
                handle.remove()

    def _clean(self, batch: Batch, **options: Any) -> tuple[torch.Tensor, torch.Tensor]:
        with self._captured(batch.ends) as found:
            logits = self._logits(batch, **options)
        self._finite(logits, "in the clean pass", found)
        return logits, torch.stack([found[layer].to(self.device) for layer in range(self.depth + 1)], 1)

    def _logits(self, batch: Batch, **options: Any) -> torch.Tensor:
        """Logits at END only: the unembedding sees one row for each prompt."""
        with self._only_end(batch.ends):
            output = self.module(batch.ids, attention_mask=batch.mask, **options)
        logits = getattr(output, "logits", output)
        if isinstance(logits, tuple):
            logits = logits[0]
        if logits.shape[1] == 1:
            return logits[:, 0]
        return logits[torch.arange(len(logits), device=logits.device), batch.ends.to(logits.device)]

    @contextlib.contextmanager
    def _only_end(self, ends: torch.Tensor) -> Iterator[None]:
        head = self.module.get_output_embeddings() if self.is_pretrained else None
        if head is None:
            yield
            return

        def gather(_, args):
            hidden = args[0]
            if hidden.shape[1] > 1:
                rows = torch.arange(len(hidden), device=hidden.device)
                return (hidden[rows, ends.to(hidden.device)][:, None], *args[1:])
            return None

        handle = head.register_forward_pre_hook(gather)
        try:
            yield
        finally:
            handle.remove()

    # --- END alone, on cached keys and values (§5) -------------------------------------------------------------------

    @torch.no_grad()
    def prefill(self, batch: Batch) -> Prefix:
        """One clean pass that keeps the keys and values of every block, besides what `residuals` gives."""
        from transformers import DynamicCache

        cache = DynamicCache(config=self.config)
        logits, residuals = self._clean(batch, use_cache=True, **{self._cache_name: cache})
        return Prefix(batch, logits, residuals, [(layer.keys, layer.values) for layer in cache.layers])

    @torch.no_grad()
    def rerun(self, prefix: Prefix, rows: Int[torch.Tensor, " m"], layers: Sequence[int]) -> "Rerun":
        """Prepare re-running END of the prompts `rows` of `prefix` from each of `layers` on."""
        for layer in layers:
            self.check_layer(layer)
        return Rerun(self, prefix, rows)

    def unembed(self, residual: Float[torch.Tensor, "n d"], grad: bool = False) -> Float[torch.Tensor, "n V"]:
        """Final norm and unembedding of residuals after the last block, of a model of `transformers`.

        Args:
            residual: one for each row.
            grad: keep the graph for the gradient with respect to `residual`.
        """
        with torch.set_grad_enabled(grad), self._entering(self.depth, residual[:, None]):
            ids = torch.zeros(len(residual), 1, dtype=torch.long, device=self.device)
            return self.module(ids, attention_mask=torch.ones_like(ids)).logits[:, 0]

    @contextlib.contextmanager
    def _entering(self, layer: int, hidden: torch.Tensor) -> Iterator[None]:
        """Inside, the model has only the blocks above `layer`, and `hidden` enters the first of them."""
        blocks = self.blocks
        following = blocks[layer] if layer < self.depth else None
        entry = _Entry(following, blocks[-1], hidden, following is None and self._blocks_give_tuples)
        setattr(self._parent, self._attribute, nn.ModuleList([entry, *blocks[layer + 1 :]]))
        try:
            yield
        finally:
            setattr(self._parent, self._attribute, blocks)

    @cached_property
    def _blocks_give_tuples(self) -> bool:
        """Whether a block's output is a tuple; that depends on the family and the version of transformers."""
        found: list[bool] = []
        handle = self.blocks[-1].register_forward_hook(lambda _, args, output: found.append(isinstance(output, tuple)))
        try:
            ids = torch.zeros(1, 1, dtype=torch.long, device=self.device)
            with torch.no_grad():
                self.module(ids, attention_mask=torch.ones_like(ids))
        finally:
            handle.remove()
        return found[0]

    @property
    def _cache_name(self) -> str:
        # transformers 5.2x renamed the argument `past_key_values` to `cache`.
        return "cache" if "cache" in inspect.signature(type(self.module).forward).parameters else "past_key_values"

    def _finite(
        self, logits: torch.Tensor, where: str, residuals: dict[int, torch.Tensor] | None = None
    ) -> torch.Tensor:
        if not torch.isfinite(logits).all():
            bad = [layer for layer, residual in (residuals or {}).items() if not torch.isfinite(residual).all()]
            where += f", first after layer {min(bad)}" if bad else ""
            raise NonFiniteError(
                f"{self.name} gives logits that are not finite {where} ({self.dtype}). Use a wider dtype, such as "
                "float32."
            )
        return logits


class Rerun:
    """END of some prompts, ready to be run again from any layer with another residual.

    Only END changes and END is last, so by causality all earlier keys and values stay as they were; END's own are
    computed anew in every block above the patch. The cost of layer l is N − l blocks on one token instead of N on all.
    """

    def __init__(self, model: LanguageModel, prefix: Prefix, rows: torch.Tensor):
        from transformers import DynamicCache

        self.model, self.rows = model, rows
        batch, tokens = prefix.batch, prefix.batch.ids.shape[1]
        self.ends = batch.ends[rows]
        # END is the last column of the mask; its clean keys and those of padding are hidden.
        kept = torch.arange(tokens, device=rows.device) < self.ends[:, None]
        self.mask = torch.cat([kept, torch.ones_like(kept[:, :1])], 1).long()
        self.ids = batch.ids[rows, self.ends][:, None]
        whole = len(rows) == len(batch.ids) and bool((rows == torch.arange(len(rows), device=rows.device)).all())
        self.keys_values = [
            (k, v) if whole else (k[rows.to(k.device)], v[rows.to(v.device)]) for k, v in prefix.keys_values
        ]
        self.cache = DynamicCache(config=model.config)
        for i, (keys, values) in enumerate(self.keys_values):
            self.cache.update(keys, values, i)

    @torch.no_grad()
    def __call__(self, layer: int, patch: Float[torch.Tensor, "m d"]) -> Float[torch.Tensor, "m V"]:
        """M(x | z_layer ← patch) at END. Raises `NonFiniteError` naming the layer."""
        model = self.model
        for held, (keys, values) in zip(self.cache.layers, self.keys_values, strict=True):
            held.keys, held.values = keys, values
        options = {model._cache_name: self.cache, "use_cache": True, "position_ids": self.ends[:, None]}
        if "position_ids" not in inspect.signature(type(model.module).forward).parameters:
            del options["position_ids"]  # positions from the mask (OPT, Bloom)
        with model._entering(model.check_layer(layer), patch[:, None].to(model.dtype)):
            logits = model.module(self.ids, attention_mask=self.mask, **options).logits[:, 0]
        return model._finite(logits, f"with the residual of layer {layer} patched")


class _Entry(nn.Module):
    """Stands for a block (or for none, above the last) and puts a given residual in place of what comes in."""

    def __init__(self, block: nn.Module | None, like: nn.Module, hidden: torch.Tensor, as_tuple: bool):
        super().__init__()
        self.block, self.hidden, self.as_tuple = block, hidden, as_tuple
        self._like = [like]  # not registered: only its attributes are asked for

    def forward(self, *args, **kwargs):
        if self.block is None:
            return (self.hidden, None) if self.as_tuple else self.hidden
        args, kwargs = _with_input(args, kwargs, self.hidden)
        return self.block(*args, **kwargs)

    def __getattr__(self, name):
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self.__dict__["_like"][0], name)


def _input(args: tuple, kwargs: dict) -> torch.Tensor:
    return args[0] if args else kwargs["hidden_states"]


def _with_input(args: tuple, kwargs: dict, hidden: torch.Tensor) -> tuple[tuple, dict]:
    return ((hidden, *args[1:]), kwargs) if args else (args, {**kwargs, "hidden_states": hidden})


def _find_blocks(module: nn.Module) -> tuple[nn.Module, str]:
    for path in BLOCKS:
        *way, last = path.split(".")
        parent: Any = module
        for step in way:
            parent = getattr(parent, step, None)
        if isinstance(getattr(parent, last, None), nn.ModuleList) and len(getattr(parent, last)):
            return parent, last
    config = getattr(module, "config", None)
    wanted = getattr(config, "num_hidden_layers", math.nan)
    for parent in module.modules():
        for name, child in parent.named_children():
            if isinstance(child, nn.ModuleList) and len(child) == wanted:
                return parent, name
    raise InputError(f"No list of transformer blocks is found in {type(module).__name__}; it must be a ModuleList.")

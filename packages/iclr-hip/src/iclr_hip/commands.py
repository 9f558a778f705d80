"""``iclr hip VERB``: continue a prompt, measure speed, look at masks."""

import json
import time
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
import tyro
from torch import Tensor

from iclr_hip import cost
from iclr_hip.cache import OffloadedCache
from iclr_hip.config import HiPConfig
from iclr_hip.inspection import captured_mass, pattern_figure
from iclr_hip.serving import Seen, disable_hip, enable_hip, observing
from iclr_shared.errors import InputError
from iclr_shared.files import atomic_path, atomic_write
from iclr_shared.progress import progress
from iclr_shared.tables import print_table

#: Rows of the prompt, the last ones, over which the kept share of dense attention is averaged.
MASS_ROWS = 64

Settings = Annotated[HiPConfig, tyro.conf.arg(name="")]


def generate(
    model_dir: tyro.conf.Positional[Path],
    prompt: tyro.conf.Positional[Path],
    max_new_tokens: int = 64,
    offload: bool = False,
    compare_dense: bool = False,
    device: str | None = None,
    dtype: Literal["auto", "float32", "float16", "bfloat16"] = "auto",
    out: Path | None = None,
    hip: Settings = HiPConfig(),  # noqa: B008 - frozen
) -> None:
    """Continue a prompt greedily with a local model whose attention is pruned.

    Args:
        model_dir: folder of a causal language model and its tokenizer, as transformers saves them.
        prompt: text file.
        max_new_tokens: to generate.
        offload: keep the KV cache in host memory.
        compare_dense: also run dense attention, and compare tokens and times.
        device: such as cuda; the GPU if there is one, by default.
        dtype: of the weights.
        out: JSON file for the record.
        hip: settings of the method.
    """
    if max_new_tokens < 1:
        raise InputError(f"--max-new-tokens must be at least 1, got {max_new_tokens}.")
    model, tokenizer, ids = _load(model_dir, prompt, device, dtype)
    enable_hip(model, hip)
    cache = OffloadedCache.of(model) if offload else None
    masses: list[float] = []

    def note(layer: Seen) -> None:
        if layer.mask is not None and layer.query.shape[2] > 1:
            masses.append(float(_mass(layer).mean()))

    with observing(model, note):
        tokens, seconds = _continue(model, ids, max_new_tokens, cache)
    record: dict[str, Any] = {
        "text": tokenizer.decode(tokens),
        "prompt tokens": ids.shape[1],
        "new tokens": len(tokens),
        "tokens/s": len(tokens) / seconds,
        "seconds": seconds,
        "share of dense attention kept": sum(masses) / len(masses) if masses else None,
        "config": hip.to_dict(),
    }
    if cache is not None:
        record["cache"] = cache.stats()
    if compare_dense:
        dense, dense_seconds = _continue(disable_hip(model), ids, max_new_tokens, None)
        same = [a == b for a, b in zip(tokens, dense, strict=False)]
        record["dense tokens/s"] = len(dense) / dense_seconds
        record["agreement with dense"] = sum(same) / max(len(same), 1)
        record["first difference"] = same.index(False) if False in same else None
    rows = [
        (name, value) for name, value in record.items() if name not in ("text", "config", "cache") and value is not None
    ]
    print_table(("what", "value"), rows + list(record.get("cache", {}).items()), str(model_dir.name))
    print(record["text"])
    if out is not None:
        atomic_write(out, json.dumps(record, indent=2))


def bench(
    lengths: str = "1024,2048,4096,8192,16384,32768",
    heads: int = 2,
    dim: int = 64,
    reps: int = 2,
    out: Path | None = None,
    quiet: bool = False,
    hip: Settings = HiPConfig(),  # noqa: B008 - frozen
) -> None:
    """Seconds and bytes of one attention layer against scaled_dot_product_attention, one CPU thread.

    Args:
        lengths: tokens, between commas.
        heads: of queries and keys.
        dim: width of a head.
        reps: the best one counts.
        out: JSON file for the numbers.
        quiet: no progress bar.
        hip: settings of the method.
    """
    try:
        sizes = [int(part) for part in lengths.split(",")]
    except ValueError:
        raise InputError(f"--lengths are whole numbers between commas, got {lengths!r}.") from None
    for name, value in {"lengths": min(sizes), "heads": heads, "dim": dim, "reps": reps}.items():
        if value < 1:
            raise InputError(f"--{name} must be at least 1, got {value}.")
    generator, rows = torch.Generator().manual_seed(0), []
    for size in progress(sizes, desc="lengths", quiet=quiet):
        timed = cost.prefill([size], hip, generator, heads, dim, reps)
        token, _, dense = cost.decode(size, hip, generator, heads, dim, max(reps, 2))
        rows.append(
            (size, timed.hip[0], timed.dense[0], timed.dense[0] / timed.hip[0], 1e3 * token, 1e3 * dense, dense / token)
        )
    columns = ("T", "HiP (s)", "dense (s)", "ratio", "token, HiP (ms)", "token, dense (ms)", "token ratio")
    print_table(columns, rows, f"{heads} heads of width {dim}")
    if out is not None:
        atomic_write(out, json.dumps([dict(zip(columns, row, strict=True)) for row in rows], indent=2))


def inspect(
    model_dir: tyro.conf.Positional[Path],
    prompt: tyro.conf.Positional[Path],
    out: Path,
    device: str | None = None,
    hip: Settings = HiPConfig(dense_layers=0),  # noqa: B008 - frozen
) -> None:
    """Which keys a prompt attends: a picture for each pruned layer, and the share of dense attention that is kept.

    Args:
        model_dir: folder of a causal language model and its tokenizer.
        prompt: text file.
        out: folder for the pictures and masks.json.
        device: such as cuda.
        hip: settings of the method; by default no layer stays dense.
    """
    model, _, ids = _load(model_dir, prompt, device, "auto")
    enable_hip(model, hip)
    rows = []

    def draw(layer: Seen) -> None:
        if layer.mask is None:
            return
        mass = _mass(layer).mean((0, 2))
        attended = float(layer.mask.num_attended()[..., -1].double().mean())
        rows.append((layer.layer, attended, float(mass.mean()), float(mass.min())))
        figure = pattern_figure(
            layer.mask, f"Layer {layer.layer} keeps {100 * float(mass.mean()):.0f} % of dense attention"
        )
        with atomic_path(out / f"layer-{layer.layer:02d}.png") as temporary:
            figure.savefig(temporary, format="png", dpi=130)

    with observing(model, draw), torch.no_grad():
        model(input_ids=ids, use_cache=False)
    if not rows:
        raise InputError(
            f"All {model.config.get_text_config().num_hidden_layers} layers are dense: give a smaller --dense-layers."
        )
    columns = ("layer", "keys of the last token", "share kept", "share kept, worst head")
    print_table(columns, rows, f"{ids.shape[1]} tokens")
    record = [dict(zip(columns, row, strict=True)) for row in rows]
    atomic_write(out / "masks.json", json.dumps({"config": hip.to_dict(), "layers": record}, indent=2))


def _load(model_dir: Path, prompt: Path, device: str | None, dtype: str) -> tuple[Any, Any, Tensor]:
    """Model, tokenizer, and the prompt's tokens (1, T)."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    if not (model_dir / "config.json").is_file():
        raise InputError(
            f"{model_dir} holds no model: config.json is missing. Give a folder that save_pretrained wrote."
        )
    if not prompt.is_file():
        raise InputError(f"There is no prompt {prompt}.")
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        text = prompt.read_text(encoding="utf-8")
        tokenizer = AutoTokenizer.from_pretrained(model_dir, local_files_only=True)
        model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=dtype, local_files_only=True).eval().to(device)
    except (OSError, ValueError, RuntimeError) as error:
        raise InputError(f"{model_dir} or {prompt} cannot be loaded: {error}") from error
    ids = tokenizer(text, return_tensors="pt").input_ids.to(device)
    if not ids.shape[1]:
        raise InputError(f"The prompt {prompt} is empty.")
    return model, tokenizer, ids


def _continue(model: Any, ids: Tensor, count: int, cache: OffloadedCache | None) -> tuple[list[int], float]:
    """Greedy new tokens, and seconds."""
    start = time.perf_counter()
    options = {} if cache is None else {"cache": cache}
    found = model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=count, do_sample=False,
        pad_token_id=model.config.eos_token_id if isinstance(model.config.eos_token_id, int) else 0, **options,
    )  # fmt: skip
    return found[0, ids.shape[1] :].tolist(), time.perf_counter() - start


def _mass(layer: Seen) -> Tensor:
    """(batch, heads, rows) share of dense attention kept in the last rows of a pass."""
    length = layer.mask.query_length
    rows = range(max(0, length - MASS_ROWS), length)
    return captured_mass(layer.query, layer.key.to(layer.query.device), layer.mask, layer.scale, rows)

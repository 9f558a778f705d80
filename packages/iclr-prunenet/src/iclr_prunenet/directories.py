"""Model directories in Hugging Face's format, read and written tensor by tensor: one layer in memory (section 5)."""

import contextlib
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from copy import deepcopy
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig, PreTrainedModel

from iclr_prunenet.feed_forward import FeedForward, UnsupportedModel, all_finite, cut, find_feed_forwards, set_width
from iclr_prunenet.policy import rows_kept
from iclr_prunenet.pruning import Chooser, PruneReport, choose_rows, prune
from iclr_shared.errors import InputError
from iclr_shared.files import atomic_write

RECORD = "prune.json"
"""What was cut, in a pruned model's folder."""
_INDEX = "model.safetensors.index.json"
_FLOATS = ("F64", "F32", "F16", "BF16")
_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".h5", ".msgpack", ".onnx", ".gguf")


class ModelDirectory:
    """A causal language model in a folder; weights stay on disk until asked for.

    Args:
        path: folder with ``config.json`` and weights, as `save_pretrained` writes it.

    Raises:
        InputError: if it is no such folder.
        UnsupportedModel: see `find_feed_forwards`.
    """

    def __init__(self, path: Path | str):
        self.path = Path(path)
        if not (self.path / "config.json").is_file():
            raise InputError(f"{self.path} is no model directory: it has no config.json.")
        try:
            self.config = AutoConfig.from_pretrained(self.path, local_files_only=True, trust_remote_code=False)
        except (ValueError, OSError, KeyError, TypeError) as error:
            raise InputError(f"{self.path}/config.json cannot be read: {first_line(error)}") from error
        if getattr(self.config, "quantization_config", None) is not None:
            raise UnsupportedModel(f"{self.path} holds quantised weights: prune the unquantised model.")
        skeleton = on_meta(self.config, str(self.path))
        self.blocks: list[FeedForward] = find_feed_forwards(skeleton)
        self.parameters = skeleton.num_parameters()
        self.vocabulary: int = skeleton.get_input_embeddings().num_embeddings
        self._shapes = {name: tuple(parameter.shape) for name, parameter in skeleton.named_parameters()}
        self._prefix = f"{skeleton.base_model_prefix}."

    @cached_property
    def shards(self) -> dict[str, str]:
        """File of each tensor, by its name in the files; empty if the weights are not in safetensors."""
        index, single = self.path / _INDEX, self.path / "model.safetensors"
        try:
            if index.is_file():
                found = dict(json.loads(index.read_text(encoding="utf-8"))["weight_map"])
                if strange := [file for file in found.values() if Path(file).name != file]:
                    raise ValueError(f"{strange[0]!r} is no file of this folder")
                return found
            if single.is_file():
                with safe_open(single, "pt") as file:
                    return dict.fromkeys(file.keys(), single.name)
        except (SafetensorError, OSError, ValueError, KeyError, TypeError) as error:
            raise InputError(f"The weights in {self.path} are damaged: {first_line(error)}") from error
        return {}

    def stored_name(self, parameter: str) -> str | None:
        """How a parameter of the model is called in the files (some were saved without the head's prefix)."""
        return next((name for name in (parameter, parameter.removeprefix(self._prefix)) if name in self.shards), None)

    @property
    def streamable(self) -> bool:
        """Whether all that is cut can be found in safetensors files under its own name."""
        return all(self.stored_name(part.parameter) for block in self.blocks for part in block.cuts)

    def tensor(self, parameter: str) -> Tensor:
        """One parameter, read from its file."""
        name = self.stored_name(parameter)
        with self.opened(self.shards[name]) as file:
            return file.get_tensor(name)

    @contextlib.contextmanager
    def opened(self, file: str) -> Iterator[Any]:
        """One file of weights, to be read.

        Raises:
            InputError: if it is missing or damaged.
        """
        try:
            with safe_open(self.path / file, "pt") as opened:
                yield opened
        except (SafetensorError, FileNotFoundError) as error:
            raise InputError(f"{file} cannot be read from {self.path}: {first_line(error)}") from error

    def pruned_config(self, ratio: float) -> PretrainedConfig:
        """The configuration after a cut.

        Raises:
            InputError: for a ratio out of range.
            UnsupportedModel: if it has no entry for the width.
        """
        width = self.blocks[0].intermediate_size
        kept, config = rows_kept(width, ratio), deepcopy(self.config)
        if kept < width:
            set_width(config, width, kept)
        return config

    def load(self) -> PreTrainedModel:
        """The whole model in memory, in the dtype it was saved in."""
        try:
            return AutoModelForCausalLM.from_pretrained(
                self.path, dtype="auto", local_files_only=True, trust_remote_code=False
            ).eval()
        except (OSError, ValueError, RuntimeError, SafetensorError) as error:
            raise InputError(f"The model in {self.path} cannot be loaded: {first_line(error)}") from error

    def matrices(self) -> "ScoredMatrices":
        """The scored matrices, read when indexed; what else is to be cut is looked at too, without reading it.

        Raises:
            InputError: if they cannot be read one by one (see `streamable`), or are unlike the configuration.
            UnsupportedModel: if they are quantised.
        """
        if not self.streamable:
            raise InputError(f"The weights of {self.path} are not in safetensors files under their own names.")
        for parameter in (part.parameter for block in self.blocks for part in block.cuts):
            name = self.stored_name(parameter)
            with self.opened(self.shards[name]) as file:
                stored = file.get_slice(name)
                shape, kind = tuple(stored.get_shape()), stored.get_dtype()
            if kind not in _FLOATS:
                raise UnsupportedModel(f"{parameter} holds {kind} weights: prune the unquantised model.")
            if shape != (promised := self._shapes[parameter]):
                raise InputError(f"{parameter} is {shape} in {self.path}, but {promised} by its config.json.")
        return ScoredMatrices(self)


class ScoredMatrices(Sequence[Float[Tensor, "n h"]]):
    """W_l of each layer, read from disk at each access, so that one is in memory at a time."""

    def __init__(self, directory: ModelDirectory):
        self._directory = directory

    def __len__(self) -> int:
        return len(self._directory.blocks)

    def __getitem__(self, layer: int) -> Float[Tensor, "n h"]:
        block = self._directory.blocks[layer]
        return block.rows(self._directory.tensor(block.scored))


def compress_directory(
    source: Path | str,
    out: Path | str,
    ratio: float,
    choose: Chooser,
    overwrite: bool = False,
    device: torch.device | None = None,
) -> PruneReport:
    """Write a pruned copy of a model directory, which ``AutoModelForCausalLM.from_pretrained`` loads.

    Weights in safetensors go through one tensor at a time; others are loaded whole. All other files (tokenizer,
    generation settings) are copied, and a ``prune.json`` with the kept units is added.

    Args:
        source: model directory.
        out: new directory; it appears when complete.
        ratio: r in [0, 1).
        choose: which rows to keep, see `iclr_prunenet.pruning`.
        overwrite: replace `out` if it is a model directory.
        device: where to compute; the CPU if None.

    Raises:
        InputError: for bad input, see `ModelDirectory` and `choose_rows`, or if `out` exists.
        UnsupportedModel: see `find_feed_forwards` and `set_width`.
    """
    directory = ModelDirectory(source)
    with new_directory(out, overwrite, apart_from=directory.path) as partial:
        return write_pruned(directory, partial, ratio, choose, device)


def write_pruned(
    directory: ModelDirectory, folder: Path, ratio: float, choose: Chooser, device: torch.device | None = None
) -> PruneReport:
    """The same into `folder`, file by file."""
    if not directory.streamable:
        model = directory.load()
        report = prune(model, ratio, choose)
        _copy_others(directory.path, folder)
        model.save_pretrained(folder)
    else:
        report = _stream(directory, folder, ratio, choose, device)
    atomic_write(folder / RECORD, json.dumps(report.record()))
    return report


def replace_weights(folder: Path, model: PreTrainedModel) -> None:
    """Save `model` into `folder` in place of the model there; all other files stay."""
    for file in folder.iterdir():
        # Removed, not overwritten: tensors of `model` may still be mapped from them.
        if file.name.endswith((*_WEIGHTS, ".index.json")):
            file.unlink()
    model.save_pretrained(folder)


def check_output(out: Path | str, overwrite: bool, apart_from: Path | None = None) -> None:
    """Refuse to replace what should stay.

    Raises:
        InputError: if `out` exists and may not be replaced, is no model directory, or is or holds the source.
    """
    out = Path(out)
    if apart_from is not None and out.resolve() in (apart_from.resolve(), *apart_from.resolve().parents):
        raise InputError(f"{out} is the model itself or a folder around it: choose another output folder.")
    if not out.exists():
        return
    if not overwrite:
        raise InputError(f"{out} exists: choose another output folder, or give --overwrite.")
    ours = out.is_dir() and any((out / name).is_file() for name in ("config.json", RECORD))
    if not ours and not (out.is_dir() and not any(out.iterdir())):
        raise InputError(f"{out} is no model directory, so --overwrite leaves it alone: choose another output folder.")


@contextlib.contextmanager
def new_directory(out: Path | str, overwrite: bool, apart_from: Path | None = None) -> Iterator[Path]:
    """A folder beside `out` that is renamed to `out` when the block ends, and removed if it fails.

    What is replaced is set aside until the new folder is in its place.

    Raises:
        InputError: see `check_output`, or if `out` cannot be written.
    """
    check_output(out, overwrite, apart_from)
    target = Path(out).resolve()
    partial, old = (target.with_name(f".{target.name}.{kind}") for kind in ("partial", "old"))
    try:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
    except OSError as error:
        raise InputError(f"Cannot write {out}: {error.strerror}. Choose another output place.") from error
    try:
        yield partial
        if target.exists():
            shutil.rmtree(old, ignore_errors=True)
            os.replace(target, old)
        os.replace(partial, target)
        shutil.rmtree(old, ignore_errors=True)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def on_meta(config: PretrainedConfig, where: str) -> PreTrainedModel:
    """The model of a configuration without weights.

    Raises:
        UnsupportedModel: if it is no causal language model.
    """
    try:
        with torch.device("meta"):
            return AutoModelForCausalLM.from_config(config)
    except ValueError as error:
        raise UnsupportedModel(f"{where} is no causal language model: {first_line(error)}") from error


def _stream(
    directory: ModelDirectory, partial: Path, ratio: float, choose: Chooser, device: torch.device | None
) -> PruneReport:
    config = directory.pruned_config(ratio)
    skeleton = on_meta(config, str(directory.path))
    rows, distances = choose_rows(directory.matrices(), ratio, choose, device)
    width, kept = directory.blocks[0].intermediate_size, len(rows[0])
    cuts = {
        directory.stored_name(part.parameter): (part, index)
        for block, index in zip(directory.blocks, rows, strict=True)
        for part in block.cuts
    }
    _copy_others(directory.path, partial)
    total = 0
    for file in sorted(set(directory.shards.values())):
        tensors = {}
        with directory.opened(file) as opened:
            for name in opened.keys():  # noqa: SIM118
                tensor = opened.get_tensor(name)
                if name in cuts:
                    part, index = cuts[name]
                    all_finite(part.parameter, tensor)
                    tensor = cut(tensor, part, index, width)
                    if tensor.shape != skeleton.get_parameter(part.parameter).shape:
                        raise UnsupportedModel(
                            f"{part.parameter} would be {tuple(tensor.shape)}, which {config.model_type} cannot load."
                        )
                tensors[name] = tensor
                total += tensor.numel() * tensor.element_size()
            metadata = opened.metadata() or {"format": "pt"}
        save_file(tensors, partial / file, metadata)
    if (directory.path / _INDEX).is_file():
        index = json.loads((directory.path / _INDEX).read_text(encoding="utf-8"))
        index["metadata"] = {**index.get("metadata", {}), "total_size": total}
        atomic_write(partial / _INDEX, json.dumps(index, indent=2))
    config.save_pretrained(partial)
    before, after = directory.parameters, skeleton.num_parameters()
    return PruneReport(ratio, (width, kept), tuple(rows), tuple(distances), (before, after))


def _copy_others(source: Path, target: Path) -> None:
    for file in source.iterdir():
        weights = file.name.endswith(_WEIGHTS) or file.name.endswith(".index.json")
        if file.is_file() and not weights and file.name not in ("config.json", RECORD):
            shutil.copy2(file, target / file.name)


def first_line(error: BaseException) -> str:
    """The first line of an error's message, or its kind."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]

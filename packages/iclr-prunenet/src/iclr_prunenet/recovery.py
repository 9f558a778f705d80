"""Optional fine-tuning of a pruned model with LoRA, which needs text (section 2.7)."""

import contextlib
import hashlib
import json
import random
import shutil
import warnings
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor
from transformers import (
    EarlyStoppingCallback,
    PretrainedConfig,
    PreTrainedModel,
    PrinterCallback,
    Trainer,
    TrainingArguments,
)
from transformers.pytorch_utils import Conv1D

from iclr_prunenet.evaluation import longest
from iclr_shared.errors import InputError, require


@dataclass(frozen=True)
class Recovery:
    """Settings of the official experiments.

    Args:
        rank, alpha, dropout: of LoRA, on all linear layers but the head.
        lr, weight_decay, betas, eps: of AdamW, with a linear schedule.
        warmup_steps: 400, but at most a tenth of all steps.
        epochs: over the samples.
        batch_size, accumulation: sequences of a step, steps of an update.
        length: tokens of a sequence.
        samples: at most so many sequences.
        patience: evaluations without progress before it stops.
        eval_steps: updates between evaluations.
        seed: of the order and of LoRA's initial values.
    """

    rank: int = 8
    alpha: int = 32
    dropout: float = 0.1
    lr: float = 2e-4
    weight_decay: float = 1e-2
    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = 1e-8
    warmup_steps: int = 400
    epochs: int = 1
    batch_size: int = 1
    accumulation: int = 4
    length: int = 2048
    samples: int = 4096
    patience: int = 5
    eval_steps: int = 100
    seed: int = 42


def recover(
    model: PreTrainedModel, tokens: Int[Tensor, " n"], folder: Path | str, settings: Recovery | None = None,
    quiet: bool = True,
) -> PreTrainedModel:  # fmt: skip
    """Fine-tune with LoRA on one text and fold the adapters into the weights.

    Args:
        model: pruned; changed in place.
        tokens: (n,) of the text; the last tenth of the sequences is held out to stop early.
        folder: for the trainer's checkpoints; training goes on from the last one of the same model, text and settings.
        quiet: no progress bar.

    Returns:
        A model of the same class and size, with LoRA merged.

    Raises:
        InputError: if the text gives fewer than two sequences.
        MissingExtra: without peft.
    """
    settings = settings or Recovery()
    train, held_out = sequences(tokens, model.config, settings)
    work = Path(folder) / _digest(model, train, held_out, settings)
    trainable = {name: parameter.requires_grad for name, parameter in model.named_parameters()}
    with _random_state_kept(model.device):
        recovered = _fine_tune(model, train, held_out, work, settings, quiet)
    for name, parameter in recovered.named_parameters():
        parameter.requires_grad_(trainable[name])
    return recovered


def sequences(
    tokens: Int[Tensor, " n"], config: PretrainedConfig, settings: Recovery | None = None
) -> tuple[Int[Tensor, "s t"], Int[Tensor, "v t"]]:
    """The text as sequences to train on, and those held out.

    Raises:
        InputError: if the text gives fewer than two sequences.
        MissingExtra: without peft, so that it is known before anything is computed.
    """
    require("peft", "iclr-prunenet[recovery]")
    settings = settings or Recovery()
    length = longest(config, settings.length)
    count = min(len(tokens) // length, settings.samples)
    if count < 2:
        raise InputError(f"The text has {len(tokens)} tokens; two sequences of {length} are needed to recover from.")
    held_out = max(1, count // 10)
    train, held = tokens[: count * length].view(count, length).split([count - held_out, held_out])
    return train, held


def _fine_tune(
    model: PreTrainedModel, train: Tensor, held_out: Tensor, work: Path, settings: Recovery, quiet: bool
) -> PreTrainedModel:
    peft = require("peft", "iclr-prunenet[recovery]")
    steps = max(1, len(train) * settings.epochs // (settings.batch_size * settings.accumulation))
    targets = _linears(model)
    torch.manual_seed(settings.seed)
    lora = peft.LoraConfig(
        r=settings.rank, lora_alpha=settings.alpha, lora_dropout=settings.dropout, task_type="CAUSAL_LM",
        target_modules=targets,
        fan_in_fan_out=all(isinstance(model.get_submodule(name), Conv1D) for name in targets),
    )  # fmt: skip
    with warnings.catch_warnings():
        # peft asks transformers under a name that is to go.
        warnings.filterwarnings("ignore", "`is_gradient_checkpointing`", FutureWarning)
        adapted = peft.get_peft_model(model, lora)
    arguments = TrainingArguments(
        output_dir=str(work),
        num_train_epochs=settings.epochs,
        per_device_train_batch_size=settings.batch_size,
        per_device_eval_batch_size=settings.batch_size,
        gradient_accumulation_steps=settings.accumulation,
        learning_rate=settings.lr,
        weight_decay=settings.weight_decay,
        adam_beta1=settings.betas[0],
        adam_beta2=settings.betas[1],
        adam_epsilon=settings.eps,
        lr_scheduler_type="linear",
        warmup_steps=min(settings.warmup_steps, steps // 10),
        eval_strategy="steps",
        eval_steps=min(settings.eval_steps, steps),
        save_strategy="steps",
        save_steps=min(settings.eval_steps, steps),
        save_total_limit=2,
        load_best_model_at_end=True,
        metric_for_best_model="eval_loss",
        greater_is_better=False,
        report_to="none",
        seed=settings.seed,
        disable_tqdm=quiet,
        use_cpu=model.device.type == "cpu",
        dataloader_pin_memory=model.device.type != "cpu",
    )
    # One device: the trainer would spread over all that it sees.
    arguments._n_gpu = min(1, arguments.n_gpu)
    trainer = Trainer(
        adapted,
        arguments,
        train_dataset=_examples(train),
        eval_dataset=_examples(held_out),
        callbacks=[EarlyStoppingCallback(settings.patience)],
    )
    if quiet:
        trainer.remove_callback(PrinterCallback)
    trainer.train(resume_from_checkpoint=_whole_checkpoints(work))
    return adapted.merge_and_unload().eval()


def _examples(rows: Tensor) -> list[dict[str, Tensor]]:
    return [{"input_ids": row, "labels": row} for row in rows]


def _whole_checkpoints(work: Path) -> bool:
    """Whether there are any; those that a kill cut short are removed. The trainer writes its state last."""
    for folder in work.glob("checkpoint-*"):
        try:
            json.loads((folder / "trainer_state.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            shutil.rmtree(folder)
    return any(work.glob("checkpoint-*"))


def _digest(model: PreTrainedModel, train: Tensor, held_out: Tensor, settings: Recovery) -> str:
    """Names the training: checkpoints of another model, text or setting are not gone on from."""
    digest = hashlib.sha256(json.dumps(asdict(settings)).encode())
    for tensor in (*model.parameters(), train, held_out):
        digest.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy())
    return digest.hexdigest()[:16]


@contextlib.contextmanager
def _random_state_kept(device: torch.device) -> Iterator[None]:
    """The trainer seeds the generators of the whole process; give them back as they were."""
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002
    try:
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)  # noqa: NPY002


def _linears(model: PreTrainedModel) -> list[str]:
    """Names of the layers that LoRA takes: all linear ones but the head."""
    head = model.get_output_embeddings()
    return [
        name
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Linear | Conv1D) and module is not head
    ]

"""Training of a classifier: Riemannian optimisers, the official schedule, checkpoints that resume to the same bits."""

import hashlib
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from iclr_shared.adapters import torch_bytes, torch_restore
from iclr_shared.checkpoints import Checkpoint
from iclr_shared.errors import InputError
from iclr_shared.progress import progress
from iclr_symspaces import riemannian


@dataclass(frozen=True)
class Settings:
    """How to train. Defaults are those of the simulated EEG experiment; `OFFICIAL` is the image classification's.

    Args:
        epochs: passes over the data.
        batch: samples a step.
        lr: learning rate.
        optimizer: "adam" or "sgd" (Nesterov), both Riemannian.
        momentum: of sgd.
        weight_decay: of ordinary parameters; curvature has none.
        milestones: epochs at which the rate is multiplied by `gamma`.
        gamma: that factor. Manifold parameters start at lr · gamma and skip the first milestone (official train.py).
        curvature_lr: rate of a learned curvature, constant (official code).
        seed: of the order of samples.
    """

    epochs: int = 40
    batch: int = 60
    lr: float = 0.01
    optimizer: str = "adam"
    momentum: float = 0.9
    weight_decay: float = 0.0
    milestones: tuple[int, ...] = ()
    gamma: float = 0.2
    curvature_lr: float = 1e-4
    seed: int = 0

    def __post_init__(self):
        if self.epochs < 1 or self.batch < 1:
            raise InputError(f"epochs and batch must be at least 1, got {self.epochs} and {self.batch}.")


OFFICIAL = Settings(
    epochs=200, batch=128, lr=0.1, optimizer="sgd", weight_decay=5e-4, milestones=(60, 120, 160), seed=1
)
"""Of the official image classification (config/*.txt, train.py); there before a ResNet-18 with embeddings of 512."""


def learning_rate(settings: Settings, epoch: int, kind: str = "ordinary") -> float:
    """The rate in an epoch (from 0) of parameters of a kind: "ordinary", "manifold" or "curvature"."""
    if kind == "curvature":
        return settings.curvature_lr
    passed = sum(epoch >= milestone for milestone in settings.milestones)
    if kind == "manifold" and settings.milestones:
        return settings.lr * settings.gamma ** max(1, passed)
    return settings.lr * settings.gamma**passed


def fit(
    module: nn.Module,
    x: Tensor,
    y: Tensor,
    settings: Settings | None = None,
    *,
    checkpoint: str | Path | None = None,
    every_s: float = 30.0,
    quiet: bool = True,
    augment: Callable[[Tensor, torch.Generator], Tensor] | None = None,
) -> list[float]:
    """Minimise the cross-entropy of `module`'s logits, in place.

    Args:
        module: classifier.
        x: samples, (B, *point_shape).
        y: class indices, (B,).
        settings: how; the defaults if None.
        checkpoint: folder. If it holds a state of the same settings, data and model, training goes on from there: on a
            CPU the result equals that of an uninterrupted run bit for bit.
        every_s: seconds between checkpoints; one is saved at the end of training too.
        quiet: no progress bar.
        augment: changes each batch of samples before the module sees it, by draws of the given generator only.

    Returns:
        Mean loss of each epoch.

    Raises:
        InputError: if sizes differ, the checkpoint belongs to other settings, data or another model, or the loss is no
            longer finite.
    """
    settings = settings or Settings()
    if len(x) != len(y) or not len(x):
        raise InputError(f"There must be as many labels as samples, and some: got {len(y)} and {len(x)}.")
    groups: dict[str, list[nn.Parameter]] = {"ordinary": [], "manifold": [], "curvature": []}
    for name, parameter in module.named_parameters():
        groups[_kind(name, parameter)].append(parameter)
    kinds = [kind for kind, members in groups.items() if members]
    optimizer = riemannian.optimizer(
        [{"params": groups[kind], **({"weight_decay": 0.0} if kind == "curvature" else {})} for kind in kinds],
        settings.lr, settings.optimizer, settings.momentum, settings.weight_decay,
    )  # fmt: skip
    generator = torch.Generator().manual_seed(settings.seed)
    losses: list[float] = []
    store = None if checkpoint is None else Checkpoint(checkpoint, every_s=every_s)
    digests = {} if store is None else {"data set": _digest(x, y), "model": _model_digest(module)}
    if store is not None and (found := store.latest()) is not None:
        _, state = found
        if state.get("settings") != _plain(settings) or "digests" not in state:
            raise InputError(f"{checkpoint} belongs to other settings; use the same ones, or another folder.")
        for what, digest in digests.items():
            if state["digests"].get(what) != digest:
                raise InputError(f"{checkpoint} belongs to another {what}; use the same one, or another folder.")
        state, losses = torch_restore(state["state"]), list(state["losses"])
        module.load_state_dict(state["module"])
        optimizer.load_state_dict(state["optimizer"])
        # torch makes Adam's count a float32 tensor; geoopt's bias correction is that of an integer.
        for entry in optimizer.state.values():
            if "step" in entry:
                entry["step"] = int(entry["step"])
        generator.set_state(state["generator"])
    for epoch in progress(range(len(losses), settings.epochs), desc="training", quiet=quiet):
        for kind, group in zip(kinds, optimizer.param_groups, strict=True):
            group["lr"] = learning_rate(settings, epoch, kind)
        losses.append(_epoch(module, x, y, settings.batch, optimizer, generator, augment))
        if losses[-1] != losses[-1] or losses[-1] == float("inf"):
            raise InputError(f"The loss is {losses[-1]} in epoch {epoch + 1}; lower the learning rate or use float64.")
        if store is not None and (store.due() or epoch + 1 == settings.epochs):
            state = {
                "module": plain_state(module), "optimizer": optimizer.state_dict(), "generator": generator.get_state()
            }  # fmt: skip
            entries = {"settings": _plain(settings), "digests": digests, "losses": losses, "state": torch_bytes(state)}
            store.save(epoch + 1, entries)
    return losses


def plain_state(module: nn.Module) -> dict[str, Tensor]:
    """The state dict with manifold parameters as plain tensors, which any reader of tensors can load."""
    return {name: value.detach().as_subclass(Tensor) for name, value in module.state_dict().items()}


def _digest(*tensors: Tensor) -> str:
    """SHA-256 of values, shapes and dtypes."""
    state = hashlib.sha256()
    for tensor in tensors:
        state.update(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
        state.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    return state.hexdigest()


def _model_digest(module: nn.Module) -> str:
    """SHA-256 of the parameters' names, shapes and dtypes, and of what the modules say of themselves (their spaces)."""
    shapes = [(name, str(v.dtype), tuple(v.shape)) for name, v in module.state_dict().items()]
    options = [(name, type(part).__name__, part.extra_repr()) for name, part in module.named_modules()]
    return hashlib.sha256(repr((shapes, options)).encode()).hexdigest()


def _epoch(module, x, y, batch, optimizer, generator, augment) -> float:
    total = 0.0
    for index in torch.randperm(len(x), generator=generator).to(x.device).split(batch):
        optimizer.zero_grad()
        samples = x[index] if augment is None else augment(x[index], generator)
        loss = nn.functional.cross_entropy(module(samples), y[index])
        loss.backward()
        optimizer.step()
        total += float(loss.detach()) * len(index)
    return total / len(x)


def _kind(name: str, parameter: nn.Parameter) -> str:
    if name.rpartition(".")[2] == "log_c":
        return "curvature"
    return "manifold" if hasattr(parameter, "manifold") else "ordinary"


def _plain(settings: Settings) -> dict:
    return {**asdict(settings), "milestones": list(settings.milestones)}

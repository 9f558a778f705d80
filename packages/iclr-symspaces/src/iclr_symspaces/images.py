"""The paper's image experiment at full size: CIFAR in its binary form, a ResNet-18, the hybrid hyperbolic head."""

from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor, nn

from iclr_shared.errors import InputError
from iclr_symspaces.classifiers import BusemannMLR
from iclr_symspaces.hyperbolic import PoincareBall

SIDE, PADDING = 32, 4
# names of the classes: training files, test file, label bytes before each image (the last one is used)
_FORMS = {
    "batches.meta.txt": (tuple(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin", 1),
    "fine_label_names.txt": (("train.bin",), "test.bin", 2),
}


class Images(NamedTuple):
    """Pictures with class indices, for training and testing, and the names of the classes."""

    train: UInt8[Tensor, "b 3 32 32"]
    train_labels: Int[Tensor, "b"]
    test: UInt8[Tensor, "t 3 32 32"]
    test_labels: Int[Tensor, "t"]
    names: tuple[str, ...]


def read_cifar(folder: str | Path) -> Images:
    """CIFAR-10 or CIFAR-100 (fine labels) from the unpacked folder of its binary version.

    Args:
        folder: cifar-10-batches-bin or cifar-100-binary.

    Raises:
        InputError: if files are missing, cut, or hold labels without a name.
    """
    folder = Path(folder)
    form = next((name for name in _FORMS if (folder / name).is_file()), None)
    if form is None:
        raise InputError(
            f"{folder} holds neither {' nor '.join(_FORMS)}; it must be the unpacked binary version of CIFAR-10 or "
            "CIFAR-100."
        )
    train, test, labels = _FORMS[form]
    names = tuple(line for line in (folder / form).read_text(encoding="utf-8").splitlines() if line.strip())
    parts = [_records(folder / name, labels, len(names)) for name in (*train, test)]
    pictures, classes = (torch.cat([part[i] for part in parts[:-1]]) for i in range(2))
    return Images(pictures, classes, *parts[-1], names)


def _records(path: Path, labels: int, classes: int) -> tuple[Tensor, Tensor]:
    """Records of `labels` bytes and 3 × 32 × 32 bytes."""
    if not path.is_file():
        raise InputError(f"There is no file {path}; unpack the whole archive.")
    data, size = np.fromfile(path, np.uint8), labels + 3 * SIDE * SIDE
    if not len(data) or len(data) % size:
        raise InputError(f"{path} has {len(data)} bytes, which is no multiple of a record's {size}; fetch it again.")
    rows = torch.from_numpy(data.reshape(-1, size))
    classes_of = rows[:, labels - 1].long()
    if int(classes_of.max()) >= classes:
        bad = int((classes_of >= classes).nonzero()[0, 0])
        raise InputError(f"{path}: picture {bad} has class {int(classes_of[bad])}, but there are {classes} names.")
    return rows[:, labels:].reshape(-1, 3, SIDE, SIDE), classes_of


def crop_and_flip(x: UInt8[Tensor, "b 3 h w"], generator: torch.Generator) -> UInt8[Tensor, "b 3 h w"]:
    """Each picture padded by 4 black pixels, cut at a random place to its size, and mirrored with probability 1/2."""
    b, _, h, w = x.shape
    top, left = torch.randint(2 * PADDING + 1, (2, b, 1), generator=generator)
    mirrored = torch.rand(b, 1, generator=generator) < 0.5
    rows, columns = top + torch.arange(h), torch.arange(w).expand(b, w)
    columns = left + torch.where(mirrored, columns.flip(-1), columns)
    padded = nn.functional.pad(x, [PADDING] * 4)
    picture, channel = torch.arange(b)[:, None, None, None], torch.arange(3)[None, :, None, None]
    index = (picture, channel, rows[:, None, :, None], columns[:, None, None, :])
    return padded[tuple(part.to(x.device) for part in index)]


class _Block(nn.Module):
    def __init__(self, inner: int, outer: int, stride: int):
        super().__init__()
        self.first, self.second = _convolution(inner, outer, stride), _convolution(outer, outer, 1)
        self.short = nn.Identity() if stride == 1 and inner == outer else _convolution(inner, outer, stride, 1)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.second(torch.relu(self.first(x))) + self.short(x))


def _convolution(inner: int, outer: int, stride: int, size: int = 3) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(inner, outer, size, stride, padding=size // 2, bias=False), nn.BatchNorm2d(outer))


class HyperbolicResNet(nn.Module):
    """ResNet-18 for small pictures, its features cut at norm `clip`, mapped by exp_o, and classified in the ball.

    Defaults are the official ones: 512 features, c = 1, clip 1.0, the "gyro" norm.

    Args:
        classes: K.
        generator: source of the initial values.
        width: channels of the first stage; there are 8 times as many features.
        clip: largest norm of the features.
        mean, std: of the channels of the training pictures in [0, 1], kept with the parameters.
    """

    def __init__(
        self,
        classes: int,
        generator: torch.Generator,
        *,
        width: int = 64,
        clip: float = 1.0,
        mean: Float[Tensor, "3"] | None = None,
        std: Float[Tensor, "3"] | None = None,
    ):
        super().__init__()
        if width < 1:
            raise InputError(f"width must be at least 1, got {width}.")
        sizes = [width, width, 2 * width, 4 * width, 8 * width]
        blocks = []
        for stage, (inner, outer) in enumerate(pairwise(sizes)):
            blocks += [_Block(inner, outer, 1 if stage == 0 else 2), _Block(outer, outer, 1)]
        self.features = nn.Sequential(
            _convolution(3, width, 1), nn.ReLU(), *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten()
        )
        for module in self.features.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu", generator=generator)
        self.head = BusemannMLR(
            PoincareBall(8 * width), classes, generator, clip=clip, norm="gyro", parametrization="riemannian",
            dtype=torch.float32,
        )  # fmt: skip
        self.register_buffer("mean", (torch.zeros(3) if mean is None else mean).reshape(3, 1, 1))
        self.register_buffer("std", (torch.ones(3) if std is None else std).reshape(3, 1, 1))

    def forward(self, x: UInt8[Tensor, "b 3 h w"]) -> Float[Tensor, "b k"]:
        """Logits of pictures of bytes."""
        return self.head(self.features((x.float() / 255 - self.mean) / self.std))


def channel_statistics(x: UInt8[Tensor, "b 3 h w"]) -> tuple[Float[Tensor, "3"], Float[Tensor, "3"]]:
    """Mean and standard deviation of each channel in [0, 1]; where a channel is constant, 1 for the latter."""
    counts = torch.stack([torch.bincount(x[:, i].reshape(-1).long(), minlength=256) for i in range(3)]).double()
    weights, values = counts / counts.sum(1, keepdim=True), torch.arange(256, dtype=torch.float64) / 255
    mean = weights @ values
    std = (weights @ values.square() - mean.square()).clamp_min(0).sqrt()
    return mean.float(), torch.where(std > 0, std, torch.ones_like(std)).float()


def accuracy(module: nn.Module, x: Tensor, y: Tensor, batch: int = 500) -> float:
    """Share of right classes, in evaluation mode."""
    was = module.training
    module.eval()
    with torch.no_grad():
        hits = sum(int((module(a).argmax(-1) == b).sum()) for a, b in zip(x.split(batch), y.split(batch), strict=True))
    module.train(was)
    return hits / len(x)

"""The image experiment: the published files, augmentation, the network, the command, kill and resume."""

import numpy as np
import pytest
import torch

from iclr_shared.errors import InputError
from iclr_shared.testing import Killed, fault_inject, run_cli
from iclr_symspaces import training
from iclr_symspaces.images import HyperbolicResNet, accuracy, channel_statistics, crop_and_flip, read_cifar
from iclr_symspaces.training import OFFICIAL, fit


def write(path, rng, count, labels, classes):
    """Records in which the class is what the first channel shines with."""
    which = rng.integers(classes, size=count)
    pictures = rng.integers(0, 60, size=(count, 3, 32, 32))
    pictures[:, 0] += (190 * which // max(1, classes - 1))[:, None, None]
    heads = np.stack([np.zeros(count), which], 1)[:, 2 - labels :]
    np.concatenate([heads, pictures.reshape(count, -1)], 1).astype(np.uint8).tofile(path)
    return which, pictures


@pytest.fixture(scope="module")
def cifar(tmp_path_factory):
    folder, rng = tmp_path_factory.mktemp("cifar-10-batches-bin"), np.random.default_rng(0)
    for name in (*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"):
        write(folder / name, rng, 8, 1, 2)
    (folder / "batches.meta.txt").write_text("airplane\nautomobile\n\n")
    return folder


def test_both_published_forms(cifar, tmp_path):
    data = read_cifar(cifar)
    assert (len(data.train), len(data.test), data.names) == (40, 8, ("airplane", "automobile"))
    (tmp_path / "fine_label_names.txt").write_text("\n".join("abc"))
    rng = np.random.default_rng(1)
    which, pictures = write(tmp_path / "train.bin", rng, 5, 2, 3)
    write(tmp_path / "test.bin", rng, 2, 2, 3)
    data = read_cifar(tmp_path)
    assert data.train_labels.tolist() == which.tolist()
    np.testing.assert_array_equal(data.train.numpy(), pictures)
    mean, std = channel_statistics(data.train)
    values = data.train.double() / 255
    torch.testing.assert_close(mean.double(), values.mean((0, 2, 3)), rtol=1e-6, atol=0)
    torch.testing.assert_close(std.double(), values.std((0, 2, 3), correction=0), rtol=1e-6, atol=0)


def test_files_that_are_not_cifar(cifar, tmp_path):
    with pytest.raises(InputError, match=r"holds neither batches\.meta\.txt nor"):
        read_cifar(tmp_path)
    (tmp_path / "batches.meta.txt").write_text("one\n")
    with pytest.raises(InputError, match=r"no file .*data_batch_1\.bin"):
        read_cifar(tmp_path)
    for name in ("data_batch_1.bin", "data_batch_2.bin"):
        (tmp_path / name).write_bytes(bytes(3073) if name < "data_batch_2" else bytes(3000))
    with pytest.raises(InputError, match=r"data_batch_2.bin has 3000 bytes, which is no multiple of a record's 3073"):
        read_cifar(tmp_path)
    (tmp_path / "data_batch_1.bin").write_bytes(b"\x07" + bytes(3072))
    with pytest.raises(InputError, match="picture 0 has class 7, but there are 1 names"):
        read_cifar(tmp_path)


def test_crops_and_mirrors(generator):
    x = torch.arange(1, 1 + 64 * 3 * 16, dtype=torch.int64).remainder(251).to(torch.uint8).reshape(64, 3, 4, 4)
    y = crop_and_flip(x, generator)
    assert y.shape == x.shape
    padded = torch.nn.functional.pad(x, [4] * 4)
    seen = set()
    for before, after in zip(padded, y, strict=True):
        places = [
            (i, j, m)
            for i in range(9) for j in range(9) for m in (False, True)
            if torch.equal(after, before[:, i : i + 4, j : j + 4].flip(-1) if m else before[:, i : i + 4, j : j + 4])
        ]  # fmt: skip
        assert places
        seen.update(places[:1])
    assert len(seen) > 20
    torch.testing.assert_close(crop_and_flip(x, torch.Generator().manual_seed(3)),
                               crop_and_flip(x, torch.Generator().manual_seed(3)))  # fmt: skip


def test_the_network_is_the_official_one(generator):
    module = HyperbolicResNet(10, generator)
    assert str(module.head.space) == "PoincareBall(d=512, c=1)"
    assert (module.head.clip, module.head.hyperplanes.norm) == (1.0, "gyro")
    # ResNet-18 for CIFAR has 11 173 962 parameters with its linear layer of 5130
    assert sum(p.numel() for p in module.features.parameters()) == 11_173_962 - 5130
    with pytest.raises(InputError, match="width must be"):
        HyperbolicResNet(10, generator, width=0)


def test_killed_and_resumed(cifar, tmp_path, monkeypatch):
    data = read_cifar(cifar)
    mean, std = channel_statistics(data.train)
    settings = training.Settings(**{**OFFICIAL.__dict__, "epochs": 3, "batch": 10, "lr": 0.05})

    def network():
        return HyperbolicResNet(2, torch.Generator().manual_seed(0), width=2, mean=mean, std=std)

    whole, again = network(), network()
    losses = fit(whole, *data[:2], settings, augment=crop_and_flip)
    with monkeypatch.context() as patch:
        patch.setattr(training, "_epoch", fault_inject(training._epoch, 2))
        with pytest.raises(Killed):
            fit(network(), *data[:2], settings, checkpoint=tmp_path, every_s=0, augment=crop_and_flip)
    assert fit(again, *data[:2], settings, checkpoint=tmp_path, augment=crop_and_flip) == losses
    for name, value in whole.state_dict().items():
        assert torch.equal(again.state_dict()[name], value), name


def test_the_command(cifar, tmp_path):
    out = tmp_path / "cifar.pt"
    options = ("--epochs", 8, "--batch", 10, "--lr", 0.05, "--width", 4, "--quiet")
    code, shown, error = run_cli("symspaces", "images", cifar, "--out", out, *options)
    assert code == 0, error
    assert "PoincareBall(d=32, c=1)" in shown
    content = torch.load(out, weights_only=True)
    assert content["losses"][-1] < content["losses"][0]
    module = HyperbolicResNet(2, torch.Generator(), width=4)
    module.load_state_dict(content["state"])
    data = read_cifar(cifar)
    assert accuracy(module, *data[2:4]) == content["accuracy"] > 0.7
    assert [path.name for path in tmp_path.iterdir()] == ["cifar.pt"]
    code, _, error = run_cli("symspaces", "images", tmp_path, "--out", out, *options)
    assert (code, "holds neither" in error) == (2, True)

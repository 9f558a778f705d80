import numpy as np
import pytest
import torch

from iclr_shared.errors import InputError
from iclr_shared.testing import Killed, fault_inject
from iclr_symspaces import training
from iclr_symspaces.manifolds import SPD, PoincareBall
from iclr_symspaces.nn import BusemannMLR, GeodesicMLR
from iclr_symspaces.training import OFFICIAL, Settings, fit, learning_rate


@pytest.fixture
def problem(generator):
    x = PoincareBall(2).random(30, generator)
    return x, (x[:, 0] > 0).long()


def head(**options):
    return BusemannMLR(PoincareBall(2), 2, torch.Generator().manual_seed(1), **options)


@pytest.mark.parametrize("options", [{}, {"learn_curvature": True, "scale": True}, {"parametrization": "riemannian"}])
@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_killed_and_resumed_bit_for_bit(problem, tmp_path, monkeypatch, options, optimizer):
    settings = Settings(epochs=6, batch=10, lr=0.05, optimizer=optimizer, milestones=(2, 4))
    whole, cut = head(**options), head(**options)
    losses = fit(whole, *problem, settings)
    assert losses[-1] < losses[0]
    with monkeypatch.context() as patch:
        patch.setattr(training, "_epoch", fault_inject(training._epoch, 3))
        with pytest.raises(Killed):
            fit(cut, *problem, settings, checkpoint=tmp_path, every_s=0)
    again = head(**options)
    assert fit(again, *problem, settings, checkpoint=tmp_path) == losses
    for name, value in whole.state_dict().items():
        assert torch.equal(again.state_dict()[name], value), name
    if "learn_curvature" in options:
        assert float(again.hyperplanes.log_c.detach()) != 0
    # a finished training is not repeated
    assert fit(head(**options), *problem, settings, checkpoint=tmp_path) == losses
    with pytest.raises(InputError, match="other settings"):
        fit(again, *problem, Settings(epochs=7), checkpoint=tmp_path)


def test_the_official_schedule():
    rates = [learning_rate(OFFICIAL, epoch) for epoch in (0, 59, 60, 120, 160, 199)]
    np.testing.assert_allclose(rates, [0.1, 0.1, 0.02, 0.004, 0.0008, 0.0008])
    manifold = [learning_rate(OFFICIAL, epoch, "manifold") for epoch in (0, 60, 120, 160)]
    np.testing.assert_allclose(manifold, [0.02, 0.02, 0.004, 0.0008])
    assert learning_rate(OFFICIAL, 150, "curvature") == 1e-4
    assert (OFFICIAL.epochs, OFFICIAL.batch, OFFICIAL.weight_decay, OFFICIAL.seed) == (200, 128, 5e-4, 1)
    assert learning_rate(Settings(), 30, "manifold") == 0.01


def test_bad_training(problem):
    x, y = problem
    with pytest.raises(InputError, match="as many labels"):
        fit(head(), x, y[:-1])
    with pytest.raises(InputError, match="at least 1"):
        Settings(epochs=0)
    broken = head(scale=True)
    with torch.no_grad():
        broken.log_scale.fill_(1e4)
    with pytest.raises(InputError, match=r"The loss is (nan|inf) in epoch 1"):
        fit(broken, x, y, Settings(epochs=1))


def test_float32_learns_too(generator):
    space = SPD(3)
    x = torch.cat([space.random(20, generator, 0.2), 4 * space.random(20, generator, 0.2)]).float()
    y = torch.arange(40) // 20
    module = BusemannMLR(space, 2, generator, scale=True, dtype=torch.float32)
    losses = fit(module, x, y, Settings(epochs=30, batch=20, lr=0.05))
    assert losses[-1] < 0.5 * losses[0]


def test_a_checkpoint_of_other_data_or_another_model_is_refused(problem, tmp_path):
    x, y = problem
    settings = Settings(epochs=2, batch=10)
    fit(head(), x, y, settings, checkpoint=tmp_path)
    moved = x.clone()
    moved[3, 0] += 1e-9
    for samples, labels in ((moved, y), (x, 1 - y), (x[:20], y[:20]), (x.flip(0), y.flip(0))):
        with pytest.raises(InputError, match="belongs to another data set; use the same one, or another folder"):
            fit(head(), samples, labels, settings, checkpoint=tmp_path)
    generator = torch.Generator().manual_seed(1)
    others = (
        head(scale=True), head(learn_curvature=True), head(norm="gyro"), head(dtype=torch.float32),
        BusemannMLR(PoincareBall(2), 3, generator), BusemannMLR(PoincareBall(2, 0.5), 2, generator),
        GeodesicMLR(PoincareBall(2), 2, generator),
    )  # fmt: skip
    for other in others:
        with pytest.raises(InputError, match="belongs to another model"):
            fit(other, x, y, settings, checkpoint=tmp_path)
    assert len(fit(head(), x, y, settings, checkpoint=tmp_path)) == 2

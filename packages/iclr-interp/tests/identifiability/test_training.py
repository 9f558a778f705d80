import numpy as np
import pytest
import torch

from iclr_interp.identifiability.examples import TRAINED
from iclr_interp.identifiability.gates import corners, dataset, truth_table
from iclr_interp.identifiability.networks import MLP, from_torch, load
from iclr_interp.identifiability.report import identifiability_report
from iclr_interp.identifiability.training import NotConvergedError, Training, require_gate, train_gates
from iclr_shared.errors import InputError

QUICK = Training(repeats=25, lr=0.02, epochs=60, batch=20)


def test_networks_learn_their_gates():
    nets = train_gates(["XOR", "AND"], (4,), range(4), QUICK)
    good = [net for net in nets if net.converged]
    assert good
    for index, gate in enumerate(("XOR", "AND")):
        require_gate(good[0].require().model.output(index), gate)
    assert [net.seed for net in nets] == list(range(4))


def test_seeds_side_by_side_are_seeds_alone():
    together = train_gates(["OR"], (2, 2), (5, 6), QUICK)
    for seed, net in zip((5, 6), together, strict=True):
        [alone] = train_gates(["OR"], (2, 2), (seed,), QUICK)
        assert (alone.epochs, alone.accuracy, alone.converged) == (net.epochs, net.accuracy, net.converged)
        for a, b in zip(alone.model.weights, net.model.weights, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)


def test_against_torchs_own_loop():
    """The stacked steps are those of `torch.optim.AdamW` on one network."""
    settings = Training(repeats=5, batch=20, epochs=1, patience=5)
    [net] = train_gates(["AND"], (3,), (2,), settings)
    rng = np.random.default_rng([2, 0])
    x, y = (torch.as_tensor(part, dtype=torch.float32) for part in dataset(["AND"], 5, rng))
    torch.manual_seed(2)
    model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.LeakyReLU(), torch.nn.Linear(3, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=settings.lr)
    rows = torch.as_tensor(rng.permutation(20))
    torch.nn.functional.mse_loss(model(x[rows]), y[rows]).backward()
    optimizer.step()
    for ours, theirs in zip(net.model.weights, (model[0].weight, model[2].weight), strict=True):
        torch.testing.assert_close(ours.float(), theirs.detach(), rtol=1e-5, atol=1e-6)


def test_data():
    rng = np.random.default_rng(0)
    x, y = dataset(["XOR", "OR"], 100, rng)
    assert x.shape == (400, 2)
    np.testing.assert_array_equal(y[:, 0], x[:, 0] != x[:, 1])
    x, y = dataset(["XOR"], 6, rng, noise=0.1)
    assert len(x) == 6 * 4 * 6
    np.testing.assert_array_equal(y[:, 0], x.round()[:, 0] != x.round()[:, 1])
    x, _ = dataset(["XOR"], 500, np.random.default_rng(1), skewed=True)
    counts = np.unique(x, axis=0, return_counts=True)[1]
    assert counts.max() > 1.5 * counts.min()


def test_truth_tables():
    np.testing.assert_array_equal(truth_table("NIMP"), [0, 0, 1, 0])
    np.testing.assert_array_equal(truth_table("0110"), truth_table("xor"))
    np.testing.assert_array_equal(truth_table("MAJORITY"), [0, 0, 0, 1, 0, 1, 1, 1])
    np.testing.assert_array_equal(truth_table("EXACT_2"), [0, 0, 0, 1, 0, 1, 1, 0])
    np.testing.assert_array_equal(truth_table("PARITY"), corners(3).sum(1) % 2)


@pytest.mark.parametrize(
    ("gate", "message"), [("FOO", "is unknown"), ("011", "2, 4, 8"), ([0, 2], "only 0 and 1"), ("", "unknown")]
)
def test_bad_gates(gate, message):
    with pytest.raises(InputError, match=message):
        truth_table(gate)


def test_gates_of_unequal_arity():
    with pytest.raises(InputError, match="equally many inputs"):
        train_gates(["XOR", "MAJORITY"], (2,), (0,), QUICK)


def test_not_converged():
    [net] = train_gates(["XOR"], (2,), (0,), Training(repeats=5, epochs=1))
    with pytest.raises(NotConvergedError, match="seed 0 has not converged"):
        net.require()
    with pytest.raises(NotConvergedError, match="wrong on"):
        identifiability_report(net.model, "XOR")
    with pytest.raises(InputError, match="3 inputs and one output"):
        require_gate(net.model, "MAJORITY")


def test_files(tmp_path):
    TRAINED.save(tmp_path / "net.npz")
    again = load(tmp_path / "net.npz")
    assert again.activation == "leaky_relu"
    assert all((a == b).all() for a, b in zip(again.weights, TRAINED.weights, strict=True))
    module = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.LeakyReLU(), torch.nn.Linear(3, 1))
    torch.save(module.state_dict(), tmp_path / "net.pt")
    x = torch.as_tensor(corners(2), dtype=torch.float32)
    for model in (load(tmp_path / "net.pt"), from_torch(module)):
        torch.testing.assert_close(model(x).float(), module(x).detach())
    assert load(tmp_path / "net.pt", "relu").activation == "relu"
    assert TRAINED.head(2).sizes == (3, 3, 1)
    (tmp_path / "bad.npz").write_bytes(b"x")
    for path in ("bad.npz", "missing.npz", "missing.pt"):
        with pytest.raises(InputError, match="holds no network"):
            load(tmp_path / path)


def test_nested_and_idle_modules():
    plain = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Tanh(), torch.nn.Linear(3, 1))
    nested = torch.nn.Sequential(plain[:2], torch.nn.Dropout().eval(), torch.nn.Identity(), plain[2])
    x = torch.as_tensor(corners(2))
    torch.testing.assert_close(from_torch(nested)(x), from_torch(plain)(x))
    with pytest.raises(InputError, match=r"Module 0\.1 is GELU"):
        from_torch(torch.nn.Sequential(torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.GELU())))


@pytest.mark.parametrize(
    ("modules", "message"),
    [
        ((torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2), torch.nn.Linear(2, 1)), "Module 1 is BatchNorm1d"),
        ((torch.nn.Linear(2, 2), torch.nn.Dropout(), torch.nn.Linear(2, 1)), "Module 1 is Dropout"),
        ((torch.nn.Conv1d(1, 1, 1),), "Module 0 is Conv1d"),
        ((torch.nn.Bilinear(2, 2, 1),), "Module 0 is Bilinear"),
        ((), "must end in a Linear"),
        ((torch.nn.Linear(2, 2), torch.nn.ReLU()), "must end in a Linear"),
        ((torch.nn.Linear(2, 2), torch.nn.LeakyReLU(0.2), torch.nn.Linear(2, 1)), "slope 0.2"),
        ((torch.nn.Linear(2, 1, bias=False),), "no bias"),
    ],
)
def test_modules_that_cannot_be_analysed(modules, message):
    with pytest.raises(InputError, match=message):
        from_torch(torch.nn.Sequential(*modules))


@pytest.mark.parametrize(
    ("weights", "biases", "message"),
    [
        ([np.ones((2, 2))], [np.ones(3)], "Layer 1 has weights"),
        ([np.ones((2, 2)), np.ones((1, 3))], [np.ones(2), np.ones(1)], "Layer 2 takes 3 values"),
        ([np.full((1, 2), np.nan)], [np.ones(1)], "Layer 1 holds NaN"),
        ([], [], "needs a bias"),
    ],
)
def test_bad_weights(weights, biases, message):
    with pytest.raises(InputError, match=message):
        MLP(weights, biases)
    with pytest.raises(InputError, match="activation 'gelu' is unknown"):
        MLP([np.ones((1, 1))], [np.ones(1)], "gelu")
    with pytest.raises(InputError, match="3 linear layers; its head"):
        TRAINED.head(4)

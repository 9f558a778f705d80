"""The ledger's checks. Networks and their circuits are computed once for each setting."""

from collections.abc import Sequence
from functools import cache

import numpy as np
import torch

from iclr_interp.identifiability import examples
from iclr_interp.identifiability.alignments import find_alignments
from iclr_interp.identifiability.circuits import Circuit, count_circuits
from iclr_interp.identifiability.formulas import candidate_formulas, skeletons
from iclr_interp.identifiability.gates import corners, truth_table
from iclr_interp.identifiability.interpretations import count_interpretations
from iclr_interp.identifiability.networks import MLP, from_torch
from iclr_interp.identifiability.report import whole_network
from iclr_interp.identifiability.search import find_circuits
from iclr_interp.identifiability.training import Training, train_gates
from iclr_shared.claims import ClaimRun, Measurement
from iclr_shared.errors import InputError
from iclr_shared.plots import new_figure

XOR = truth_table("XOR")[:, None]


@cache
def converged(
    root: int, number: int, gates: tuple[str, ...] = ("XOR",), hidden: tuple[int, ...] = (3, 3),
    training: Training = Training(),  # noqa: B008 (frozen)
) -> tuple[tuple[MLP, ...], int]:  # fmt: skip
    """The first `number` converged networks of a stream of seeds, and how many were tried."""
    found, tried = [], 0
    while len(found) < number:
        if tried >= 10 * number:
            raise InputError(f"Of {tried} networks only {len(found)} converged; {number} are needed.")
        seeds = range(1000 * root + tried, 1000 * root + tried + number + 2)
        for trained in train_gates(gates, hidden, seeds, training):
            tried += 1
            if trained.converged:
                found.append(trained.model)
            if len(found) == number:
                break
    return tuple(found), tried


def _untrained(run: ClaimRun, number: int, hidden: Sequence[int] = (3, 3)) -> list[MLP]:
    nets = train_gates(
        ["XOR"], hidden, [run.seeds.int32() + i for i in range(number)], Training(repeats=25, epochs=1, lr=0.0)
    )
    return [net.model for net in nets]


@cache
def _count(model: MLP, include_all_nodes: bool = False, min_sparsity: float = 0.0) -> int:
    options = {"include_all_nodes": include_all_nodes, "min_sparsity": min_sparsity}
    return len(find_circuits(model, corners(2), XOR, **options))


def _circuits(models: Sequence[MLP], **search) -> np.ndarray:
    return np.array([_count(model, **search) for model in models])


def _interval(values: np.ndarray, rng: np.random.Generator) -> tuple[float, float]:
    """95 % of the mean over resampled networks."""
    means = values[rng.integers(len(values), size=(2000, len(values)))].mean(1)
    low, high = np.quantile(means, (0.025, 0.975))
    return float(low), float(high)


def many_circuits(run: ClaimRun, *, networks: int = 20, unique: bool = False) -> Measurement:
    """Row 1: perfect circuits of each network, official space. Controls: a network with one; untrained networks."""
    models, tried = converged(run.seeds.seed, networks)
    counts = _circuits([examples.UNIQUE] if unique else models)
    if unique:
        counts = _circuits([examples.UNIQUE], include_all_nodes=True)
    whole = _circuits(models, include_all_nodes=True)
    random = [
        len(find_circuits(model, corners(2), XOR, reference="model")) for model in _untrained(run, min(networks, 5))
    ]
    figure, axes = new_figure()
    axes.bar(np.arange(len(models)) - 0.2, _circuits(models), 0.4, label="a neuron masked (official space)")
    axes.bar(np.arange(len(models)) + 0.2, whole, 0.4, label="all circuits")
    axes.axhline(1, color="black", linewidth=0.8, linestyle=":", label="identifiable")
    axes.set(yscale="log", xlabel="network", ylabel="perfect circuits", title="XOR, 2-3-3-1")
    axes.set_ylim(0.7, 10 * whole.max())
    axes.set_xticks(range(0, len(models), 2))
    axes.legend(frameon=False, ncols=3, loc="upper center", fontsize=8)
    run.figure("circuits", figure)
    one = int(_circuits([examples.UNIQUE], include_all_nodes=True)[0])
    return Measurement(
        int(counts.min()), baseline=("hand-built network", one), n=networks,
        series={"circuits, official space": _circuits(models), "circuits, all": whole},
        details={
            "converged of tried": f"{networks} of {tried}",
            "space": "official 3,000; all 9,625",
            "untrained networks, circuits that do what the network does": [int(count) for count in random],
        },
    )  # fmt: skip


def mean_circuits(run: ClaimRun, *, networks: int = 20, include_all_nodes: bool = False) -> Measurement:
    """Row 1: their mean in the official space. Control: in the space with all neurons."""
    models, _ = converged(run.seeds.seed, networks)
    counts, whole = (_circuits(models, include_all_nodes=every) for every in (include_all_nodes, True))
    interval = _interval(counts, run.seeds.child("resamples").numpy())
    return Measurement(
        counts.mean(), baseline=("all circuits, no neuron need be masked", whole.mean()), ci=interval, n=networks,
        details={"standard deviation": counts.std(ddof=1), "range": f"{counts.min()} to {counts.max()}"},
    )  # fmt: skip


@cache
def _interpretations(models: tuple[MLP, ...]) -> list[list[int]]:
    return [
        [count_interpretations(model, circuit, corners(2)) for circuit in find_circuits(model, corners(2), XOR)]
        for model in models
    ]


def many_interpretations(run: ClaimRun, *, networks: int = 8, unique: bool = False) -> Measurement:
    """Row 2: interpretations of all perfect circuits of a network. Control: the network with one."""
    models = converged(run.seeds.seed, networks)[0]
    found = _interpretations(models)
    totals = [sum(counts) for counts in found]
    [circuit] = find_circuits(examples.UNIQUE, corners(2), XOR, include_all_nodes=True)
    one = count_interpretations(examples.UNIQUE, circuit, corners(2))
    figure, axes = new_figure()
    for i, counts in enumerate(found):
        axes.plot(np.full(len(counts), i), counts, "o", color="#0072B2", alpha=0.4, markersize=4)
    axes.axhline(1, color="black", linewidth=0.8, linestyle=":", label="identifiable")
    axes.set(
        yscale="log", xlabel="network", ylabel="interpretations of a circuit", title="One dot for each perfect circuit"
    )
    axes.legend(frameon=False)
    run.figure("interpretations", figure)
    per = float(np.mean([np.mean(counts) for counts in found]))
    return Measurement(
        one if unique else float(np.median(totals)), baseline=("hand-built network", one), n=networks,
        series={"interpretations": totals, "circuits": [len(c) for c in found]}, details={"mean per circuit": per},
    )  # fmt: skip


def interpretations_vary(run: ClaimRun, *, networks: int = 8, same: bool = False) -> Measurement:
    """Row 2: largest over smallest total. Control: the circuits' own ratio."""
    found = _interpretations(converged(run.seeds.seed, networks)[0])
    totals, circuits = [sum(counts) for counts in found], [len(counts) for counts in found]
    ratio = 1.0 if same else max(totals) / min(totals)
    return Measurement(ratio, baseline=("numbers of circuits", max(circuits) / min(circuits)), n=networks)


@cache
def _aligned(models: tuple[MLP, ...], pairs: str) -> np.ndarray:
    """Minimal mappings, (networks, formulas)."""
    formulas = candidate_formulas("XOR", 3)
    return np.array([[len(m) for m in find_alignments(model, formulas, pairs)] for model in models])


def several_algorithms(run: ClaimRun, *, networks: int = 20, trained: bool = True) -> Measurement:
    """Row 3: aligned formulas of 56. Control: untrained networks."""
    models, random = converged(run.seeds.seed, networks)[0], tuple(_untrained(run, networks))
    counts = {pairs: (_aligned(models, pairs) > 0).sum(1) for pairs in ("ordered", "unordered")}
    control = (_aligned(random, "ordered") > 0).sum(1).max()
    most = counts["ordered"].max() if trained else control
    return Measurement(
        int(most), baseline=("untrained networks", int(control)), n=networks,
        series={f"formulas, {pairs} pairs": values for pairs, values in counts.items()},
        details={"candidates": 56, "networks with two or more": int((counts["ordered"] > 1).sum())},
    )  # fmt: skip


def several_subspaces(run: ClaimRun, *, networks: int = 20, trained: bool = True) -> Measurement:
    """Row 4: minimal mappings of one formula. Control: untrained networks."""
    models, random = converged(run.seeds.seed, networks)[0], tuple(_untrained(run, networks))
    counts, control = _aligned(models, "ordered"), _aligned(random, "ordered").max()
    aligned = counts[counts > 0]
    return Measurement(
        int(counts.max()) if trained else int(control), baseline=("untrained networks", int(control)), n=networks,
        details={"pairs of network and formula that align": len(aligned), "with several": int((aligned > 1).sum()),
                 "unordered pairs": int(_aligned(models, "unordered").max())},
    )  # fmt: skip


def circuits_grow_with_width(
    run: ClaimRun, *, networks: int = 6, wide: int = 3, widths: tuple[int, ...] = (2, 3, 4)
) -> Measurement:
    """Row 5: mean counts of widths 2, 3 (exact) and 4 (over a fifth masked). Control: share of the space."""
    means, shares = [], []
    for width in run.progress(widths, desc="widths"):
        number, sparsity = (wide, 0.2) if width > 3 else (networks, 0.0)
        models = converged(run.seeds.seed, number, hidden=(width, width))[0]
        counts = _circuits(models, min_sparsity=sparsity)
        means.append(counts.mean())
        shares.append(counts.mean() / count_circuits((2, width, width, 1), min_sparsity=sparsity))
    return Measurement(
        np.diff(means).min(), baseline=("share of the space", np.diff(shares).min()), n=networks,
        series={"width": list(widths), "mean circuits": means, "share of the space": shares},
        details={"width 4": "more than 0.2 of the hidden neurons masked, 3 networks"},
    )  # fmt: skip


def more_gates(run: ClaimRun, *, networks: int = 10, most: int = 3) -> Measurement:
    """Row 6: circuits of the XOR output as AND and OR are trained beside it. Control: the same for the last gate."""
    gates = ("XOR", "AND", "OR")[:most]
    counts, last = [], []
    for k in run.progress(range(1, most + 1), desc="gates"):
        models = converged(run.seeds.seed, networks, gates[:k])[0]
        counts.append(_circuits([model.output(0) for model in models]))
        table = truth_table(gates[k - 1])[:, None]
        last.append(np.mean([len(find_circuits(model.output(k - 1), corners(2), table)) for model in models]))
    numbers, rng = np.array(counts), run.seeds.child("resamples").numpy()
    slopes = [
        np.polyfit(range(1, most + 1), [row[rng.integers(networks, size=networks)].mean() for row in numbers], 1)[0]
        for _ in range(2000)
    ]
    low, high = np.quantile(slopes, (0.025, 0.975))
    return Measurement(
        float(np.polyfit(range(1, most + 1), numbers.mean(1), 1)[0]),
        baseline=("mean circuits of XOR alone", numbers[0].mean()), ci=(float(low), float(high)), n=networks,
        series={"gates": [" ".join(gates[:k]) for k in range(1, most + 1)], "XOR circuits": numbers.mean(1),
                "circuits of the last gate": last},
    )  # fmt: skip


SETTINGS = {
    "loss 1e-1": Training(loss_target=0.1),
    "loss 1e-2": Training(),
    "loss 1e-3": Training(loss_target=1e-3),
    "loss 1e-4": Training(loss_target=1e-4),
    "skewed": Training(skewed=True),
    "noise 0.1": Training(repeats=50, lr=0.01, noise=0.1, loss_target=0.05),
}


def no_setting_is_unique(
    run: ClaimRun, *, networks: int = 6, settings: dict[str, Training] = SETTINGS, unique: bool = False
) -> Measurement:
    """Row 7: mean counts by setting. Control: the hand-built network."""
    means = {}
    for name, training in run.progress(settings.items(), desc="settings"):
        models = [m for m in converged(run.seeds.seed, networks, training=training)[0] if _computes_xor(m)]
        means[name] = float(_circuits(models).mean()) if models else np.nan
    one = int(_circuits([examples.UNIQUE], include_all_nodes=True)[0])
    return Measurement(
        one if unique else min(means.values()), baseline=("hand-built network", one), n=networks,
        series={"setting": list(means), "mean circuits": list(means.values())},
    )  # fmt: skip


def _computes_xor(model: MLP) -> bool:
    return bool((model(torch.as_tensor(corners(2), dtype=torch.float64)).round().numpy() == XOR).all())


def digits_head(run: ClaimRun, *, epochs: int = 40, threshold: float = 0.99, shuffled: bool = False) -> Measurement:
    """Row 8: 64-32-3-3-3-1 on digits 0 and 1, all circuits of the last three layers. Control: shuffled inputs of it."""
    from sklearn.datasets import load_digits

    x, y = load_digits(n_class=2, return_X_y=True)
    x, y = torch.as_tensor(x / 8 - 1, dtype=torch.float32), torch.as_tensor(y[:, None], dtype=torch.float32)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(run.seeds.int32())
        layers: list[torch.nn.Module] = []
        for n, m in ((64, 32), (32, 3), (3, 3), (3, 3), (3, 1)):
            layers += [torch.nn.Linear(n, m), torch.nn.LeakyReLU()]
        net = torch.nn.Sequential(*layers[:-1])
        optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
        for _ in run.progress(range(epochs), desc="digits"):
            for batch in torch.randperm(len(x)).split(16):
                optimizer.zero_grad()
                torch.nn.functional.mse_loss(net(x[batch]), y[batch]).backward()
                optimizer.step()
    model = from_torch(net)
    accuracy = float((model(x.double()).round() == y).all(1).double().mean())
    seen = model.activations(x.double())[2].numpy()
    wrong = seen[run.seeds.child("shuffle").numpy().permutation(len(seen))]
    counts = [
        len(
            find_circuits(
                model.head(3), inputs, y.numpy(), threshold=threshold, progress=lambda b: run.progress(b, "circuits")
            )
        )
        for inputs in ((wrong, wrong) if shuffled else (seen, wrong))
    ]
    return Measurement(
        counts[0], baseline=("inputs shuffled", counts[1]), n=len(x),
        details={"accuracy of the network": accuracy, "searched": count_circuits((3, 3, 3, 1)),
                 "space": "a neuron masked (official); 94,591 with all neurons"},
    )  # fmt: skip


SPACES = {
    (2, 2, 1): (9, 2), (2, 3, 1): (49, 24), (2, 2, 2, 1): (69, 20), (2, 3, 3, 1): (9625, 3000),
    (2, 4, 4, 1): (4_346_385, 1_067_648), (2, 5, 5, 1): (7_271_931_361, 1_247_432_400),
    (3, 3, 3, 1): (94_591, 24_366), (2, 3, 3, 3, 1): (2_568_433, 812_808),
}  # fmt: skip
"""Known numbers of valid circuits, and of those that mask some neuron."""


def known_counts(run: ClaimRun, *, tilt: float = 0.0) -> Measurement:
    """Control row: all known integers, and two hand-built networks. Control: with a third neuron that is not idle."""

    def readings(model: MLP, include_all_nodes: bool = True) -> list[int]:
        table = find_circuits(model, corners(2), XOR, include_all_nodes=include_all_nodes)
        return sorted(count_interpretations(model, circuit, corners(2)) for circuit in table)

    def off(idle: MLP) -> int:
        """Largest difference from the known numbers of circuits and interpretations."""
        wrong = [0]
        for model, known in ((examples.UNIQUE, [1]), (idle, [1, 1, 1, 32])):
            found = readings(model)
            wrong += [abs(len(found) - len(known)), abs(sum(found) - sum(known))]
        return max(wrong)

    tilted = MLP((*examples.IDLE.weights[:-1], [[1, -2, -0.9]]), examples.IDLE.biases, "relu")
    idle = MLP((*examples.IDLE.weights[:-1], [[1, -2, tilt]]), examples.IDLE.biases, "relu")
    trained = readings(examples.TRAINED, False)
    whole = count_interpretations(examples.TRAINED, whole_network(examples.TRAINED), corners(2))
    pairs = [
        *((count_circuits(sizes, True), known) for sizes, (known, _) in SPACES.items()),
        *((count_circuits(sizes), known) for sizes, (_, known) in SPACES.items()),
        *((len(candidate_formulas(gate, 3)), 86) for gate in ("AND", "OR", "IMP", "NAND", "NOR", "NIMP")),
        (len(candidate_formulas("XOR", 3)), 56), (len(candidate_formulas("XOR", 2)), 2), (len(skeletons(2, 3)), 88),
        (len(readings(examples.TRAINED)), 158), (len(trained), 40), (sum(trained), 3932), (whole, 22_609_920),
    ]  # fmt: skip
    return Measurement(
        max(off(idle), *(abs(found - known) for found, known in pairs)),
        baseline=("idle neuron with weight -0.9", off(tilted)), n=len(pairs) + 4,
        details={"circuits and interpretations of the hand-built network": "1 and 1: identifiable",
                 "2-3-3-1, all and official": "9,625 and 3,000",
                 "interpretations of a trained network, unpruned": whole},
    )  # fmt: skip


def one_by_one(model: MLP, circuit: Circuit) -> np.ndarray:
    """Outputs of a circuit on all corners by the definition, neuron by neuron, in plain Python."""
    outputs = []
    for row in corners(model.sizes[0]):
        values = [float(v) for v in row]
        for layer, mask in enumerate(circuit.masks()):
            W, b, last = model.weights[layer].tolist(), model.biases[layer].tolist(), layer == len(model.weights) - 1
            after = []
            for i, edges in enumerate(mask):
                total = b[i] + sum(W[i][j] * values[j] for j in range(len(values)) if edges[j])
                after.append(total if last else (total if total > 0 else 0.01 * total) if edges.any() else 0.0)
            values = after
        outputs.append(values)
    return np.array(outputs)


def fast_is_exact(run: ClaimRun, *, stride: int = 1, scale: float = 1.0) -> Measurement:
    """All 9,625 circuits of a trained network against plain loops. Control: loops in which no edge is ever cut."""
    model = examples.TRAINED
    seen = MLP((*model.weights[:-1], model.weights[-1] * scale), model.biases)
    table = find_circuits(seen, corners(2), XOR, threshold=-1.0, include_all_nodes=True)
    own = model(torch.as_tensor(corners(2))).numpy()
    wrong = control = 0
    whole = one_by_one(model, whole_network(model))
    tested = range(0, len(table), stride)
    for index in run.progress(tested, desc="circuits"):
        for uncut in (False, True):
            outputs = whole if uncut else one_by_one(model, table[index])
            columns = (outputs.round() == XOR).mean(), (outputs.round() == own.round()).mean()
            near = 1 - ((outputs - own) ** 2).mean()
            same = (table.accuracy[index], table.agreement[index]) == columns
            different = not (same and abs(table.similarity[index] - near) < 1e-9)
            wrong, control = wrong + (different and not uncut), control + (different and uncut)
    return Measurement(
        wrong, baseline=("loops that cut no edge", control), n=len(tested), details={"circuits": len(table)}
    )

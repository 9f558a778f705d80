"""``iclr identifiability VERB``: count the explanations of a saved network, or of many trained on a gate."""

import json
from pathlib import Path
from typing import Literal

import numpy as np
import torch
import tyro

from iclr_interp.identifiability.gates import arity, dataset
from iclr_interp.identifiability.networks import MLP, load
from iclr_interp.identifiability.report import Report, identifiability_report
from iclr_interp.identifiability.search import LIMIT, CircuitTable, find_circuits, search_space
from iclr_interp.identifiability.training import Training, train_gates
from iclr_shared.checkpoints import Checkpoint
from iclr_shared.errors import InputError
from iclr_shared.files import atomic_write
from iclr_shared.progress import progress
from iclr_shared.sweep import sweep, values
from iclr_shared.tables import print_table

#: Seeds trained side by side.
TOGETHER = 10


def enumerate_network(
    network: tyro.conf.Positional[Path],
    gate: str,
    out: Path | None = None,
    all_nodes: bool = False,
    min_sparsity: float = 0.0,
    depth: int | None = None,
    formulas: Literal["official", "all"] = "official",
    pairs: Literal["ordered", "unordered"] = "ordered",
    distributed: bool = False,
    limit: int = LIMIT,
    sample: int | None = None,
    activation: Literal["leaky_relu", "relu", "tanh", "sigmoid"] | None = None,
    device: str = "cpu",
    seed: int = 0,
    quiet: bool = False,
) -> None:
    """Count all circuits, interpretations, algorithms and places of a network.

    Args:
        network: .npz with w0, b0, w1, ... (and activation), or a torch state dict of Linear layers; or the word
            "train", for a fresh one with two hidden layers of three neurons.
        gate: what it computes: a name such as XOR, or truth-table bits such as 0110.
        out: folder for report.json, circuits.npz and circuits.png; a killed search goes on when repeated.
        all_nodes: also circuits that keep every neuron.
        min_sparsity: only circuits that mask more than this share of the hidden neurons.
        depth: of candidate formulas; hidden layers plus one if not given.
        formulas: official loses some pairs of unequal depth, all takes every pair.
        pairs: of base and source in interventions; unordered is the official code's.
        distributed: places may span contiguous layers.
        limit: largest search.
        sample: evaluate so many circuits drawn at random instead of all.
        activation: of hidden layers, where the file does not say it (leaky_relu then).
        device: cpu or cuda.
        seed: of the sample, and of the fresh network.
        quiet: no progress bar.
    """
    model = _fresh(gate, seed, quiet) if str(network) == "train" else load(network, activation)
    checkpoint = Checkpoint(out / "checkpoint") if out is not None and sample is None else None
    found = identifiability_report(
        model, gate, include_all_nodes=all_nodes, min_sparsity=min_sparsity, max_depth=depth, formulas=formulas,
        pairs=pairs, distributed=distributed, limit=limit, sample=sample, rng=np.random.default_rng(seed),
        device=device, checkpoint=checkpoint, progress=lambda items: progress(items, desc="circuits", quiet=quiet),
    )  # fmt: skip
    if out is not None:
        found.save(out)
    _show(found, str(network))


def circuits(
    network: tyro.conf.Positional[Path],
    data: tyro.conf.Positional[Path],
    head: int | None = None,
    out: Path | None = None,
    threshold: float = 0.99,
    reference: Literal["target", "model"] = "target",
    all_nodes: bool = False,
    min_sparsity: float = 0.0,
    limit: int = LIMIT,
    sample: int | None = None,
    activation: Literal["leaky_relu", "relu", "tanh", "sigmoid"] | None = None,
    device: str = "cpu",
    seed: int = 0,
    quiet: bool = False,
) -> None:
    """Count the circuits that do what a network does on given data, in the whole of it or in its last layers.

    Args:
        network: .npz with w0, b0, w1, ... (and activation), or a torch state dict of Linear layers.
        data: .npz with x, the network's inputs, and y, the wanted outputs, 0 or 1.
        head: search only so many of the last linear layers, on what the layers before them give.
        out: .npz for the circuits; a killed search goes on when repeated.
        threshold: share of inputs above which a circuit is accepted.
        reference: judge by the wanted outputs, or by the network's own.
        all_nodes: also circuits that keep every neuron.
        min_sparsity: only circuits that mask more than this share of the hidden neurons.
        limit: largest search.
        sample: evaluate so many circuits drawn at random instead of all.
        activation: of hidden layers, where the file does not say it (leaky_relu then).
        device: cpu or cuda.
        seed: of the sample.
        quiet: no progress bar.
    """
    model = load(network, activation)
    x, y = _data(data, model)
    layers = len(model.weights) if head is None else head
    last, seen = model.head(layers), model.activations(torch.as_tensor(x))[-layers - 1].numpy()
    accuracy = float((model(torch.as_tensor(x)).round().numpy() == y).all(1).mean())
    found = find_circuits(
        last, seen, y, threshold=threshold, reference=reference, include_all_nodes=all_nodes,
        min_sparsity=min_sparsity, limit=limit, sample=sample, rng=np.random.default_rng(seed), device=device,
        checkpoint=Checkpoint(out.with_suffix(".checkpoint")) if out is not None and sample is None else None,
        progress=lambda items: progress(items, desc="circuits", quiet=quiet),
    )  # fmt: skip
    if out is not None:
        found.save(out)
    rows = [("accuracy of the network", accuracy), *_searched(found), ("accepted", len(found))]
    if len(found):
        rows += [("without a smaller one", int(found.minimal().sum())), ("mean overlap", found.jaccard())]
    print_table(("circuits", ""), rows, f"{network}: {'-'.join(map(str, last.sizes))}, {len(x):,} inputs")


def train(
    gates: tuple[str, ...] = ("XOR",),
    seeds: str = "0:5",
    width: int = 3,
    depth: int = 2,
    out: Path = Path("explanations"),
    epochs: int = 1000,
    loss_target: float = 0.01,
    lr: float = 1e-3,
    repeats: int = 1000,
    noise: float = 0.0,
    skewed: bool = False,
    all_nodes: bool = False,
    min_sparsity: float | None = None,
    pairs: Literal["ordered", "unordered"] = "ordered",
    jobs: int = 1,
    backend: Literal["loky", "dask", "ray"] = "loky",
    quiet: bool = False,
) -> None:
    """Train networks on gates and count the explanations of each output; seeds that are done are not repeated.

    Args:
        gates: names or truth-table bits; one output for each.
        seeds: such as 0:20, or a single one.
        width: of each hidden layer.
        depth: number of hidden layers.
        out: folder for networks (.npz) and counts.jsonl, one line for each seed and setting.
        epochs: at most.
        loss_target: stop below.
        lr: learning rate.
        repeats: rows for each corner.
        noise: standard deviation of the inputs' noise.
        skewed: corners with random frequencies.
        all_nodes: also circuits that keep every neuron.
        min_sparsity: only circuits that mask more than this share of the hidden neurons; if not given 0.2 at width 4,
            0.3 at width 5, else 0, as in the official code.
        pairs: of base and source in interventions.
        jobs: worker processes.
        backend: of the workers.
        quiet: no progress bar.
    """
    wanted = _seeds(seeds)
    setting = {
        "gates": list(gates), "width": width, "depth": depth, "epochs": epochs, "loss_target": loss_target, "lr": lr,
        "repeats": repeats, "noise": noise, "skewed": skewed, "all_nodes": all_nodes,
        "min_sparsity": {4: 0.2, 5: 0.3}.get(width, 0.0) if min_sparsity is None else min_sparsity, "pairs": pairs,
    }  # fmt: skip
    if min(width, depth, epochs, repeats) < 1 or not (lr > 0 and loss_target > 0 and noise >= 0):
        raise InputError("Width, depth, epochs, repeats, lr and loss_target must be positive, noise not negative.")
    dataset(gates, 1, np.random.default_rng(0))  # unknown or unequal gates, before any training
    search_space((arity(gates[0]), *(width,) * depth, 1), all_nodes, setting["min_sparsity"])
    path = out / "counts.jsonl"
    records = _records(path)
    done = {record["seed"] for record in records if record["setting"] == setting}
    todo = [seed for seed in wanted if seed not in done]
    chunks = [todo[i : i + TOGETHER] for i in range(0, len(todo), TOGETHER)]
    batches = [chunks[i : i + jobs] for i in range(0, len(chunks), max(1, jobs))]
    for batch in progress(batches, desc="tens of networks", quiet=quiet):
        grid = [{"seeds": chunk, "setting": setting, "folder": str(out)} for chunk in batch]
        for found in values(sweep(explained, grid, jobs=jobs, backend=backend, quiet=True)):
            records += found
        atomic_write(path, "".join(json.dumps(record) + "\n" for record in records))
    rows = []
    for record in records:
        if record["setting"] == setting and record["seed"] in wanted:
            for gate in gates:
                counts = record.get("counts", {}).get(gate)
                rows.append((record["seed"], gate, *(counts.values() if counts else ["not converged", "", "", ""])))
    print_table(("seed", "gate", "circuits", "interpretations", "algorithms", "alignments"), rows)


def explained(seeds: list[int], setting: dict, folder: str) -> list[dict]:
    """Train the networks of some seeds, save them, and count the explanations of those that converge.

    Returns:
        For each seed what counts.jsonl holds.
    """
    gates, hidden = setting["gates"], (setting["width"],) * setting["depth"]
    names = ("repeats", "lr", "epochs", "loss_target", "noise", "skewed")
    training = Training(**{name: setting[name] for name in names})
    search = {"include_all_nodes": setting["all_nodes"], "min_sparsity": setting["min_sparsity"]}
    found = []
    for net in train_gates(gates, hidden, seeds, training):
        net.model.save(Path(folder) / f"network-{'-'.join(gates)}-{net.seed}.npz")
        record = {"seed": net.seed, "setting": setting, "converged": net.converged}
        record |= {"loss": net.loss, "accuracy": net.accuracy}
        if net.converged:
            record["counts"] = {
                gate: identifiability_report(net.model.output(i), gate, pairs=setting["pairs"], **search).counts
                for i, gate in enumerate(gates)
            }
        found.append(record)
    return found


def _records(path: Path) -> list[dict]:
    try:
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    except ValueError as error:
        raise InputError(f"{path} is not as written here ({error}); mend or move it.") from None


def _fresh(gate: str, seed: int, quiet: bool) -> MLP:
    [net] = train_gates([gate], (3, 3), (seed,), progress=lambda epochs: progress(epochs, "epochs", quiet=quiet))
    return net.require().model


def _data(path: Path, model: MLP) -> tuple[np.ndarray, np.ndarray]:
    try:
        with np.load(path) as file:
            x, y = file["x"].astype(float), file["y"].astype(float)
    except Exception as error:
        raise InputError(f"{path} holds no arrays x and y: {error}.") from None
    y = y[:, None] if y.ndim == 1 else y
    if x.ndim != 2 or x.shape[1] != model.sizes[0] or y.shape != (len(x), model.sizes[-1]):
        raise InputError(f"x {x.shape} and y {y.shape} of {path} do not fit a network of sizes {model.sizes}.")
    return x, y


def _searched(table: CircuitTable) -> list[tuple[str, str | int]]:
    if not table.sampled:
        return [("searched", table.searched)]
    number, error = table.estimate()
    return [
        ("drawn", f"{table.searched:,} of {table.space:,}"),
        ("estimated in all", f"{number:,.0f} (standard error {error:,.0f})"),
    ]


def _show(found: Report, title: str) -> None:
    verdicts = {True: "unique", False: "not unique", None: "a sample cannot tell"}
    rows = [
        (name, count, verdicts[found.identifiable[name]] if count or found.identifiable[name] is None else "none")
        for name, count in found.counts.items()
    ]
    searched = "; ".join(f"circuits {what}: {value}" for what, value in _searched(found.circuits))
    print_table(("explanations", "count", "identifiable"), rows, f"{title}; {searched}; {len(found.formulas)} formulas")
    best = sorted(zip(found.formulas, found.mappings, strict=True), key=lambda pair: -len(pair[1]))
    shown = [(str(formula), len(mappings)) for formula, mappings in best if mappings][:10]
    if shown:
        print_table(("aligned formula", "minimal mappings"), shown)


def _seeds(text: str) -> list[int]:
    try:
        first, _, last = text.partition(":")
        found = list(range(int(first), int(last) if last else int(first) + 1))
    except ValueError:
        raise InputError(f"Seeds are a range such as 0:20, or one number; got {text!r}.") from None
    if not found or found[0] < 0:
        raise InputError(f"The range of seeds {text!r} is empty or negative.")
    return found

"""``iclr identifiability VERB``: count the explanations of a saved network, or of many trained on a gate."""

import json
from pathlib import Path
from typing import Literal

import numpy as np
import tyro

from iclr_interp.identifiability.networks import load
from iclr_interp.identifiability.report import Report, identifiability_report
from iclr_interp.identifiability.training import Training, train_gates
from iclr_shared.checkpoints import Checkpoint
from iclr_shared.errors import InputError
from iclr_shared.files import atomic_write
from iclr_shared.progress import progress
from iclr_shared.tables import print_table


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
    limit: int = 5_000_000,
    sample: int | None = None,
    device: str = "cpu",
    seed: int = 0,
    quiet: bool = False,
) -> None:
    """Count all circuits, interpretations, algorithms and places of a network.

    Args:
        network: .npz with w0, b0, w1, ... (and activation), or a torch state dict of Linear layers.
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
        device: cpu or cuda.
        seed: of the sample.
        quiet: no progress bar.
    """
    model = load(network)
    checkpoint = Checkpoint(out / "checkpoint") if out is not None and sample is None else None
    found = identifiability_report(
        model, gate, include_all_nodes=all_nodes, min_sparsity=min_sparsity, max_depth=depth, formulas=formulas,
        pairs=pairs, distributed=distributed, limit=limit, sample=sample, rng=np.random.default_rng(seed),
        device=device, checkpoint=checkpoint, progress=lambda items: progress(items, desc="circuits", quiet=quiet),
    )  # fmt: skip
    if out is not None:
        found.save(out)
    _show(found, str(network))


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
    min_sparsity: float = 0.0,
    pairs: Literal["ordered", "unordered"] = "ordered",
    quiet: bool = False,
) -> None:
    """Train networks on gates and count the explanations of each output; seeds that are done are not repeated.

    Args:
        gates: names or truth-table bits; one output for each.
        seeds: such as 0:20, or a single one.
        width: of each hidden layer.
        depth: number of hidden layers.
        out: folder for networks (.npz) and counts.jsonl, one line for each seed and gate.
        epochs: at most.
        loss_target: stop below.
        lr: learning rate.
        repeats: rows for each corner.
        noise: standard deviation of the inputs' noise.
        skewed: corners with random frequencies.
        all_nodes: also circuits that keep every neuron.
        min_sparsity: only circuits that mask more than this share of the hidden neurons.
        pairs: of base and source in interventions.
        quiet: no progress bar.
    """
    wanted = _seeds(seeds)
    setting = {
        "gates": list(gates), "width": width, "depth": depth, "epochs": epochs, "loss_target": loss_target, "lr": lr,
        "repeats": repeats, "noise": noise, "skewed": skewed, "all_nodes": all_nodes, "min_sparsity": min_sparsity,
        "pairs": pairs,
    }  # fmt: skip
    path = out / "counts.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    records = [json.loads(line) for line in lines]
    done = {record["seed"] for record in records if record["setting"] == setting}
    todo = [seed for seed in wanted if seed not in done]
    training = Training(repeats, 50, 100, lr, epochs, loss_target, noise=noise, skewed=skewed)
    nets = (
        train_gates(gates, (width,) * depth, todo, training, progress=lambda e: progress(e, "epochs", quiet=quiet))
        if todo
        else []
    )
    for net in progress(nets, desc="networks", quiet=quiet):
        fields = {
            "seed": net.seed,
            "setting": setting,
            "converged": net.converged,
            "loss": net.loss,
            "accuracy": net.accuracy,
        }
        net.model.save(out / f"network-{'-'.join(gates)}-{net.seed}.npz")
        if net.converged:
            fields["counts"] = {
                gate: identifiability_report(
                    net.model.output(i), gate, include_all_nodes=all_nodes, min_sparsity=min_sparsity, pairs=pairs
                ).counts
                for i, gate in enumerate(gates)
            }
        records.append(fields)
        lines.append(json.dumps(fields))
        atomic_write(path, "\n".join(lines) + "\n")
    rows = []
    for record in records:
        if record["setting"] == setting and record["seed"] in wanted:
            for gate in gates:
                counts = record.get("counts", {}).get(gate)
                rows.append((record["seed"], gate, *(counts.values() if counts else ["not converged", "", "", ""])))
    print_table(("seed", "gate", "circuits", "interpretations", "algorithms", "alignments"), rows)


def _show(found: Report, title: str) -> None:
    table = found.circuits
    searched = f"{table.searched:,} circuits {'sampled' if table.sampled else 'searched'}"
    rows = [
        (name, count, "unique" if count == 1 else "not unique" if count else "none")
        for name, count in found.counts.items()
    ]
    print_table(("explanations", "count", "identifiable"), rows, f"{title}: {searched}, {len(found.formulas)} formulas")
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

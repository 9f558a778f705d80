"""The ledger's checks. Models are trained once in a run and shared through its checkpoints."""

from collections.abc import Callable, Sequence
from functools import cache, wraps
from typing import Any, Concatenate

import numpy as np
import torch

from iclr_interp.orion import figures
from iclr_interp.orion.compiled import WORDS, CompiledModel, compiled_dataset
from iclr_interp.orion.components import ablated_accuracy, attention_to_entities, direct_effects, movers
from iclr_interp.orion.datasets import RetrievalDataset, list_tasks, make_task
from iclr_interp.orion.language_model import LanguageModel
from iclr_interp.orion.oversight import TrustedRequest
from iclr_interp.orion.patching import HELD, PatchTable, residual_patch_sweep
from iclr_interp.orion.tasks.typed_story import TYPES, Sample
from iclr_interp.orion.tiny import Recipe, story_dataset, trained
from iclr_interp.orion.tokens import MisfitError, byte_level_tokenizer, check_fit, encode, word_tokenizer
from iclr_shared.claims import ClaimRun, Measurement
from iclr_shared.errors import InputError
from iclr_shared.seeds import SeedTree, root

FOUR, SIX = Recipe(), Recipe(blocks=6)
HIJACK, OVERRIDE = Recipe(attack="request"), Recipe(attack="value")


def _model(run: ClaimRun, recipe: Recipe, index: int) -> LanguageModel:
    seed = root(run.seeds.seed).child("tiny", index).int32()
    progress = (lambda steps: run.progress(steps, desc=f"{recipe.name}, seed {index}")) if not run.quiet else iter
    return trained(recipe, seed, run.folder / "checkpoints" / "tiny", progress)


def _prompts(run: ClaimRun, index: int) -> SeedTree:
    return root(run.seeds.seed).child("prompts", index)


def _once[**P, T](function: Callable[Concatenate[ClaimRun, P], T]) -> Callable[Concatenate[ClaimRun, P], T]:
    """Compute an experiment that several claims read once for each run folder, seed and sizes."""
    known: dict[Any, T] = {}

    @wraps(function)
    def shared(run: ClaimRun, *args: P.args, **kwargs: P.kwargs) -> T:
        key = (str(run.folder), run.seeds.seed, args, tuple(kwargs.items()))
        if key not in known:
            known[key] = function(run, *args, **kwargs)
        return known[key]

    return shared


@_once
def _sweep(run: ClaimRun, recipe: Recipe, index: int, n: int) -> tuple[LanguageModel, RetrievalDataset, PatchTable]:
    """A model, clean prompts of its grammar, and the sweep over pairs with different requests."""
    model = _model(run, recipe, index)
    dataset = story_dataset(model, recipe.grammar.sample(n, _prompts(run, index).torch()), f"seed {index}")
    return model, dataset, residual_patch_sweep(model, dataset, n_inter=n, batch_size=256, distinct=True)


# --- C1: the decomposition -----------------------------------------------------------------------------------------


def compiled_layers(run: ClaimRun, *, n: int = 100, beta: float = 50.0) -> Measurement:
    """Row 1a: layers 0, 1, 2 of the model written by hand carry nothing, request, answer. Control: the request at 0."""
    model = LanguageModel(CompiledModel(beta), word_tokenizer(WORDS), "compiled")
    dataset = compiled_dataset(model, n, run.seeds.int32())
    table = residual_patch_sweep(model, dataset, n_inter=n, distinct=True)
    held = table.scores["probability"][np.arange(3), :, np.arange(3)]
    request = float(table.mean()[0, 1])
    run.figure("layers", figures.profile_figure({"compiled model": table}))
    found = table.layers()
    return Measurement(
        float(held.min()), baseline=("R1(C2) with nothing carried", request), n=n,
        series={"layer": table.swept, **dict(zip(("nil", "query", "output"), table.mean().T, strict=True))},
        details={"L1": found.L1, "L2": found.L2, "L3": found.L3},
    )  # fmt: skip


def _in_order(table: PatchTable) -> bool:
    """Peak of R₂(C₂) before peak of R₁(C₂) before the first layer with R₁(C₁) above 0.8."""
    values = table.normalised()
    held = np.flatnonzero(values[:, 2] > HELD)
    return len(held) > 0 and bool(values[:, 0].argmax() < values[:, 1].argmax() < held[0])


def _series(tables: dict[str, PatchTable]) -> dict[str, Any]:
    """Normalised values of each sweep, one row a layer."""
    rows = [
        (name, layer, *values.tolist())
        for name, table in tables.items()
        for layer, values in zip(table.swept, table.normalised(), strict=True)
    ]
    return dict(zip(("model", "layer", "nil", "query", "output"), map(list, zip(*rows, strict=True)), strict=True))


def tiny_order(run: ClaimRun, *, recipe: Recipe = FOUR, seeds: int = 3, n: int = 1000) -> Measurement:
    """Row 1b: order of the three peaks in trained models. Control: the same models patched with their mean residual."""
    tables, controls = {}, []
    for index in range(seeds):
        model, dataset, tables[f"seed {index}"] = _sweep(run, recipe, index, n)
        mean = residual_patch_sweep(model, dataset, n_inter=n, batch_size=256, distinct=True, control="mean")
        controls.append(_in_order(mean))
    run.figure("layers", figures.profile_figure(tables))
    kept = [_in_order(table) for table in tables.values()]
    details = {f"{name}: L1, L2, L3": str(tuple(table.layers()[:3])) for name, table in tables.items()}
    return Measurement(
        np.mean(kept), baseline=("patched with the mean", np.mean(controls)), n=seeds, series=_series(tables),
        details=details,
    )  # fmt: skip


def tiny_baseline(run: ClaimRun, *, recipe: Recipe = FOUR, seeds: int = 3, n: int = 1000) -> Measurement:
    """Row 1b: unpatched accuracy, worst seed. Control: a random query of the data set."""
    tables = [_sweep(run, recipe, index, n)[2] for index in range(seeds)]
    values = [float(table.baseline["accuracy"].mean()) for table in tables]
    guess = float(np.mean([table.random_guess for table in tables]))
    return Measurement(min(values), baseline=("random guess", guess), n=seeds, series={"accuracy": values})


def tiny_first_layer(run: ClaimRun, *, recipe: Recipe = FOUR, seeds: int = 3, n: int = 1000) -> Measurement:
    """Row 1b: normalised P[R₂(C₂)] at layer 0, worst seed. Control: at the last layer."""
    values = np.array([_sweep(run, recipe, index, n)[2].normalised()[[0, -1], 0] for index in range(seeds)])
    return Measurement(values[:, 0].min(), baseline=("at the last layer", values[:, 1].max()), n=seeds)


def tiny_last_layer(run: ClaimRun, *, recipe: Recipe = FOUR, seeds: int = 3, n: int = 1000) -> Measurement:
    """Row 1b: normalised P[R₁(C₁)] at the last layer, worst seed. Control: at layer 0."""
    values = np.array([_sweep(run, recipe, index, n)[2].normalised()[[-1, 0], 2] for index in range(seeds)])
    return Measurement(values[:, 0].min(), baseline=("at layer 0", values[:, 1].max()), n=seeds)


def tiny_height(
    run: ClaimRun, *, recipes: Sequence[Recipe] = (FOUR, SIX), seeds: int = 3, n: int = 1000
) -> Measurement:
    """Row 1b: highest normalised P[R₁(C₂)] over seeds and depths; all are shown. Control: at layer 0."""
    tables = {
        f"{recipe.blocks} blocks, seed {index}": _sweep(run, recipe, index, n)[2]
        for recipe in recipes
        for index in range(seeds)
    }
    heights = [float(table.normalised()[:, 1].max()) for table in tables.values()]
    run.figure("heights", figures.profile_figure(tables))
    control = max(float(table.normalised()[0, 1]) for table in tables.values())
    return Measurement(
        max(heights), baseline=("at layer 0", control), ci=(min(heights), max(heights)), n=len(heights),
        series={"model": list(tables), "height": heights},
    )  # fmt: skip


# --- C2: across grammars and depths --------------------------------------------------------------------------------


def across_grammars(
    run: ClaimRun, *, depths: Sequence[int] = (4, 6), seeds: int = 3, n: int = 1000, steps: int = FOUR.steps
) -> Measurement:
    """Row 2: share of models with the order and a request peak of at least 0.7. Control: GPT-2's initial weights."""
    tables, kept = {}, []
    for first in (False, True):
        for blocks in depths:
            for index in range(seeds):
                recipe = Recipe(first=first, blocks=blocks, steps=steps)
                name = f"request {'first' if first else 'last'}, {blocks} blocks, seed {index}"
                tables[name] = _sweep(run, recipe, index, n)[2]
    gpt2 = Recipe(init="gpt2", steps=steps)
    others = {f"GPT-2 init, 4 blocks, seed {index}": _sweep(run, gpt2, index, n)[2] for index in range(seeds)}
    run.figure("cells", figures.sweep_figure({**tables, **others}))
    rows = []
    for name, table in {**tables, **others}.items():
        height = float(table.normalised()[:, 1].max())
        rows.append((name, float(table.baseline["accuracy"].mean()), _in_order(table), height, str(table.layers()[:3])))
    kept = [row[2] and row[3] >= 0.7 for row in rows]
    columns = ("model", "accuracy", "in order", "height", "L1, L2, L3")
    return Measurement(
        np.mean(kept[: len(tables)]), baseline=("GPT-2's initial weights", np.mean(kept[len(tables) :])), n=len(tables),
        series=dict(zip(columns, map(list, zip(*rows, strict=True)), strict=True)),
        details={"in order": float(np.mean([row[2] for row in rows[: len(tables)]])), "paper": "98 of 106 pairs"},
    )  # fmt: skip


# --- C3: trivial patches -------------------------------------------------------------------------------------------


def beats_controls(
    run: ClaimRun, *, recipe: Recipe = FOUR, seeds: int = 3, n: int = 1000, arm: str | None = None
) -> Measurement:
    """Row 3: normalised P[R₁(C₂)] at L2 minus the best of three trivial patches' there, worst seed."""
    differences, rows = [], []
    for index in range(seeds):
        model, dataset, table = _sweep(run, recipe, index, n)
        peak = int(table.normalised()[:, 1].argmax())
        values = {"request-patch": float(table.normalised()[peak, 1])}
        for control in ("same_request", "zero", "mean"):
            found = residual_patch_sweep(
                model, dataset, [table.swept[peak]], n, batch_size=256, distinct=True, control=control
            )
            values[control] = float(found.normalised()[0, 1])
        best = max(values[c] for c in ("same_request", "zero", "mean"))
        differences.append(values[arm or "request-patch"] - best)
        rows.append(values)
    series = {name: [row[name] for row in rows] for name in rows[0]}
    run.figure("controls", figures.bars_figure({"at L2": series}, "normalised $P[R_1(C_2)]$"))
    controls = max(max(row[c] for c in ("same_request", "zero", "mean")) for row in rows)
    return Measurement(
        min(differences), baseline=("best trivial patch", controls), ci=(min(differences), max(differences)), n=seeds,
        series=series,
    )  # fmt: skip


# --- C4: prompt injection ------------------------------------------------------------------------------------------


@_once
def _injected(run: ClaimRun, recipe: Recipe, index: int, n: int) -> dict[str, float]:
    """Clean and attacked accuracy, with and without repair at the layer chosen on clean prompts, and alarm rates."""
    model, _, table = _sweep(run, recipe, index, n)
    layer = table.layers().L2
    if layer is None:  # a model that has not learned its task
        layer = recipe.blocks // 2
    tree = root(run.seeds.seed).child("injections", index)
    attacked = recipe.grammar.sample(2 * n, tree.child("attacked").torch(), recipe.attack)
    differ = (attacked.labels != attacked.answers).nonzero()[:n, 0]
    clean = recipe.grammar.sample(n, tree.child("clean").torch())
    trusted_sample = recipe.grammar.sample(200, tree.child("trusted").torch())
    plain = _run_ids(model, clean.ids)
    found: dict[str, float] = {"layer": layer, "clean": float((plain == clean.answers).float().mean())}
    for name, sample, rows in (("attacked", attacked, differ), ("clean", clean, torch.arange(n))):
        outcome = _supervise(model, layer, trusted_sample, sample, rows)
        if name == "attacked":
            found["attacked"] = outcome["accuracy"]
            found["followed"] = outcome["followed"]
            for other in range(1, recipe.blocks + 1):
                found[f"repaired at {other}"] = _supervise(model, other, trusted_sample, sample, rows)["repaired"]
        found |= {f"{name}, {key}": value for key, value in outcome.items()}
    return found


def _run_ids(model: LanguageModel, ids: torch.Tensor) -> torch.Tensor:
    return model.run(model.batch_tokens(ids.tolist())).argmax(-1)


def _supervise(
    model: LanguageModel, layer: int, trusted: Sample, sample: Sample, rows: torch.Tensor
) -> dict[str, float]:
    """One trusted prompt for each type asked for; rates over the chosen rows."""
    texts = [item.text for item in trusted.prompts()]
    untrusted = [item.text for item in sample.prompts()]
    counts = {"accuracy": 0, "repaired": 0, "followed": 0, "A": 0, "B": 0, "A or B": 0}
    for kind in range(len(TYPES)):
        chosen = [row for row in rows.tolist() if sample.asked[row] == kind]
        if not chosen:
            continue
        first = int((trusted.asked == kind).nonzero()[0])
        request = TrustedRequest(model, texts[first], layer)
        for row, seen in zip(chosen, request.inspect([untrusted[row] for row in chosen], 256), strict=True):
            wanted, hijacked = (model.tokenizer.decode([int(x[row])]) for x in (sample.answers, sample.labels))
            counts["accuracy"] += seen.plain == wanted
            counts["repaired"] += seen.repaired == wanted
            counts["followed"] += seen.plain == hijacked
            counts["A"] += seen.changed
            counts["B"] += seen.foreign
            counts["A or B"] += seen.altered
    return {name: count / len(rows) for name, count in counts.items()}


def _injections(run: ClaimRun, recipe: Recipe, seeds: int, n: int) -> list[dict[str, float]]:
    return [_injected(run, recipe, index, n) for index in range(seeds)]


def attack_works(
    run: ClaimRun, *, recipe: Recipe = HIJACK, seeds: int = 3, n: int = 1000, attacked: bool = True
) -> Measurement:
    """Row 4: accuracy on hijacked prompts, best seed. Control: on clean prompts, worst seed."""
    found = _injections(run, recipe, seeds, n)
    return Measurement(
        max(f["attacked" if attacked else "clean"] for f in found),
        baseline=("clean", min(f["clean"] for f in found)), n=seeds,
        series={key: [f[key] for f in found] for key in ("clean", "attacked", "followed")},
    )  # fmt: skip


def repair_works(
    run: ClaimRun, *, recipe: Recipe = HIJACK, seeds: int = 3, n: int = 1000, layer: int | None = None
) -> Measurement:
    """Row 4: accuracy gained by repair at L2 of clean prompts, worst seed. Control: repair at the last layer."""
    found = _injections(run, recipe, seeds, n)
    repaired = [f["attacked, repaired"] if layer is None else f[f"repaired at {layer}"] for f in found]
    gains = [r - f["attacked"] for r, f in zip(repaired, found, strict=True)]
    last = max(f[f"repaired at {recipe.blocks}"] - f["attacked"] for f in found)
    series = {"attacked": [f["attacked"] for f in found], "repaired at L2": repaired, "L2": [f["layer"] for f in found]}
    series |= {f"repaired at {l}": [f[f"repaired at {l}"] for f in found] for l in range(1, recipe.blocks + 1)}
    groups = {
        "hijacked": {"plain": series["attacked"], "repaired": repaired},
        "clean": {"plain": [f["clean"] for f in found], "repaired": [f["clean, repaired"] for f in found]},
    }
    run.figure("repair", figures.bars_figure(groups, "accuracy"))
    return Measurement(
        min(gains), baseline=("at the last layer", last), ci=(min(gains), max(gains)), n=seeds, series=series,
        details={"paper, Pythia-12b": "15.5 % to 97.5 %"},
    )  # fmt: skip


def repair_keeps_clean(run: ClaimRun, *, recipe: Recipe = HIJACK, seeds: int = 3, n: int = 1000) -> Measurement:
    """Row 4: accuracy on clean prompts under the patch, worst seed. Control: without it."""
    found = _injections(run, recipe, seeds, n)
    values = [f["clean, repaired"] for f in found]
    return Measurement(
        min(values), baseline=("unpatched", min(f["clean"] for f in found)), ci=(min(values), max(values)), n=seeds,
        series={"repaired": values},
    )  # fmt: skip


def detection(run: ClaimRun, *, recipe: Recipe = HIJACK, seeds: int = 3, n: int = 1000) -> Measurement:
    """Row 4: rate of A or B on hijacked prompts minus that on clean ones, worst seed. Control: false alarms."""
    found = _injections(run, recipe, seeds, n)
    names = [f"{where}, {what}" for where in ("attacked", "clean") for what in ("A", "B", "A or B")]
    series = {name: [f[name] for f in found] for name in names}
    groups = {
        shown: {what: series[f"{where}, {what}"] for what in ("A", "B", "A or B")}
        for where, shown in (("attacked", "hijacked"), ("clean", "clean (false alarms)"))
    }
    run.figure("detection", figures.bars_figure(groups, "rate of alarms"))
    gaps = [f["attacked, A or B"] - f["clean, A or B"] for f in found]
    return Measurement(
        min(gaps), baseline=("false alarms", max(series["clean, A or B"])), ci=(min(gaps), max(gaps)), n=seeds,
        series=series,
    )  # fmt: skip


def injected_answers(
    run: ClaimRun, *, recipe: Recipe = OVERRIDE, hijack: Recipe = HIJACK, seeds: int = 1, n: int = 1000
) -> Measurement:
    """Row 4: the limit: accuracy after repair where the attack gives the answer itself. Control: hijacked requests."""
    found, control = _injections(run, recipe, seeds, n), _injections(run, hijack, seeds, n)
    values = [f["attacked, repaired"] for f in found]
    return Measurement(
        float(np.mean(values)), baseline=("hijacked requests", np.mean([f["attacked, repaired"] for f in control])),
        n=seeds, series={"attacked": [f["attacked"] for f in found], "repaired": values},
        details={key: found[0][key] for key in ("layer", "clean", "attacked, A", "attacked, B", "attacked, A or B")},
        note="The method undoes altered requests, not injected answers.",
    )  # fmt: skip


# --- C5: the six domains -------------------------------------------------------------------------------------------


@cache
def _tokenizer(seed: int, prompts: int):
    import random

    texts = [
        item.text + item.answer
        for task in list_tasks(paper_only=True)
        for item in task.generator(prompts, random.Random(seed), lambda rows, *values: list(rows))
    ]
    return byte_level_tokenizer(texts)


def well_formed(run: ClaimRun, *, n: int = 100, prompts: int = 40, misplaced_space: bool = False) -> Measurement:
    """Row 5: breaches of the contract of §2.2 over 18 data sets. Control: answers with the space on the wrong side."""
    tokenizer = _tokenizer(run.seeds.int32(), prompts)
    faults, misfits, sizes = 0, 0, []
    for task in run.progress(list_tasks(paper_only=True), desc="data sets"):
        try:
            dataset = make_task(task.name, tokenizer, n, run.seeds.int32())
        except InputError:
            faults += n
            continue
        starts = [ids.count(tokenizer.bos_token_id) == 1 and ids[0] == tokenizer.bos_token_id for ids in dataset.tokens]
        ends = [len(encode(tokenizer, text)) - 1 == end for text, end in
                zip(dataset.prompts, dataset.end_positions, strict=True)]  # fmt: skip
        faults += (n - len(dataset)) + starts.count(False) + ends.count(False)
        misfits += sum(not _fits(tokenizer, item) for item in dataset.items)
        sizes.append((task.name, len(dataset), len(dataset.values), dataset.random_guess()))
    measured = faults + (misfits if misplaced_space else 0)
    columns = ("data set", "prompts", "values", "random guess")
    return Measurement(
        measured, baseline=("a space on the wrong side", misfits), n=len(sizes) * n,
        series=dict(zip(columns, map(list, zip(*sizes, strict=True)), strict=True)),
    )  # fmt: skip


def _fits(tokenizer, item) -> bool:
    """Whether the answer still fits when a space moves from its beginning to the prompt's end, or comes in between."""
    value = item.answer.removeprefix(" ")
    try:
        check_fit(tokenizer, item.text + " ", value)
        return not item.answer.startswith(" ")
    except MisfitError:
        return False


def read_again(run: ClaimRun, *, n: int = 100, prompts: int = 40, shuffle: bool = False) -> Measurement:
    """Row 5: share of prompts whose answer a second parser finds in the text. Control: another prompt's answer."""
    from importlib import import_module

    tokenizer = _tokenizer(run.seeds.int32(), prompts)
    agree, others, names = [], [], []
    for task in run.progress(list_tasks(paper_only=True), desc="data sets"):
        dataset = make_task(task.name, tokenizer, n, run.seeds.int32())
        read = import_module(f"iclr_interp.orion.tasks.{task.domain}").read
        found = [read(item.text) for item in dataset.items]
        agree.append(np.mean([a == b for a, b in zip(found, dataset.answers, strict=True)]))
        others.append(np.mean([a == b for a, b in zip(found, np.roll(dataset.answers, 1).tolist(), strict=True)]))
        names.append(task.name)
    return Measurement(
        float(np.mean(others if shuffle else agree)), baseline=("the next prompt's answer", float(np.mean(others))),
        n=len(names) * n, series={"data set": names, "agreement": agree},
    )  # fmt: skip


# --- C6: the case study; heads of the retrieval blocks, after those of all blocks had missed (README) ----------------


@_once
def _case(run: ClaimRun, recipe: Recipe, index: int, n: int, k: int) -> dict[str, Any]:
    seed = run.seeds.seed % 2**31
    model, dataset, table = _sweep(run, recipe, index, n)
    _, second, third, _ = table.layers()
    retrieval = range(model.depth) if second is None or third is None else range(min(second, third - 1), third)
    effects = direct_effects(model, dataset, seed=seed, batch_size=256)
    attention, answering = attention_to_entities(model, dataset, 256)
    top = movers(effects, attention, answering, k, retrieval)
    anywhere = movers(effects, attention, answering, k)
    baseline = ablated_accuracy(model, dataset, [])
    chosen = [mover.head for mover in top]
    others = [c for c in effects.components if c.kind == "head" and c not in chosen]
    same = [c for c in others if c.block in {head.block for head in chosen}] or others
    rng = np.random.default_rng([seed, index])
    draws = [[same[i] for i in rng.permutation(len(same))[:k]] for _ in range(5)]
    heads = [i for i, c in enumerate(effects.components) if c.kind == "head"]
    on_answer = attention[np.arange(len(attention)), :, :, answering].mean(0)
    return {
        "of all blocks": ", ".join(f"{m.head} {m.attention:.2f}" for m in anywhere),
        "heads": ", ".join(str(head) for head in chosen),
        "attention": [mover.attention for mover in top],
        "drop": baseline - ablated_accuracy(model, dataset, chosen),
        "random": float(np.mean([baseline - ablated_accuracy(model, dataset, draw) for draw in draws])),
        "random heads": len(draws[0]),
        "random attention": float(np.mean([on_answer[c.block, c.head] for c in same])),
        "effects": effects.mean[heads].tolist(),
        "on answer": on_answer.ravel().tolist(),
        "blocks": [effects.components[i].block for i in heads],
        "top": [heads.index(effects.components.index(head)) for head in chosen],
    }


def _cases(run, recipe, seeds, n, k) -> list[dict[str, Any]]:
    return [_case(run, recipe, index, n, k) for index in range(seeds)]


def movers_attend(run: ClaimRun, *, recipe: Recipe = FOUR, seeds: int = 3, n: int = 500, k: int = 3) -> Measurement:
    """Row 6: mean attention on the answer of the top heads of blocks L2 … L3, worst seed. Control: others there."""
    found = _cases(run, recipe, seeds, n, k)
    values = [float(np.mean(case["attention"])) for case in found]
    case = found[0]
    run.figure("movers", figures.movers_figure(case["effects"], case["on answer"], case["blocks"], case["top"]))
    return Measurement(
        min(values), baseline=("other heads of their blocks", max(case["random attention"] for case in found)),
        ci=(min(values), max(values)), n=seeds,
        series={
            "heads": [case["heads"] for case in found],
            "attention": [str(np.round(case["attention"], 3)) for case in found],
            "top heads of all blocks": [case["of all blocks"] for case in found],
        },
    )  # fmt: skip


def movers_matter(run: ClaimRun, *, recipe: Recipe = FOUR, seeds: int = 3, n: int = 500, k: int = 3) -> Measurement:
    """Row 6: accuracy lost when they are ablated, worst seed. Control: random heads of their blocks."""
    found = _cases(run, recipe, seeds, n, k)
    drops, randoms = ([case[key] for case in found] for key in ("drop", "random"))
    return Measurement(
        min(drops), baseline=("random heads of their blocks", max(randoms)), ci=(min(drops), max(drops)), n=seeds,
        series={"drop": drops, "random": randoms, "random heads": [case["random heads"] for case in found]},
    )  # fmt: skip


def others_matter_less(
    run: ClaimRun, *, recipe: Recipe = FOUR, seeds: int = 3, n: int = 500, k: int = 3
) -> Measurement:
    """Row 6: accuracy lost by random heads of the same blocks over that lost by the top heads, worst seed."""
    found = _cases(run, recipe, seeds, n, k)
    ratios = [case["random"] / max(case["drop"], 1e-9) for case in found]
    return Measurement(max(ratios), baseline=("the top heads themselves", 1.0), ci=(min(ratios), max(ratios)), n=seeds)

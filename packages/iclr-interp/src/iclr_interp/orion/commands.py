"""``iclr orion VERB``: make retrieval prompts, find the layers of request and answer, oversee prompts."""

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

import tyro

from iclr_interp.orion.datasets import RetrievalDataset, UnfitError, list_tasks, make_task, thinning
from iclr_interp.orion.injections import KINDS, Oversight, injected_prompts, rates, trusted_prompt
from iclr_interp.orion.language_model import LanguageModel
from iclr_interp.orion.oversight import Inspection, TrustedRequest, paper_layer
from iclr_interp.orion.patching import PatchTable, residual_patch_sweep
from iclr_shared.errors import InputError
from iclr_shared.files import atomic_write
from iclr_shared.progress import progress
from iclr_shared.tables import print_table

Dtype = Literal["float32", "bfloat16", "float16"]
#: Prompts that `oversee` prints.
SHOWN = 50


def tasks(
    tokenizer: Path | None = None,
    task: tuple[str, ...] = (),
    n: int = 100,
    seed: int = 0,
    on_bad: Literal["raise", "drop"] = "raise",
    out: Path | None = None,
) -> None:
    """List the data sets; with a tokenizer, make and check them.

    Args:
        tokenizer: model directory whose tokenizer the prompts shall fit.
        task: names; none means those of the paper's six domains.
        n: prompts of each.
        seed: of the prompts.
        on_bad: what to do with prompts that the tokenizer breaks.
        out: folder for one JSONL file for each data set.
    """
    if tokenizer is None:
        if out is not None or task:
            raise InputError("To make prompts, name a model directory with --tokenizer.")
        rows = [(t.name, t.summary, "paper" if t.paper else "grammar") for t in list_tasks()]
        print_table(("task", "what", "of"), rows, "retrieval data sets")
        return
    reader = _tokenizer(tokenizer)
    rows = []
    for name in task or [t.name for t in list_tasks(paper_only=True)]:
        dataset = make_task(name, reader, n, seed, on_bad)
        longest = max(map(len, dataset.tokens))
        rows.append((name, len(dataset), dataset.dropped, longest, len(dataset.values), dataset.random_guess()))
        if out is not None:
            dataset.to_jsonl(out / f"{name.replace('/', '-')}.jsonl")
    columns = ("task", "prompts", "dropped", "tokens", "values", "random guess")
    print_table(columns, rows, f"prompts for {tokenizer.name}")


def patch(
    model: tyro.conf.Positional[Path],
    task: tuple[str, ...] = ("question_answering/uniform_prefix",),
    data: Path | None = None,
    layers: str = "all",
    n: int = 100,
    n_inter: int = 100,
    seed: int = 0,
    batch_size: int = 16,
    distinct: bool = False,
    method: Literal["auto", "cached", "naive"] = "auto",
    on_bad: Literal["raise", "drop"] = "drop",
    dtype: Dtype = "float32",
    device: str = "cpu",
    out: Path | None = None,
    quiet: bool = False,
) -> None:
    """Patch the last token between prompts at every layer, and find L1, L2, L3.

    Args:
        model: directory of a causal language model in Hugging Face's format.
        task: data sets, or all for those of the paper.
        data: instead, your own prompts as JSONL (the form that `tasks --out` writes).
        layers: all, or layers in 0 ... N such as 4,8,12 or 4-12.
        n: prompts of each data set.
        n_inter: pairs of prompts.
        seed: of prompts and pairs.
        batch_size: prompts in a pass.
        distinct: leave out pairs with the same request or the same answer.
        method: cached re-runs the last token only; naive re-runs all.
        on_bad: what to do with prompts that the tokenizer breaks.
        dtype: of the weights.
        device: cpu, cuda, or auto for several GPUs.
        out: folder for scores (to which a later run adds what is missing), layers.csv, summary.json and pictures.
        quiet: no progress bar.
    """
    loaded = LanguageModel.load(model, dtype, device)
    wanted = _layers(layers, loaded)
    if data is not None:
        datasets, unfit = [RetrievalDataset.from_jsonl(data, loaded.tokenizer, on_bad)], []
    else:
        datasets, unfit = _made(task, loaded, n, seed, on_bad)
    rows, summary, tables = [], [], {}
    for dataset in datasets:
        name, stem = dataset.name, dataset.name.replace("/", "-")
        table = residual_patch_sweep(
            loaded, dataset, wanted, n_inter, seed, batch_size, distinct=distinct, method=method,
            record=None if out is None else out / "scores" / f"{stem}.jsonl",
            progress=lambda parts, name=name: progress(parts, desc=name, quiet=quiet),
        )  # fmt: skip
        tables[name] = table
        rows.append(_row(table))
        summary.append(_summary(table, dataset))
        if out is not None:
            table.plot(out / f"{stem}.png")
            atomic_write(out / "summary.json", json.dumps(summary, indent=2))
            atomic_write(out / "layers.csv", _csv(tables))
    columns = ("task", "accuracy", "eligible", "L1", "L2", "L3", "R1(C2) at L2", "in order")
    print_table(columns, rows, f"{loaded.name}: N = {loaded.depth}, {next(iter(tables.values())).method} patching")
    if unfit:
        print(f"Left out, since they cannot be made for this tokenizer: {', '.join(unfit)}.")
    if not any(table.eligible for table in tables.values()):
        print("No task is eligible: the unpatched accuracy must exceed 0.7 for the three layers to mean something.")
    if len(tables) == 1:
        _print_profile(next(iter(tables.values())))


def oversee(
    model: tyro.conf.Positional[Path],
    prompts: Path | None = None,
    trusted: Path | None = None,
    trusted_answer: str | None = None,
    layer: int | None = None,
    save: Path | None = None,
    stories: int = 100,
    seed: int = 0,
    batch_size: int = 16,
    dtype: Dtype = "float32",
    device: str = "cpu",
    out: Path | None = None,
    quiet: bool = False,
) -> None:
    """Repair and inspect prompts with one trusted prompt; without --prompts, the paper's demonstration.

    Only the request is supervised: an attack that edits the context itself is out of reach.

    Args:
        model: directory of a causal language model in Hugging Face's format.
        prompts: JSONL file; each line has prompt. If each has its right answer, too, rates are given; target is what
            an attacker wants to hear.
        trusted: text file with the trusted prompt, or a .safetensors file that --save wrote.
        trusted_answer: what it leads to; default what the model says.
        layer: 1 ... N, where to patch: L2 of `patch`. Known for the Pythia models of the paper, and to a file that
            --save wrote.
        save: file for the trusted request.
        stories: of the demonstration, two prompts each.
        seed: of the demonstration.
        batch_size: prompts in a pass.
        dtype: of the weights.
        device: cpu, cuda, or auto.
        out: JSON file for what was found.
        quiet: no progress bar.
    """
    if prompts is not None and trusted is None:
        raise InputError("Name the trusted prompt with --trusted: a text file, or one that --save wrote.")
    if prompts is None and trusted is not None:
        raise InputError("Name the prompts to oversee with --prompts.")
    lines = [] if prompts is None else _lines(prompts)
    saved = trusted is not None and trusted.suffix == ".safetensors"
    if saved and (layer is not None or trusted_answer is not None):
        raise InputError(f"{trusted} has its own layer and answer; leave out --layer and --trusted-answer.")
    if stories < 1:
        raise InputError(f"--stories must be at least 1, got {stories}.")
    loaded = LanguageModel.load(model, dtype, device)
    request = _trusted(loaded, trusted, trusted_answer, layer)
    if save is not None:
        request.save(save)

    def inspect(texts: list[str], desc: str) -> list[Inspection]:
        return request.inspect(texts, batch_size, lambda parts: progress(parts, desc=desc, quiet=quiet))

    found = _demonstrate(request, inspect, stories, seed) if prompts is None else _oversee(request, inspect, lines)
    if out is not None:
        about = {"model": loaded.name, "layer": request.layer, "trusted answer": request.answer}
        atomic_write(out, json.dumps({**about, "found": found}, indent=2, ensure_ascii=False))


def _trusted(model: LanguageModel, path: Path | None, answer: str | None, layer: int | None) -> TrustedRequest:
    if path is not None and path.suffix == ".safetensors":
        return TrustedRequest.load(path, model)
    layer = paper_layer(model.name) if layer is None else layer
    if layer is None:
        raise InputError(f"Where shall {model.name} be patched? Give --layer: L2, as `iclr orion patch` finds it.")
    if path is None:
        text, known = trusted_prompt()
        return TrustedRequest(model, text, layer, answer or known)
    return TrustedRequest(model, _text(path).removesuffix("\n"), layer, answer)


type _Inspect = Callable[[list[str], str], list[Inspection]]


def _demonstrate(request: TrustedRequest, inspect: _Inspect, stories: int, seed: int) -> list[dict[str, Any]]:
    outcomes = {}
    for kind in KINDS:
        items = injected_prompts(kind, stories, seed=seed, thin=thinning(request.model.tokenizer))
        targets = [None if kind == "none" else item.target for item in items]
        outcomes[kind] = rates(inspect([item.text for item in items], kind), [item.city for item in items], targets)
    _print_rates(outcomes, f"{request.model.name}, layer {request.layer}, {2 * stories} prompts of each kind")
    return [{"distractor": kind, **asdict(outcome)} for kind, outcome in outcomes.items()]


def _oversee(request: TrustedRequest, inspect: _Inspect, lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    found = inspect([line["prompt"] for line in lines], "prompts")
    rows = [
        (i, seen.plain.strip(), seen.repaired.strip(), seen.trusted.strip(), _letters(seen),
         "altered" if seen.altered else "-") for i, seen in enumerate(found)
    ]  # fmt: skip
    title = f"{request.model.name}, layer {request.layer}, trusted answer {request.answer.strip()!r}"
    shown = f", {SHOWN} of {len(rows)} prompts" if len(rows) > SHOWN else ""
    columns = ("prompt", "says", "repaired", "trusted prompt says", "alarms", "request")
    print_table(columns, rows[:SHOWN], title + shown)
    if all("answer" in line for line in lines):
        outcome = rates(found, [line["answer"] for line in lines], [line.get("target") for line in lines])
        _print_rates({"all": outcome}, f"rates over {len(lines)} prompts")
    return [{**line, **asdict(s), "altered": s.altered} for line, s in zip(lines, found, strict=True)]


def _print_rates(outcomes: dict[str, Oversight], title: str) -> None:
    columns = ("distractor", "accuracy", "repaired", "hijacked", "A", "B", "A or B")
    print_table(columns, [(kind, *asdict(outcome).values()) for kind, outcome in outcomes.items()], title)


def _letters(seen: Inspection) -> str:
    return " ".join(letter for letter, alarm in (("A", seen.changed), ("B", seen.foreign)) if alarm) or "-"


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise InputError(f"There is no file {path}.") from None
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is no text in UTF-8: {error}") from None


def _lines(path: Path) -> list[dict[str, Any]]:
    found = []
    for number, line in enumerate(_text(path).split("\n"), 1):
        if not line.strip():
            continue
        try:
            entry = json.loads(line)
            texts = [entry["prompt"], entry.get("answer", ""), entry.get("target") or ""]
        except (ValueError, KeyError, TypeError, AttributeError):
            texts = [None]
        if not all(isinstance(text, str) for text in texts):
            raise InputError(f'{path}, line {number}: each line must be an object such as {{"prompt": "..."}}.')
        found.append(entry)
    if not found:
        raise InputError(f"{path} holds no prompts.")
    return found


def _tokenizer(path: Path):
    from transformers import AutoTokenizer

    if not path.is_dir():
        raise InputError(f"{path} is no model directory.")
    try:
        return AutoTokenizer.from_pretrained(str(path), local_files_only=True)
    except (OSError, ValueError, KeyError) as error:
        raise InputError(f"{path} has no tokenizer: {error}") from error


def _layers(text: str, model: LanguageModel) -> list[int] | Literal["all"]:
    if text == "all":
        return "all"
    try:
        spans = [part.partition("-") for part in text.split(",")]
        found = [layer for low, _, high in spans for layer in range(int(low), int(high or low) + 1)]
    except ValueError:
        raise InputError(f"--layers is all, or numbers such as 4,8,12 or 4-12; got {text!r}.") from None
    if not found:
        raise InputError(f"--layers {text} names no layer.")
    return [model.check_layer(layer) for layer in found]


def _made(
    task: tuple[str, ...], model: LanguageModel, n: int, seed: int, on_bad: Literal["raise", "drop"]
) -> tuple[list[RetrievalDataset], list[str]]:
    """The data sets that can be made for the model's tokenizer, and the names of others."""
    names = dict.fromkeys([t.name for t in list_tasks(paper_only=True)] if task == ("all",) else task)
    made, unfit = [], []
    for name in names:
        try:
            made.append(make_task(name, model.tokenizer, n, seed, on_bad))
        except UnfitError:
            if on_bad == "raise" or len(names) == 1:
                raise
            unfit.append(name)
    if not made:
        raise InputError(f"No task can be made for the tokenizer of {model.name}.")
    return made, unfit


def _row(table: PatchTable) -> tuple:
    found = table.layers()
    accuracy = float(table.baseline["accuracy"].mean())
    ordered = ("yes" if found.ordered else "no") if table.eligible else None
    return (table.task, accuracy, "yes" if table.eligible else "no", *found, ordered)


def _summary(table: PatchTable, dataset: RetrievalDataset) -> dict[str, Any]:
    return {
        "model": table.model, "task": table.task, "N": table.depth, "prompts": len(dataset), "dropped": dataset.dropped,
        "accuracy": float(table.baseline["accuracy"].mean()), "eligible": table.eligible,
        "random_guess": table.random_guess, **table.layers()._asdict(), "method": table.method,
    }  # fmt: skip


def _print_profile(table: PatchTable) -> None:
    rows = [(layer, *values.tolist()) for layer, values in zip(table.swept, table.normalised(), strict=True)]
    print_table(("after block", "R2(C2)", "R1(C2)", "R1(C1)"), rows, "normalised probability")


def _csv(tables: dict[str, PatchTable]) -> str:
    lines = ["task,layer,metric,nil,query,output"]
    for name, table in tables.items():
        for metric in table.scores:
            for layer, values in zip(table.swept, table.normalised(metric), strict=True):
                lines.append(f"{name},{layer},{metric}," + ",".join(f"{value:.6g}" for value in values))
    return "\n".join(lines) + "\n"

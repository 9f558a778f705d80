"""``iclr prunenet VERB``: learn a policy, compress a model directory, see what it cost."""

import json
import shutil
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Literal

import torch
import tyro

from iclr_prunenet import figures
from iclr_prunenet.directories import RECORD, ModelDirectory, check_output, new_directory, replace_weights, write_pruned
from iclr_prunenet.evaluation import in_vocabulary, load_tokenizer, perplexity, read_tokens, tokens_per_second
from iclr_prunenet.feed_forward import scored_matrices
from iclr_prunenet.policy import PruneNetPolicy, rows_kept
from iclr_prunenet.pruning import Chooser, PruneReport, at_random, by_magnitude, by_policy
from iclr_prunenet.recovery import Recovery, recover, sequences
from iclr_prunenet.spectra import Spectrum
from iclr_prunenet.training import Episode, Settings, train_policy
from iclr_shared.checkpoints import Checkpoint
from iclr_shared.errors import InputError
from iclr_shared.files import atomic_path, atomic_write
from iclr_shared.tables import print_table

ModelDir = tyro.conf.Positional[Path]


def train(
    model_dir: ModelDir,
    out: Path,
    ratio: float = 0.3,
    episodes: int = 20,
    lr: float = 1e-3,
    gamma: float = 0.99,
    reward: Literal["inverse_ks", "neg_ks"] = "inverse_ks",
    returns: Literal["per_layer", "cumulative"] = "per_layer",
    baseline: Literal["none", "mean_std"] = "none",
    logprob: Literal["surrogate", "plackett_luce"] = "surrogate",
    kl: bool = False,
    official_reward: bool = False,
    device: str = "cpu",
    overwrite: bool = False,
    seed: int = 42,
    quiet: bool = False,
) -> None:
    """Learn which hidden units to keep, from the weights of a model directory alone.

    After a kill the same command goes on from the last episode.

    Args:
        model_dir: with config.json and weights.
        out: folder for the policy and training.png.
        ratio: share of hidden units removed while training; the policy serves any other ratio too.
        episodes: passes over the layers.
        lr: of AdamW.
        gamma: discount over layers.
        reward: 1 / KS or -KS.
        returns: discounted reward of each layer, or summed from there on.
        baseline: none, or returns standardised over layers.
        logprob: sum of log z over the kept rows, or Plackett-Luce.
        kl: add the KL term.
        official_reward: pay 99999 for a KS distance of 0, as the official code does.
        device: where to compute.
        overwrite: replace the policy in --out.
        seed: of everything random.
        quiet: no progress bar.
    """
    if (out / "policy.json").exists() and not overwrite:
        raise InputError(f"{out} holds a policy: choose another output folder, or give --overwrite.")
    where = _device(device)
    options = {"reward": reward, "returns": returns, "baseline": baseline, "logprob": logprob, "kl": kl}
    settings = Settings(ratio, episodes, lr, gamma, seed, cap=None if official_reward else "resolution", **options)
    directory = ModelDirectory(model_dir)
    policy, history = _learn(directory, settings, out / "training", where, quiet)
    outcomes = _outcomes(directory, policy, settings, where)
    _save_figure(figures.learning([[_mean(e.ks) for e in history]], {k: [v] for k, v in outcomes.items()}), out)
    policy.save_pretrained(out, _record(settings, history))
    shutil.rmtree(out / "training", ignore_errors=True)
    print_table(
        ("what", "value"),
        [
            ("layers", len(directory.blocks)), ("hidden size h", policy.hidden_size),
            ("hidden units n", policy.intermediate_size), ("policy", str(out)),
        ],
        f"{episodes} episodes",
    )  # fmt: skip
    _print_outcomes(outcomes)


def compress(
    model_dir: ModelDir,
    out: Path,
    ratio: float = 0.3,
    sweep: tuple[float, ...] = (),
    method: Literal["prunenet", "random", "magnitude"] = "prunenet",
    policy: Path | None = None,
    mode: Literal["topk", "sample"] = "topk",
    episodes: int = 20,
    recover_text: Path | None = None,
    eval_text: Path | None = None,
    device: str = "cpu",
    overwrite: bool = False,
    seed: int = 42,
    quiet: bool = False,
) -> None:
    """Cut a model directory to a ratio: the new one loads with AutoModelForCausalLM.from_pretrained.

    The policy is learned from the weights first, unless one is given. After a kill the same command goes on.

    Args:
        model_dir: with config.json and weights.
        out: new model directory; with --sweep, the folder that holds one for each ratio.
        ratio: share of the hidden units of each layer that is removed, in [0, 1).
        sweep: several ratios in place of one; the policy is learned once, at --ratio.
        method: prunenet, or a baseline.
        policy: folder of a learned policy, from `iclr prunenet train` or a model of the same sizes.
        mode: keep the units of largest alpha, or draw them as the official code does.
        episodes: of the training, if no policy is given.
        recover_text: text file for LoRA fine-tuning after the cut.
        eval_text: text file for perplexity before and after.
        device: where to compute.
        overwrite: replace --out, all of it, if it is a model directory or a sweep.
        seed: of everything random.
        quiet: no progress bar.
    """
    where = _device(device)
    directory = ModelDirectory(model_dir)
    names = {value: f"ratio-{value:g}" for value in sweep} or {ratio: ""}
    for value in (ratio, *names):
        directory.pruned_config(value)
    if len(set(names.values())) < max(len(sweep), 1):
        raise InputError(f"--sweep names a ratio twice: {', '.join(f'{value:g}' for value in sweep)}.")
    check_output(out, overwrite, model_dir)
    tokens = None if eval_text is None else _read(eval_text, directory)
    recovery = None if recover_text is None else _read(recover_text, directory)
    if recovery is not None:
        sequences(recovery, directory.config)
    work = out.resolve().with_name(f".{out.resolve().name}.training")
    choose, learned = _rule(directory, method, policy, mode, Settings(ratio, episodes, seed=seed), work, where, quiet)
    reports = {}
    with new_directory(out, overwrite, model_dir) as partial:
        for value, name in names.items():
            place = partial / name
            place.mkdir(exist_ok=True)
            reports[value] = write_pruned(directory, place, value, choose(), where)
            if learned is not None:
                learned[0].save_pretrained(place / "policy", learned[1])
            if recovery is not None:
                _recover(place, recovery, work / "recovery", where, seed, quiet)
        if sweep:
            summary = {names[value]: report.record() | {"rows": None} for value, report in reports.items()}
            atomic_write(partial / RECORD, json.dumps(summary, indent=2))
        found = {f"ratio {value:g}": report.ks for value, report in reports.items()}
        _save_figure(figures.distances(found), partial, "spectra.png")
    _print_reports(reports)
    shutil.rmtree(work, ignore_errors=True)
    if tokens is not None:
        folders = model_dir, *(out / name for name in names.values())
        _print_evaluations({str(folder): _evaluated(folder, tokens, where) for folder in folders})


def evaluate(
    model_dirs: tyro.conf.Positional[tuple[Path, ...]],
    text: Path | None = None,
    context: int = 2048,
    limit: int | None = None,
    length: int = 128,
    batch: int = 1,
    device: str = "cpu",
    out: Path | None = None,
) -> None:
    """Parameters, tokens per second and perplexity of model directories, relative to the first one.

    Args:
        model_dirs: the dense model and its pruned ones, for instance.
        text: text file for the perplexity; each model's own tokenizer is used.
        context: tokens of a window of text.
        limit: use the first so many tokens of the text.
        length: tokens of a sequence for the speed.
        batch: sequences at a time.
        device: where to compute.
        out: JSON file for the numbers.
    """
    if not model_dirs:
        raise InputError("Name at least one model directory.")
    if min(length, batch, context) < 1 or (limit is not None and limit < 2):
        raise InputError("--length, --batch and --context must be positive, and --limit at least 2.")
    where, found = _device(device), {}
    for folder in model_dirs:
        tokens = None if text is None else _read(text, ModelDirectory(folder))
        found[str(folder)] = _evaluated(folder, tokens, where, context, limit, length, batch)
    _print_evaluations(found)
    if out is not None:
        atomic_write(out, json.dumps(found, indent=2))


# --- parts of the verbs ----------------------------------------------------------------------------------------------


def _learn(
    directory: ModelDirectory, settings: Settings, work: Path, device: torch.device, quiet: bool
) -> tuple[PruneNetPolicy, list[Episode]]:
    options = {name: value for name, value in asdict(settings).items() if name not in ("ratio", "episodes")}
    return train_policy(
        _matrices(directory), settings.ratio, settings.episodes, checkpoint=Checkpoint(work / "policy"),
        device=device, quiet=quiet, **options,
    )  # fmt: skip


def _matrices(directory: ModelDirectory) -> Any:
    return directory.matrices() if directory.streamable else scored_matrices(directory.load())


def _device(name: str) -> torch.device:
    try:
        torch.empty(1, device=name, dtype=torch.float64).sum().item()  # spectra need float64
    except (RuntimeError, AssertionError, TypeError) as error:
        raise InputError(f"The device {name!r} cannot be used: {str(error).splitlines()[0]}") from error
    return torch.device(name)


def _rule(
    directory: ModelDirectory, method: str, folder: Path | None, mode: Any, settings: Settings, work: Path,
    device: torch.device, quiet: bool,
) -> tuple[Any, tuple[PruneNetPolicy, dict[str, Any]] | None]:  # fmt: skip
    """A maker of choosers (each ratio starts from the seed), and the policy with its record if it was learned here."""
    if method != "prunenet":
        if folder is not None:
            raise InputError(f"--policy is for --method prunenet, not for {method}.")
        return (lambda: at_random(settings.seed)) if method == "random" else by_magnitude, None
    if folder is not None:
        policy = PruneNetPolicy.from_pretrained(folder).to(device)
        return lambda: by_policy(policy, mode, settings.seed), None
    policy, history = _learn(directory, settings, work, device, quiet)
    return lambda: by_policy(policy, mode, settings.seed), (policy, _record(settings, history))


def _record(settings: Settings, history: list[Episode]) -> dict[str, Any]:
    return {"settings": asdict(settings), "history": [asdict(episode) for episode in history]}


def _outcomes(
    directory: ModelDirectory, policy: PruneNetPolicy, settings: Settings, device: torch.device
) -> dict[str, float]:
    """Mean KS distance of the policy and of the rules that need no learning."""
    generator = torch.Generator().manual_seed(settings.seed)
    untrained = PruneNetPolicy(policy.hidden_size, policy.intermediate_size, generator)
    rules: dict[str, Chooser] = {
        "learned policy": by_policy(policy), "untrained policy": by_policy(untrained.to(device)),
        "random rows": at_random(settings.seed), "largest norms": by_magnitude(),
    }  # fmt: skip
    kept = rows_kept(policy.intermediate_size, settings.ratio)
    found: dict[str, list[float]] = {name: [] for name in rules}
    matrices = _matrices(directory)
    for layer in range(len(matrices)):
        matrix = matrices[layer].to(device)
        spectrum = Spectrum.of(matrix)
        for name, choose in rules.items():
            found[name].append(spectrum.ks(matrix, choose(matrix, kept)))
    return {name: _mean(values) for name, values in found.items()}


def _print_outcomes(found: dict[str, float]) -> None:
    print_table(("rows kept by", "mean KS distance of the spectra"), list(found.items()))
    if found["learned policy"] >= found["random rows"]:
        print("The learned policy keeps the spectra no better than random rows: layers share no direction it can use.")


def _read(text: Path, directory: ModelDirectory) -> torch.Tensor:
    """A text in the model's own tokens."""
    tokens = read_tokens(text, load_tokenizer(directory.path))
    in_vocabulary(tokens, directory.vocabulary)
    return tokens


def _recover(place: Path, tokens: torch.Tensor, work: Path, device: torch.device, seed: int, quiet: bool) -> None:
    model = ModelDirectory(place).load().to(device)
    replace_weights(place, recover(model, tokens, work, replace(Recovery(), seed=seed), quiet))


def _evaluated(
    folder: Path, tokens: Any, device: torch.device, context: int = 2048, limit: int | None = None, length: int = 128,
    batch: int = 1,
) -> dict[str, float | None]:  # fmt: skip
    model = ModelDirectory(folder).load().to(device)
    return {
        "parameters": model.num_parameters(),
        "tokens per second": tokens_per_second(model, batch, length),
        "perplexity": None if tokens is None else perplexity(model, tokens, context, limit=limit),
    }


def _print_evaluations(found: dict[str, dict[str, float | None]]) -> None:
    first = next(iter(found.values()))
    rows = []
    for name, values in found.items():
        row: list[Any] = [name]
        for column in ("parameters", "tokens per second", "perplexity"):
            value = values[column]
            row += [value, None if value is None else value / first[column]]
        rows.append(row)
    print_table(("model", "parameters", "ratio", "tokens/s", "ratio", "perplexity", "ratio"), rows)


def _print_reports(reports: dict[float, PruneReport]) -> None:
    rows = [
        (
            value, report.intermediate_size[0], report.intermediate_size[1], report.parameters[0], report.parameters[1],
            f"{report.parameter_reduction:.2%}", report.mean_ks,
        )
        for value, report in reports.items()
    ]  # fmt: skip
    columns = "ratio", "hidden units", "kept", "parameters", "left", "removed of the whole", "mean KS of the spectra"
    print_table(columns, rows)


def _save_figure(figure: Any, folder: Path, name: str = "training.png") -> None:
    with atomic_path(folder / name) as temporary:
        figure.savefig(temporary, format="png", dpi=130)


def _mean(values: Any) -> float:
    return float(sum(values) / len(values))

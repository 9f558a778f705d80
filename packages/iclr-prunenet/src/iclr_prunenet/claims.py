"""The ledger's checks."""

import time
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from iclr_prunenet import figures
from iclr_prunenet.architectures import tiny_models
from iclr_prunenet.directories import ModelDirectory, compress_directory
from iclr_prunenet.evaluation import forward_call, perplexity
from iclr_prunenet.feed_forward import find_feed_forwards, mask_block
from iclr_prunenet.official import official_episode
from iclr_prunenet.planted import Planted, corpus, planted, tiny_llama, train_language_model
from iclr_prunenet.policy import PruneNetPolicy
from iclr_prunenet.pruning import at_random, by_magnitude, by_policy, choose_rows, prune, random_prune
from iclr_prunenet.spectra import interlacing_of, singular_values
from iclr_prunenet.training import train_policy
from iclr_shared.claims import ClaimRun, Measurement

KS_BOUND, STRONG_BOUND = 0.06, 0.95
STEP = 1 / 32
"""D of the planted matrices is a multiple of this (h = 32)."""


def spectra_interlace(run: ClaimRun, *, pairs: int = 200, other: bool = False) -> Measurement:
    """C1: sigma_i(W) >= sigma_i(W[S]) >= sigma_(i+n-m)(W). Control: rows of another matrix of the same law."""
    numbers = run.seeds.numpy()
    gaps, controls = [], []
    for index in run.progress(range(pairs), desc="matrices"):
        generator = run.seeds.child("matrix", index).torch()
        n, h = (int(x) for x in numbers.integers(2, 129, size=2))
        count = int(numbers.integers(1, n + 1))
        matrix, stranger = torch.randn(2, n, h, generator=generator)
        rows = torch.randperm(n, generator=generator)[:count]
        whole = singular_values(matrix)
        gaps.append(interlacing_of(whole, singular_values(matrix[rows]), n - count))
        controls.append(interlacing_of(whole, singular_values(stranger[rows]), n - count))
    return Measurement(
        max(controls if other else gaps),
        baseline=("rows of another matrix", max(controls)),
        n=pairs,
        details={"share of controls that interlace": float(np.mean(np.array(controls) <= 1e-5))},
    )


def pruned_equals_masked(run: ClaimRun, *, ratio: float = 0.3, shift: int = 0) -> Measurement:
    """C2: logits of the cut model against those with the removed units set to zero. Control: other units masked."""
    errors, controls = {}, {}
    for name, model in run.progress(tiny_models(run.seeds.int32()).items(), desc="architectures"):
        tokens = torch.randint(50, (2, 16), generator=run.seeds.child(name).torch())
        masked, wrong = deepcopy(model), deepcopy(model)
        report = random_prune(model, ratio, seed=run.seeds.int32())
        n = report.intermediate_size[0]
        for block, rows in zip(find_feed_forwards(masked), report.rows, strict=True):
            mask_block(masked, block, (rows + shift) % n)
            mask_block(wrong, block, (rows + 1) % n)
        with torch.no_grad():
            logits = model(input_ids=tokens).logits
            errors[name] = float((logits - masked(input_ids=tokens).logits).abs().max())
            controls[name] = float((logits - wrong(input_ids=tokens).logits).abs().max())
    series = {"architecture": list(errors), "largest difference": list(errors.values())}
    return Measurement(
        max(errors.values()), baseline=("other units masked", min(controls.values())), n=len(errors), series=series
    )


def _mean_ks(task: Planted, ratio: float, choose: Callable) -> tuple[float, float]:
    """Mean D over layers, and the share of strong rows kept."""
    rows, distances = choose_rows(task.matrices, ratio, choose)
    kept = sum(int(task.strong[layer][index].sum()) for layer, index in enumerate(rows))
    return float(np.mean(distances)), kept / int(task.strong.sum())


def policy_learns(run: ClaimRun, *, seeds: int = 6, episodes: int = 20, shared: float = 2.0) -> Measurement:
    """C3: seeds in which the policy keeps the spectra of planted matrices. Controls: untrained, random, row norm."""
    found: dict[str, list[tuple[float, float]]] = {}
    curves = []
    for index in run.progress(range(seeds), desc="seeds"):
        tree = run.seeds.child(index)
        task, seed = planted(tree.int32(), shared=shared), tree.child("policy").int32()
        policy, history = train_policy(task.matrices, 0.3, episodes, seed=seed)
        untrained = PruneNetPolicy(32, 128, torch.Generator().manual_seed(seed))
        curves.append([np.mean(episode.ks) for episode in history])
        rules = {
            "trained, top-k": by_policy(policy), "trained, sampled": by_policy(policy, "sample", seed),
            "untrained, top-k": by_policy(untrained), "random rows": at_random(seed), "largest norms": by_magnitude(),
        }  # fmt: skip
        for name, choose in rules.items():
            found.setdefault(name, []).append(_mean_ks(task, 0.3, choose))

    def held(name: str) -> int:
        return sum(ks <= KS_BOUND and strong >= STRONG_BOUND for ks, strong in found[name])

    run.figure("spectra", figures.learning(curves, {name: [ks for ks, _ in rows] for name, rows in found.items()}))
    details: dict[str, Any] = {
        f"mean KS: {name}": float(np.mean([ks for ks, _ in rows])) for name, rows in found.items()
    }
    details |= {f"worst KS: {name}": max(ks for ks, _ in rows) for name, rows in found.items()}
    details["least share of strong rows kept"] = min(strong for _, strong in found["trained, top-k"])
    return Measurement(
        held("trained, top-k"), baseline=("untrained policy", held("untrained, top-k")), n=seeds, details=details
    )


def one_policy_any_ratio(
    run: ClaimRun, *, seeds: int = 6, episodes: int = 20, ratios: tuple[float, ...] = (0.1, 0.2, 0.4),
    untrained: bool = False,
) -> Measurement:  # fmt: skip
    """C6: mean KS of the policy trained at 0.3 above that of policies trained at the target ratio, worst ratio.

    Control: random rows. The mean is over layers and seeds.
    """
    table = {name: np.zeros((seeds, len(ratios))) for name in ("one policy", "own policy", "random rows")}
    for index in run.progress(range(seeds), desc="seeds"):
        tree = run.seeds.child(index)
        task, seed = planted(tree.int32()), tree.child("policy").int32()
        if untrained:
            one = PruneNetPolicy(32, 128, torch.Generator().manual_seed(seed))
        else:
            one, _ = train_policy(task.matrices, 0.3, episodes, seed=seed)
        for column, ratio in enumerate(ratios):
            own, _ = train_policy(task.matrices, ratio, episodes, seed=tree.child("own", column).int32())
            for name, choose in zip(table, (by_policy(one), by_policy(own), at_random(seed)), strict=True):
                table[name][index, column] = _mean_ks(task, ratio, choose)[0]
    means = {name: values.mean(0) for name, values in table.items()}
    run.figure("ratios", figures.lines(ratios, means, "compression ratio", "mean KS distance of the spectra"))
    gap, control = (float((means[name] - means["own policy"]).max()) for name in ("one policy", "random rows"))
    return Measurement(gap, baseline=("random rows", control), n=seeds, series={"ratio": list(ratios), **means})


def keeps_performance(
    run: ClaimRun, *, ratios: tuple[float, ...] = (0.1, 0.2, 0.3), seeds: int = 5, steps: int = 900, episodes: int = 20,
    evaluated: int = 60_000,
) -> Measurement:  # fmt: skip
    """C4a: perplexity of a small trained language model pruned by the policy over that with random rows."""
    found = _language_experiment(run, ratios, seeds, steps, episodes, evaluated)
    run.figure("perplexity", figures.lines(ratios, found, "compression ratio", "perplexity over the dense model's"))
    logs = {name: np.log(values) for name, values in found.items()}
    differences = (logs["PruneNet"] - logs["random rows"]).mean(1)
    mean, error = differences.mean(), differences.std(ddof=1) / seeds**0.5
    return Measurement(
        float(np.exp(mean)),
        baseline=("random rows", 1.0),
        ci=(float(np.exp(mean - 2 * error)), float(np.exp(mean + 2 * error))),
        n=seeds,
        series={"ratio": list(ratios)} | {name: values.mean(0) for name, values in found.items()},
    )


def against_magnitude(run: ClaimRun, **sizes: Any) -> Measurement:
    """C4b: the same over that with the rows of largest norm kept."""
    defaults = {"ratios": (0.1, 0.2, 0.3), "seeds": 5, "steps": 900, "episodes": 20, "evaluated": 60_000}
    found = _language_experiment(run, **defaults | sizes)
    ratio = float(np.exp(np.log(found["PruneNet"] / found["largest norms"]).mean()))
    random = float(np.exp(np.log(found["random rows"] / found["largest norms"]).mean()))
    return Measurement(ratio, baseline=("random rows", random), n=len(found["PruneNet"]))


_LANGUAGE: dict[tuple, dict[str, np.ndarray]] = {}


def _language_experiment(
    run: ClaimRun, ratios: tuple[float, ...], seeds: int, steps: int, episodes: int, evaluated: int
) -> dict[str, np.ndarray]:
    """Perplexity over the dense model's, (seeds, ratios) for each rule; one language model, computed once."""
    tree = type(run.seeds)(run.seeds.seed, ("language model",))
    key = (tree.seed, ratios, seeds, steps, episodes, evaluated)
    if key in _LANGUAGE:
        return _LANGUAGE[key]
    tokens = corpus()
    cut = int(0.9 * len(tokens))
    model = tiny_llama(tree.int32())
    train_language_model(model, tokens[:cut], tree.torch(), steps)
    text = tokens[cut:][:evaluated]
    dense = perplexity(model, text, context=256, batch=16)
    found = {name: np.zeros((seeds, len(ratios))) for name in ("PruneNet", "sampled", "random rows", "largest norms")}
    for index in run.progress(range(seeds), desc="policies"):
        seed = tree.child(index).int32()
        policy, _ = train_policy(model, 0.3, episodes, seed=seed)
        rules = by_policy(policy), by_policy(policy, "sample", seed), at_random(seed), by_magnitude()
        for (_, values), choose in zip(found.items(), rules, strict=True):
            for column, ratio in enumerate(ratios):
                pruned = deepcopy(model)
                prune(pruned, ratio, choose)
                values[index, column] = perplexity(pruned, text, context=256, batch=16) / dense
    _LANGUAGE[key] = found
    return found


def no_calibration_data(run: ClaimRun, *, episodes: int = 3, peek: bool = False) -> Measurement:
    """C5: forward passes of the model while a policy is trained and applied. Control: one calibration window."""
    model = tiny_llama(run.seeds.int32())
    calls = []
    hook = model.register_forward_pre_hook(lambda module, arguments: calls.append(1))
    tokens = torch.arange(256)
    policy, _ = train_policy(model, 0.3, episodes, seed=run.seeds.int32())
    prune(model, 0.3, by_policy(policy))
    if peek:
        perplexity(model, tokens)
    passes = len(calls)
    perplexity(model, tokens)
    hook.remove()
    return Measurement(passes, baseline=("a criterion that looks at one window", len(calls) - passes), n=episodes)


def faster_than_official(
    run: ClaimRun, *, hidden: int = 512, intermediate: int = 2048, layers: int = 4, rounds: int = 3, slow: bool = False
) -> Measurement:
    """C7: seconds of an episode of the official way (whole products, full SVD, deep copies) over those of ours."""
    model = tiny_llama(run.seeds.int32(), hidden, intermediate, layers, heads=8)
    ours, theirs = [], []
    for _ in run.progress(range(rounds), desc="episodes"):
        start = time.perf_counter()
        (official_episode if slow else _own_episode)(model, run.seeds.int32())
        ours.append(time.perf_counter() - start)
        start = time.perf_counter()
        official_episode(model, run.seeds.int32())
        theirs.append(time.perf_counter() - start)
    median, official = float(np.median(ours)), float(np.median(theirs))
    work = layers * intermediate * hidden**2
    llama = 32 * 11008 * 4096**2
    return Measurement(
        float(np.median(np.array(theirs) / np.array(ours))),
        baseline=("the official way", 1.0),
        n=rounds,
        details={
            "seconds per episode": median, "official seconds per episode": official,
            "seconds per 1e9 n h^2": median / work * 1e9,
            "extrapolated minutes for 20 episodes of LLaMA-2-7B on this machine": 20 * median * llama / work / 60,
        },
    )  # fmt: skip


def _own_episode(model: PreTrainedModel, seed: int) -> None:
    """One episode and its setting up (spectra of all layers), as the official way has to do it too."""
    train_policy(model, 0.3, 1, seed=seed)


def throughput(
    run: ClaimRun, *, hidden: int = 512, layers: int = 4, ratio: float = 0.3, rounds: int = 15
) -> Measurement:
    """C8: tokens per second of the cut model over the dense one's, forward passes on this machine."""
    dense = tiny_llama(run.seeds.int32(), hidden, 4 * hidden, layers, heads=8)
    cut = deepcopy(dense)
    random_prune(cut, ratio, seed=run.seeds.int32())
    calls = forward_call(dense, 4, 128), forward_call(cut, 4, 128)
    times: list[list[float]] = [[], []]
    for index in run.progress(range(rounds + 2), desc="rounds"):
        for which in (0, 1) if index % 2 else (1, 0):
            start = time.process_time()
            calls[which]()
            times[which].append(time.process_time() - start)
    ratios = np.array(times[0][2:]) / np.array(times[1][2:])
    return Measurement(
        float(np.median(ratios)), baseline=("dense", 1.0), ci=tuple(np.quantile(ratios, [0.25, 0.75])), n=rounds
    )


def promised_parameters(run: ClaimRun, *, ratio: float = 0.3, forget: bool = False) -> Measurement:
    """C9: parameters of reloaded directories against those promised. Control: those of the dense models."""
    errors, dense = [], []
    for name, model in run.progress(tiny_models(run.seeds.int32()).items(), desc="architectures"):
        source, out = (run.folder / "models" / f"{name}-{kind}" for kind in ("dense", "pruned"))
        model.save_pretrained(source)
        block = find_feed_forwards(model)[0]
        lost = sum(
            model.get_parameter(part.parameter).numel() // (block.intermediate_size * part.copies) * part.copies
            for part in block.cuts
        )
        layers = len(find_feed_forwards(model))
        removed = block.intermediate_size - int((1 - ratio) * block.intermediate_size + 1e-9)
        promised = model.num_parameters() - layers * removed * lost
        compress_directory(source, out, ratio, at_random(run.seeds.int32()), overwrite=True)
        loaded = ModelDirectory(source).load() if forget else AutoModelForCausalLM.from_pretrained(out)
        errors.append(abs(loaded.num_parameters() - promised))
        dense.append(abs(model.num_parameters() - promised))
    return Measurement(max(errors), baseline=("the dense models", min(dense)), n=len(errors))

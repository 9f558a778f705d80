"""Request-patching: overwrite the residual at END layer by layer, score three hypotheses, find the three layers (§2.4).

For a pair of a target x₂ and a source x₁ the patched model M(x₂ | z_l ← z_l(x₁)) may still answer R₂(C₂) (the patch
carried nothing), or R₁(C₂) (it carried the request), or R₁(C₁) (it carried the answer).
"""

import hashlib
import json
import logging
import math
import random
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int

from iclr_interp.orion.causal import HYPOTHESES, interchange_expected
from iclr_interp.orion.datasets import RetrievalDataset, resolve
from iclr_interp.orion.language_model import LanguageModel, Prefix
from iclr_interp.orion.tokens import soft_match, spans
from iclr_shared.errors import InputError

logger = logging.getLogger(__name__)

METRICS = ("probability", "accuracy", "soft", "logit_difference")
CONTROLS = ("same_request", "zero", "mean")
#: A model knows a task if its unpatched accuracy exceeds this (§2.5).
ELIGIBLE = 0.7
#: Share of the baseline at which a hypothesis counts as held (§2.5).
HELD = 0.8

type Control = Literal["same_request", "zero", "mean"]


class Layers(NamedTuple):
    """L1, L2, L3 of §2.5, and the normalised P[R₁(C₂)] at L2; None each where the model does not know the task."""

    L1: int | None
    L2: int | None
    L3: int | None
    height: float | None

    @property
    def ordered(self) -> bool:
        """Whether L1 < L2 < L3."""
        return None not in (self.L1, self.L2, self.L3) and self.L1 < self.L2 < self.L3


@dataclass(frozen=True)
class PatchTable:
    """Raw scores of a sweep; the last axis are the hypotheses nil, query, output.

    Args:
        model: name.
        task: name.
        depth: N.
        swept: layers.
        pairs: indices of target and source.
        scores: by metric; NaN where a hypothesis has no answer.
        baseline: by metric, unpatched, for each prompt of the data set.
        random_guess: g.
        method: ``cached`` or ``naive``.
    """

    model: str
    task: str
    depth: int
    swept: tuple[int, ...]
    pairs: Int[np.ndarray, "p 2"]
    scores: dict[str, Float[np.ndarray, "l p 3"]]
    baseline: dict[str, Float[np.ndarray, " n"]]
    random_guess: float
    method: str = "cached"

    @property
    def eligible(self) -> bool:
        """Whether the unpatched accuracy exceeds 0.7."""
        return bool(self.baseline["accuracy"].mean() > ELIGIBLE)

    def mean(self, metric: str = "probability") -> Float[np.ndarray, "l 3"]:
        """Mean over pairs for each layer and hypothesis; pairs without an answer are left out."""
        scores = self._scores(metric)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # all pairs without an answer: NaN
            return np.nanmean(scores, axis=1)

    def normalised(self, metric: str = "probability") -> Float[np.ndarray, "l 3"]:
        """(mean patched − g) / (mean unpatched − g); g is the random guess for accuracies, else 0.

        The *mean* baseline divides, not each prompt's. Where that leaves nothing to divide by, NaN with a warning.
        """
        guess = self.random_guess if metric in ("accuracy", "soft") else 0.0
        scale = float(np.nanmean(self.baseline[metric])) - guess
        if abs(scale) < 1e-12:
            warnings.warn(f"{self.model} on {self.task}: the baseline {metric} is the chance level.", stacklevel=2)
            return np.full((len(self.swept), 3), np.nan)
        return (self.mean(metric) - guess) / scale

    def layers(self) -> Layers:
        """The three layers over the swept l ≥ 1; all None if the model is not eligible.

        L1 is the largest l with normalised P[R₂(C₂)] > 0.8 (0 if none), L2 the argmax of P[R₁(C₂)], L3 the smallest l
        with P[R₁(C₁)] > 0.8 (None if none).
        """
        if not self.eligible:
            return Layers(None, None, None, None)
        layers = np.array(self.swept)
        values = self.normalised()[layers >= 1]
        layers = layers[layers >= 1]
        if not len(layers) or np.isnan(values[:, 1]).all():
            return Layers(None, None, None, None)
        nil, output = layers[values[:, 0] > HELD], layers[values[:, 2] > HELD]
        peak = int(np.nanargmax(values[:, 1]))
        third = int(output.min()) if len(output) else None
        return Layers(int(nil.max(initial=0)), int(layers[peak]), third, float(values[peak, 1]))

    def frame(self):
        """A pandas data frame with one row for each pair, layer and hypothesis, and a column for each metric."""
        import pandas as pd

        layer, pair, hypothesis = (a.ravel() for a in np.indices(self._scores("probability").shape))
        columns: dict[str, Any] = {
            "layer": np.array(self.swept)[layer],
            "target": self.pairs[pair, 0],
            "source": self.pairs[pair, 1],
            "hypothesis": np.array(HYPOTHESES)[hypothesis],
        }
        return pd.DataFrame(columns | {metric: self._scores(metric).ravel() for metric in METRICS})

    def plot(self, path: str | Path) -> None:
        """Heat maps of the normalised hypotheses over layers, as a PNG file."""
        from iclr_interp.orion.figures import sweep_figure
        from iclr_shared.files import atomic_path

        with atomic_path(path) as temporary:
            sweep_figure({self.task: self}).savefig(temporary, format="png", dpi=130)

    def _scores(self, metric: str) -> np.ndarray:
        if metric not in self.scores:
            raise InputError(f"There is no metric {metric!r}; choose from {', '.join(METRICS)}.")
        return self.scores[metric]


def draw_pairs(
    dataset: RetrievalDataset, n_inter: int = 100, seed: int = 0, distinct: bool = False
) -> Int[np.ndarray, "p 2"]:
    """Targets and sources, uniformly with replacement.

    Args:
        dataset: to draw from.
        n_inter: number of pairs.
        seed: of the draw.
        distinct: redraw pairs with R₁ = R₂ or R₁(C₁) = R₂(C₂), for which hypotheses coincide.

    Raises:
        InputError: if there are no distinct pairs.
    """
    if n_inter < 1:
        raise InputError(f"A sweep needs at least one pair, got n_inter = {n_inter}.")
    if seed < 0:
        raise InputError(f"The seed must not be negative, got {seed}.")
    rng = np.random.default_rng(seed)
    if not distinct:
        return rng.integers(len(dataset), size=(n_inter, 2))
    kept: list[tuple[int, int]] = []
    for _ in range(1000):
        for two, one in rng.integers(len(dataset), size=(n_inter, 2)).tolist():
            differ = dataset.queries[one] != dataset.queries[two] and dataset.answers[one] != dataset.answers[two]
            if differ and len(kept) < n_inter:
                kept.append((two, one))
        if len(kept) == n_inter:
            return np.array(kept)
    raise InputError(f"{dataset.name} has no pairs with different requests and answers.")


@dataclass(frozen=True)
class _Plan:
    """What is scored: token ids of hypotheses and of wrong answers, -1 where there is none."""

    expected: Int[torch.Tensor, "p 3"]
    wrong: Int[torch.Tensor, "p 3"]
    texts: list[list[str]]
    true: Int[torch.Tensor, " n"]
    true_wrong: Int[torch.Tensor, " n"]


def _plan(dataset: RetrievalDataset, pairs: np.ndarray, seed: int) -> _Plan:
    rng = random.Random(seed)
    items, first = dataset.items, dataset.first_ids
    hypotheses = interchange_expected([(items[two], items[one]) for two, one in pairs.tolist()])
    queries = list(dataset.queries_counted)

    def wrong(context, right: str | None) -> int:
        """First token of the answer to another query on the same context (§2.4)."""
        for query in rng.sample(queries, len(queries)):
            value = resolve(query, context)
            if value is not None and value != right:
                return first[value]
        return -1

    def token(value: str | None) -> int:
        return -1 if value is None else first[value]

    expected = [[token(found[h]) for h in HYPOTHESES] for found in hypotheses]
    others = [
        [wrong(items[one if h == "output" else two].context, found[h]) for h in HYPOTHESES]
        for found, (two, one) in zip(hypotheses, pairs.tolist(), strict=True)
    ]
    texts = [[found[h] or "" for h in HYPOTHESES] for found in hypotheses]
    true = [first[value] for value in dataset.answers]
    true_wrong = [wrong(item.context, value) for item, value in zip(items, dataset.answers, strict=True)]
    return _Plan(torch.tensor(expected), torch.tensor(others), texts, torch.tensor(true), torch.tensor(true_wrong))


def score(
    logits: Float[torch.Tensor, "p V"],
    expected: Int[torch.Tensor, "p h"],
    wrong: Int[torch.Tensor, "p h"],
    texts: Sequence[Sequence[str]],
    decode: Callable[[int], str],
) -> dict[str, Float[np.ndarray, "p h"]]:
    """The four metrics of each hypothesis (§2.4): probability, accuracy, soft accuracy, logit difference.

    Args:
        logits: at END.
        expected: first token of each hypothesis, -1 for none.
        wrong: a wrong answer's first token, -1 for none.
        texts: the hypotheses' answers.
        decode: of one token id.
    """
    logits = logits.float().cpu()
    probabilities = torch.softmax(logits, -1)
    safe, safe_wrong = expected.clamp(min=0), wrong.clamp(min=0)
    best = logits.argmax(-1)
    said = [decode(token) for token in best.tolist()]
    soft = [[soft_match(word, text) if text else False for text in row] for word, row in zip(said, texts, strict=True)]
    found = {
        "probability": probabilities.gather(1, safe),
        "accuracy": (best[:, None] == expected).float(),
        "soft": torch.tensor(soft).float(),
        "logit_difference": (logits.gather(1, safe) - logits.gather(1, safe_wrong)).masked_fill(wrong < 0, math.nan),
    }
    return {name: value.masked_fill(expected < 0, math.nan).numpy() for name, value in found.items()}


def residual_patch_sweep(
    model: LanguageModel,
    dataset: RetrievalDataset,
    layers: Sequence[int] | Literal["all"] = "all",
    n_inter: int = 100,
    seed: int = 0,
    batch_size: int = 16,
    *,
    distinct: bool = False,
    control: Control | None = None,
    method: Literal["auto", "cached", "naive"] = "auto",
    record: str | Path | None = None,
    progress: Callable[[Sequence[Any]], Iterator[Any]] = iter,
) -> PatchTable:
    """Patch END between pairs at every layer and score the three hypotheses (§2.4).

    Args:
        model: to patch.
        dataset: prompts of one task.
        layers: in 0 … N, or all of them.
        n_inter: pairs.
        seed: of pairs and of wrong answers.
        batch_size: prompts in a pass; of targets, with all the pairs that aim at them.
        distinct: see `draw_pairs`; the official code keeps coinciding pairs.
        control: patch something else in place of z_l(x₁): the residual of another prompt with the target's own
            request, the zero vector, or the data set's mean.
        method: ``cached`` re-runs END on cached keys and values, ``naive`` the whole prompt for each layer; ``auto``
            takes the first where the model allows it and gives back the unpatched logits.
        record: JSONL file to which each finished part of a layer is appended; a sweep that finds its parts there does
            not repeat them.
        progress: wraps the list of batches.

    Raises:
        InputError: for layers out of range, prompts too long, an unknown control, or an unusable record.
        NonFiniteError: naming the layer.
    """
    wanted = tuple(range(model.depth + 1)) if layers == "all" else tuple(sorted({model.check_layer(l) for l in layers}))
    if control is not None and control not in CONTROLS:
        raise InputError(f"There is no control {control!r}; choose from {', '.join(CONTROLS)}.")
    if method not in ("auto", "cached", "naive"):
        raise InputError(f"method must be 'auto', 'cached' or 'naive', got {method!r}.")
    if method == "cached" and not model.can_rerun:
        raise InputError(f"{model.name} has no full causal attention with a plain cache; use method='naive'.")
    pairs = draw_pairs(dataset, n_inter, seed, distinct)
    plan = _plan(dataset, pairs, seed)
    journal = _Journal(record, _key(model, dataset, pairs, plan, control, batch_size) if record else "")
    sources, baseline = _sources(model, dataset, plan, batch_size)
    source_of = _controlled(dataset, pairs, sources, control, seed)
    order = np.argsort(pairs[:, 0], kind="stable")
    parts = list(_parts(pairs, order, batch_size))
    cached = model.can_rerun and method != "naive"
    scores = {metric: np.full((len(wanted), n_inter, 3), np.nan, np.float32) for metric in METRICS}
    for number, (targets, members) in enumerate(progress(parts)):
        todo = [layer for layer in wanted if not journal.restore(number, layer, scores, wanted.index(layer), members)]
        if not todo:
            continue
        batch = model.batch_tokens([dataset.tokens[t] for t in targets])
        rows = torch.tensor([targets.index(t) for t in pairs[members, 0].tolist()], device=model.device)
        run, cached = _runner(model, batch, rows, todo, cached, method)
        for layer in todo:
            found = score(
                run(layer, source_of(layer, members).to(model.device, model.dtype)),
                plan.expected[members], plan.wrong[members], [plan.texts[m] for m in members.tolist()],
                lambda token: dataset.tokenizer.decode([token]),
            )  # fmt: skip
            for metric, values in found.items():
                scores[metric][wanted.index(layer), members] = values
            journal.append(number, layer, found, model.name, dataset.name)
    return PatchTable(
        model.name, dataset.name, model.depth, wanted, pairs, scores, baseline, dataset.random_guess(),
        "cached" if cached else "naive",
    )  # fmt: skip


def request_patch(model: LanguageModel, source_text: str, target_text: str, layer: int) -> Float[torch.Tensor, " V"]:
    """Logits of the target prompt with the END residual after `layer` taken from the source prompt.

    At L2 the model answers the source's request on the target's context.
    """
    model.check_layer(layer)
    _, residuals = model.residuals(model.batch([source_text]))
    return model.run(model.batch([target_text]), layer, residuals[:, layer])[0]


def _sources(model, dataset, plan, batch_size) -> tuple[torch.Tensor, dict[str, np.ndarray]]:
    """One pass over all prompts: END residuals (n, N + 1, d), and the unpatched scores of the true answers."""
    kept, rows = [], []
    for part in spans(len(dataset), batch_size):
        logits, residuals = model.residuals(model.batch_tokens(dataset.tokens[part]))
        kept.append(residuals.cpu())
        rows.append(
            score(
                logits, plan.true[part, None], plan.true_wrong[part, None], [[a] for a in dataset.answers[part]],
                lambda token: dataset.tokenizer.decode([token]),
            )
        )  # fmt: skip
    baseline = {metric: np.concatenate([row[metric][:, 0] for row in rows]) for metric in METRICS}
    return torch.cat(kept), baseline


def _controlled(dataset, pairs, sources, control, seed):
    """What is patched in at a layer: by default the source's own residual."""
    source = pairs[:, 1].copy()
    if control == "same_request":
        rng = np.random.default_rng([seed, 1])
        by_query: dict[Any, list[int]] = {}
        for i, query in enumerate(dataset.queries):
            by_query.setdefault(query, []).append(i)
        for p, two in enumerate(pairs[:, 0].tolist()):
            others = [i for i in by_query[dataset.queries[two]] if i != two] or [two]
            source[p] = rng.choice(others)

    def take(layer: int, members: np.ndarray) -> torch.Tensor:
        if control == "zero":
            return torch.zeros(len(members), sources.shape[-1])
        if control == "mean":
            return sources[:, layer].float().mean(0).expand(len(members), -1)
        return sources[source[members], layer]

    return take


def _parts(pairs: np.ndarray, order: np.ndarray, batch_size: int) -> Iterator[tuple[list[int], np.ndarray]]:
    """Batches of at most `batch_size` targets with the pairs that aim at them."""
    targets = sorted(set(pairs[:, 0].tolist()))
    for part in spans(len(targets), batch_size):
        yield targets[part], order[np.isin(pairs[order, 0], targets[part])]


def _runner(model, batch, rows, layers, cached: bool, method: str):
    """A function (layer, patch) → logits, and whether it is the cached one."""
    if cached:
        prefix = model.prefill(batch)
        rerun = model.rerun(prefix, rows, layers)
        if method == "cached" or _same(rerun, prefix, rows):
            return rerun, True
        logger.warning("%s does not give back its logits from cached keys and values; patching naively.", model.name)
    expanded = type(batch)(batch.ids[rows], batch.mask[rows], batch.ends[rows])
    return (lambda layer, patch: model.run(expanded, layer, patch)), False


def _same(rerun, prefix: Prefix, rows: torch.Tensor) -> bool:
    """Whether END re-run from layer 0 with its own residual gives the clean logits."""
    clean = prefix.logits[rows].float()
    again = rerun(0, prefix.residuals[rows, 0]).float()
    tolerance = 1e-3 if prefix.logits.dtype == torch.float32 else 0.05  # half precision
    return bool((clean - again).abs().max() <= tolerance * max(1.0, float(clean.abs().max())))


def _key(model, dataset, pairs, plan, control, batch_size) -> str:
    """Digest of all that a part depends on besides its number and layer."""
    scored = [plan.expected.tolist(), plan.wrong.tolist(), plan.texts]
    drawn = [dataset.tokens, pairs.tolist(), scored, control, batch_size]
    text = json.dumps([model.name, model.fingerprint, str(model.dtype), model.depth, drawn])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass
class _Journal:
    """Finished parts in a JSONL file, one line for each model, task, layer and batch of targets."""

    path: str | Path | None
    key: str
    done: dict[tuple[int, int], dict[str, Any]] = field(init=False)

    def __post_init__(self):
        self.done = {}
        if self.path is None:
            return
        try:
            Path(self.path).parent.mkdir(parents=True, exist_ok=True)
            with Path(self.path).open("a+", encoding="utf-8") as file:  # before hours of work
                file.seek(0)
                lines = file.read().splitlines(keepends=True)
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"The record {self.path} cannot be read and written: {error}") from None
        whole = [line for line in lines if line.endswith("\n")]
        if len(whole) < len(lines):  # killed while writing
            Path(self.path).write_text("".join(whole), encoding="utf-8")
        for line in whole:
            try:
                entry = json.loads(line)
                if entry["key"] == self.key:
                    self.done[entry["part"], entry["layer"]] = entry["scores"]
            except (ValueError, KeyError, TypeError):
                raise InputError(f"{self.path} is no record of a sweep. Choose another file.") from None

    def restore(self, part, layer, scores, row, members) -> bool:
        if (part, layer) not in self.done:
            return False
        for metric, values in self.done[part, layer].items():
            scores[metric][row, members] = np.array(values, float)
        return True

    def append(self, part, layer, found, model, task) -> None:
        if self.path is None:
            return
        plain = {metric: np.where(np.isnan(v), None, v.astype(object)).tolist() for metric, v in found.items()}
        entry = {"model": model, "task": task, "layer": layer, "part": part, "key": self.key, "scores": plain}
        with Path(self.path).open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")

"""Checks of C6 to C8, by experiment: EEG-like data under a subject shift, hierarchies, cost."""

import time
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from iclr_shared.claims import ClaimRun, Measurement
from iclr_symspaces import figures
from iclr_symspaces.classifiers import BusemannMLR, GeodesicMLR
from iclr_symspaces.covariances import SPD_BASELINES, covariances
from iclr_symspaces.estimator import BusemannClassifier
from iclr_symspaces.hyperbolic import PoincareBall
from iclr_symspaces.simulation import noisy_tree, simulate_eeg
from iclr_symspaces.spd import SPD
from iclr_symspaces.symmetric import logm, rsqrtm, sym
from iclr_symspaces.training import Settings, fit

SEEDS = (0, 1, 2, 3, 4)


def _interval(differences: np.ndarray, seed: int = 0) -> tuple[float, float]:
    """Bootstrap 95 % interval of the mean."""
    draws = np.random.default_rng(seed).choice(differences, (2000, len(differences))).mean(1)
    low, high = np.quantile(draws, (0.025, 0.975))
    return float(low), float(high)


def _compared(scores: dict[str, list[float]], ours: str, control: str, note: str = "") -> Measurement:
    """Our mean accuracy against a control's, and the rest as details."""
    means = {name: float(np.mean(values)) for name, values in scores.items()}
    paired = np.subtract(scores[ours], scores[control])
    details: dict[str, Any] = {f"accuracy, {name}": mean for name, mean in means.items()}
    details |= {f"difference to {control}, median": float(np.median(paired))}
    details |= {f"difference to {control}, mean": float(paired.mean())}
    low, high = _interval(np.asarray(scores[ours]))
    details |= {f"difference to {control}, 95 %": "{:.3f} to {:.3f}".format(*_interval(paired))}
    return Measurement(
        means[ours], baseline=(control, means[control]), ci=(low, high), n=len(paired), series=scores, details=details,
        note=note,
    )  # fmt: skip


# --- C6: EEG-like data under a subject shift -----------------------------------------------------------------------


@cache
def _eeg(
    shift: float, delta: float, seeds: tuple[int, ...], train: int, test: int, epochs: int
) -> dict[str, list[float]]:
    """Test accuracies by head, one for each seed."""
    heads: dict[str, Callable[[], Any]] = {
        "Busemann": lambda: BusemannClassifier(recenter=False, epochs=epochs),
        **SPD_BASELINES,
        "Busemann, recentred": lambda: BusemannClassifier(epochs=epochs),
    }
    scores: dict[str, list[float]] = {name: [] for name in heads}
    for seed in seeds:
        data = simulate_eeg(seed, shift, delta, train=train, test=test)
        fitted, tested = covariances(data.train), covariances(data.test)
        for name, make in heads.items():
            scores[name].append(float(make().fit(fitted, data.train_labels).score(tested, data.test_labels)))
    return scores


def _eeg_claim(run: ClaimRun, shift: float, delta: float, sizes: dict[str, Any]) -> Measurement:
    # C6 is about the data of seeds 0 to 4, whatever the run's seed.
    full = {"seeds": SEEDS, "train": 150, "test": 100, "epochs": 40} | sizes
    scores = _eeg(shift, delta, **full)
    title = f"shift {shift:g}, δ {delta:g}"
    run.figure("accuracies", figures.accuracies_figure({title: scores}, "seeds"))
    return _compared(scores, "Busemann", "Euclidean logistic")


def eeg_small_shift(run: ClaimRun, **sizes: Any) -> Measurement:
    """C6a: shift 0.05, δ 0.05. Controls: the other heads."""
    return _eeg_claim(run, 0.05, 0.05, sizes)


def eeg_middle_shift(run: ClaimRun, **sizes: Any) -> Measurement:
    """C6b: shift 0.1, δ 0.1. Controls: the other heads."""
    return _eeg_claim(run, 0.1, 0.1, sizes)


def eeg_large_shift(run: ClaimRun, **sizes: Any) -> Measurement:
    """C6c: shift 0.25, δ 0.15. Controls: the other heads."""
    return _eeg_claim(run, 0.25, 0.15, sizes)


def eeg_no_shift(run: ClaimRun, **sizes: Any) -> Measurement:
    """C6d, the control: shift 0, δ 0.05, where all heads should be right."""
    return _eeg_claim(run, 0.0, 0.05, sizes)


# --- C7: hierarchies -----------------------------------------------------------------------------------------------


def _tree_heads(d: int, generator: torch.Generator) -> dict[str, tuple[Callable[[Tensor], Tensor], nn.Module]]:
    """By name: the features of ball points, and a head. All start from small weights."""
    ball = PoincareBall(d)

    def linear() -> nn.Module:
        head = nn.Linear(d, 4, dtype=torch.float64)
        with torch.no_grad():
            head.weight.copy_(1e-3 * torch.randn(4, d, generator=generator, dtype=torch.float64))
            head.bias.zero_()
        return head

    return {
        "Busemann": (lambda x: x, BusemannMLR(ball, 4, generator, scale=True)),
        "geodesic": (lambda x: x, GeodesicMLR(ball, 4, generator, scale=True)),
        "Euclidean logistic": (lambda x: x, linear()),
        "logistic on log_o": (ball.log0, linear()),
    }


@cache
def _trees(d: int, seeds: tuple[int, ...], steps: int, lr: float = 0.03) -> dict[str, list[float]]:
    scores: dict[str, list[float]] = {}
    for seed in seeds:
        generator = torch.Generator().manual_seed(seed)
        x, y = noisy_tree(generator, d)
        order = torch.randperm(len(x), generator=generator)
        train, test = order[: len(x) // 2], order[len(x) // 2 :]
        for name, (features, head) in _tree_heads(d, generator).items():
            z = features(x)
            fit(head, z[train], y[train], Settings(epochs=steps, batch=len(train), lr=lr, seed=seed))
            with torch.no_grad():
                hits = head(z[test]).argmax(-1) == y[test]
            scores.setdefault(name, []).append(float(hits.double().mean()))
    return scores


def _tree_claim(run: ClaimRun, d: int, sizes: dict[str, Any]) -> Measurement:
    scores = _trees(d, **({"seeds": SEEDS, "steps": 600} | sizes))
    run.figure("accuracies", figures.accuracies_figure({f"tree in the ball, d = {d}": scores}, "seeds"))
    return _compared(scores, "Busemann", "Euclidean logistic")


def tree_in_2d(run: ClaimRun, **sizes: Any) -> Measurement:
    """C7a: d = 2. Controls: geodesic head, logistic regressions."""
    return _tree_claim(run, 2, sizes)


def tree_in_4d(run: ClaimRun, **sizes: Any) -> Measurement:
    """C7b: d = 4. Controls: geodesic head, logistic regressions."""
    return _tree_claim(run, 4, sizes)


def tree_in_8d(run: ClaimRun, **sizes: Any) -> Measurement:
    """C7c: d = 8. Controls: geodesic head, logistic regressions."""
    return _tree_claim(run, 8, sizes)


# --- C8: cost ------------------------------------------------------------------------------------------------------

SHARED, PER_CLASS, LOG_EUCLIDEAN, PER_PAIR = "shared flag", "flag per class", "log-Euclidean", "eigen per pair"


def cost_candidates(n: int, classes: int, batch: int, seed: int = 0) -> dict[str, Callable[[], Tensor]]:
    """A forward and backward pass of each head, by name; each returns the logits.

    "eigen per pair" is what a per-pair affine-invariant head costs: eigh of P^{-1/2}XP^{-1/2} for each sample and
    class. "log-Euclidean" factors each sample once by torch's eigh, whose gradient is torch's own.
    """
    generator = torch.Generator().manual_seed(seed)
    space = SPD(n)
    x = space.random(batch, generator, scale=0.3)
    per_class = BusemannMLR(space, classes, generator, validate=False)
    shared = BusemannMLR(space, classes, generator, shared_flag=True, validate=False)
    w = torch.randn(classes, n, n, generator=generator, dtype=torch.float64, requires_grad=True)
    p = space.random(classes, generator, scale=0.3)

    def busemann(module: nn.Module) -> Callable[[], Tensor]:
        def step() -> Tensor:
            y = x.clone().requires_grad_()
            logits = module(y)
            module.zero_grad()
            logits.sum().backward()
            return logits.detach()

        return step

    def log_euclidean() -> Tensor:
        y = x.clone().requires_grad_()
        values, vectors = torch.linalg.eigh(y)
        logits = ((vectors * values.log().unsqueeze(-2)) @ vectors.mT).flatten(1) @ sym(w).flatten(1).T
        w.grad = None
        logits.sum().backward()
        return logits.detach()

    def per_pair() -> Tensor:
        y = x.clone().requires_grad_()
        t = rsqrtm(p)
        logits = (logm(sym(t @ y[:, None] @ t)) * sym(w)).sum((-1, -2))
        w.grad = None
        logits.sum().backward()
        return logits.detach()

    return {
        SHARED: busemann(shared), LOG_EUCLIDEAN: log_euclidean, PER_CLASS: busemann(per_class), PER_PAIR: per_pair
    }  # fmt: skip


@cache
def _costs(orders: tuple[int, ...], classes: int, batch: int, rounds: int) -> dict[str, list[float]]:
    """Median milliseconds of one thread's processor time by head, for each n, interleaved."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        medians: dict[str, list[float]] = {}
        for n in orders:
            candidates = cost_candidates(n, classes, batch)
            spent: dict[str, list[float]] = {name: [] for name in candidates}
            for step in candidates.values():
                step()
            for _ in range(rounds):
                for name, step in candidates.items():
                    start = time.process_time()
                    step()
                    spent[name].append(1000 * (time.process_time() - start))
            for name, values in spent.items():
                medians.setdefault(name, []).append(float(np.median(values)))
        return medians
    finally:
        torch.set_num_threads(threads)


def _cost_claim(run: ClaimRun, n: int, ours: str, sizes: dict[str, Any]) -> Measurement:
    settings = {"orders": (8, 16, 32, 64), "classes": 10, "batch": 64, "rounds": 9} | sizes
    found, at = _costs(**settings), settings["orders"].index(n)
    run.figure("cost", figures.cost_figure(settings["orders"], found))
    ratio = {name: found[LOG_EUCLIDEAN][at] / found[name][at] for name in found}
    control = SHARED if ours == PER_CLASS else PER_CLASS
    return Measurement(
        ratio[ours], baseline=(control, ratio[control]), n=settings["rounds"],
        series={"n": settings["orders"], **{f"{name} (ms)": values for name, values in found.items()}},
        details={f"log-Euclidean over {name}": value for name, value in ratio.items()},
    )  # fmt: skip


def shared_flag_at_16(run: ClaimRun, *, head: str = SHARED, **sizes: Any) -> Measurement:
    """C8a: time of the log-Euclidean head over the shared-flag head's, n = 16. Control: flags per class."""
    return _cost_claim(run, 16, head, sizes)


def shared_flag_at_64(run: ClaimRun, *, head: str = SHARED, **sizes: Any) -> Measurement:
    """C8b: the same, n = 64. Control: flags per class."""
    return _cost_claim(run, 64, head, sizes)


def flags_per_class(run: ClaimRun, **sizes: Any) -> Measurement:
    """C8c: time of the log-Euclidean head over that with a flag per class, n = 32. Control: shared flag."""
    return _cost_claim(run, 32, PER_CLASS, sizes)

"""``iclr subset VERB``: choose by any program, choose features, choose layers, or ask and tell."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import pandas as pd
import tyro

from iclr_shared.errors import InputError
from iclr_shared.files import atomic_path, atomic_write
from iclr_shared.progress import progress as bar
from iclr_shared.seeds import root
from iclr_shared.tables import print_table
from iclr_subset import figures
from iclr_subset.baselines import expected_random_rank, search
from iclr_subset.ledger import write_csv
from iclr_subset.minimize import Result, minimize
from iclr_subset.optimizer import Settings, SubsetOptimizer
from iclr_subset.programs import CommandCost
from iclr_subset.selector import SubsetSelector, feature_names

Size = Annotated[float, tyro.conf.arg(aliases=("-k",))]
Whole = Annotated[int, tyro.conf.arg(aliases=("-k",))]
Number = Annotated[int | None, tyro.conf.arg(aliases=("-n",))]
Strategy = Literal["mirror", "random", "greedy", "enumerate", "first", "last", "random-k", "cma"]
Method = Literal["exact", "expected"]


def select(
    command: str,
    items: str,
    k: Size,
    out: Path,
    budget: int = 200,
    batch: int = 4,
    method: Method = "exact",
    strategy: Strategy = "mirror",
    jobs: int = 1,
    noisy: bool = False,
    empty: float | None = None,
    eta: float | None = None,
    c: float | None = None,
    geometry: Literal["kl", "fermi_dirac", "entropy", "euclidean"] | None = None,
    start: tuple[int, ...] | None = None,
    on_error: Literal["raise", "penalise"] = "raise",
    penalty: float | None = None,
    timeout: float | None = None,
    known: Path | None = None,
    seed: int = 0,
    resume: bool = False,
    quiet: bool = False,
) -> None:
    """Choose k items at the least cost that a program prints.

    Args:
        command: program and first arguments; the chosen items follow, or stand at {subset}, joined by commas; {seed}
            is a number. The last word it prints is the cost.
        items: how many (20), names (a,b,c), or a file with a name in each line.
        k: how many to choose.
        out: folder for result.json, weights.csv, evaluations.csv, search.png, and the state to resume from.
        budget: runs of the program.
        batch: subsets drawn in a step, run in parallel on --jobs.
        method: exact draws k; expected draws about k and needs --empty.
        strategy: mirror is the paper's; the others are its controls with the same budget.
        jobs: programs at a time; -1 for one on each core.
        noisy: equal subsets may cost differently; the final candidates are run several times.
        empty: cost of the empty set.
        eta: step length for costs over their standard deviation.
        c: floor of the weights.
        geometry: of the mirror step.
        start: indices to lean to at the start.
        on_error: raise stops at a failing program; penalise charges --penalty, or the worst earlier cost.
        penalty: charged for failures.
        timeout: seconds for each run.
        known: CSV or ledger of costs known already.
        seed: of the draws.
        resume: go on with the search in --out.
        quiet: no progress.
    """
    names, n = _items(items)
    cost = CommandCost(command, timeout)
    shared = {
        "n": n, "items": names, "budget": budget, "seed": seed, "n_jobs": jobs, "backend": "threading",
        "on_error": on_error,
        "penalty": penalty, "checkpoint": _place(out, resume), "progress": None if quiet else _watch(budget),
    }  # fmt: skip
    if strategy == "mirror":
        given = {"eta": eta} if eta is not None else {}
        found = minimize(
            cost, k=k, method=method, batch=batch, noisy=noisy, empty=empty, c=c, geometry=geometry, start=start,
            known=known, normalise=True, **shared, **given,
        )  # fmt: skip
    else:
        found = search(strategy, cost, k=_whole(k), noisy=noisy, cache=not noisy, normalise=True, **shared)
    _report(found, [str(x) for x in (names or range(n))], out, f"{strategy}, {n} items")


def features(
    data: tyro.conf.Positional[Path],
    target: str,
    k: Size,
    out: Path,
    estimator: Literal["ridge", "logistic", "tree", "knn"] = "ridge",
    cv: int = 5,
    scoring: str | None = None,
    method: Method = "exact",
    strategy: Strategy = "mirror",
    budget: int = 500,
    batch: int = 8,
    eta: float | None = None,
    jobs: int = 1,
    seed: int = 0,
    resume: bool = False,
    quiet: bool = False,
) -> None:
    """Choose k columns of a table for a model, by cross-validation.

    Args:
        data: CSV with a header; all columns but the target are numbers.
        target: column to predict.
        k: columns to keep.
        out: folder for result.json, weights.csv, evaluations.csv, search.png, selected.csv, and the state.
        estimator: ridge regression, or logistic regression, a decision tree or nearest neighbours for classes; columns
            are standardised.
        cv: folds.
        scoring: of scikit-learn; the default is R² or accuracy.
        method: exact keeps k columns; expected about k.
        strategy: mirror, or a control with the same budget.
        budget: subsets to evaluate.
        batch: subsets drawn in a step.
        eta: step length.
        jobs: worker processes.
        seed: of the draws.
        resume: go on with the search in --out.
        quiet: no progress.
    """
    table = _table(data)
    names = feature_names(table.columns, target)
    X = _numbers(table[names], data)
    y = table[target].to_numpy()
    if estimator == "ridge" and not np.issubdtype(y.dtype, np.number):
        raise InputError(f"Ridge regression needs numbers in {target!r}; take --estimator logistic for classes.")
    if pd.isna(y).any():
        raise InputError(f"The target {target!r} has missing values: drop those rows first.")
    size: float = k if method == "expected" else _whole(k)
    selector = SubsetSelector(
        _estimator(estimator), size, cv=cv, scoring=scoring, method=method, strategy=strategy, budget=budget,
        batch=batch, eta=eta, n_jobs=jobs, random_state=seed,
    )  # fmt: skip
    selector.fit(X, y, checkpoint=_place(out, resume), resume=resume, progress=None if quiet else _watch(budget))
    chosen = [name for name, kept in zip(names, selector.get_support(), strict=True) if kept]
    _report(selector.result_, names, out, f"{strategy}, {len(names)} columns, {cv} folds", chosen)
    with atomic_path(out / "selected.csv") as temporary:
        table[[*chosen, target]].to_csv(temporary, index=False)


def layers(
    out: Path,
    k: Whole = 3,
    blocks: int = 8,
    width: int = 48,
    shift: Literal["rotate", "invert", "roll", "none"] = "rotate",
    labels: int = 100,
    steps: int = 60,
    lr: float = 2e-3,
    pretrain_steps: int = 300,
    budget: int = 22,
    method: Literal["exact", "expected"] = "exact",
    source: Path | None = None,
    target_data: Path | None = None,
    label: str | None = None,
    seed: int = 0,
) -> None:
    """Choose which blocks of a residual network to fine-tune, and see where the choice stands among all.

    Pre-trains on the source, then compares mirror descent with random search at the same number of inner runs, greedy,
    the first and last k, and all blocks; the test split is seen by none of them.

    Args:
        out: folder for layers.json and layers.png.
        k: blocks to fine-tune; the head always trains.
        blocks: of the network.
        width: of each block.
        shift: of the target digits, where no tables are given.
        labels: target rows to fine-tune on.
        steps: of Adam in each inner run.
        lr: its step length.
        pretrain_steps: of Adam on the source.
        budget: inner runs of the search.
        method: exact or expected.
        source: instead of digits, CSV to pre-train on.
        target_data: CSV of the target, same columns.
        label: their column with the class.
        seed: of everything.
    """
    from iclr_subset import transfer

    seeds = root(seed)
    given = [source, target_data, label]
    if any(x is not None for x in given):
        if any(x is None for x in given):
            raise InputError("Give all of --source, --target-data and --label, or none of them for the digits.")
        pairs = [_classified(_table(path), label, path) for path in (source, target_data)]
        task = transfer.table_task(*pairs, seeds, labels)
    else:
        task = transfer.digits_task(seeds, labels, shift)
    model = transfer.pretrain(task, seeds, width, blocks, pretrain_steps, 2e-3)
    truth = transfer.truth(model, task, k, steps, lr)
    _, whole = transfer.errors(model, task, np.ones((1, blocks), dtype=bool), steps, lr)
    found = {name: _layer_search(name, model, task, truth, k, budget, method, seed, steps, lr) for name in _LAYERS}
    places = {name: truth.subsets.index(tuple(run.subset)) for name, run in found.items()}
    rows = [
        (name, " ".join(map(str, run.subset)), run.evaluations, float(truth.validation[places[name]]),
         float(truth.test[places[name]]), truth.rank(tuple(run.subset)))
        for name, run in found.items()
    ]  # fmt: skip
    rows.append(("all blocks", "all", 1, None, float(whole[0]), None))
    columns = ("strategy", "blocks", "inner runs", "validation error", "test error", f"rank of {len(truth.subsets)}")
    print_table(columns, rows, f"{k} of {blocks} blocks, {labels} labels")
    expected = expected_random_rank(len(truth.subsets), found["mirror"].evaluations)
    print(f"Random search is expected to hold rank {expected:.3g} on validation after as many runs.")
    summary = [
        dict(zip(("strategy", "blocks", "runs", "validation", "test", "rank"), row, strict=True)) for row in rows
    ]
    atomic_write(out / "layers.json", json.dumps({"rows": summary, "expected_random_rank": expected}, indent=2))
    _save(figures.layers_figure(truth, {name: tuple(run.subset) for name, run in found.items()}), out / "layers.png")


_LAYERS = ("mirror", "random", "greedy", "first", "last", "random-k", "enumerate")


def _layer_search(name, model, task, truth, k, budget, method, seed, steps, lr):
    """One strategy on validation errors; sets of other sizes than k are fine-tuned when they are asked for."""
    from iclr_subset.transfer import errors

    costs = truth.costs()
    n = len(model.blocks)

    def cost(chosen):
        subset = tuple(chosen.tolist())
        if subset not in costs:
            mask = np.zeros((1, n), dtype=bool)
            mask[0, list(subset)] = True
            costs[subset] = float(errors(model, task, mask, steps, lr)[0][0])
        return costs[subset]

    if name == "mirror":
        empty = float(errors(model, task, np.zeros((1, n), dtype=bool), steps, lr)[0][0])
        return minimize(
            cost,
            n,
            k,
            method,
            budget=budget,
            batch=2,
            empty=empty,
            normalise=True,
            seed=seed,
            cardinality="exact_report",
        )
    return search(name, cost, n, k, budget=budget if name == "random" else None, seed=seed)


def ask(
    state: tyro.conf.Positional[Path],
    number: Number = None,
    items: str | None = None,
    k: Annotated[float | None, tyro.conf.arg(aliases=("-k",))] = None,
    method: Method | None = None,
    eta: float | None = None,
    steps: int | None = None,
    normalise: bool | None = None,
    seed: int | None = None,
    out: Path | None = None,
) -> None:
    """Subsets to measure next, for costs that are measured elsewhere; asked again before `tell`, the same ones.

    Args:
        state: JSON file of the search; made where it does not exist, from --items and -k.
        number: subsets, 8 where none wait.
        items: how many, names, or a file of names; for a new search only, as all below.
        k: how many to choose.
        method: exact (default) or expected.
        eta: step length.
        steps: planned, for the default step length; 100.
        normalise: divide costs by their standard deviation; on by default.
        seed: of the draws; 0.
        out: CSV for the subsets, with an empty column for their costs.
    """
    saved = _read_state(state) if state.exists() else None
    new = {"k": k, "method": method, "eta": eta, "steps": steps, "normalise": normalise, "seed": seed}
    new = {name: value for name, value in new.items() if value is not None}
    if saved is None:
        if items is None or k is None:
            raise InputError(f"{state} does not exist yet: start it with --items and -k.")
        names, n = _items(items)
        settings = Settings(n=n, batch=number or 8, **{"steps": 100, "normalise": True} | new)
        saved = {"optimizer": SubsetOptimizer(settings).state(), "items": names, "best": None, "told": 0}
    elif items is not None or new:
        raise InputError(f"{state} already holds a search; --items, -k and the like are for a new one.")
    optimizer = SubsetOptimizer.from_state(saved["optimizer"])
    asked = optimizer.ask(number)
    atomic_write(state, json.dumps(saved | {"optimizer": optimizer.state()}))
    names = saved["items"]
    rows = [(" ".join(map(str, s)), _named(s, names)) for s in asked]
    print_table(("subset", "items"), rows, f"step {optimizer.t}: measure these, then tell")
    if out is not None:
        with atomic_path(out) as temporary:
            frame = pd.DataFrame(rows, columns=["subset", "items"])
            frame.assign(cost="").to_csv(temporary, index=False)


def tell(state: tyro.conf.Positional[Path], results: tyro.conf.Positional[Path]) -> None:
    """Costs of the subsets that `ask` gave; takes the mirror step.

    Args:
        state: JSON file of the search.
        results: CSV with the columns subset (indices with spaces between) and cost.
    """
    saved = _read_state(state)
    optimizer = SubsetOptimizer.from_state(saved["optimizer"])
    table = _table(results, {"subset": str})
    if not {"subset", "cost"} <= set(table.columns):
        raise InputError(f"{results} needs the columns subset and cost, it has {', '.join(map(str, table.columns))}.")
    try:
        subsets = [tuple(int(i) for i in ("" if pd.isna(s) else str(s)).split()) for s in table.subset]
        costs = [float(value) for value in table.cost]
    except ValueError as error:
        raise InputError(f"{results} holds a row that is no subset with its cost: {error}.") from None
    optimizer.tell(subsets, costs)
    i = int(np.argmin(costs))
    best = saved["best"]
    if best is None or costs[i] < best[1]:
        best = [list(subsets[i]), costs[i]]
    told = saved["told"] + len(costs)
    atomic_write(state, json.dumps(saved | {"optimizer": optimizer.state(), "best": best, "told": told}))
    rows = [
        ("steps", optimizer.t), ("costs told", told), ("best seen", _named(best[0], saved["items"])),
        ("its cost", float(best[1])), ("largest weights", _named(optimizer.top, saved["items"])),
    ]  # fmt: skip
    print_table(("what", "value"), rows)


# --- what the verbs share ------------------------------------------------------------------------------------------


def _items(text: str) -> tuple[list[str] | None, int]:
    """Names, if there are any, and how many items."""
    if text.isdigit():
        return None, int(text)
    if "," in text:
        names = [part.strip() for part in text.split(",")]
        if not all(names):
            raise InputError(f"An item of --items has no name: {text!r}.")
    elif Path(text).is_file():
        names = [line.strip() for line in Path(text).read_text(encoding="utf-8").splitlines() if line.strip()]
    else:
        raise InputError(
            f"--items is a number, names between commas, or a file with a name in each line; got {text!r}."
        )
    if len(set(names)) < len(names):
        double = sorted({name for name in names if names.count(name) > 1})
        raise InputError(f"Item names must differ; given twice: {', '.join(double)}.")
    return names, len(names)


def _named(subset: Sequence[int], names: Sequence[str] | None) -> str:
    return " ".join(str(i if names is None else names[i]) for i in subset)


def _whole(k: float) -> int:
    if not float(k).is_integer():
        raise InputError(f"k must be a whole number here, got {k}; --method expected takes others.")
    return int(k)


def _place(out: Path, resume: bool) -> Path:
    """Where the state lies. A folder with a search needs --resume, and --resume needs a search."""
    state = out / "state.json"
    there = state.exists() or state.with_suffix(".jsonl").exists()
    if there and not resume:
        raise InputError(f"{out} already holds a search: go on with --resume, or choose another folder.")
    if resume and not there:
        raise InputError(f"{out} holds no search to resume.")
    return state


def _watch(budget: int | None) -> Callable[[int, int | None, float], None]:
    """A progress bar over evaluations."""
    ticks = bar(range(budget or 10**9), desc="evaluating", total=budget)
    done = 0

    def moved(paid: int, _: int | None, best: float) -> None:
        nonlocal done
        while done < paid and next(ticks, None) is not None:
            done += 1

    return moved


def _report(found: Any, names: Sequence[str], out: Path, title: str, chosen: Sequence[str] | None = None) -> None:
    chosen = [names[i] for i in found.subset] if chosen is None else chosen
    rows = [("chosen", " ".join(chosen)), ("cost", float(found.cost)), ("evaluations", found.evaluations)]
    summary = {
        "subset": list(found.subset),
        "names": list(chosen),
        "cost": found.cost,
        "evaluations": found.evaluations,
    }
    if isinstance(found, Result):
        rows += [
            ("answered by the cache", found.hits), ("failed", found.failures), ("steps", len(found.history)),
            ("best seen", " ".join(names[i] for i in found.best_seen[0])),
            ("largest weights", " ".join(names[i] for i in found.top)),
        ]  # fmt: skip
        if not found.signal:
            rows.append(("signal", "none: all costs were equal"))
        summary |= {"hits": found.hits, "failures": found.failures, "signal": found.signal, "top": list(found.top)}
        weights = {"item": names, "weight": found.weights, "mean_weight": found.average, "inclusion": found.inclusion}
        with atomic_path(out / "weights.csv") as temporary:
            pd.DataFrame(weights).to_csv(temporary, index=False)
        figure = figures.search_figure(found.history, found.inclusion, names, found.subset)
    else:
        figure = figures.calls_figure([e.cost for e in found.calls])
    print_table(("what", "value"), rows, title)
    _save(figure, out / "search.png")
    write_csv(found.calls, out / "evaluations.csv", names)
    atomic_write(out / "result.json", json.dumps(summary, indent=2))


def _save(figure, path: Path) -> None:
    with atomic_path(path) as temporary:
        figure.savefig(temporary, format="png", dpi=130)


def _table(path: Path, dtype: dict[str, type] | None = None) -> pd.DataFrame:
    try:
        return pd.read_csv(path, dtype=dtype)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}.") from None
    except (ValueError, pd.errors.ParserError) as error:
        raise InputError(f"{path} is no CSV table: {error}.") from None


def _numbers(table: pd.DataFrame, path: Path) -> np.ndarray:
    words = [str(name) for name in table.columns if not pd.api.types.is_numeric_dtype(table[name])]
    if words:
        raise InputError(f"{path}: columns must be numbers; {', '.join(words[:10])} are not.")
    X = table.to_numpy(dtype=np.float64)
    if not np.isfinite(X).all():
        raise InputError(f"{path} has missing or infinite values: fill or drop them first.")
    return X


def _classified(table: pd.DataFrame, label: str, path: Path) -> tuple[np.ndarray, np.ndarray]:
    names = feature_names(table.columns, label)
    return _numbers(table[names], path), table[label].to_numpy()


def _estimator(name: str) -> Any:
    from sklearn.linear_model import LogisticRegression, Ridge
    from sklearn.neighbors import KNeighborsClassifier
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler
    from sklearn.tree import DecisionTreeClassifier

    models = {
        "ridge": Ridge, "logistic": lambda: LogisticRegression(max_iter=1000),
        "tree": lambda: DecisionTreeClassifier(max_depth=5, random_state=0), "knn": KNeighborsClassifier,
    }  # fmt: skip
    return make_pipeline(StandardScaler(), models[name]())


def _read_state(path: Path) -> dict[str, Any]:
    try:
        saved = json.loads(path.read_text(encoding="utf-8"))
        return {name: saved[name] for name in ("optimizer", "items", "best", "told")}
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}. Start a search with ask.") from None
    except (ValueError, KeyError, TypeError):
        raise InputError(f"{path} is no state of ask and tell.") from None

"""Reports of one or many runs: a self-contained HTML page with plots, or Markdown."""

import base64
import json
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from iclr_shared import records, registry
from iclr_shared.errors import InputError
from iclr_shared.files import atomic_write
from iclr_shared.spec import Method
from iclr_shared.tables import format_value

#: The report says so when a verdict is not what counts as held.
_GRAVITY = ("error", "fail", "skip", "reported", "pass")


@dataclass(frozen=True)
class Row:
    """One claim of one method over all seeds.

    Args:
        newest: the newest record.
        by_seed: the newest record of each seed.
        verdict: the gravest of the seeds' verdicts.
        measured: the value; over several seeds the median and the range.
        criterion, baseline: in words, from the record, so that it reads alone.
        overridden: whether the installed method now states another threshold than the record.
        figures: image files.
        columns, lines: the series, at most 50 evenly chosen rows.
        details: further numbers by name.
    """

    newest: dict[str, Any]
    by_seed: dict[int, dict[str, Any]]
    verdict: str
    measured: str
    criterion: str
    baseline: str
    overridden: bool
    figures: list[Path]
    columns: list[str]
    lines: list[tuple[str, ...]]
    details: list[tuple[str, str]]


def collect(folders: Iterable[Path]) -> tuple[list[Row], list[tuple[str, str]]]:
    """All records below `folders`: the newest for each method, claim and seed.

    Returns:
        The rows by method in the order in which claims were checked, and ``(file, problem)`` for what is not readable.
    """
    found: dict[tuple[str, str], dict[int, tuple[dict[str, Any], Path]]] = {}
    problems, order = [], {}
    for path in sorted({p.resolve() for folder in folders for p in Path(folder).rglob("claims/*.json")}):
        try:
            record = records.read(path)
        except (OSError, ValueError) as error:
            problems.append((str(path), str(error)))
            continue
        seeds = found.setdefault((record["method"], record["claim"]), {})
        if record["seed"] not in seeds or seeds[record["seed"]][0]["started"] <= record["started"]:
            seeds[record["seed"]] = record, path.parent.parent
        if path.parent not in order:
            order[path.parent] = _checked(path.parent.parent)
    places = {claim: i for claims in order.values() for i, claim in enumerate(claims)}
    rows = [_row(seeds) for seeds in found.values()]
    rows.sort(key=lambda r: (r.newest["method"], places.get(r.newest["claim"], 0), r.newest["claim"]))
    return rows, problems


def _row(seeds: dict[int, tuple[dict[str, Any], Path]]) -> Row:
    newest, folder = max(seeds.values(), key=lambda item: item[0]["started"])
    by_seed = {seed: record for seed, (record, _) in sorted(seeds.items())}
    series = {name: column for name, column in newest["series"].items() if isinstance(column, list)}
    lines = []
    if len({len(column) for column in series.values()}) == 1:
        lines = list(zip(*([format_value(v) for v in column] for column in series.values()), strict=True))
    further = {"n": newest["n"], "interval": newest["ci"], **newest["details"]}
    control = newest["baseline"]
    return Row(
        newest,
        by_seed,
        verdict=min((record["verdict"] for record in by_seed.values()), key=_GRAVITY.index),
        measured=_measured(newest, by_seed),
        criterion=_criterion(newest),
        baseline=f"{format_value(control['measured'])} ({control['name']})" if control else "-",
        overridden=_overridden(newest),
        figures=[folder / a["path"] for a in newest["artifacts"] if a["path"].endswith(".png")],
        columns=list(series),
        lines=lines[:: max(1, -(-len(lines) // 50))],
        details=[(key, _text(value)) for key, value in further.items() if value is not None],
    )


def _measured(newest: dict[str, Any], by_seed: dict[int, dict[str, Any]]) -> str:
    numbers = [float(record["measured"]) for record in by_seed.values() if record["measured"] is not None]
    if not numbers:
        return newest["nonfinite"].get("measured", "-")
    value = format_value(statistics.median(numbers)) + (f" {newest['unit']}" if newest["unit"] else "")
    spread = f" ({format_value(min(numbers))} to {format_value(max(numbers))}, {len(numbers)} seeds)"
    return value + spread if len(numbers) > 1 else value


def _criterion(record: dict[str, Any]) -> str:
    if record["direction"] == "report":
        return f"{record['metric']}: reported"
    return f"{record['metric']} {record['direction']} {_text(record['threshold'])}"


def _overridden(record: dict[str, Any]) -> bool:
    claims = method.claims if (method := _installed(record["method"])) else ()
    installed = {c.id: list(c.threshold) if isinstance(c.threshold, tuple) else c.threshold for c in claims}
    return installed.get(record["claim"], record["threshold"]) != record["threshold"]


def _installed(name: str) -> Method | None:
    """The method that a record names; a record also reads where it is not installed."""
    try:
        return registry.find(name).method
    except InputError:
        return None


def latest(folder: Path) -> dict[str, dict[str, Any]]:
    """The newest record of each claim below `folder`."""
    return {row.newest["claim"]: row.newest for row in collect([folder])[0]}


def write_report(folders: Sequence[Path], output: Path, kind: str = "html") -> Path:
    """Render the records below `folders` to `output`.

    HTML needs the extra ``iclr-shared[plot]``; without it the report is written as Markdown beside `output`.

    Returns:
        The file that was written.
    """
    rows, problems = collect(folders)
    if kind == "html":
        try:
            import jinja2
        except ModuleNotFoundError:
            kind, output = "md", output.with_suffix(".md")
    if kind == "md":
        atomic_write(output, _markdown(rows, problems, output))
        return output
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("iclr_shared", "templates"), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    page = environment.get_template("report.html").render(**_content(rows, problems))
    atomic_write(output, page)
    return output


def _content(rows: list[Row], problems: list[tuple[str, str]]) -> dict[str, Any]:
    methods: dict[str, list[Row]] = {}
    for row in rows:
        methods.setdefault(row.newest["method"], []).append(row)
    counts = {verdict: sum(row.verdict == verdict for row in rows) for verdict in records.VERDICTS}
    return {
        "methods": methods,
        "papers": {name: _installed(name) for name in methods},
        "counts": {verdict: count for verdict, count in counts.items() if count},
        "problems": problems,
        "reproduce": {name: _reproduce(name, group) for name, group in methods.items()},
        "format_value": format_value,
        "embedded": lambda path: f"data:image/png;base64,{base64.b64encode(path.read_bytes()).decode()}",
    }


def _reproduce(method: str, rows: list[Row]) -> str:
    seeds = sorted({seed for row in rows for seed in row.by_seed})
    full = " --full" if any(row.newest["tier"] == "full" for row in rows) else ""
    return "\n".join(f"iclr run {method.replace('_', '-')} --seed {seed}{full}" for seed in seeds)


def _markdown(rows: list[Row], problems: list[tuple[str, str]], output: Path) -> str:
    content = _content(rows, problems)
    lines = [
        "# Claims, measured",
        "",
        "| method | claim | criterion | measured | control | verdict |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        cells = (row.newest["method"], row.newest["claim"], row.criterion, row.measured, row.baseline, row.verdict)
        lines.append("| " + " | ".join(_cell(cell) for cell in cells) + " |")
    for name, group in content["methods"].items():
        paper = content["papers"][name]
        lines += ["", f"## {name}", "", *([f"{paper.paper.title} ({paper.paper.short})", ""] if paper else [])]
        for row in group:
            record = row.newest
            lines += [f"### {record['claim']}: {record['verdict']}", "", _escape(record["statement"]), ""]
            lines += [f"- {record['figure'] or 'no figure in the paper'}; {record['tier']}; {record['seconds']} s"]
            lines += [f"- {_escape(key)}: {_escape(value)}" for key, value in row.details]
            lines += [f"- {_escape(record[key])}" for key in ("reason", "note") if record[key]]
            for path in row.figures:
                shown = path.relative_to(output.parent.resolve(), walk_up=True)
                lines += ["", f"![{path.stem}]({shown.as_posix()})"]
            lines.append("")
        lines += ["```", content["reproduce"][name], "```"]
    lines += [f"- not readable: {_escape(path)}: {_escape(problem)}" for path, problem in problems]
    return "\n".join(lines) + "\n"


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key}: {_text(item)}" for key, item in value.items())
    if isinstance(value, list):
        return ", ".join(_text(item) for item in value)
    return format_value(value)


def _escape(text: str) -> str:
    return text.replace("<", "&lt;").replace(">", "&gt;")


def _cell(text: str) -> str:
    return _escape(text).replace("|", "\\|").replace("\n", " ")


def _checked(folder: Path) -> list[str]:
    """The claims of a run in their order."""
    try:
        return json.loads((folder / "run.json").read_bytes())["claims"]
    except (OSError, ValueError, KeyError):
        return []

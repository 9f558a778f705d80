"""Claim records: what was measured, under which conditions, and the verdict that follows. One JSON file per claim."""

import dataclasses
import functools
import hashlib
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from iclr_shared.claims import Measurement
from iclr_shared.spec import Claim

SCHEMA = "iclr.claim/1"
VERDICTS = ("pass", "fail", "error", "skip", "reported")

#: Longer series go to an .npz file beside the record.
INLINE_NUMBERS = 10_000

_PYTHON = {"string": str, "number": int | float, "integer": int, "object": dict, "array": list, "null": type(None)}


class UnknownSchema(ValueError):
    """A record of a schema that this version does not know, most likely a newer one."""


@functools.cache
def json_schema() -> dict[str, Any]:
    """The JSON Schema (2020-12) of a record, ``schemas/claim-1.json``."""
    return json.loads((Path(__file__).parent / "schemas" / "claim-1.json").read_bytes())


def verdict(
    direction: str, threshold: float | list[float] | tuple[float, float] | None, measured: float | None
) -> tuple[str, str | None]:
    """The verdict on a measured number, and the reason where it is a failure.

    Returns:
        ``("pass" | "fail" | "reported", reason or None)``. A number that is not finite fails.
    """
    if measured is None or not math.isfinite(measured):
        return "fail", "the measured value is not finite"
    if direction == "report":
        return "reported", None
    if direction == "in":
        holds, wanted = threshold[0] <= measured <= threshold[1], f"in [{threshold[0]:g}, {threshold[1]:g}]"
    else:
        holds = measured >= threshold if direction == ">=" else measured <= threshold
        wanted = f"{direction} {threshold:g}"
    return ("pass", None) if holds else ("fail", f"measured {measured:.6g}, wanted {wanted}")


def make(
    claim: Claim,
    method: str,
    *,
    measurement: Measurement | None,
    failure: tuple[str, str] | None,
    seed: int,
    started: str,
    seconds: float,
    env: Mapping[str, Any],
    folder: Path,
    figures: tuple[Path, ...] = (),
) -> dict[str, Any]:
    """The record of one check, JSON-able.

    Args:
        claim, method: what was checked.
        measurement: what the check returned, or None if it did not.
        failure: ``("error" | "skip", reason)`` if it did not.
        seed, started, seconds, env: how, when (UTC, ISO 8601), how long and on what.
        folder: of the run; paths of artifacts are relative to it.
        figures: files that the check saved.
    """
    result, nonfinite = measurement or Measurement(math.nan), {}
    artifacts, series = list(figures), result.series
    if sum(map(len, series.values())) > INLINE_NUMBERS:
        from iclr_shared.checkpoints import save_arrays

        artifacts.append(folder / "series" / f"{claim.id}.npz")
        save_arrays(artifacts[-1], **series)
        series = {}
    values = {
        "measured": result.measured,
        "baseline": result.baseline and dict(zip(("name", "measured"), result.baseline, strict=True)),
        "ci": result.ci,
        "n": result.n,
        "series": series,
        "details": result.details,
    }
    values = {key: plain(value, key, nonfinite) for key, value in values.items()}
    stated = {key: value for key, value in dataclasses.asdict(claim).items() if key not in ("id", "check", "seconds")}
    decision, reason = failure or verdict(claim.direction, claim.threshold, values["measured"])
    return {
        **{"schema": SCHEMA, "method": method, "claim": claim.id},
        **{key: list(value) if isinstance(value, tuple) else value for key, value in stated.items()},
        **values,
        **{"nonfinite": nonfinite if measurement else {}, "note": result.note},
        **{"verdict": decision, "reason": reason},
        **{"seed": seed, "started": started, "seconds": round(seconds, 3), "env": dict(env)},
        "artifacts": [
            {"path": path.relative_to(folder).as_posix(), "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
            for path in artifacts
        ],
    }


def plain(value: Any, where: str, nonfinite: dict[str, str] | None = None) -> Any:
    """`value` in JSON's types: arrays and scalars of any framework converted, NaN and infinities to None.

    Args:
        value: numbers, texts, arrays, and containers of them.
        where: dotted name of the value.
        nonfinite: filled with the dotted name of each number that was not finite, and ``nan``, ``inf`` or ``-inf``.
            If None, such numbers stay as they are.

    Raises:
        TypeError: naming `where` for anything else.
    """
    if isinstance(value, Mapping):
        return {str(key): plain(item, f"{where}.{key}", nonfinite) for key, item in value.items()}
    if isinstance(value, list | tuple | range):
        return [plain(item, f"{where}.{i}", nonfinite) for i, item in enumerate(value)]
    if hasattr(value, "tolist"):  # NumPy, JAX, PyTorch
        return plain(value.tolist(), where, nonfinite)
    if isinstance(value, float):
        if nonfinite is None or math.isfinite(value):
            return float(value)
        nonfinite[where] = str(float(value))
        return None
    if value is None or isinstance(value, bool | int | str):
        return value
    raise TypeError(f"{where} holds a {type(value).__name__}, which a record cannot hold")


def validate(record: Any) -> dict[str, Any]:
    """Check a record read from disk.

    Returns:
        The record.

    Raises:
        UnknownSchema: if its schema is not ours.
        ValueError: naming the first field that is missing, unknown or of a wrong kind, or a verdict that does not
            follow from the numbers.
    """
    if not isinstance(record, dict) or not isinstance(record.get("schema"), str):
        raise ValueError("not a claim record: no schema")
    if record["schema"] != SCHEMA:
        raise UnknownSchema(f"unknown schema {record['schema']!r}; this version reads {SCHEMA!r}")
    fields = json_schema()["properties"]
    for key, field in fields.items():
        if key not in record:
            raise ValueError(f"the field {key!r} is missing")
        value, kinds = record[key], field.get("type", "string")
        allowed = [_PYTHON[kind] for kind in ([kinds] if isinstance(kinds, str) else kinds)]
        if isinstance(value, bool) or not any(isinstance(value, kind) for kind in allowed):
            raise ValueError(f"the field {key!r} is a {type(value).__name__}")
        if value not in field.get("enum", [value]):
            raise ValueError(f"the {key} {value!r} is unknown")
    if unknown := sorted(set(record) - set(fields)):
        raise ValueError(f"the field {unknown[0]!r} is unknown")
    if record["verdict"] not in ("error", "skip"):
        follows, _ = verdict(record["direction"], record["threshold"], record["measured"])
        if record["verdict"] != follows:
            raise ValueError(f"the verdict is {record['verdict']!r}, but {follows!r} follows from the numbers")
    return record


def write(path: Path, record: Mapping[str, Any]) -> None:
    """Write a record or a run description as JSON: UTF-8, sorted keys, whole or not at all."""
    from iclr_shared.files import atomic_write

    atomic_write(path, json.dumps(record, indent=1, sort_keys=True, ensure_ascii=False, allow_nan=False) + "\n")


def read(path: Path) -> dict[str, Any]:
    """The valid record in `path`. Raises as `validate`, or ValueError if it is no JSON."""
    return validate(json.loads(path.read_bytes()))

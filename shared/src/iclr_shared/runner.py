"""Check a method's claims: one folder per run, one record per claim, resumable between and inside claims."""

import datetime
import functools
import json
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from iclr_shared import environment, records
from iclr_shared.claims import ClaimRun, Measurement
from iclr_shared.errors import InputError, MissingExtra, Unavailable
from iclr_shared.files import locked
from iclr_shared.progress import raise_if_stopped
from iclr_shared.registry import Entry, resolve, suggestion
from iclr_shared.seeds import root
from iclr_shared.spec import Claim

RUN_SCHEMA = "iclr.run/1"


@dataclass(frozen=True)
class Outcome:
    """A finished run: its folder, its records in the order of the claims, and which extras were missing."""

    folder: Path
    records: list[dict[str, Any]]
    missing: list[str]

    @property
    def exit_code(self) -> int:
        """0 held, 1 a claim did not hold, 3 a check raised, 4 an extra (or everything that was needed) is missing."""
        verdicts = {record["verdict"] for record in self.records}
        if "error" in verdicts:
            return 3
        if "fail" in verdicts:
            return 1
        return 4 if self.missing or verdicts == {"skip"} else 0


def select(entry: Entry, ids: Sequence[str], full: bool) -> list[Claim]:
    """The claims to check: those named, else all but the full-scale ones, which `full` adds.

    Raises:
        InputError: naming an unknown claim and the nearest known one.
    """
    claims = {claim.id.lower(): claim for claim in entry.method.claims}
    if not ids:
        return [claim for claim in claims.values() if full or claim.tier != "full"]
    for name in ids:
        if name.lower() not in claims:
            near = suggestion(name, [claim.id for claim in entry.method.claims])
            raise InputError(f"{entry.method.slug} has no claim {name!r}.{near}")
    wanted = {name.lower() for name in ids}
    return [claim for key, claim in claims.items() if key in wanted]


def run(
    entry: Entry,
    claims: Sequence[Claim],
    *,
    out: Path,
    seed: int = 0,
    resume: bool = False,
    force: bool = False,
    jobs: int = 1,
    backend: str = "loky",
    quiet: bool = False,
    say: Callable[[str], None] = lambda text: None,
) -> Outcome:
    """Check `claims` and write ``OUT/METHOD/RUN_ID/{run.json, claims/ID.json, figures/*.png}``.

    Args:
        entry: the method.
        claims: from `select`.
        out: root of all runs.
        seed: root of the seed tree. Every claim has its own branch, so leaving one out changes no other.
        resume: go on with the newest unfinished run of this method in `out`.
        force: resume although the settings differ.
        jobs, backend: workers of the sweeps inside claims.
        quiet: no progress.
        say: called with a line of text after each claim.

    Raises:
        InputError: if there is nothing to resume, the settings differ, or another process uses the folder.
        Interrupted: after a stop was asked for; the run can be resumed.
    """
    settings = {
        "method": entry.method.name,
        "seed": seed,
        "claims": [claim.id for claim in claims],
        "packages": environment.packages(entry.distribution),
    }
    base = out / entry.method.name
    folder = _resumable(base, settings, force) if resume else _new_folder(base, seed)
    with locked(folder):
        state = {"schema": RUN_SCHEMA, "status": "running", "started": _now(), **settings}
        if resume:
            state["started"] = json.loads((folder / "run.json").read_bytes())["started"]
        records.write(folder / "run.json", state)
        results, missing = [], []
        for claim in claims:
            raise_if_stopped()
            path = folder / "claims" / f"{claim.id}.json"
            record = _finished(path) if resume else None
            if record is None:
                seeds = root(seed).child(entry.method.name, claim.id)
                context = ClaimRun(claim.id, seeds, folder, jobs, backend, quiet)
                record, requirement = _check(claim, entry, context, seed)
                missing += [requirement] if requirement else []
                records.write(path, record)
            results.append(record)
            say(f"  {claim.id}: {record['verdict']} ({record['seconds']:.1f} s)")
        verdicts = [{key: record[key] for key in ("claim", "verdict", "measured")} for record in results]
        state |= {"status": "finished", "ended": _now(), "env": environment.describe(entry.distribution)}
        records.write(folder / "run.json", {**state, "verdicts": verdicts})
    return Outcome(folder, results, missing)


def _check(claim: Claim, entry: Entry, context: ClaimRun, seed: int) -> tuple[dict[str, Any], str | None]:
    """The record of one claim, and the requirement whose absence skipped it."""
    started, clock = _now(), time.monotonic()
    measurement = failure = requirement = None
    try:
        measurement = resolve(claim.check)(context)
        if not isinstance(measurement, Measurement):
            raise TypeError(f"{claim.check} returned a {type(measurement).__name__}, not a Measurement")
    except MissingExtra as error:
        failure, requirement = ("skip", str(error)), error.requirement
    except Unavailable as error:
        failure = ("skip", str(error))
    except Exception as error:
        path = context.folder / "errors" / f"{claim.id}.txt"
        path.parent.mkdir(exist_ok=True)
        path.write_text(traceback.format_exc(), encoding="utf-8")
        failure = ("error", f"{type(error).__name__}: {error} (traceback in errors/{claim.id}.txt)")
    make = functools.partial(
        records.make,
        claim,
        entry.method.name,
        seed=seed,
        started=started,
        seconds=time.monotonic() - clock,
        env=environment.describe(entry.distribution),
        folder=context.folder,
        figures=tuple(context.figures),
    )
    try:
        return make(measurement=measurement, failure=failure), requirement
    except TypeError as error:  # the measurement holds something that no record can hold
        failure = ("error", f"the check's measurement cannot be recorded: {error}")
        return make(measurement=None, failure=failure), None


def _new_folder(base: Path, seed: int) -> Path:
    stamp = datetime.datetime.now(datetime.UTC).strftime("%Y%m%d-%H%M%S")
    for suffix in ("", *(f"-{i}" for i in range(2, 1000))):
        folder = base / f"{stamp}-seed{seed}{suffix}"
        try:
            folder.mkdir(parents=True)
            return folder
        except OSError as error:
            if not folder.is_dir():
                why = f"Cannot write to {base}: {error.strerror}. Choose another folder with --out."
                raise InputError(why) from error
    raise InputError(f"{base} already holds 1000 runs of this second.")


def _resumable(base: Path, settings: dict[str, Any], force: bool) -> Path:
    """The newest unfinished run in `base`, if it was started with `settings`."""
    for path in sorted(base.glob("*/run.json"), reverse=True):
        state = json.loads(path.read_bytes())
        if state.get("status") != "running":
            continue
        differing = [key for key, value in settings.items() if state.get(key) != value]
        if differing and not force:
            why = f"{path.parent} was started with another {' and '.join(differing)}."
            raise InputError(f"{why} Start anew without --resume, or add --force to resume all the same.")
        return path.parent
    raise InputError(f"There is no unfinished run in {base}. Start one without --resume.")


def _finished(path: Path) -> dict[str, Any] | None:
    """The record in `path` if it is there and final; a check that raised or was skipped is tried again."""
    try:
        record = records.read(path)
    except (OSError, ValueError):
        return None
    return None if record["verdict"] in ("error", "skip") else record


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds").replace("+00:00", "Z")

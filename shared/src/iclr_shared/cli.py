"""The `iclr` command: ``list | show | run | report | doctor`` and ``iclr METHOD VERB ...``.

Exit codes: 0 held, 1 a claim did not hold, 2 bad usage or bad input, 3 a check or verb raised, 4 a missing extra,
130 interrupted and resumable.
"""

import argparse
import contextlib
import dataclasses
import importlib
import importlib.metadata
import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from iclr_shared import registry
from iclr_shared.errors import InputError, Interrupted, MissingExtra, Unavailable
from iclr_shared.progress import interruptible
from iclr_shared.spec import BACKENDS, Method
from iclr_shared.tables import print_table


def entry() -> None:
    """Console script."""
    for stream in (sys.stdout, sys.stderr):
        # A terminal that cannot show a sign gets a replacement, not an exception.
        stream.reconfigure(errors="replace")
    sys.exit(main(sys.argv[1:]))


def main(argv: Sequence[str]) -> int:
    """Run one command line and return its exit code; problems become one message on stderr."""
    try:
        if argv and not argv[0].startswith("-") and argv[0] not in _COMMANDS:
            return _verb(argv[0], list(argv[1:]))
        arguments = _parser().parse_args(argv)
        return _COMMANDS[arguments.command][0](arguments)
    except SystemExit as stop:  # argparse and tyro
        return stop.code if isinstance(stop.code, int) else 2 if stop.code else 0
    except BrokenPipeError:  # such as `iclr list | head`
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except MissingExtra as error:
        return _say(error, 4)
    except (InputError, Unavailable) as error:
        return _say(error, 2)
    except Interrupted:
        return _say("interrupted; repeat the command with --resume to go on", 130)
    except KeyboardInterrupt:
        return _say("interrupted", 130)
    except OSError as error:
        missing = isinstance(error, FileNotFoundError | NotADirectoryError | IsADirectoryError | PermissionError)
        where = f": {error.filename}" if error.filename else ""
        return _say(f"{error.strerror or error}{where}", 2 if missing else 3)


def _say(message: object, code: int) -> int:
    print(f"iclr: {message}", file=sys.stderr)
    return code


def _parser() -> argparse.ArgumentParser:
    about = "Methods of ICLR papers: check their claims, use them on your own data."
    more = "iclr METHOD --help lists what a method does on your own files; iclr METHOD VERB --help how."
    parser = argparse.ArgumentParser(prog="iclr", description=about, epilog=more)
    version = f"iclr-shared {importlib.metadata.version('iclr-shared')}"
    parser.add_argument("--version", action="version", version=version)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND", title="commands")
    parsers = {name: commands.add_parser(name, help=text, description=text) for name, (_, text) in _COMMANDS.items()}

    def switches(parser: argparse.ArgumentParser, **flags: str) -> None:
        for name, text in flags.items():
            parser.add_argument(f"--{name}", action="store_true", help=text)

    switches(parsers["list"], json="print JSON")

    show = parsers["show"]
    show.add_argument("method", help="such as uv-model")
    show.add_argument("--out", type=Path, default=Path("runs"), help="where runs lie (default: runs)")
    switches(show, json="print JSON", bibtex="print the BibTeX entry only")

    run = parsers["run"]
    run.add_argument("methods", nargs="*", metavar="METHOD", help="such as uv-model")
    run.add_argument("--claim", action="append", default=[], metavar="ID", help="check this claim only (repeatable)")
    run.add_argument("--seed", type=_at_least(0), default=0, help="root of all random numbers (default: 0)")
    run.add_argument("--out", type=Path, default=Path("runs"), help="where the run's folder is made (default: runs)")
    run.add_argument("--jobs", type=_at_least(1), default=1, help="worker processes for sweeps (default: 1)")
    run.add_argument("--backend", choices=BACKENDS, default="loky", help="of the workers (default: loky)")
    switches(
        run,
        all="every installed method",
        resume="go on with the newest unfinished run",
        force="resume although settings or versions differ",
        full="also the claims that need a GPU or the paper's data",
        json="print the records as JSON",
        quiet="print nothing; the exit code tells",
    )

    report = parsers["report"]
    report.add_argument("folders", nargs="+", type=Path, metavar="DIR", help="run folders, or folders that hold some")
    report.add_argument("--format", choices=("html", "md"), default="html")
    report.add_argument("-o", "--output", type=Path, metavar="FILE", help="default: report.html or report.md")
    return parser


def _at_least(low: int) -> Callable[[str], int]:
    def number(text: str) -> int:
        if (value := int(text)) < low:
            raise argparse.ArgumentTypeError(f"must be at least {low}, got {value}")
        return value

    return number


def _list(arguments: argparse.Namespace) -> int:
    entries = registry.entries()
    if arguments.json:
        print(json.dumps([{**dataclasses.asdict(e), "broken": e.reason} for e in entries], indent=1))
        return 0
    rows = []
    for e in entries:
        name = f"{e.distribution}:{e.slug}" if e.duplicate else e.slug
        if e.method:
            rows.append((name, e.method.paper.short, len(e.method.claims), e.method.summary))
        else:
            rows.append((name, e.distribution, None, f"broken: {e.reason}"))
    print_table(("method", "paper", "claims", "summary"), rows)
    if not rows:
        print("No method is installed. Install one, for example: pip install iclr-dynamics")
    return 0


def _show(arguments: argparse.Namespace) -> int:
    from iclr_shared.report import latest

    found = registry.find(arguments.method)
    method, paper = found.method, found.method.paper
    if arguments.bibtex:
        print(paper.bibtex.strip())
        return 0
    last = latest(arguments.out / method.name)
    if arguments.json:
        shown = {
            **dataclasses.asdict(method),
            "distribution": found.distribution,
            "version": found.version,
            "last": last,
        }
        print(json.dumps(shown, indent=1))
        return 0
    print(f"{method.title} ({found.distribution} {found.version})\n{method.summary}\n")
    print("\n".join((paper.title, f"{', '.join(paper.authors)}. {paper.venue}.", *paper.links)) + "\n")
    rows = []
    for claim in method.claims:
        seen = last.get(claim.id, {"measured": None, "verdict": None})
        rows.append((claim.id, claim.tier, claim.statement, claim.criterion, seen["measured"], seen["verdict"]))
    print_table(("claim", "tier", "statement", "criterion", "last measured", "verdict"), rows, title="Claims")
    print("\n" + _usage(method))
    if method.extras:
        print("extras: " + ", ".join(f"pip install '{extra}'" for extra in method.extras))
    return 0


def _run(arguments: argparse.Namespace) -> int:
    from iclr_shared import runner
    from iclr_shared.report import write_report

    if arguments.all == bool(arguments.methods):
        raise InputError("Name the methods to run, or --all, not both. `iclr list` shows them.")
    if arguments.force and not arguments.resume:
        raise InputError("--force only goes with --resume.")
    if arguments.claim and len(arguments.methods) != 1:
        raise InputError("--claim goes with one method.")
    named = dict.fromkeys(map(registry.normal, arguments.methods))
    found = [e for e in registry.entries() if e.method] if arguments.all else [registry.find(name) for name in named]
    plan = [(e, runner.select(e, arguments.claim, arguments.full)) for e in found]
    options = {name: getattr(arguments, name) for name in ("out", "seed", "resume", "force", "jobs", "backend")}
    say = (lambda text: None) if arguments.quiet or arguments.json else (lambda text: print(text, file=sys.stderr))
    codes, printed = [0], []
    for e, claims in plan:
        say(f"{e.slug}: {len(claims)} claims, about {sum(claim.seconds for claim in claims):.0f} s")
        with interruptible():
            outcome = runner.run(e, claims, **options, quiet=arguments.quiet or arguments.json, say=say)
        page = write_report([outcome.folder], outcome.folder / "report.html")
        codes.append(outcome.exit_code)
        printed += outcome.records
        if not (arguments.quiet or arguments.json):
            rows = []
            for claim, record in zip(claims, outcome.records, strict=True):
                control = record["baseline"] or {"measured": None, "name": ""}
                measured = record["measured"], control["measured"], control["name"]
                rows.append((claim.id, claim.criterion, *measured, record["verdict"]))
            print_table(("claim", "criterion", "measured", "control", "which is", "verdict"), rows, e.method.title)
            print(
                "".join(f"{r['claim']}: {r['reason']}\n" for r in outcome.records if r["reason"]) + f"report: {page}\n"
            )
    if arguments.json:
        print(json.dumps(printed, indent=1, ensure_ascii=False))
    # The gravest outcome decides; a missing extra is milder than a claim that did not hold.
    return max(codes, key=(0, 4, 1, 3).index)


def _report(arguments: argparse.Namespace) -> int:
    from iclr_shared.report import write_report

    for folder in arguments.folders:
        if not folder.is_dir():
            raise InputError(f"There is no folder {folder}.")
    output = arguments.output or Path(f"report.{arguments.format}")
    print(write_report(arguments.folders, output, arguments.format))
    return 0


def _doctor(arguments: argparse.Namespace) -> int:
    from iclr_shared import environment

    for framework in ("torch", "jax"):  # they know the accelerators
        with contextlib.suppress(ImportError):
            importlib.import_module(framework)
    described = environment.describe("iclr-shared")
    rows = [(key, str(described[key])) for key in ("python", "platform", "cpu", "cores", "threads", "device")]
    print_table(("what", "value"), [*rows, ("cache", environment.cache_use())])
    entries = registry.entries()
    rows = [(e.name, e.distribution, e.version, round(1000 * e.seconds, 1), e.state) for e in entries]
    print()
    print_table(("method", "distribution", "version", "load (ms)", "state"), rows)
    print("".join(f"\n{e.distribution}:{e.name} ({e.reference})\n{e.error}" for e in entries if e.error))
    return int(any(e.state in ("broken", "duplicate") for e in entries))


def _verb(name: str, rest: list[str]) -> int:
    if not registry.matching(name):
        near = registry.suggestion(name, [*_COMMANDS, *(e.name for e in registry.entries())])
        raise InputError(f"There is no command or method {name!r}.{near}")
    method = registry.find(name).method
    if not rest or rest[0] in ("-h", "--help"):
        print(f"{method.title}: {method.summary}\n\n{_usage(method)}")
        return 0
    verbs = {command.verb: command for command in method.commands}
    verb = rest[0].lower().replace("_", "-")
    if verb not in verbs:
        raise InputError(f"{method.slug} has no verb {rest[0]!r}.{registry.suggestion(verb, list(verbs))}")
    import tyro

    function = registry.resolve(verbs[verb].function)
    with interruptible():
        return tyro.cli(function, prog=f"iclr {method.slug} {verb}", args=rest[1:]) or 0


def _usage(method: Method) -> str:
    rows = [(f"{method.slug} {command.verb}", command.summary) for command in method.commands]
    rows.append((f"run {method.slug}", f"check the paper's {len(method.claims)} claims"))
    width = max(len(call) for call, _ in rows)
    return "".join(f"  iclr {call:{width}}  {summary}\n" for call, summary in rows)


_COMMANDS = {
    "list": (_list, "every installed method, one line each"),
    "show": (_show, "a method's paper, claims, commands and last verdicts"),
    "run": (_run, "check a paper's claims and write a report"),
    "report": (_report, "render the records of one or many runs"),
    "doctor": (_doctor, "versions, devices, caches and broken plug-ins"),
}

"""Keep `uv.lock` free of any index's addresses, so that it works behind every mirror.

    portable_lock.py            make uv.lock portable, in place
    portable_lock.py --check    fail unless the complete lock that `uv sync` wrote agrees with the committed one
    portable_lock.py --filter   standard input to standard output: a git clean filter

The portable form keeps every version and hash. It names no index and no address, and leaves out sizes and upload times,
which not every mirror tells. Without the tables of what the members require, uv resolves again, with the versions in
the lock as preferences, and writes the complete lock it was made from.
"""

import argparse
import difflib
import re
import subprocess
import sys
from pathlib import Path

LOCK = Path(__file__).parent.parent / "uv.lock"


def portable(text: str) -> str:
    """The portable form of a lock; of a portable lock, itself."""
    text = re.sub(r'\{ registry = "[^"]*" \}', '{ registry = "index" }', text)
    text = re.sub(r'\burl = "(?:[^"]*/)?([^"/?#]+)(?:[?#][^"]*)?"', r'path = "\1"', text)
    text = re.sub(r', (?:size = \d+|upload-time = "[^"]*")', "", text)
    # A table ends where the next one begins.
    text = re.sub(r"^\[package\.metadata[^\n]*\]\n(?:(?!\[)[^\n]*\n)*", "", text, flags=re.MULTILINE)
    return re.sub(r"\n{3,}", "\n\n", text).rstrip("\n") + "\n"


def committed() -> str:
    """The lock in the last commit."""
    command = ["git", "-C", str(LOCK.parent), "show", f"HEAD:{LOCK.name}"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def main() -> int:
    """Run one of the three modes; the exit code is 1 where the check fails."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    modes = parser.add_mutually_exclusive_group()
    modes.add_argument("--check", action="store_true")
    modes.add_argument("--filter", action="store_true")
    arguments = parser.parse_args()
    if arguments.filter:
        sys.stdout.write(portable(sys.stdin.read()))
        return 0
    current = LOCK.read_text(encoding="utf-8")
    if not arguments.check:
        LOCK.write_text(portable(current), encoding="utf-8")
        return 0
    before, now = committed(), portable(current)
    if before != portable(before):
        print("The committed uv.lock is not portable. Run .ci/portable_lock.py and commit.", file=sys.stderr)
        return 1
    if before != now:
        sys.stderr.writelines(
            difflib.unified_diff(before.splitlines(True), now.splitlines(True), "committed", "synced", n=1)
        )
        print(
            "uv.lock is out of date. Run `uv sync --all-packages`, then .ci/portable_lock.py, and commit.",
            file=sys.stderr,
        )
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Print, as JSON, the distributions that a change touches: `python .ci/changed.py BASE` compares BASE with HEAD.

A change outside `packages/` (the shared distribution, the root, CI) touches all of them, documents in the root none.
"""

import json
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def affected(paths: Iterable[str], distributions: Iterable[str]) -> list[str]:
    """The distributions whose tests the changed `paths` call for."""
    names, found = set(distributions), set()
    for path in paths:
        parts = path.split("/")
        if parts[0] == "packages" and len(parts) > 2:
            found |= {parts[1]} & names
        elif len(parts) > 1 or not path.endswith(".md"):
            return sorted(names)
    return sorted(found)


if __name__ == "__main__":
    base = sys.argv[1] if len(sys.argv) > 1 else ""
    every = [folder.name for folder in sorted((ROOT / "packages").iterdir()) if folder.is_dir()]
    command = ["git", "-C", str(ROOT), "diff", "--name-only", f"{base}...HEAD"]
    # A new branch, or a base that is not in the clone: test everything.
    known = subprocess.run(command, capture_output=True, text=True) if base.strip("0") else None
    changed = known.stdout.split("\n") if known and known.returncode == 0 else ["shared/"]
    print(json.dumps(affected(filter(None, changed), every)))

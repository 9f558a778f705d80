"""Write the table of methods into README.md from what the installed methods say; `--check` only compares."""

import sys
from pathlib import Path

from iclr_shared import registry

README = Path(__file__).resolve().parent.parent / "README.md"
START, END = "<!-- catalogue: python .ci/catalogue.py -->", "<!-- end of catalogue -->"


def table() -> str:
    """The catalogue in Markdown, one row for each installed method."""
    lines = ["| method | paper | what it does | distribution |", "|---|---|---|---|"]
    for entry in registry.entries():
        if entry.method is None:
            raise SystemExit(f"{entry.name} does not load: {entry.reason}")
        paper = entry.method.paper
        lines.append(
            f"| `{entry.method.slug}` | [{paper.title}]({paper.links[0]}) ({paper.short}) | {entry.method.summary} "
            f"| [{entry.distribution}](packages/{entry.distribution}) |"
        )
    return "\n".join(lines)


def updated(text: str) -> str:
    """README text with the catalogue between its marks replaced."""
    before, rest = text.split(START)
    _, after = rest.split(END)
    return f"{before}{START}\n{table()}\n{END}{after}"


if __name__ == "__main__":
    text = README.read_text(encoding="utf-8")
    new = updated(text)
    if "--check" in sys.argv:
        sys.exit("README.md is out of date: run python .ci/catalogue.py" if new != text else 0)
    README.write_text(new, encoding="utf-8")

"""Write what the registry knows of the mappings into README.md and docs/mappings.md, between markers.

python docs/build.py            write
python docs/build.py --check    fail if a file is out of date
"""

from __future__ import annotations

import inspect
import re
import sys
import textwrap
from pathlib import Path
from typing import Any

from parsimax.mappings import REGISTRY

ROOT = Path(__file__).resolve().parent.parent
BEGIN, END = "<!-- mappings: written by docs/build.py -->", "<!-- end of mappings -->"


def symbol(number: float) -> str:
    return f"{number:g}".replace("inf", "∞").replace("-", "−")


def domain(entry: Any) -> str:
    """The parameter and where it may lie: ``alpha`` in [0, ∞]."""
    if entry.setting is None:
        return "–"
    at = entry.setting.domain
    left, right = "[" if at.closed_low else "(", "]" if at.closed_high else ")"
    kind = "" if entry.setting.continuous else ", a whole number"
    return f"`{entry.setting.name}` in {left}{symbol(at.low)}, {symbol(at.high)}{right}{kind}"


def gradient(entry: Any) -> str:
    return "–" if entry.setting is None else "yes" if entry.setting.continuous else "no"


def words(entry: Any) -> str:
    """The first line of the docstring, without the name that some begin with."""
    line = inspect.getdoc(entry.function).splitlines()[0]
    line = line.partition(": ")[2] or line
    return line[0].upper() + line[1:]


def formula(entry: Any) -> str:
    """The first formula of the docstring."""
    found = re.search(r"^( *)\.\. math::(.*\n(?:\1 +.*\n)*)", inspect.getdoc(entry.function) + "\n", re.M)
    if found is None:
        raise ValueError(f"the docstring of {entry.name} has no formula")
    return " ".join(textwrap.dedent(found[2]).split())


def yes(answer: object) -> str:
    return "yes" if answer else "no"


def table() -> str:
    lines = [
        "| mapping | what it does | parameter | exact zeros | gradient by it | loss |",
        "|---|---|---|---|---|---|",
    ]
    for entry in REGISTRY.values():
        cells = (
            f"`{entry.name}`",
            words(entry),
            domain(entry),
            yes(entry.sparse),
            gradient(entry),
            yes(entry.regulariser),
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def section(entry: Any) -> str:
    total = f"the {entry.total}" if isinstance(entry.total, str) else symbol(entry.total)
    facts = [f"Module: `{entry.module.__name__}`.", f"Parameter: {domain(entry)}."] if entry.setting else []
    facts = facts or [f"Module: `{entry.module.__name__}`.", "No parameter."]
    facts += [
        f"A row sums to {total}.",
        "Exact zeros." if entry.sparse else "No zeros but those of forbidden entries.",
        "Shift invariant." if entry.shift_invariant else "**Not shift invariant**, by its definition.",
        "Has an entropy, so `fenchel_young_loss` takes it."
        if entry.regulariser
        else "No entropy, so no Fenchel–Young loss.",
    ]
    return f"## {entry.name}\n\n{words(entry)}\n\n```math\n{formula(entry)}\n```\n\n{' '.join(facts)}"


def pages() -> dict[Path, str]:
    """What each file should hold between its markers."""
    return {
        ROOT / "README.md": table(),
        ROOT / "docs" / "mappings.md": "\n\n".join(section(entry) for entry in REGISTRY.values()),
    }


def updated(path: Path, inner: str) -> str:
    before, begin, rest = path.read_text(encoding="utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"{path} lacks the markers {BEGIN} and {END}")
    return f"{before}{BEGIN}\n\n{inner}\n\n{END}{after}"


def stale() -> list[Path]:
    """The files that are not what this script would write."""
    return [path for path, inner in pages().items() if path.read_text(encoding="utf-8") != updated(path, inner)]


def main() -> int:
    if "--check" in sys.argv[1:]:
        for path in stale():
            print(f"{path} is out of date: run python docs/build.py", file=sys.stderr)
        return bool(stale())
    for path in stale():
        path.write_text(updated(path, pages()[path]), encoding="utf-8")
        print(f"wrote {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

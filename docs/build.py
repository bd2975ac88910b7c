"""Write what follows from the registry of mappings and from the measured speed, so that nobody types it twice.

Between markers: the table and the sections of docs/mappings.md, and the rows of speed in README.md. As a whole:
src/parsimax/mappings/__init__.pyi, from which type checkers know the mappings.

python docs/build.py            write
python docs/build.py --check    fail if a file is out of date
"""

from __future__ import annotations

import csv
import inspect
import re
import sys
import textwrap
from pathlib import Path
from typing import Any

from parsimax import mappings
from parsimax.mappings import REGISTRY

ROOT = Path(__file__).resolve().parent.parent
# The rows of speed in the README: the case, what it is, and what torch does there.
SPEED = {
    "entmax15/256x32000": ("`entmax`, 256 × 32000", "`torch.softmax`"),
    "entmax15_loss/1024x32000": ("`entmax_loss`, 1024 × 32000", "`F.cross_entropy`"),
    "entmax_attention/2048/full": (
        "`entmax_attention`, 8 heads of 64, 2048 tokens",
        "`F.scaled_dot_product_attention`",
    ),
}


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


def speed() -> str:
    """A few rows of benchmarks/speed.csv."""
    with (ROOT / "benchmarks" / "speed.csv").open(encoding="utf-8", newline="") as file:
        measured = {row["case"]: row for row in csv.DictReader(file)}
    lines = ["| | against | time |", "|---|---|---|"]
    for case, (ours, theirs) in SPEED.items():
        lines.append(f"| {ours} | {theirs} | {float(measured[case]['value']):.2f} |")
    return "\n".join(lines)


def stub() -> str:
    """The exports of the mappings, one by one."""
    lines = ["# Written by docs/build.py, for type checkers.", "", "from .declaration import REGISTRY as REGISTRY"]
    names = [name for name in mappings.__all__ if name != "REGISTRY"]
    files = {name: getattr(mappings, name).__module__.rpartition(".")[2] for name in names}
    lines += [
        f"from .{files[name]} import {name} as {name}" for name in sorted(names, key=lambda name: (files[name], name))
    ]
    return "\n".join([*lines, "", "__all__ = [", *(f'    "{name}",' for name in mappings.__all__), "]", ""])


def pages() -> dict[tuple[Path, str], str]:
    """What each file should hold between its markers of a name; a file without a name as a whole."""
    page = ROOT / "docs" / "mappings.md"
    return {
        (page, "table"): table(),
        (page, "mappings"): "\n\n".join(section(entry) for entry in REGISTRY.values()),
        (ROOT / "README.md", "speed"): speed(),
        (ROOT / "src" / "parsimax" / "mappings" / "__init__.pyi", ""): stub(),
    }


def updated(path: Path, name: str, inner: str) -> str:
    if not name:
        return inner
    begin, end = f"<!-- {name}: written by docs/build.py -->", f"<!-- end of {name} -->"
    before, found, rest = path.read_text(encoding="utf-8").partition(begin)
    _, closed, after = rest.partition(end)
    if not (found and closed):
        raise ValueError(f"{path} lacks the markers {begin} and {end}")
    return f"{before}{begin}\n\n{inner}\n\n{end}{after}"


def stale() -> list[tuple[Path, str]]:
    """The parts that are not what this script would write."""
    return [
        (path, name)
        for (path, name), inner in pages().items()
        if not path.exists() or path.read_text(encoding="utf-8") != updated(path, name, inner)
    ]


def main() -> int:
    old = stale()
    if "--check" in sys.argv[1:]:
        for path, name in old:
            print(f"{path} is out of date{name and f' ({name})'}: run python docs/build.py", file=sys.stderr)
        return bool(old)
    for path, name in old:
        path.write_text(updated(path, name, pages()[path, name]), encoding="utf-8")
        print(f"wrote {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

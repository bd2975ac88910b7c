"""Artificial triplets: right texts made worse by edits as post-editors had to undo them in real data."""

from __future__ import annotations

import hashlib
import json
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from ..kit.durable import PART, write
from ..kit.recipe import DataError
from ..kit.runs import read_json
from .edits import Edit, edits
from .triplets import PARTS, Triplet

STATE = "noise.json"
EVERY = 1000  # lines between two looks at what is written
T = TypeVar("T")


@dataclass
class Statistics:
    """How machine output differs from its post-edit, counted over real triplets."""

    rates: list[float] = field(default_factory=list)  # edits a word, of each triplet
    kinds: Counter[str] = field(default_factory=Counter)
    lengths: dict[str, Counter[int]] = field(default_factory=lambda: defaultdict(Counter))  # words of an edit, by kind
    moves: Counter[int] = field(default_factory=Counter)  # how far a shift goes
    inserted: Counter[str] = field(default_factory=Counter)  # words that the machine had and should not have
    replaced: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))  # right → wrong

    @classmethod
    def of(cls, triplets: Sequence[Triplet]) -> Statistics:
        found = cls()
        for one in triplets:
            right = one.edited.split()
            made = [edit for edit in edits(right, one.machine.split()) if edit.kind != "keep"]
            found.rates.append(len(made) / max(1, len(right)))
            for edit in made:
                found._count(edit)
        if not found.kinds:
            raise DataError(f"no post-edit of {len(triplets)} triplets changes anything: there are no mistakes to draw")
        return found

    def _count(self, edit: Edit) -> None:
        self.kinds[edit.kind] += 1
        self.lengths[edit.kind][max(len(edit.old), 1 if edit.kind != "insert" else len(edit.new))] += 1
        if edit.kind == "shift":
            self.moves[edit.to - edit.at] += 1
        if edit.kind == "insert":
            self.inserted.update(edit.new)
        if edit.kind == "replace":
            for old, new in zip(edit.old, edit.new, strict=False):
                self.replaced[old][new] += 1
            self.inserted.update(edit.new)


def drawn(counts: Counter[T], chance: random.Random) -> T:
    return chance.choices([*counts], [*counts.values()])[0]


def worsened(text: str, known: Statistics, chance: random.Random) -> str:
    """A text as a machine might have written it: as many edits as some real one had, of kinds as they occur."""
    words = text.split()
    wanted = chance.choice(known.rates) * len(words)
    count = int(wanted) + (chance.random() < wanted - int(wanted))
    for _ in range(count):
        words = _edited(words, drawn(known.kinds, chance), known, chance)
    return " ".join(words)


def _edited(words: list[str], kind: str, known: Statistics, chance: random.Random) -> list[str]:
    length = drawn(known.lengths[kind], chance)
    if kind == "insert":
        at = chance.randrange(len(words) + 1)
        new = [drawn(known.inserted, chance) for _ in range(length)] if known.inserted else []
        return [*words[:at], *new, *words[at:]]
    if not words or (len(words) <= length and kind == "delete"):
        return words  # something is left to correct
    if kind == "replace":
        at = _likely(words, known, chance)
        return [*words[:at], *(_wrong(word, known, chance) for word in words[at : at + length]), *words[at + length :]]
    at = chance.randrange(max(1, len(words) - length + 1))
    block, rest = words[at : at + length], [*words[:at], *words[at + length :]]
    if kind == "delete":
        return rest
    to = min(max(0, at + drawn(known.moves, chance)), len(rest))
    return [*rest[:to], *block, *rest[to:]]


def _likely(words: list[str], known: Statistics, chance: random.Random) -> int:
    """A place where mistakes happen: a word is as likely as often it was mistaken, and any a little."""
    weights = [1 + sum(known.replaced[word].values()) if word in known.replaced else 1 for word in words]
    return chance.choices(range(len(words)), weights)[0]


def _wrong(word: str, known: Statistics, chance: random.Random) -> str:
    if word in known.replaced:
        return drawn(known.replaced[word], chance)
    return drawn(known.inserted, chance) if known.inserted else word


def write_noise(
    real: Sequence[Triplet],
    texts: Sequence[str],
    sources: Sequence[str] | None,
    out: Path,
    name: str,
    seed: int,
    show: Callable[[str], None],
) -> int:
    """Write ``name.src``, ``name.mt`` and ``name.pe`` into ``out``, a triplet for each text; the number written now.

    Without sources, the source is the right text itself. What was begun with the same input is gone on with: a line is
    a function of the seed and its number.
    """
    known = Statistics.of(real)
    whole = [out / f"{name}.{part}" for part in PARTS]
    files = [path.with_name(f"{path.name}{PART}") for path in whole]  # training would take what is there so far
    done = _begun(whole, files, out / f"{name}.{STATE}", {"seed": seed, "input": _digest(real, texts, sources)})
    for start in range(done, len(texts), EVERY):
        rows = list(_rows(texts, sources, known, seed, range(start, min(start + EVERY, len(texts)))))
        for path, column in zip(files, zip(*rows, strict=True), strict=True):
            with path.open("a", encoding="utf-8") as file:
                file.write("".join(f"{text}\n" for text in column))
        show(f"{start + len(rows)} of {len(texts)} triplets")
    show("")
    for path, other in zip(files, whole, strict=True):
        path.replace(other)
    return len(texts) - done


def _rows(
    texts: Sequence[str], sources: Sequence[str] | None, known: Statistics, seed: int, numbers: range
) -> Iterator[Triplet]:
    for number in numbers:
        chance = random.Random(f"{seed} {number}")
        text = " ".join(texts[number].split())
        yield Triplet(" ".join((sources or texts)[number].split()), worsened(text, known, chance), text)


def _digest(real: Sequence[Triplet], texts: Sequence[str], sources: Sequence[str] | None) -> str:
    found = hashlib.sha256()
    for part in ([*map("\t".join, real)], texts, sources or ()):
        found.update("\n".join(part).encode())
    return found.hexdigest()


def _begun(whole: list[Path], files: list[Path], state: Path, about: dict[str, Any]) -> int:
    """How many whole triplets are in ``files`` from a run that was stopped; what it left over is cut off.

    Files that have their names, ``whole``, already are begun again where they end, which may be where they are done.
    """
    if not state.exists():
        table = whole[0].with_suffix(".tsv")  # training takes that, or a compressed file, for the same triplets
        names = [path for one in (*whole, table) for path in (one, one.with_name(f"{one.name}.gz"))]
        if there := [path for path in names if path.exists()]:
            raise DataError(f"{there[0]} exists, and is not overwritten or hidden; give another --name")
        state.parent.mkdir(parents=True, exist_ok=True)
        write(state, json.dumps(about))
        return 0
    if read_json(state) != about:
        raise DataError(f"{state} is of other texts, triplets or another seed; give another --name")
    for path, other in zip(whole, files, strict=True):
        if path.exists():
            path.replace(other)
    contents = [path.read_bytes().split(b"\n")[:-1] if path.exists() else [] for path in files]
    done = min(map(len, contents))
    for path, lines in zip(files, contents, strict=True):
        path.write_bytes(b"".join(line + b"\n" for line in lines[:done]))
    return done

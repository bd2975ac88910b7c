"""What changed between two texts, word by word: kept, replaced, inserted, deleted, and moved."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Kind = Literal["keep", "replace", "insert", "delete", "shift"]


@dataclass(frozen=True)
class Edit:
    """Words ``old`` from the place ``at`` become words ``new`` at the place ``to``."""

    kind: Kind
    old: tuple[str, ...]
    new: tuple[str, ...]
    at: int
    to: int


def edits(before: Sequence[str], after: Sequence[str]) -> list[Edit]:
    """The fewest edits of words, in their order; a block that is deleted here and inserted there was shifted.

    >>> [(edit.kind, *edit.old) for edit in edits("a b c d e f".split(), "e f a b c d".split())]
    [('shift', 'e', 'f'), ('keep', 'a', 'b', 'c', 'd')]
    """
    from rapidfuzz.distance import Levenshtein

    names: dict[str, Kind] = {"equal": "keep", "replace": "replace", "insert": "insert", "delete": "delete"}
    found = [
        Edit(
            names[op.tag],
            tuple(before[op.src_start : op.src_end]),
            tuple(after[op.dest_start : op.dest_end]),
            op.src_start,
            op.dest_start,
        )
        for op in Levenshtein.opcodes(before, after)
    ]
    return _with_shifts(found)


def _with_shifts(found: list[Edit]) -> list[Edit]:
    """Pairs of a deletion and an insertion of the same words become one shift, where the insertion was."""
    deleted = {edit.old: edit for edit in found if edit.kind == "delete"}
    made, gone = [], set()
    for edit in found:
        if edit.kind == "insert" and edit.new in deleted:
            other = deleted.pop(edit.new)
            gone.add(other)
            edit = Edit("shift", other.old, edit.new, other.at, edit.to)
        made.append(edit)
    return [edit for edit in made if edit not in gone]


def rendered(machine: str, places: Sequence[tuple[int, int]], words: Sequence[str], output: Sequence[str]) -> str:
    """The output as a text: words that the machine had keep their letters, and if they stay the space before them.

    Args:
        machine: the machine output as it was written.
        places: where in it each of its words stands.
        words: those words as the model knows them, such as in lower case.
        output: the words of the post-edit.
    """
    text = ""
    for edit in edits(words, output):
        if edit.kind == "keep":
            for index in range(edit.at, edit.at + len(edit.old)):
                start, end = places[index]
                close = index > 0 and places[index - 1][1] == start and text
                text += ("" if close or not text else " ") + machine[start:end]
        else:
            moved = places[edit.at : edit.at + len(edit.old)] if edit.kind == "shift" else ()
            for word in [machine[start:end] for start, end in moved] or edit.new:
                text += (" " if text else "") + word
    return text

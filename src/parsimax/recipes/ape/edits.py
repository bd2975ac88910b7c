"""What changed between two texts, word by word: kept, replaced, inserted, deleted, and moved."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

HYPHEN, CLOSING, OPENING = "-", (*",.;:!?%)]}…",), (*"([{",)  # which have no space beside, before or after them
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

    New punctuation is close to its word as it is usually written.

    Args:
        machine: the machine output as it was written.
        places: where in it each of its words stands.
        words: those words as the model knows them, such as in lower case.
        output: the words of the post-edit.
    """

    def was_close(index: int) -> bool:
        return index > 0 and places[index - 1][1] == places[index][0]

    pieces: list[tuple[str, bool | None]] = []  # whether each is close to the one before; None where it is not known
    for edit in edits(words, output):
        if edit.kind == "keep":
            kept = range(edit.at, edit.at + len(edit.old))
            pieces += [(machine[slice(*places[index])], was_close(index)) for index in kept]
            continue
        moved = places[edit.at : edit.at + len(edit.old)] if edit.kind == "shift" else ()
        new: list[tuple[str, bool | None]] = [(word, None) for word in edit.new]
        if edit.kind == "replace" and was_close(edit.at) and (edit.old[0] + edit.new[0]).isalnum():
            new[0] = (edit.new[0], True)  # a word for another one
        pieces += [(machine[start:end], None) for start, end in moved] or new
    text, hyphen = "", False
    for at, (word, close) in enumerate(pieces):
        after = hyphen  # a new one between two words
        hyphen = close is None and word == HYPHEN and 0 < at < len(pieces) - 1
        hyphen = hyphen and text[-1].isalnum() and pieces[at + 1][0][0].isalnum()
        if close is None:
            close = hyphen or word in CLOSING or text[-1:] in OPENING
        text += word if not text or close or after else f" {word}"
    return text

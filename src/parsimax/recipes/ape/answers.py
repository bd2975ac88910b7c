"""Post-edits as a user wants them: in the letters of the machine output, with the edits, and never less than it was."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from ..kit.recipe import Answer
from ..text.seq2seq.outputs import lines
from ..text.seq2seq.search import Found
from .edits import edits, rendered
from .pieces import WordPieces
from .settings import Options
from .task import PostEditing

LEFT = "left as it is"  # in JSON: why there is no post-edit, or null


def unread(machine: str, most: int, options: Options) -> Answer:
    """What is too long to be read is left as it is."""
    reason = f"more than the {most} tokens of a text that the model reads"
    known = {"proved best": False, "outputs": [{"text": machine}], "edits": [], LEFT: reason}
    plain = f"1\t0\t-\t{_one_line(machine)}" if options.nbest else _one_line(machine)
    return Answer((json.dumps(known, ensure_ascii=False) if options.json else plain,), own_notes=(_left(reason),))


def _one_line(text: str) -> str:
    return " ".join(text.splitlines())


def _left(reason: str) -> str:
    return f"{reason}: the machine output is left as it is"


def answer(task: PostEditing, machine: str, row: list[int], found: Found, longest: int, options: Options) -> Answer:
    """The post-edit of ``machine``, for the source with the numbers ``row``."""
    codec = task.codec
    assert isinstance(codec, WordPieces)
    unknown = dict.fromkeys(codec.unseen(machine))
    notes = tuple(
        f"{piece!r} is no word to the BERT, and a post-edit that keeps it cannot be written" for piece in unknown
    )
    reason = None if found.ended else f"no post-edit ended within search.longest={longest} tokens"
    if reason is not None:
        found = replace(found, hypotheses=[replace(found.best, tokens=tuple(codec.target(machine)))])
    own = () if reason is None else (_left(reason),)
    parts = codec.words(machine)
    words, places = [word for word, _ in parts], [place for _, place in parts]

    def spelled(text: str) -> str:
        post_edit = rendered(machine, places, words, text.split()) if found.ended else machine
        return post_edit if options.json else _one_line(post_edit)

    said = tuple(lines(task, row, found, options, spelled))
    if not options.json:
        return Answer(said, notes, own)
    made = edits(words, codec.text(found.best.tokens).split() if found.ended else words)
    known: dict[str, Any] = {
        **json.loads(said[0]),
        "edits": [{"edit": one.kind, "old": one.old, "new": one.new, "at": one.at, "to": one.to} for one in made],
        LEFT: reason,
    }
    return Answer((json.dumps(known, ensure_ascii=False),), notes, own)

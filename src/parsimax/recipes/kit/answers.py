"""Answers to a stream of queries: as soon as lines come, in their order, one that fails marked in its place."""

from __future__ import annotations

import json
import queue
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import IO, Any

from . import inputs
from .recipe import Answer, DataError, Options, Recipe

MOST = 256  # lines of a group at most
MARK = "#ERROR"  # of the line that stands where an answer would


def arriving(source: IO[bytes], most: int = MOST) -> Iterator[list[bytes]]:
    """The lines of ``source`` in groups of those that have come, at most ``most``: none waits for lines to come."""
    waiting: queue.Queue[bytes | None] = queue.Queue(4 * most)

    def read() -> None:
        for line in source:
            waiting.put(line)
        waiting.put(None)

    threading.Thread(target=read, daemon=True).start()
    ended = False
    while not ended:
        group = [waiting.get()]
        while group[-1] is not None and len(group) < most and not waiting.empty():
            group.append(waiting.get_nowait())
        ended = group[-1] is None
        if lines := [line for line in group if line is not None]:
            yield lines


def answers(
    recipe: Recipe[Any, Any, Any, Any],
    task: Any,
    settings: Any,
    options: Options,
    groups: Iterator[list[bytes]],
    form: inputs.Form,
) -> Iterator[Answer]:
    """An answer for each line, in order. A note comes with the first that has it."""
    read = inputs.reader(form, recipe.query, lambda line: recipe.read(task, line, options))
    told: set[str] = set()
    for group in inputs.numbered(groups):
        found: dict[int, Answer] = {}
        good: dict[int, Any] = {}
        for number, line in group:
            try:
                query = read(line)
                if query is not None:
                    recipe.check(task, query, options)
                    good[number] = query
            except DataError as error:
                found[number] = _marked(number, error, options)
        found |= _answered(recipe, task, settings, options, good)
        for number in sorted(found):
            notes = tuple(f"line {number}: {note}" for note in found[number].notes if note not in told)
            told.update(found[number].notes)
            yield replace(found[number], notes=notes)


def _answered(
    recipe: Recipe[Any, Any, Any, Any], task: Any, settings: Any, options: Options, good: dict[int, Any]
) -> dict[int, Answer]:
    """All at once; if that fails each alone, so that only the one that fails is without an answer."""
    if not good:
        return {}
    try:
        return dict(zip(good, recipe.predict(task, settings, list(good.values()), options), strict=True))
    except (ValueError, RuntimeError, MemoryError) as error:
        if len(good) == 1:
            (number,) = good
            return {number: _marked(number, error, options)}
    alone = (_answered(recipe, task, settings, options, {number: query}) for number, query in good.items())
    return {number: answer for one in alone for number, answer in one.items()}


def _marked(number: int, error: Exception, options: Options) -> Answer:
    text = " ".join(f"{error}".split()) or type(error).__name__
    known = json.dumps({"error": text, "line": number}, ensure_ascii=False)
    return Answer((known if options.json else f"{MARK} line {number}: {text}",), failed=True)

"""Answers to a stream of queries: as soon as lines come, in their order, one that fails marked in its place."""

from __future__ import annotations

import json
import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

from . import inputs
from .recipe import Answer, Options, Recipe
from .settings import SettingsError

MOST = 256  # lines of a group at most
MARK = "#ERROR"  # of the line that stands where an answer would


def arriving(source: Iterable[bytes], most: int = MOST) -> Iterator[list[bytes]]:
    """The lines of ``source`` in groups of those that have come, at most ``most``: none waits for lines to come.

    What goes wrong in reading is raised after the lines before it.
    """
    waiting: queue.Queue[bytes | Exception | None] = queue.Queue(4 * most)

    def read() -> None:
        try:
            for line in source:
                waiting.put(line)
        except Exception as error:  # of the thread that asks, which would wait for ever
            waiting.put(error)
        else:
            waiting.put(None)

    threading.Thread(target=read, daemon=True).start()
    while True:
        group = [waiting.get()]
        while isinstance(group[-1], bytes) and len(group) < most and not waiting.empty():
            group.append(waiting.get_nowait())
        if lines := [line for line in group if isinstance(line, bytes)]:
            yield lines
        if isinstance(group[-1], Exception):
            raise group[-1]
        if group[-1] is None:
            return


def answers(
    recipe: Recipe[Any, Any, Any, Any],
    task: Any,
    settings: Any,
    options: Options,
    groups: Iterator[list[bytes]],
    form: inputs.Form,
) -> Iterator[Answer]:
    """An answer for each line, or row of CSV, in order. Notes come with the first that has them, own notes always."""
    read: Callable[[bytes], Any] = inputs.reader(
        form,
        lambda record: recipe.record(task, record, options),
        lambda line: recipe.read(task, line, options),
    )
    told: set[str] = set()
    for group in inputs.numbered(groups, form):
        found: dict[int, Answer] = {}
        good: dict[int, Any] = {}
        for number, line in group:
            try:
                query = read(line)
                if query is not None:
                    recipe.check(task, query, options)
                    good[number] = query
            except SettingsError:  # of the options, with which no line can be answered
                raise
            except Exception as error:  # whatever it is, it is of this line, and the others have answers
                found[number] = _marked(number, error, options)
        found |= _answered(recipe, task, settings, options, good)
        for number in sorted(found):
            one = found[number]
            notes = [*one.own_notes, *(note for note in one.notes if note not in told)]
            told.update(one.notes)
            yield replace(one, notes=tuple(f"line {number}: {note}" for note in notes))


def _answered(
    recipe: Recipe[Any, Any, Any, Any], task: Any, settings: Any, options: Options, good: dict[int, Any]
) -> dict[int, Answer]:
    """All at once; if that fails each alone, so that only the one that fails is without an answer."""
    if not good:
        return {}
    try:
        return dict(zip(good, recipe.predict(task, settings, list(good.values()), options), strict=True))
    except Exception as error:
        if len(good) == 1:
            (number,) = good
            return {number: _marked(number, error, options)}
    alone = (_answered(recipe, task, settings, options, {number: query}) for number, query in good.items())
    return {number: answer for one in alone for number, answer in one.items()}


def _marked(number: int, error: Exception, options: Options) -> Answer:
    text = " ".join(f"{error}".split())
    if not text or not isinstance(error, (ValueError, RuntimeError)):  # whose texts are sentences
        text = f"{type(error).__name__}: {text}".removesuffix(": ")
    known = json.dumps({"error": text, "line": number}, ensure_ascii=False)
    return Answer((known if options.json else f"{MARK} line {number}: {text}",), failed=True)

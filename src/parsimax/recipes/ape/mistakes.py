"""The embedded default: German numbers, a machine that reads them word for word, and the right English."""

from __future__ import annotations

import random

from ..text.numbers import SMALL_EN, TENS_EN, drawn, english, german

Triplet = tuple[str, str, str]
HEARD_AS = {"seven": "six", "sixteen": "seventeen", "ninety": "nineteen", "three": "two"}  # only the source can tell
MISHEARS = 0.2  # of those words


def machine(number: int, chance: random.Random) -> str:
    """English in the order of the German ("two and forty"), without "and" after hundreds, some words misheard."""
    words = _literal(number).split()
    return " ".join(HEARD_AS[word] if word in HEARD_AS and chance.random() < MISHEARS else word for word in words)


def _literal(number: int) -> str:
    if number < 20:
        return SMALL_EN[number]
    if number < 100:
        tens, one = TENS_EN[number // 10 - 2], number % 10
        return f"{SMALL_EN[one]} and {tens}" if one else tens
    if number < 1000:
        hundreds = f"{SMALL_EN[number // 100]} hundred"
        return f"{hundreds} {_literal(number % 100)}" if number % 100 else hundreds
    thousands = f"{_literal(number // 1000)} thousand"
    return f"{thousands} {_literal(number % 1000)}" if number % 1000 else thousands


def triplets(train: int = 4000, held_out: int = 300, seed: int = 0) -> dict[str, list[Triplet]]:
    """Source, machine output and post-edit of train, val and test, of different numbers."""
    chance = random.Random(seed)
    return {
        split: [(german(number), machine(number, chance), english(number)) for number in numbers]
        for split, numbers in drawn(train, held_out, seed).items()
    }

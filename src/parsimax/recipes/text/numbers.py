"""Number words, English → German: an embedded default that reorders ("twenty-one" is "einundzwanzig")."""

from __future__ import annotations

import random

Pair = tuple[str, str]

SMALL_EN = [
    "zero",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
    "thirteen",
    "fourteen",
    "fifteen",
    "sixteen",
    "seventeen",
    "eighteen",
    "nineteen",
]
TENS_EN = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
SMALL_DE = [
    "null",
    "eins",
    "zwei",
    "drei",
    "vier",
    "fünf",
    "sechs",
    "sieben",
    "acht",
    "neun",
    "zehn",
    "elf",
    "zwölf",
    "dreizehn",
    "vierzehn",
    "fünfzehn",
    "sechzehn",
    "siebzehn",
    "achtzehn",
    "neunzehn",
]
TENS_DE = ["zwanzig", "dreißig", "vierzig", "fünfzig", "sechzig", "siebzig", "achtzig", "neunzig"]


def english(number: int) -> str:
    """A number below a million in words: 342 is "three hundred and forty-two"."""
    if number < 20:
        return SMALL_EN[number]
    if number < 100:
        tens, one = TENS_EN[number // 10 - 2], number % 10
        return f"{tens}-{SMALL_EN[one]}" if one else tens
    if number < 1000:
        hundreds = f"{SMALL_EN[number // 100]} hundred"
        return f"{hundreds} and {english(number % 100)}" if number % 100 else hundreds
    thousands = f"{english(number // 1000)} thousand"
    rest = number % 1000
    return f"{thousands}{' and ' if rest < 100 else ' '}{english(rest)}" if rest else thousands


def german(number: int, last: bool = True) -> str:
    """The same in German, as one word. ``last`` is false before "hundert" and "tausend", where one is "ein"."""
    if number < 20:
        return "ein" if number == 1 and not last else SMALL_DE[number]
    if number < 100:
        tens, one = TENS_DE[number // 10 - 2], number % 10
        return f"{german(one, last=False)}und{tens}" if one else tens
    if number < 1000:
        hundreds = f"{german(number // 100, last=False)}hundert"
        return f"{hundreds}{german(number % 100, last)}" if number % 100 else hundreds
    thousands = f"{german(number // 1000, last=False)}tausend"
    return f"{thousands}{german(number % 1000, last)}" if number % 1000 else thousands


def drawn(train: int, held_out: int, seed: int) -> dict[str, list[int]]:
    """Numbers of train, val and test: different ones, as many short ones as long ones."""
    chance = random.Random(seed)
    found: dict[int, None] = {}
    while len(found) < train + 2 * held_out:
        found[chance.randrange(10 ** chance.choice((3, 4, 5, 6, 6)))] = None
    numbers = [*found]
    chance.shuffle(numbers)
    return {"val": numbers[:held_out], "test": numbers[held_out : 2 * held_out], "train": numbers[2 * held_out :]}


def splits(train: int = 8000, held_out: int = 500, seed: int = 0) -> dict[str, list[Pair]]:
    """Pairs of train, val and test."""
    return {
        split: [(english(number), german(number)) for number in numbers]
        for split, numbers in drawn(train, held_out, seed).items()
    }

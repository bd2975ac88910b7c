"""A small agglutinative language of our own, for inflection: suffixes follow the vowels of the stem.

Vowels are front (e i ö ü) or back (a ı o u), rounded (o ö u ü) or not. A suffix vowel A is e or a by frontness; I is
one of i ı u ü by frontness and roundness of the vowel before it. A stem's last p, t, k becomes b, d, g before a vowel,
and a stem that ends in a vowel takes y before another one. Order: number, possessor, case. So ``kadap`` with PL, POSS1
and ACC is ``kadaplarımı``.
"""

from __future__ import annotations

import random
from itertools import product

Triple = tuple[str, str, str]  # lemma, form, tags

FRONT, ROUND, VOWELS = "eiöü", "oöuü", "aeıioöuü"
CONSONANTS = "bcdfgklmnprstvyz"
VOICED = {"p": "b", "t": "d", "k": "g"}
NUMBER = {"SG": "", "PL": "lAr"}
POSSESSOR = {"": "", "POSS1": "Im", "POSS2": "In", "POSS3": "sI"}
CASE = {"NOM": "", "ACC": "I", "DAT": "A", "LOC": "dA", "ABL": "dAn", "GEN": "nIn"}


def attach(stem: str, suffix: str) -> str:
    """``stem`` with a suffix whose vowels A and I are still open."""
    if not suffix:
        return stem
    opens = suffix[0] in "AI"
    if opens and stem[-1] in VOWELS:
        stem += "y"
    elif opens:
        stem = stem[:-1] + VOICED.get(stem[-1], stem[-1])
    elif suffix[0] == "s" and stem[-1] not in VOWELS:  # the third person's s stands only after a vowel
        return attach(stem, suffix[1:])
    for letter in suffix:
        last = next(one for one in reversed(stem) if one in VOWELS)
        front, rounded = last in FRONT, last in ROUND
        if letter == "A":
            letter = "e" if front else "a"
        elif letter == "I":
            letter = ("ü" if rounded else "i") if front else ("u" if rounded else "ı")
        stem += letter
    return stem


def inflect(lemma: str, number: str, possessor: str, case: str) -> str:
    form = attach(attach(lemma, NUMBER[number]), POSSESSOR[possessor])
    return attach(form, CASE[case])


def lemmas(count: int, chance: random.Random) -> list[str]:
    """Different stems of two or three syllables, harmonic in frontness."""
    found: dict[str, None] = {}
    while len(found) < count:
        vowels = chance.choice((FRONT, "aıou"))
        syllables = [chance.choice(CONSONANTS) + chance.choice(vowels) for _ in range(chance.choice((2, 2, 3)))]
        found["".join(syllables) + chance.choice(("", *CONSONANTS))] = None
    return list(found)


def splits(train: int = 1500, held_out: int = 300, seed: int = 0) -> dict[str, list[Triple]]:
    """Triples of train, val and test; no lemma of one is in another."""
    chance = random.Random(seed)
    grid = list(product(NUMBER, POSSESSOR, CASE))
    total = train + 2 * held_out
    triples = []
    for lemma in lemmas(total // 4 + 1, chance):
        for number, possessor, case in chance.sample(grid, 4):
            tags = ";".join(filter(None, ("N", number, possessor, case)))
            triples.append((lemma, inflect(lemma, number, possessor, case), tags))
    test, val = triples[:held_out], triples[held_out : 2 * held_out]
    rest = triples[2 * held_out : total]
    chance.shuffle(rest)
    return {"train": rest, "val": val, "test": test}

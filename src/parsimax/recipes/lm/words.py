"""Texts ↔ numbers of words; and the texts themselves, from files or from Python's own help."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor

from ..kit.recipe import DataError
from ..kit.runs import Run, read_json, write
from ..text import files
from .settings import Data

EOS, UNK = 0, 1
SPECIAL = ("<eos>", "<unk>")
NAMES = {
    "train": ["train.txt", "wiki.train.tokens", "ptb.train.txt"],
    "val": ["valid.txt", "val.txt", "wiki.valid.tokens", "ptb.valid.txt"],
    "test": ["test.txt", "wiki.test.tokens", "ptb.test.txt"],
}


class Words:
    """A vocabulary: the end of a line, unknown words, and the most frequent others."""

    def __init__(self, words: list[str]) -> None:
        self.words = words
        self.numbers = {word: number for number, word in enumerate(words)}

    @classmethod
    def learn(cls, lines: Iterable[list[str]], size: int) -> Words:
        counts = Counter(word for line in lines for word in line if word not in SPECIAL)
        # Of equally frequent words those that come first: the order of a dictionary is that of the text.
        return cls([*SPECIAL, *(word for word, _ in counts.most_common(max(0, size - len(SPECIAL))))])

    def __len__(self) -> int:
        return len(self.words)

    def numbered(self, line: Iterable[str]) -> list[int]:
        return [self.numbers.get(word, UNK) for word in line]

    def text(self, numbers: Iterable[int]) -> str:
        return " ".join(self.words[number] for number in numbers)

    def save(self, run: Run) -> None:
        import json

        write(run.folder / "vocabulary.json", json.dumps({"words": self.words}, ensure_ascii=False))

    @classmethod
    def load(cls, run: Run) -> Words:
        found = read_json(run.folder / "vocabulary.json").get("words")
        if not isinstance(found, list) or found[: len(SPECIAL)] != list(SPECIAL):
            raise DataError(f"{run.folder / 'vocabulary.json'} is damaged: it holds no list of words")
        return cls(found)


def lines_of(data: Data, split: str) -> list[list[str]]:
    """The words of each line that has any."""
    if data.root is None:
        found = embedded()[split]
    else:
        found = [words_of(data, line) for line in files.lines(path_of(data.root, split))]
    lines = [line for line in found if line]
    if not lines:
        raise DataError(f"the {split} text has no words")
    return lines


def words_of(data: Data, line: str) -> list[str]:
    """A line as the text of these settings has its words."""
    if data.root is None:
        return re.findall(r"\w+|[^\w\s]", line.lower())
    return (line.lower() if data.lowercase else line).split()


def path_of(root: Path, split: str) -> Path:
    return files.find(root, NAMES[split])


def stream(lines: list[list[str]], words: Words) -> Tensor:
    """All numbers in a row, an <eos> after each line."""
    return torch.tensor([number for line in lines for number in (*words.numbered(line), EOS)])


@lru_cache(1)
def embedded() -> dict[str, list[list[str]]]:
    """The topics of ``help()``, which ship with Python: every tenth for validation, every tenth for the test."""
    from pydoc_data.topics import topics

    parts: dict[str, list[list[str]]] = {"train": [], "val": [], "test": []}
    for number, name in enumerate(sorted(topics)):
        split = {0: "val", 5: "test"}.get(number % 10, "train")
        for line in re.split(r"\n\s*\n", topics[name]):
            if found := words_of(Data(), line):
                parts[split].append(found)
    return parts

"""The vocabulary of inflection: characters, and whole tags."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from ..text.codec import SPECIAL, UNK, Codec


@dataclass(frozen=True)
class Symbols(Codec):
    """Characters, and whole tags. A source is ``language TAB lemma TAB tags``."""

    names: tuple[str, ...]
    languages: tuple[str, ...] = ()  # unknown in runs of an older version
    index: dict[str, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "index", {name: number for number, name in enumerate(self.names)})

    @classmethod
    def learn(cls, rows: Iterable[tuple[str, str]]) -> Symbols:
        """From (source, target) of the training data."""
        found: set[str] = set()
        languages: set[str] = set()
        for source, target in rows:
            found.update(cls.pieces(source), target)
            languages.add(source.partition("\t")[0])
        return cls((*SPECIAL, *sorted(found)), tuple(sorted(languages)))

    @staticmethod
    def pieces(source: str) -> list[str]:
        language, lemma, tags = source.split("\t")
        return [f"<{language}>", *(f"<{tag}>" for tag in tags.split(";") if tag), *lemma]

    @property
    def size(self) -> int:
        return len(self.names)

    def source(self, text: str) -> list[int]:
        return [self.index.get(piece, UNK) for piece in self.pieces(text)]

    def target(self, text: str) -> list[int]:
        return [self.index.get(letter, UNK) for letter in text]

    def tokens(self, numbers: Iterable[int]) -> list[str]:
        return [self.names[number] for number in numbers]

    def text(self, numbers: Iterable[int]) -> str:
        return "".join(self.names[number] for number in numbers if number >= len(SPECIAL))

    def unseen(self, text: str) -> list[str]:
        return [piece for piece in self.pieces(text) if piece not in self.index]

    def knows(self, language: str) -> bool:
        return language in self.languages if self.languages else f"<{language}>" in self.index

    def content(self) -> dict[str, Any]:
        return {"kind": "symbols", "names": self.names, "languages": self.languages}

    @classmethod
    def of(cls, content: dict[str, Any]) -> Symbols:
        return cls(tuple(content["names"]), tuple(content.get("languages", ())))

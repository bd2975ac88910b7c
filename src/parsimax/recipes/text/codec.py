"""Texts ↔ numbers: symbols for inflection, byte-pair pieces for sentences. A codec is saved beside the checkpoints."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..kit.recipe import DataError
from ..kit.runs import write

PAD, BOS, EOS, UNK = range(4)
SPECIAL = ("<pad>", "<s>", "</s>", "<unk>")
FILE = "vocabulary.json"


class Codec(ABC):
    """Source and target share one vocabulary, so that embeddings can be tied."""

    @property
    @abstractmethod
    def size(self) -> int: ...

    @abstractmethod
    def source(self, text: str) -> list[int]:
        """The numbers of a source, without begin and end."""

    @abstractmethod
    def target(self, text: str) -> list[int]: ...

    @abstractmethod
    def tokens(self, numbers: Iterable[int]) -> list[str]:
        """What the numbers are called."""

    @abstractmethod
    def text(self, numbers: Iterable[int]) -> str:
        """The target that the numbers spell; special ones are left out."""

    def clean(self, text: str) -> str:
        """A target as the codec means it, which outputs are compared to: what it cannot spell stays in."""
        return text

    @abstractmethod
    def save(self, folder: Path) -> None: ...


@dataclass(frozen=True)
class Symbols(Codec):
    """Characters, and whole tags. A source is ``language TAB lemma TAB tags``."""

    names: tuple[str, ...]
    index: dict[str, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "index", {name: number for number, name in enumerate(self.names)})

    @classmethod
    def learn(cls, rows: Iterable[tuple[str, str]]) -> Symbols:
        """From (source, target) of the training data."""
        count: Counter[str] = Counter()
        for source, target in rows:
            count.update(cls.pieces(source))
            count.update(target)
        return cls((*SPECIAL, *sorted(count)))

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

    def save(self, folder: Path) -> None:
        write(folder / FILE, json.dumps({"kind": "symbols", "names": self.names}, ensure_ascii=False))


class Pieces(Codec):
    """Byte-pair pieces of both languages together, from the ``tokenizers`` library."""

    def __init__(self, tokenizer: Any, lowercase: bool) -> None:
        self.tokenizer, self.lowercase = tokenizer, lowercase
        tokenizer.encode_special_tokens = True  # a text that says <s> does not mean it

    @classmethod
    def learn(cls, pairs: Iterable[tuple[str, str]], size: int, lowercase: bool) -> Pieces:
        from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

        tokenizer = Tokenizer(models.BPE(unk_token=SPECIAL[UNK]))
        tokenizer.normalizer = normalizers.Sequence(
            [normalizers.NFC(), *([normalizers.Lowercase()] if lowercase else [])]
        )
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Metaspace(), pre_tokenizers.Punctuation()])
        tokenizer.decoder = decoders.Metaspace()
        trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=[*SPECIAL], show_progress=False)
        tokenizer.train_from_iterator((text for pair in pairs for text in pair), trainer)
        return cls(tokenizer, lowercase)

    @property
    def size(self) -> int:
        size: int = self.tokenizer.get_vocab_size()
        return size

    def source(self, text: str) -> list[int]:
        numbers: list[int] = self.tokenizer.encode(text).ids
        return numbers

    target = source

    def tokens(self, numbers: Iterable[int]) -> list[str]:
        return [self.tokenizer.id_to_token(number) for number in numbers]

    def text(self, numbers: Iterable[int]) -> str:
        decoded: str = self.tokenizer.decode([number for number in numbers if number >= len(SPECIAL)])
        return decoded

    def clean(self, text: str) -> str:
        normal: str = self.tokenizer.normalizer.normalize_str(text)
        return normal

    def save(self, folder: Path) -> None:
        content = {"kind": "pieces", "lowercase": self.lowercase, "tokenizer": self.tokenizer.to_str()}
        write(folder / FILE, json.dumps(content, ensure_ascii=False))


def load(folder: Path) -> Codec:
    """The codec of a run."""
    path = folder / FILE
    if not path.is_file():
        raise DataError(f"{folder} has no {FILE}: the run was not started by this recipe, or before it read its data")
    content = json.loads(path.read_text(encoding="utf-8"))
    if content["kind"] == "symbols":
        return Symbols(tuple(content["names"]))
    from tokenizers import Tokenizer

    return Pieces(Tokenizer.from_str(content["tokenizer"]), content["lowercase"])

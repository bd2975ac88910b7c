"""Texts ↔ numbers: what a vocabulary can do, and byte-pair pieces. A codec is saved beside the checkpoints."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..kit.recipe import DataError
from ..kit.runs import read_json, write

if TYPE_CHECKING:
    from typing_extensions import Self

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
    def unseen(self, text: str) -> list[str]:
        """What of a source the codec has no number for."""

    @abstractmethod
    def content(self) -> dict[str, Any]:
        """All that it is, as plain data."""

    @classmethod
    @abstractmethod
    def of(cls, content: dict[str, Any]) -> Self:
        """The codec that :meth:`content` describes."""

    def save(self, folder: Path) -> None:
        write(folder / FILE, json.dumps(self.content(), ensure_ascii=False))

    @classmethod
    def load(cls, folder: Path) -> Self:
        """The codec of a run."""
        path = folder / FILE
        if not path.is_file():
            raise DataError(f"{folder} has no {FILE}: the run was killed before it read its data, or it was removed")
        content = read_json(path)
        try:
            return cls.of(content)
        except Exception as error:  # of the library that reads it, too
            raise DataError(f"{path} is damaged: {type(error).__name__}: {error}; bring it back from a copy") from None


class Pieces(Codec):
    """Byte-pair pieces of both languages together, from the ``tokenizers`` library."""

    def __init__(self, tokenizer: Any, lowercase: bool) -> None:
        self.tokenizer, self.lowercase = tokenizer, lowercase
        tokenizer.encode_special_tokens = True  # a text that says <s> does not mean it

    @classmethod
    def learn(cls, pairs: Iterable[tuple[str, str]], size: int, lowercase: bool) -> Self:
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

    def unseen(self, text: str) -> list[str]:
        found = self.tokenizer.encode(text)
        return [text[slice(*place)] for number, place in zip(found.ids, found.offsets, strict=True) if number == UNK]

    def content(self) -> dict[str, Any]:
        return {"kind": "pieces", "lowercase": self.lowercase, "tokenizer": self.tokenizer.to_str()}

    @classmethod
    def of(cls, content: dict[str, Any]) -> Self:
        from tokenizers import Tokenizer

        return cls(Tokenizer.from_str(content["tokenizer"]), content["lowercase"])

"""The word pieces of a BERT as a codec: source and machine output in one sequence, post-edits in another."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..kit.recipe import DataError
from ..text.bert import NAMES, word_pieces
from ..text.codec import BOS, EOS, SPECIAL, UNK, Codec

if TYPE_CHECKING:
    from typing_extensions import Self


class WordPieces(Codec):
    """BERT's vocabulary, renumbered so that its special tokens are those of every codec.

    Args:
        tokenizer: of the ``tokenizers`` library.
        bert: the config of the BERT that has this vocabulary.

    A source is ``source TAB machine output``; its numbers are <s> source </s> machine output, as BERT reads two texts.
    """

    def __init__(self, tokenizer: Any, bert: dict[str, Any]) -> None:
        tokenizer.no_padding()
        tokenizer.no_truncation()
        tokenizer.encode_special_tokens = True  # a text that says [SEP] does not mean it
        self.tokenizer, self.bert = tokenizer, bert
        special = [tokenizer.token_to_id(name) for name in NAMES]
        if missing := [name for name, number in zip(NAMES, special, strict=True) if number is None]:
            raise DataError(f"the vocabulary has no {', '.join(missing)}: it is not that of a BERT")
        rest = sorted({*tokenizer.get_vocab().values()} - {*special})
        self.order: list[int] = [*special, *rest]  # BERT's number of each of ours
        self._ours = {number: place for place, number in enumerate(self.order)}

    @classmethod
    def learn(cls, texts: Iterable[str], size: int, lowercase: bool, bert: dict[str, Any]) -> Self:
        """Pieces of ``texts``, for a BERT that is made on the spot."""
        return cls(word_pieces(texts, size, lowercase), bert)

    @classmethod
    def of_folder(cls, folder: Path, bert: dict[str, Any]) -> Self:
        """Those of a pretrained BERT: ``tokenizer.json``, or ``vocab.txt``."""
        from tokenizers import BertWordPieceTokenizer, Tokenizer

        whole, words = folder / "tokenizer.json", folder / "vocab.txt"
        try:
            if whole.is_file():
                return cls(Tokenizer.from_file(str(whole)), bert)
            if words.is_file():
                made = BertWordPieceTokenizer(str(words), lowercase=bert.get("do_lower_case", True))
                return cls(made._tokenizer, bert)
        except DataError as error:
            raise DataError(f"{folder}: {error}; give the folder of a BERT with its own vocabulary") from None
        except Exception as error:  # the library raises nothing narrower
            raise DataError(f"{folder}: its vocabulary cannot be read: {error}; save or download it again") from None
        raise DataError(f"{folder} has neither tokenizer.json nor vocab.txt; save the BERT's tokenizer there")

    @property
    def size(self) -> int:
        return len(self.order)

    def numbers(self, text: str) -> list[int]:
        return [self._ours[number] for number in self.tokenizer.encode(text, add_special_tokens=False).ids]

    def source(self, text: str) -> list[int]:
        source, _, machine = text.partition("\t")
        return [BOS, *self.numbers(source), EOS, *self.numbers(machine)]

    target = numbers

    def tokens(self, numbers: Iterable[int]) -> list[str]:
        return [
            SPECIAL[number] if number < len(SPECIAL) else self.tokenizer.id_to_token(self.order[number])
            for number in numbers
        ]

    def text(self, numbers: Iterable[int]) -> str:
        """Words by spaces, punctuation too: as :meth:`clean` leaves a text."""
        words: list[str] = []
        for token in self.tokens(number for number in numbers if number >= len(SPECIAL)):
            if token.startswith("##") and words:
                words[-1] += token.removeprefix("##")
            else:
                words.append(token.removeprefix("##"))
        return " ".join(words)

    def clean(self, text: str) -> str:
        return " ".join(word for word, _ in self.words(text))

    def words(self, text: str) -> list[tuple[str, tuple[int, int]]]:
        """The words as BERT knows them, lower case if it is so, and where in ``text`` each of them stands."""
        from tokenizers import NormalizedString, PreTokenizedString

        parts = PreTokenizedString(text)
        normalizer, splitter = self.tokenizer.normalizer, self.tokenizer.pre_tokenizer

        def normalised(one: NormalizedString) -> None:
            normalizer.normalize(one)

        if normalizer is not None:
            parts.normalize(normalised)
        splitter.pre_tokenize(parts)
        return [(word, place) for word, place, _ in parts.get_splits(offset_referential="original", offset_type="char")]

    def unseen(self, text: str) -> list[str]:
        found = []
        for part in text.split("\t"):
            pieces = self.tokenizer.encode(part, add_special_tokens=False)
            unknown = self.order[UNK]
            places = zip(pieces.ids, pieces.offsets, strict=True)
            found += [part[slice(*place)] for number, place in places if number == unknown]
        return found

    def content(self) -> dict[str, Any]:
        return {"kind": "word pieces", "tokenizer": self.tokenizer.to_str(), "bert": self.bert}

    @classmethod
    def of(cls, content: dict[str, Any]) -> Self:
        from tokenizers import Tokenizer

        return cls(Tokenizer.from_str(content["tokenizer"]), content["bert"])

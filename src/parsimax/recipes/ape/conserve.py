"""The conservativeness penalty: what an output pays for each of its words that is in neither text of the source."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..text.codec import EOS, SPECIAL

GOES_ON = "##"  # how a piece begins that continues a word


class Vocabulary:
    """The word pieces by number, and the numbers of those that begin a word and of those that continue one."""

    def __init__(self, pieces: Sequence[str]) -> None:
        goes_on = [piece.startswith(GOES_ON) for piece in pieces]
        self.texts = [piece.removeprefix(GOES_ON) for piece in pieces]
        self.continuing = torch.tensor(goes_on, dtype=torch.bool)
        ours = range(len(SPECIAL), len(pieces))
        self.first = {self.texts[number]: number for number in ours if not goes_on[number]}
        self.later = {self.texts[number]: number for number in ours if goes_on[number]}
        self.goes_on = goes_on

    def words(self, numbers: Sequence[int]) -> list[str]:
        """The words that the numbers spell; special ones, <unk> among them, are none and end one."""
        found: list[str] = []
        inside = False
        for number in numbers:
            if number < len(SPECIAL):
                inside = False
            elif inside and self.goes_on[number]:
                found[-1] += self.texts[number]
            else:
                found.append(self.texts[number])
                inside = True
        return found


class Texts:
    """The words of one source and its machine output, and which pieces stay within them."""

    def __init__(self, vocabulary: Vocabulary, numbers: Sequence[int]) -> None:
        self.vocabulary = vocabulary
        self.words = {*vocabulary.words(numbers)}
        self.beginnings = {"", *(word[:end] for word in self.words for end in range(1, len(word) + 1))}
        self._free: dict[str | None, Tensor] = {}

    def free(self, begun: str | None) -> Tensor:
        """The pieces that begin one of the words, or go on to one from what is begun; None is outside of all."""
        if begun not in self._free:
            first, later = self.vocabulary.first, self.vocabulary.later
            found = {first.get(one) for one in self.beginnings}
            if begun is not None:
                rest = (one[len(begun) :] for one in self.beginnings if one.startswith(begun))
                found |= {later.get(one) for one in rest}
            self._free[begun] = torch.tensor(sorted(number for number in found if number is not None), dtype=torch.long)
        return self._free[begun]

    def after(self, begun: str | None, number: int) -> str | None:
        """What of a word is begun once this piece is entered."""
        if number < len(SPECIAL):
            return ""
        text = self.vocabulary.texts[number]
        if self.vocabulary.goes_on[number]:
            if begun is None:
                return None
            text = begun + text
        return text if text in self.beginnings else None


class Penalty:
    """What each hypothesis of a search has to pay at its next token.

    A word that is none of the source's pays ``amount`` once: at the piece with which it leaves them all, or, if it is
    only the beginning of one, where it ends. So an output has paid for its words and no prefix more than all that it
    begins, by which a search may still prove its best output.
    """

    def __init__(self, vocabulary: Vocabulary, amount: float, rows: list[tuple[Texts, str | None]]) -> None:
        self.vocabulary, self.amount, self.rows = vocabulary, amount, rows

    @classmethod
    def of(cls, vocabulary: Vocabulary, amount: float, source: Tensor) -> Penalty:
        """That of sources (B, S), before the first token."""
        return cls(vocabulary, amount, [(Texts(vocabulary, row), "") for row in source.tolist()])

    def chosen(self, rows: Tensor) -> Penalty:
        return Penalty(self.vocabulary, self.amount, [self.rows[row] for row in rows.tolist()])

    def entered(self, tokens: Tensor) -> Penalty:
        """That after one more token (B,) of each."""
        pairs = zip(self.rows, tokens.tolist(), strict=True)
        made = [(texts, texts.after(begun, number)) for (texts, begun), number in pairs]
        return Penalty(self.vocabulary, self.amount, made)

    def costs(self) -> Tensor:
        """(B, size): taken off the log-probabilities of next tokens."""
        amount, continuing = self.amount, self.vocabulary.continuing
        leaves = torch.tensor([amount if begun and begun not in texts.words else 0.0 for texts, begun in self.rows])
        grows = torch.tensor([0.0 if begun is None else amount for _, begun in self.rows])
        found = torch.where(continuing, grows[:, None], (leaves + amount)[:, None])
        found[:, EOS] = leaves
        free = [texts.free(begun) for texts, begun in self.rows]
        rows = torch.arange(len(free)).repeat_interleave(torch.tensor([len(one) for one in free]))
        pieces = torch.cat(free)
        found[rows, pieces] = torch.where(continuing[pieces], 0.0, leaves[rows])
        return found

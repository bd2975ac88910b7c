"""What tokens say by themselves: which belong to one word, which are punctuation, separators or questions."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence

SPECIAL = re.compile(r"\[[A-Z]+\d*\]|<(?!0x)[^<>\s]+>|<\|.+\|>")
UNKNOWN = {"[UNK]", "<unk>"}
SEPARATORS = {
    *("[SEP]", "[EOS]", "</s>", "<eos>", "<sep>", "<|endoftext|>", "<|end_of_text|>", "<|eot_id|>", "<|im_end|>"),
    *("<|end|>", "<|eos|>", "<end_of_turn>", "<|sep|>"),
}
QUESTION_WORDS = {"who", "whom", "whose", "what", "which", "when", "where", "why", "how"}
WORD_STARTS = ("▁", "Ġ")  # SentencePiece and byte-level BPE mark the piece that begins a word
MARKS = ("##", "@@", "</w>", *WORD_STARTS, "Ċ")


def text_of(token: str) -> str:
    """The token without the marks that tokenisers add.

    >>> [text_of(token) for token in ("##ing", "▁the", "Ġthe", "un@@", "end</w>")]
    ['ing', 'the', 'the', 'un', 'end']
    """
    for mark in MARKS:
        token = token.removeprefix(mark) if mark not in ("@@", "</w>") else token.removesuffix(mark)
    return token


def is_special(token: str) -> bool:
    """Whether the token stands for no text, such as [CLS], </s> or <|endoftext|>."""
    return SPECIAL.fullmatch(token) is not None and token not in UNKNOWN


def is_separator(token: str) -> bool:
    """Whether the token ends a sequence or parts two, such as [SEP] or </s>."""
    return token in SEPARATORS


def is_punctuation(token: str) -> bool:
    """Whether all of the token is punctuation."""
    text = text_of(token)
    return bool(text) and not is_special(token) and all(unicodedata.category(c).startswith("P") for c in text)


def is_question_mark(token: str) -> bool:
    """Whether the token is a question mark."""
    return text_of(token) in ("?", "？", "؟")


def is_question_word(token: str) -> bool:
    """Whether the token is an English interrogative."""
    return text_of(token).lower() in QUESTION_WORDS


def words(tokens: Sequence[str]) -> list[int]:
    """The number of the word that each token is a piece of; -1 for special tokens.

    It follows the marks of WordPiece (``##``), of SentencePiece and byte-level BPE (``▁``, ``Ġ``: what begins a word)
    and of BPE (``@@``, ``</w>``: what does not or does end one). Punctuation is always a word of its own in texts where
    only beginnings are marked. Without any mark every token is a word.

    >>> words(["[CLS]", "un", "##do", "it", "[SEP]"])
    [-1, 0, 0, 1, -1]
    >>> words(["▁un", "do", "▁it", "."])
    [0, 0, 1, 2]
    """
    starts = any(token.startswith(WORD_STARTS) and token not in WORD_STARTS for token in tokens)
    ends = any(token.endswith("</w>") for token in tokens)
    numbers: list[int] = []
    word, goes_on, before = -1, False, ""
    for token in tokens:
        if is_special(token):
            numbers.append(-1)
            goes_on, before = False, token
            continue
        if starts:
            joined = goes_on and not token.startswith((*WORD_STARTS, "Ċ")) and not is_punctuation(token)
            joined = joined and not is_punctuation(before) and before != "Ċ"
        else:
            joined = goes_on and (
                token.startswith("##") or before.endswith("@@") or (ends and not before.endswith("</w>"))
            )
        word += not joined
        numbers.append(word)
        goes_on, before = True, token
    return numbers

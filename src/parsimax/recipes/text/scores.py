"""How near outputs are to what was wanted."""

from __future__ import annotations


def scores(outputs: list[str], wanted: list[str]) -> dict[str, float]:
    """Corpus BLEU and chrF of sacrebleu; no BLEU where no output has four words."""
    import sacrebleu

    bleu = sacrebleu.corpus_bleu(outputs, [wanted], force=True)  # texts may come as tokens, and stay so
    known = {"BLEU": bleu.score} if bleu.totals[-1] else {}
    return {**known, "chrF": sacrebleu.corpus_chrf(outputs, [wanted]).score}


def edits(one: str, other: str) -> int:
    """The Levenshtein distance of two texts, in characters."""
    from rapidfuzz.distance import Levenshtein

    return Levenshtein.distance(one, other)

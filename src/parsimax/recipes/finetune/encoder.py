"""The encoder as transformers has it: its config, tokenizer and weights, and the mapping in its attention."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from ...analysis import Recording
from ...huggingface import desparsify, sparsify
from ...schedules import Linear
from ..kit import durable
from ..kit.output import attention_words
from ..kit.recipe import DataError
from ..kit.settings import SettingsError
from ..kit.show import progress
from ..text.bert import (
    MASK,
    NAMES,
    check_finite,
    check_loaded,
    check_weights,
    config_in,
    folder_of,
    loading,
    quiet,
    tiny,
    word_pieces,
)
from .settings import Model, Settings

KEY = "model.encoder"
OWN_FILES = {"local_files_only": True, "trust_remote_code": False}  # no code of the folder runs, and nobody is asked
KEPT = "start"  # folder in a run: config, tokenizer, and the attention before training
BEFORE = "attention.pt"
MODEL = "model"  # folder of the fine-tuned model, for any program that knows transformers


class Encoder(NamedTuple):
    """A ``transformers`` model for sequence classification, and its tokenizer."""

    model: Any
    tokenizer: Any

    def most(self, longest: int) -> int:
        """Tokens that it takes, and is to take."""
        own = (positions(self.model), self.tokenizer.model_max_length)
        return min(longest, *(number for number in own if isinstance(number, int) and number > 0))


def positions(model: Any) -> int | None:
    """Tokens that an encoder has positions for; RoBERTa and its kin count them from behind that of padding on."""
    count: int | None = getattr(model.config, "max_position_embeddings", None)
    for name, module in model.named_modules():
        if count is not None and name.endswith("position_embeddings"):
            before = getattr(module, "padding_idx", None)
            return count if before is None else count - before - 1
    return count


def start(settings: Settings, texts: Sequence[str], classes: list[str]) -> Encoder:
    """The encoder to begin with, without a mapping; ``texts`` are for a tiny one. No classes: it is to say a number."""
    heads = _heads(classes)
    if settings.model.encoder == "tiny":
        return _tiny(settings, texts, heads)
    folder = folder_of(settings.model.encoder, KEY)
    config_in(folder, KEY)
    check_weights(folder, KEY)
    torch.manual_seed(settings.train.seed)  # of the layer on top
    with loading(folder, KEY):
        from transformers import AutoConfig, AutoModelForSequenceClassification

        config = AutoConfig.from_pretrained(folder, **OWN_FILES, **heads)
        words = {**OWN_FILES, "use_safetensors": True, "dtype": torch.float32}
        words |= {"output_loading_info": True, "ignore_mismatched_sizes": True}
        model, told = AutoModelForSequenceClassification.from_pretrained(folder, config=config, **words)
        on_top = {name.partition(".")[0] for name, _ in model.named_parameters()} - {model.base_model_prefix}
        check_loaded(told, folder, KEY, allowed=[*on_top, "pooler"])  # the layers on top may begin at random
        check_finite(model, folder, KEY)
        return Encoder(desparsify(model), _tokenizer(folder, model))


def _heads(classes: list[str]) -> dict[str, Any]:
    if not classes:
        return {"num_labels": 1, "problem_type": "regression"}
    names = dict(enumerate(classes))
    numbers = {name: number for number, name in names.items()}
    return {"id2label": names, "label2id": numbers, "problem_type": "single_label_classification"}


def _tokenizer(folder: Path, model: Any) -> Any:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder, **OWN_FILES)
    if len(tokenizer) <= len({*tokenizer.all_special_ids}):  # transformers makes up an empty one
        raise DataError(f"{KEY}: {folder} has no vocabulary of a tokenizer, such as tokenizer.json or vocab.txt")
    if len(tokenizer) > (embedded := model.get_input_embeddings().num_embeddings):
        raise DataError(
            f"{KEY}: the tokenizer of {folder} has {len(tokenizer)} tokens, its encoder vectors for {embedded}; "
            f"they do not belong together"
        )
    if tokenizer.pad_token_id is None:
        raise DataError(f"{KEY}: the tokenizer of {folder} has no token for padding; the recipe takes encoders")
    if (most := positions(model)) is not None:  # many say no limit, and a pipeline would run past the positions
        tokenizer.model_max_length = min(tokenizer.model_max_length, most)
    return tokenizer


@contextlib.contextmanager
def usable(name: str) -> Iterator[None]:
    """What an encoder that could be loaded fails with on its first texts becomes a DataError that names it."""
    try:
        yield
    except (DataError, SettingsError):
        raise
    except Exception as error:  # its own code runs here
        if name == "tiny":
            raise
        first = (str(error).strip() or "no reason given").splitlines()[0]
        raise DataError(
            f"{KEY}: {name} was loaded, but fails on the first texts ({type(error).__name__}: {first}); take "
            f"an encoder with as many heads in all layers, and for two texts one that tells segments apart"
        ) from None


def _tiny(settings: Settings, texts: Sequence[str], heads: dict[str, Any]) -> Encoder:
    from transformers import BertConfig, BertForSequenceClassification

    own = settings.model
    pieces = word_pieces(texts, settings.data.vocabulary, settings.data.lowercase)
    config = BertConfig(
        vocab_size=pieces.get_vocab_size(),
        hidden_size=own.width,
        num_hidden_layers=own.layers,
        num_attention_heads=own.heads,
        intermediate_size=own.inner,
        max_position_embeddings=settings.data.longest,
        attention_probs_dropout_prob=0.0,
        pad_token_id=pieces.token_to_id(NAMES[0]),
        **heads,
    )
    bert = tiny(pieces, config.to_dict(), texts, own.pretrain, settings.train.seed, progress)
    torch.manual_seed(settings.train.seed)
    model: Any = BertForSequenceClassification(config)
    model.bert.load_state_dict(bert.state_dict(), strict=False)  # it has no pooler
    return Encoder(model, _fast(pieces, settings.data.longest))


def _fast(pieces: Any, longest: int) -> Any:
    """Word pieces as a tokenizer of transformers, which writes BERT's special tokens around one text or two."""
    from tokenizers.processors import TemplateProcessing
    from transformers import PreTrainedTokenizerFast

    pad, cls, sep, unk = NAMES
    pieces.post_processor = TemplateProcessing(
        single=f"{cls} $A {sep}",
        pair=f"{cls} $A {sep} $B:1 {sep}:1",
        special_tokens=[(name, pieces.token_to_id(name)) for name in (cls, sep)],
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=pieces,
        model_max_length=longest,
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
        pad_token=pad,
        cls_token=cls,
        sep_token=sep,
        unk_token=unk,
        mask_token=MASK,
    )


def keep(config: Any, tokenizer: Any, attention: Recording, run: Path) -> None:
    """What a run needs beside weights goes into it: it is opened without the folder that the encoder was from.

    ``config`` is that of the encoder without a mapping, ``attention`` what it was before training.
    """

    def fill(folder: Path) -> None:
        _save(config, tokenizer, folder)
        attention.save(folder / BEFORE)

    durable.replace_folder(run / KEPT, fill)


def export(encoder: Encoder, run: Path) -> Path:
    """The model, mapping and all, as a folder that ``from_pretrained`` of transformers loads."""
    durable.replace_folder(run / MODEL, lambda folder: _save(encoder.model, encoder.tokenizer, folder))
    return run / MODEL


def _save(what: Any, tokenizer: Any, folder: Path) -> None:
    with quiet():
        what.save_pretrained(folder)
        tokenizer.save_pretrained(folder)


def kept(run: Path) -> Encoder:
    """The encoder of a run, with weights yet to be loaded and without a mapping."""
    folder = run / KEPT
    if not folder.is_dir():
        raise SettingsError(f"{run} has no {KEPT}/: the run was killed before it read its data, or it was removed")
    with loading(folder, KEY):
        from transformers import AutoConfig, AutoModelForSequenceClassification

        config = AutoConfig.from_pretrained(folder, **OWN_FILES)
        make: Any = AutoModelForSequenceClassification.from_config
        model = make(config, dtype=torch.float32, trust_remote_code=False)
        return Encoder(model, _tokenizer(folder, model))


def put_mapping(model: Any, own: Model, steps: int | None = None) -> None:
    """The mapping of the settings in every attention layer; softmax leaves the model to transformers.

    Over ``steps``, those of training, the rate of r-softmax rises to its value; None has it there.
    """
    if own.mapping == "softmax":
        return
    words = attention_words(own, model.config.num_attention_heads)
    ramp = 0 if steps is None else round(own.ramp * steps)
    rate = words.get("rate")
    if isinstance(rate, float) and rate > 0 and ramp:
        words["rate"] = Linear(0.0, rate, ramp)
    sparsify(model, **words)

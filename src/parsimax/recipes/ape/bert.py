"""The BERT that a post-editor starts from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ..kit.recipe import DataError
from ..text.bert import check_finite, check_loaded, check_weights, config_in, loading
from .pieces import WordPieces
from .settings import Settings

KEY = "model.bert"


def config_of(folder: Path) -> dict[str, Any]:
    """The config of a BERT; anything else is refused before it is loaded."""
    config = config_in(folder, KEY)
    if (kind := config["model_type"]) != "bert":
        raise DataError(f"{KEY}: {folder} holds a model of type {kind!r}; the recipe takes those of type 'bert'")
    check_weights(folder, KEY)
    with loading(folder, KEY):
        from transformers import BertConfig

        whole = BertConfig(**config).to_dict()
    _check(whole, config, folder / "config.json")
    return {**whole, **_lowercase(folder)}


def _check(config: dict[str, Any], given: dict[str, Any], path: Path) -> None:
    """DataError for a BERT that the recipe cannot rebuild; what ``given`` does not say is as transformers has it."""
    from transformers.activations import ACT2FN

    if given.get("position_embedding_type", "absolute") != "absolute" or config["type_vocab_size"] != 2:
        raise DataError(
            f"{KEY}: {path}: the recipe needs absolute positions and two kinds of texts (type_vocab_size=2), got "
            f"{given.get('position_embedding_type', 'absolute')!r} and {config['type_vocab_size']}; give another BERT"
        )
    if (name := config["hidden_act"]) not in ACT2FN:
        raise DataError(f"{KEY}: {path}: hidden_act={name!r} is no activation; there are {', '.join(sorted(ACT2FN))}")


def check_vocabulary(codec: WordPieces, folder: Path) -> None:
    """DataError if a vocabulary has words that the BERT has no embedding for."""
    if (last := max(codec.order)) >= (size := codec.bert["vocab_size"]):
        raise DataError(
            f"{KEY}: the vocabulary of {folder} goes up to number {last}, and its BERT has embeddings for vocab_size="
            f"{size}; give a folder whose tokenizer and weights were saved together"
        )


def _lowercase(folder: Path) -> dict[str, bool]:
    """Whether a vocabulary without a tokenizer.json is of lower case."""
    path = folder / "tokenizer_config.json"
    try:
        known = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
        return {"do_lower_case": bool(known.get("do_lower_case", True))}
    except (OSError, ValueError, AttributeError) as error:
        raise DataError(
            f"{KEY}: {path} is no config of a tokenizer: {error}; bring it back, or remove it for lower case"
        ) from None


def pretrained(folder: Path) -> Any:
    """The encoder of a folder, with its weights."""
    with loading(folder, KEY):
        from transformers import BertModel

        words: dict[str, Any] = {"use_safetensors": True, "local_files_only": True}
        words |= {"output_loading_info": True, "ignore_mismatched_sizes": True}  # what it ignores is refused here
        loaded: Any = BertModel.from_pretrained(folder, add_pooling_layer=False, **words)
        model, told = loaded
        check_loaded(told, folder, KEY)
        check_finite(model, folder, KEY)
        return model


def tiny_config(settings: Settings, size: int) -> dict[str, Any]:
    from transformers import BertConfig

    own = settings.model
    longest = max(settings.data.longest_source, settings.search.longest) + 2
    config = BertConfig(
        vocab_size=size,
        hidden_size=own.width,
        num_hidden_layers=own.layers,
        num_attention_heads=own.heads,
        intermediate_size=own.inner,
        max_position_embeddings=longest,
    )
    return dict(config.to_dict())

"""The BERT that a post-editor starts from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ..kit.recipe import DataError
from ..text.bert import check_weights, config_in
from .settings import Settings

KEY = "model.bert"


def config_of(folder: Path) -> dict[str, Any]:
    """The config of a BERT; anything else is refused before it is loaded."""
    config = config_in(folder, KEY)
    if (kind := config["model_type"]) != "bert":
        raise DataError(f"{KEY}: {folder} holds a model of type {kind!r}; the recipe takes those of type 'bert'")
    check_weights(folder, KEY)
    if config.get("position_embedding_type", "absolute") != "absolute" or config.get("type_vocab_size") != 2:
        raise DataError(f"{KEY}: {folder / 'config.json'}: the recipe needs absolute positions and two kinds of texts")
    from transformers import BertConfig

    return {**BertConfig(**config).to_dict(), **_lowercase(folder)}


def _lowercase(folder: Path) -> dict[str, bool]:
    """Whether a vocabulary without a tokenizer.json is of lower case."""
    path = folder / "tokenizer_config.json"
    known = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return {"do_lower_case": bool(known.get("do_lower_case", True))}


def pretrained(folder: Path) -> Any:
    """The encoder of a folder, with its weights."""
    from transformers import BertModel

    try:
        return BertModel.from_pretrained(folder, add_pooling_layer=False, use_safetensors=True, local_files_only=True)
    except (OSError, ValueError, RuntimeError) as error:
        raise DataError(f"{KEY}: {folder} cannot be loaded: {str(error).strip().splitlines()[0]}") from None


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

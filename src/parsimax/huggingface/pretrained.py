"""Load a sparsified model with its mapping and its learned parameters."""

from __future__ import annotations

import os
from typing import Any

import torch
from transformers import AutoConfig, AutoModel, PreTrainedConfig, PreTrainedModel

from . import adapters
from .loading import restore
from .told import KEY

FINDING = {"cache_dir", "local_files_only", "revision", "subfolder", "token", "trust_remote_code"}  # where files are


def from_pretrained(path: str | os.PathLike[str], cls: Any = AutoModel, **kwargs: Any) -> Any:
    """Load a model that was sparsified and then saved by ``save_pretrained``, α and all.

    Once ``parsimax`` is imported, the ``from_pretrained`` of ``transformers`` does the same; this one also says so if
    the folder holds no mapping. Where ``parsimax`` is not imported, ``transformers`` refuses such a folder.

    Args:
        path: a folder or the name of a repository, as of ``cls.from_pretrained``; or the folder of a PEFT adapter that
            recorded a mapping, which gives a ``PeftModel`` on its base model.
        cls: the class: ``AutoModelForCausalLM``, ``BertForSequenceClassification``, …
        kwargs: handed on to ``cls.from_pretrained``. ``trust_remote_code`` is False unless it is given: no code of a
            repository runs, and nobody is asked whether it may.

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
    kwargs.setdefault("trust_remote_code", False)
    if (adapter := adapters.read(path)) is not None:
        return adapters.load(path, adapter, cls, kwargs)
    config = kwargs.get("config") or path
    if not isinstance(config, PreTrainedConfig):
        config = AutoConfig.from_pretrained(config, **{name: kwargs[name] for name in FINDING & kwargs.keys()})
    if getattr(config, KEY, None) is None:
        raise ValueError(
            f"from_pretrained: the config of {str(path)!r} says nothing of parsimax. If only a part of the model was "
            "changed, sparsify the whole with layers=… before saving it; else load it by "
            f"{cls.__name__}.from_pretrained and call parsimax.huggingface.sparsify(model)"
        )
    return restore(_real_class(cls, config), path, **kwargs)


def _real_class(cls: Any, config: Any) -> type[PreTrainedModel]:
    """The class of the model that ``cls``, which may be an auto class, makes from this config."""
    if isinstance(cls, type) and issubclass(cls, PreTrainedModel):
        return cls
    with torch.device("meta"):
        return type(cls.from_config(config))

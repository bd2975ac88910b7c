"""What becomes of ``from_pretrained`` of ``transformers``: a saved mapping comes back, and nothing turns to softmax."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from transformers import PreTrainedConfig, PreTrainedModel

from .._attention.core import AttentionCore
from . import heads, private
from .interface import CORE, NAMES
from .sparsify import configs_in, desparsify, put, sparsify
from .told import KEY, Told

_ours: ContextVar[bool] = ContextVar("parsimax_loading", default=False)


def load(plain: Callable[..., Any], cls: type[PreTrainedModel], path: Any = None, *args: Any, **kwargs: Any) -> Any:
    """As ``plain``, the method of ``transformers``, with the mapping that the config speaks of."""
    if _ours.get():
        return plain(path, *args, **kwargs)
    config = kwargs.get("config")
    asked = kwargs.get("attn_implementation")
    if isinstance(config, PreTrainedConfig):
        asked = asked or private.implementation(config)
        saved, head = getattr(config, KEY, None), getattr(config, heads.KEY, None)
    else:
        told = _read(path if config is None else config, kwargs.get("subfolder", ""))
        saved, head = told.get(KEY), told.get(heads.KEY)
    if saved is not None:
        return restore(cls, path, *args, **kwargs)
    if head is not None:
        return restore_head(plain, path, *args, **kwargs)
    if asked in NAMES:
        return _anew(plain, path, *args, **kwargs)
    result = plain(path, *args, **kwargs)
    model = result[0] if isinstance(result, tuple) else result
    if getattr(getattr(model, "config", None), KEY, None) is not None:  # from a hub: only now is its config here
        return restore(cls, path, *args, **kwargs)
    if getattr(getattr(model, "config", None), heads.KEY, None) is not None:
        return restore_head(plain, path, *args, **kwargs)
    return result


def restore(cls: Any, path: Any, *args: Any, **kwargs: Any) -> Any:
    """The model of the class ``cls`` with the mapping and the learned parameters that were saved with it."""
    wants_info = kwargs.pop("output_loading_info", False)
    with _loading():
        model, info = _with_cores(cls).from_pretrained(path, *args, output_loading_info=True, **kwargs)
    model.__class__ = cls
    private.keep_float32(model, CORE, False)
    if lost := sorted(key for key in info["missing_keys"] if CORE in key.split(".")):
        raise ValueError(
            f"from_pretrained: {str(path)!r} does not hold the learned parameters its config speaks of: "
            f"{', '.join(lost)}"
        )
    told = Told.from_json(getattr(model.config, KEY), "from_pretrained")
    _refuse_missing_head(model, info, path)
    held = {name: module.state_dict() for name, module in model.named_modules() if isinstance(module, AttentionCore)}
    desparsify(model)
    cores = told.cores(model, "from_pretrained", quiet=True)
    for name, core in cores.items():  # made anew, since what is fixed in them went through the meta device
        core.load_state_dict(held[f"{name}.{CORE}"])
    put(model, told, cores)
    return (model, info) if wants_info else model


def restore_head(plain: Callable[..., Any], path: Any, *args: Any, **kwargs: Any) -> Any:
    """As ``plain``, which makes the model with its head, if the files hold that head."""
    wants_info = kwargs.pop("output_loading_info", False)
    model, info = plain(path, *args, output_loading_info=True, **kwargs)
    _refuse_missing_head(model, info, path)
    return (model, info) if wants_info else model


def _refuse_missing_head(model: Any, info: Any, path: Any) -> None:
    """A head that is there but was not in the files would say what nobody has trained."""
    head = model.get_output_embeddings() if getattr(model.config, heads.KEY, None) is not None else None
    name = next((each for each, module in model.named_modules() if module is head), None)
    if head is not None and (lost := sorted(key for key in info["missing_keys"] if key.startswith(f"{name}."))):
        raise ValueError(
            f"from_pretrained: {str(path)!r} does not hold the parameters of the output head its config speaks of: "
            f"{', '.join(lost)}"
        )


def _anew(plain: Callable[..., Any], path: Any, *args: Any, **kwargs: Any) -> Any:
    """``attn_implementation="parsimax"`` for a model that was saved without a mapping: 1.5-entmax."""
    kwargs.pop("attn_implementation", None)
    if isinstance(kwargs.get("config"), PreTrainedConfig):
        kwargs["config"] = private.without_implementation(kwargs["config"])
    with _loading():
        result = plain(path, *args, **kwargs)
    sparsify(result[0] if isinstance(result, tuple) else result)
    return result


@contextmanager
def _loading() -> Iterator[None]:
    token = _ours.set(True)
    try:
        yield
    finally:
        _ours.reset(token)


def _read(path: Any, subfolder: str) -> dict[str, Any]:
    """The config in a folder; empty for what is no folder."""
    if not isinstance(path, str | os.PathLike):
        return {}
    file = Path(path) / (subfolder or "") / "config.json"
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):  # no folder, or a file that transformers will complain of
        return {}
    return found if isinstance(found, dict) else {}


def _with_cores(real: type[PreTrainedModel]) -> Any:
    """A class whose models have the cores from the start, so that their parameters are loaded like any others."""

    def init(self: PreTrainedModel, config: PreTrainedConfig, *args: Any, **kwargs: Any) -> None:
        _refuse_another_implementation(config)
        for each in configs_in([config]):  # a name at the top goes down to parts that keep their own attention
            if not hasattr(each, KEY) and private.implementation(each) in NAMES:
                private.set_implementation(each, None)
        told = Told.from_json(getattr(config, KEY), "from_pretrained")
        real.__init__(self, config, *args, **kwargs)
        for name, core in told.cores(self, "from_pretrained", quiet=True).items():
            setattr(self.get_submodule(name), CORE, core)
        private.keep_float32(self, CORE, True)

    return type(real.__name__, (real,), {"__init__": init, "__module__": real.__module__})


def _refuse_another_implementation(config: PreTrainedConfig) -> None:
    for each in configs_in([config]):
        saved, now = getattr(each, KEY, None), private.implementation(each)
        if saved is not None and saved.get("implementation", NAMES[0]) is not None and now not in (*NAMES, None):
            raise ValueError(
                f"from_pretrained: the model was saved with {saved['mapping']} as its attention; "
                f"attn_implementation={now!r} would compute softmax with weights that were not trained for it. Leave "
                "it out, or take the mapping out afterwards by parsimax.huggingface.desparsify(model)"
            )

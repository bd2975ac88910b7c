"""Let ``transformers`` bring back a saved mapping or output head, in whatever order the two are imported.

Models are loaded by code that knows nothing of parsimax (``pipeline``, ``SentenceTransformer``, a user's script), and
``transformers`` has no place for parameters that a model's class does not declare. So three methods are wrapped:
``from_pretrained``; ``post_init``, which ends the making of every model; and ``resize_token_embeddings``, which knows
linear outputs alone. What has neither mapping nor head goes through untouched. ``import parsimax`` does not import
``transformers``: it waits.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from typing import Any

AWAITED = "transformers.modeling_utils"


class _Waiting(MetaPathFinder):
    """Finds one module as everybody else would, and acts once it has been executed."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name != AWAITED:
            return None
        sys.meta_path.remove(self)
        spec = find_spec(name)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module: Any) -> None:
                execute(module)
                _wrap(module.PreTrainedModel)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def install() -> None:
    """Wrap the methods of ``PreTrainedModel`` now, or when there is one."""
    if AWAITED in sys.modules:
        _wrap(sys.modules[AWAITED].PreTrainedModel)
    elif not any(isinstance(finder, _Waiting) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Waiting())


def _wrap(cls: Any) -> None:
    plain: Callable[..., Any] = cls.from_pretrained.__func__
    if hasattr(plain, "parsimax"):
        return

    @functools.wraps(plain)
    def from_pretrained(cls: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            loading = import_module("parsimax.huggingface.loading")
        except ImportError:  # a transformers that parsimax.huggingface cannot use: nothing of ours can be in the model
            return plain(cls, *args, **kwargs)
        return loading.load(functools.partial(plain, cls), cls, *args, **kwargs)

    from_pretrained.parsimax = True  # type: ignore[attr-defined]
    cls.from_pretrained = classmethod(from_pretrained)
    made: Callable[..., None] = cls.post_init

    @functools.wraps(made)
    def post_init(self: Any) -> None:
        made(self)
        if getattr(self.config, "parsimax_head", None) is not None:
            import_module("parsimax.huggingface.heads").put_saved_head(self)

    cls.post_init = post_init
    resize: Callable[..., Any] = cls.resize_token_embeddings

    @functools.wraps(resize)
    def resize_token_embeddings(self: Any, *args: Any, **kwargs: Any) -> Any:
        heads = sys.modules.get("parsimax.huggingface.heads")  # without it no model has a head
        return resize(self, *args, **kwargs) if heads is None else heads.resized(resize, self, *args, **kwargs)

    cls.resize_token_embeddings = resize_token_embeddings

"""``python -m parsimax.info``: versions, what each back end has, and which kernels run on a CPU in float32."""

from __future__ import annotations

import os
import platform
from typing import Any

import torch

from . import __version__, _public, structured
from ._explain import choice, reasons
from .kernels import dispatch, library, triton
from .kernels.backends import BACKENDS, LEAN, PLAIN, TORCH, Backend, near
from .kernels.triton import table
from .mappings import REGISTRY


def _samples() -> dict[str, tuple[Any, ...]]:
    """A call of every function that has kernels or may have them one day."""
    x, y = torch.zeros(2, 3), torch.zeros(2, dtype=torch.long)
    mappings = {name: (x, *([] if e.setting is None else [e.setting.example])) for name, e in REGISTRY.items()}
    losses = dict.fromkeys(("sparsemax_loss", "entmax15_loss", "entmax_loss"), (x, y))
    more: dict[str, tuple[Any, ...]] = {"fenchel_young_loss": (x, y, "sparsemax"), "multilabel_loss": (x, x)}
    more |= {"linear_entmax_loss": (x, x, y)}
    many, net = torch.ones(100_000), _public.Monotonic(10)
    more |= {"monotonic": (many, *net.weights)}
    more |= {"plif": (x, torch.zeros(2)), "head_loss": (x, y, _public.LinearHead(3, 4))}
    more |= dict.fromkeys(("entmax_attention", "attention"), (x, x, x))
    more |= {"sparsemap": (x, structured.Tree()), "structured_topk": (x, structured.Tree(), 2)}
    segments = dict.fromkeys(("segment_softmax", "segment_sparsemax", "segment_entmax15", "segment_entmax"), (x, y))
    return {**mappings, **segments, "support": (x,), **losses, **more}


def _row(name: str, args: tuple[Any, ...]) -> str:
    """The back end that would run, and why not the others."""
    request, asked = dispatch.request_of(getattr(_public, name), *args), dispatch.wanted()
    assert request is not None
    why = "; ".join(f"{b.name}: {r}" for b in near(request, asked) for r in reasons(b, request, asked))
    return f"{name:22} {choice(request, asked):8} {why}".rstrip()


def _of(backend: Backend) -> str:
    """What its declaration says, on whichever machine."""
    without = [name for name in _samples() if name not in backend.serves]
    state = "cannot be used here" if backend.problem else "ready"
    lacks = f", none for {', '.join(without)}" if without else ""
    return f"{backend.name:8} {backend.device:8} {state}: kernels for {len(backend.serves)} functions{lacks}"


def text() -> str:
    lines = [
        f"python             {platform.python_version()}",
        f"torch              {torch.__version__}",
        f"parsimax           {__version__}",
        f"C++ kernels        {'loaded' if library.AVAILABLE else library.PROBLEM}",
        f"instruction set    {library.level()}",
        f"Triton kernels     {triton.PROBLEM or 'ready for a GPU'}",
        f"their launch table {table.words()}",
        f"without kernels    {PLAIN[TORCH]}, on a CPU; {PLAIN[LEAN]}, elsewhere",
        f"threads            {torch.get_num_threads()}",
        f"PARSIMAX_KERNELS   {os.environ.get('PARSIMAX_KERNELS', 'not set, so auto')}",
        "",
        f"{'back end':8} {'device':8} what it has",
        *map(_of, BACKENDS.values()),
        "",
        f"{'function':22} {'runs on':8} why not on another, on a CPU in float32",
    ]
    return "\n".join([*lines, *(_row(name, args) for name, args in _samples().items())])


if __name__ == "__main__":
    print(text())

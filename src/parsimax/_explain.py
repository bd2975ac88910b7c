"""Which kernels a call would run, and why not others."""

from __future__ import annotations

from typing import Any

import torch

from .kernels import library
from .kernels.backends import (
    BACKENDS,
    EAGER,
    GRAPH,
    LEAN,
    PLAIN,
    TORCH,
    TRANSFORM,
    Backend,
    Request,
    formulas_of,
    near,
)
from .kernels.dispatch import request_of, wanted
from .kernels.triton import table

MODES = {
    GRAPH: "under torch.compile and torch.export",
    TRANSFORM: "under torch.func and forward-mode derivatives",
}


def explain(name: str | torch.export.ExportedProgram, *args: Any, **options: Any) -> str:
    """Which back end would run a function on these arguments, and why not the others; or what a program holds.

    The call is made up to the point where the choice falls, from the same data, so what this says is what runs.

    Args:
        name: the name of a public function, such as ``"entmax"`` or ``"entmax_loss"``; or what ``torch.export.export``
            gave, alone: the same holds for a package that AOTInductor makes of it.
        args: what it would be called with.
        options: the same, by name.

    Returns:
        A few lines of text.

    Example:
        >>> import torch, parsimax
        >>> print(parsimax.explain("rsoftmax", torch.randn(2, 3), 0.5, detach_threshold=True))
        rsoftmax: torch
          cpu: not used: detach_threshold=True has no kernel
        >>> print(parsimax.explain(torch.export.export(parsimax.Entmax15(), (torch.randn(2, 3),))))
        exported program: needs import parsimax where it runs
          parsimax::entmax: the kernel, or the formula where no kernel can run
    """
    from . import _public

    if isinstance(name, torch.export.ExportedProgram):
        return _held(name)
    function = getattr(_public, name, None)
    if name not in _public.__all__ or not callable(function) or isinstance(function, type):
        functions = [n for n in _public.__all__ if n.islower() and callable(getattr(_public, n))]
        raise ValueError(f"explain: no function is called {name!r}; there are {', '.join(functions)}")
    request = request_of(function, *args, **options)
    if request is None:
        return f"{name}: torch\n  there is nothing to choose"
    asked = wanted()
    own = name if request.name == name else f"{name}, by {request.name}"
    chosen = choice(request, asked)
    more = {"cpu": library.level(), "triton": f"launch table {table.words()}", LEAN: PLAIN[LEAN]}.get(chosen, "")
    lines = [f"{own}: {chosen}{f' ({more})' if more else ''}"]
    lines += [f"  {b.name}: not used: {r}" for b in near(request, asked) for r in reasons(b, request, asked)]
    if chosen in BACKENDS and request.mode == EAGER:
        lines += [f"  {words}: {_in_mode(request._replace(mode=mode), asked)}" for mode, words in MODES.items()]
    return "\n".join(lines)


def _held(program: torch.export.ExportedProgram) -> str:
    """The operators of this library in a program: a whole mapping, or the search of a formula written out around it."""
    graphs = [module.graph for module in program.graph_module.modules() if isinstance(module, torch.fx.GraphModule)]
    targets = {str(node.target) for graph in graphs for node in graph.nodes if node.op == "call_function"}
    own = sorted(target.split(".")[1] for target in targets if target.startswith("parsimax."))
    if not own:
        return "exported program: ordinary operators of torch, nothing of parsimax"
    kernel, formula = "the kernel, or the formula where no kernel can run", "the search of a formula in plain torch"
    lines = [f"  parsimax::{each}: {formula if each.endswith('_root') else kernel}" for each in own]
    return "\n".join(["exported program: needs import parsimax where it runs", *lines])


def reasons(backend: Backend, request: Request, asked: str) -> list[str]:
    """Why this back end does not run it."""
    own = backend.reasons_against(request)
    return own if asked in ("auto", backend.name) else [*own, f"{asked} kernels were asked for"]


def choice(request: Request, asked: str) -> str:
    """The back end that runs it: ``torch``, the name of another, or ``an error`` if the one asked for cannot."""
    able = [b.name for b in near(request, asked) if not reasons(b, request, asked)]
    if not able and asked not in ("auto", *PLAIN):
        return "an error"
    x = request.tensors[0]
    return able[0] if able else TORCH if x.dtype == torch.float64 else formulas_of(x.device.type, asked)


def _in_mode(request: Request, asked: str) -> str:
    chosen = choice(request, asked)
    if chosen in BACKENDS:
        return f"{chosen}, as an operator of the graph"
    why = "; ".join(r for b in near(request, asked) for r in b.reasons_against(request))
    return chosen if request.mode == TRANSFORM else f"{chosen}: {why}"

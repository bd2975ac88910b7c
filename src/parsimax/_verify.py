"""Which normaliser every layer of a model really computes: counted in a forward pass, not read from its settings."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import CodeType, FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.overrides import TorchFunctionMode

from ._attention import functional
from ._attention.core import AttentionCore
from .engine.modes import FAST_PATHS
from .mappings.declaration import REGISTRY, MappingModule

# What torch computes softmax by, and the names under which it is reported.
SOFTMAX: dict[Any, str] = {
    torch.softmax: "softmax",
    torch.Tensor.softmax: "softmax",
    torch.special.softmax: "softmax",
    nn.functional.softmax: "softmax",
    torch.log_softmax: "log_softmax",
    torch.Tensor.log_softmax: "log_softmax",
    nn.functional.log_softmax: "log_softmax",
    nn.functional.scaled_dot_product_attention: "softmax (scaled_dot_product_attention)",
    nn.functional.multi_head_attention_forward: "softmax (multi_head_attention_forward)",
    nn.functional.gumbel_softmax: "gumbel_softmax",
    **dict(
        zip(
            FAST_PATHS,
            ("softmax (fast path of nn.MultiheadAttention)", "softmax (fast path of nn.TransformerEncoderLayer)"),
            strict=True,
        )
    ),
}
TORCH = (nn.Softmax, nn.LogSoftmax, nn.Softmax2d, nn.MultiheadAttention)
PEER = ("sparsemax", "entmax15", "entmax_bisect", "sparsemax_bisect", "normmax_bisect", "budget_bisect")
FIXED = {1.0: "softmax", 1.5: "entmax15", 2.0: "sparsemax"}


@dataclass
class VerifiedLayer:
    """One layer: its name and class, the mapping it is meant to compute (None: not ours), and what it computed."""

    name: str
    kind: str
    meant: str | None
    ran: Counter[str] = field(default_factory=Counter)
    problem: str | None = None

    def __str__(self) -> str:
        ran = ", ".join(f"{what} ×{times}" if times > 1 else what for what, times in self.ran.items()) or "nothing"
        return f"{self.name or 'the model'} ({self.kind}): {ran}" + (f"  ✗ {self.problem}" if self.problem else "")


@dataclass
class Verification:
    """What :func:`verify` counted: ``layers``, and ``ok`` if every layer with a mapping of parsimax computed it."""

    layers: list[VerifiedLayer]

    @property
    def problems(self) -> list[VerifiedLayer]:
        return [layer for layer in self.layers if layer.problem]

    @property
    def ok(self) -> bool:
        return not self.problems

    def __str__(self) -> str:
        return "\n".join(map(str, self.layers)) or "no layer computed a mapping"


def verify(model: nn.Module, *inputs: Any, **keywords: Any) -> Verification:
    """Run a model once and count which normaliser each of its layers computes.

    A model can be configured for a sparse mapping and compute softmax: an attention function that is never asked, a
    fast path, a forgotten argument. This reads no configuration: it counts calls of softmax and of its relatives in
    torch, and of the mappings and attention of parsimax (and of the ``entmax`` package), layer by layer, in one forward
    pass without gradients.

    Args:
        model: any module, not compiled.
        inputs: what to call it with.
        keywords: further ones.

    Returns:
        A :class:`Verification`: ``ok`` is False if a layer with a mapping of parsimax computed softmax or nothing,
        ``layers`` has every layer that computed a normaliser or should have, and printing it shows them all.

    Example:
        >>> import torch, parsimax
        >>> model = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        >>> print(parsimax.verify(model, torch.randn(1, 3, 8)))
        self_attn (MultiheadAttention): softmax (multi_head_attention_forward)
        >>> model = parsimax.replace_attention(model, alpha=1.5)
        >>> print(parsimax.verify(model, torch.randn(1, 3, 8)))
        self_attn.core (AttentionCore): entmax15

    What a layer calls by another name, such as a softmax written out with ``exp``, is not counted, and neither is what
    runs inside scripted or compiled code.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"verify: model must be a torch.nn.Module, got {type(model).__name__}")
    watch = _Watch(model)
    with watch.modules(), watch.python(), watch, torch.no_grad():
        model(*inputs, **keywords)
    return Verification(watch.layers())


class _Watch(TorchFunctionMode):
    """Counts by the innermost module that runs: functions of torch as a mode, ours as a profiler of Python calls."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.names: dict[int, tuple[str, nn.Module]] = {id(each): (name, each) for name, each in model.named_modules()}
        self.stack: list[int] = []
        self.inside = 0  # how deep in functions of parsimax: what these call counts as them
        self.ran: dict[int, Counter[str]] = {}
        self.entered: set[int] = set()

    def count(self, what: str) -> None:
        at = self.stack[-1] if self.stack else id(self.model)
        self.ran.setdefault(at, Counter())[what] += 1

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not self.inside and (what := SOFTMAX.get(func)):
            self.count(what)
            self.inside += 1  # F.softmax calls Tensor.softmax
            try:
                return func(*args, **(kwargs or {}))
            finally:
                self.inside -= 1
        return func(*args, **(kwargs or {}))

    @contextmanager
    def modules(self) -> Iterator[None]:
        def enter(module: nn.Module, args: Any) -> None:
            if id(module) in self.names:
                self.stack.append(id(module))
                self.entered.add(id(module))

        def leave(module: nn.Module, args: Any, output: Any) -> None:
            if self.stack and self.stack[-1] == id(module):
                self.stack.pop()

        handles = [
            register_module_forward_pre_hook(enter),
            register_module_forward_hook(leave, always_call=True),
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    @contextmanager
    def python(self) -> Iterator[None]:
        """Every call of a function of ours, under whatever name it was imported."""
        ours = _functions()
        open_frames: list[FrameType] = []

        def look(frame: FrameType, event: str, arg: Any) -> None:
            if event == "call" and (label := ours.get(frame.f_code)):
                if not self.inside:
                    self.count(label(frame.f_locals))
                self.inside += 1
                open_frames.append(frame)
            elif event == "return" and open_frames and open_frames[-1] is frame:
                open_frames.pop()
                self.inside -= 1

        before = sys.getprofile()
        sys.setprofile(look)
        try:
            yield
        finally:
            sys.setprofile(before)

    def layers(self) -> list[VerifiedLayer]:
        found = []
        for number, (name, module) in self.names.items():
            meant = _meant(module)
            ran = self.ran.get(number, Counter())
            if not ran and meant is None and not self._idle(module):
                continue
            problem = self._problem(module, meant, ran)
            found.append(VerifiedLayer(name, type(module).__name__, meant, ran, problem))
        return found

    def _idle(self, module: nn.Module) -> bool:
        """A normaliser of torch that did not run, or whose parts did in its place."""
        return isinstance(module, TORCH) and not any(id(inner) in self.ran for inner in module.modules())

    def _problem(self, module: nn.Module, meant: str | None, ran: Counter[str]) -> str | None:
        if meant is None or meant == "softmax":
            return None
        if not ran:
            around = next((up for up, (_, each) in self.names.items() if module in each.children()), None)
            instead = self.ran.get(around) if around is not None else None
            if instead:
                return f"meant to compute {meant}, but the layer around it computed {', '.join(instead)} instead"
            return f"meant to compute {meant}, never ran in this pass"
        if wrong := [what for what in ran if "softmax" in what and what not in REGISTRY.keys() - {"softmax"}]:
            return f"meant to compute {meant}, computed {', '.join(wrong)}"
        return None


def _meant(module: nn.Module) -> str | None:
    if isinstance(module, AttentionCore):
        return module.name if module.mapping is None else type(module.mapping).__name__
    kinds = {entry.module: entry.name for entry in REGISTRY.values()}
    return kinds.get(type(module)) if isinstance(module, MappingModule) else None


def _functions() -> dict[CodeType, Callable[[dict[str, Any]], str]]:
    """The code of our functions, and how each is called given its arguments."""
    known: dict[CodeType, Callable[[dict[str, Any]], str]] = {}
    for entry in REGISTRY.values():
        known[entry.function.__code__] = _labelled(entry.name)
    known[functional._entmax_attention.__code__] = _labelled("entmax")
    known[functional._fused_attention.__code__] = lambda given: str(given["name"])
    known[functional._plain_attention.__code__] = lambda given: str(given["mapping"].func.__name__)
    for name, function in vars(sys.modules.get("entmax", object)).items():  # the peer package, if the model uses it
        if name in PEER:
            known[function.__code__] = _labelled(f"{name} (entmax package)")
    return known


def _labelled(name: str) -> Callable[[dict[str, Any]], str]:
    def label(given: dict[str, Any]) -> str:
        return _entmax(given["alpha"]) if name == "entmax" else name

    return label


def _entmax(alpha: Any) -> str:
    values = alpha.detach().double().flatten() if isinstance(alpha, Tensor) else torch.tensor([float(alpha)])
    if values.numel() == 0:
        return "entmax"
    low, high = values.min().item(), values.max().item()
    return FIXED.get(low, f"entmax α={low:g}") if low == high else f"entmax α={low:.4g}…{high:.4g}"

"""What the file of a mapping says about it, as the bases of its module class; everything else follows from that.

    class Sparsegen(MappingModule, function=sparsegen, setting=LAM, entropy=…, conjugate=…):
        lam: float | Tensor

makes the registry entry, the module with its constructor, ``repr`` and docstring, both exports, the row of the docs,
the option of recipes and attention, and puts the mapping through the contract tests.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from torch import Tensor

from ..engine.arguments import Interval
from ..engine.chunked import Formula
from ..engine.fused import RowKernel
from ..parameters import Adjustable, Setting, short

COMMON = ("mask", "dtype")  # options of every mapping; any other one that is keyword-only is a mapping's own


@dataclass(frozen=True)
class Regulariser:
    """What makes a mapping the gradient of a convex function, and so gives it a loss.

    ``entropy(p, [parameter])`` is H, and ``conjugate(z, live, [parameter], solve=…)`` the maximum of p.z + H(p); both
    along the last dimension, in the working precision. ``domain`` is where the loss needs the parameter to be.
    """

    entropy: Callable[..., Tensor]
    conjugate: Formula
    domain: Interval | None = None


@dataclass(frozen=True)
class Entry:
    """A mapping and what the rest of the library needs to know of it."""

    name: str
    function: Callable[..., Any]
    module: type[MappingModule]
    setting: Setting | None = None
    formula: Formula | None = None
    kernel: RowKernel | None = None
    regulariser: Regulariser | None = None
    sparse: bool = True
    shift_invariant: bool = True
    total: float | str = 1  # what a row sums to: a number, or the name of a parameter
    alpha: float | None = None  # the α at which entmax is this mapping
    options: dict[str, Any] = field(default_factory=dict)  # switches of its own, with their defaults

    @property
    def loss_setting(self) -> Setting | None:
        """The setting as the loss has it, whose domain may be smaller."""
        domain = self.regulariser.domain if self.regulariser else None
        return replace(self.setting, domain=domain) if self.setting and domain else self.setting

    @property
    def switches(self) -> set[str]:
        """The options that change the probabilities, not what else is returned."""
        return {name for name in self.options if not name.startswith("return_")}

    @property
    def place(self) -> tuple[bool, float, str]:
        """Where it stands in lists: entmax and its members first, by α."""
        member = self.alpha is not None or self.name == "entmax"
        return not member, float("inf") if self.alpha is None else self.alpha, self.name


REGISTRY: dict[str, Entry] = {}


class MappingModule(Adjustable):
    """A mapping over ``dim``; what the modules have in common. ``forward(scores, mask=None)``.

    A subclass that gives ``function`` declares a mapping.
    """

    entry: ClassVar[Entry]
    function: ClassVar[Callable[..., Any]]
    dim: int

    def __init_subclass__(
        cls,
        function: Callable[..., Any] | None = None,
        setting: Setting | None = None,
        formula: Formula | None = None,
        kernel: RowKernel | None = None,
        entropy: Callable[..., Tensor] | None = None,
        conjugate: Formula | None = None,
        loss_domain: Interval | None = None,
        sparse: bool = True,
        shift_invariant: bool = True,
        total: float | str = 1,
        alpha: float | None = None,
    ) -> None:
        super().__init_subclass__()
        if function is None:
            return
        if (entropy is None) != (conjugate is None):
            raise TypeError(f"{cls.__name__}: a loss needs both, entropy and conjugate")
        regulariser = Regulariser(entropy, conjugate, loss_domain) if entropy and conjugate else None
        arguments = inspect.signature(function).parameters.values()
        options = {a.name: a.default for a in arguments if a.kind is a.KEYWORD_ONLY and a.name not in COMMON}
        cls.function, name = staticmethod(function), function.__name__
        cls.entry = Entry(
            name,
            function,
            cls,
            setting,
            formula,
            kernel,
            regulariser,
            sparse=sparse,
            shift_invariant=shift_invariant,
            total=total,
            alpha=alpha,
            options=options,
        )
        cls.__signature__ = _signature(cls.entry)  # type: ignore[attr-defined]
        cls.__doc__ = cls.__doc__ if "__doc__" in vars(cls) and cls.__doc__ else _docstring(cls.entry)
        if setting is not None:
            setattr(cls, setting.name, setting_property(setting.name))
        REGISTRY[name] = cls.entry

    def __init__(self, *values: Any, **named: Any) -> None:
        super().__init__()
        entry, where = type(self).entry, type(self).__name__
        try:
            given = _signature(entry).bind(*values, **named)
        except TypeError as error:
            raise TypeError(f"{where}: {error}; it is {where}{_signature(entry)}") from None
        given.apply_defaults()
        self.dim = given.arguments.pop("dim")
        self._options = {name: given.arguments.pop(name) for name in entry.options}
        if entry.setting is not None:
            self.hold(entry.setting, given.arguments.pop(entry.setting.name), where, **given.arguments)

    def settings(self) -> dict[str, Any]:
        """What is passed to the function beside scores, dim and mask."""
        now = {name: self.value(name) for name in self._settings}
        for name, value in self._options.items():
            if value:
                now[name] = value
        return now

    def forward(self, scores: Tensor, mask: Tensor | None = None) -> Any:
        given = self.settings() if self._settings or self._options else {}
        return type(self).function(scores, dim=self.dim, mask=mask, **given)

    def extra_repr(self) -> str:
        options = [f"{name}={short(value)}" for name, value in self._options.items() if value]
        return ", ".join([*self.shown(), *options, f"dim={self.dim}"])

    def __repr__(self) -> str:  # one line: what holds a learned value is no child worth a line of its own
        return f"{type(self).__name__}({self.extra_repr()})"


def setting_property(name: str) -> property:
    """A setting as an attribute: the value in use, and a new one for a fixed setting."""

    def get(self: Adjustable) -> Any:
        if name not in self._settings:
            raise AttributeError(f"this {type(self).__name__} has no {name}")
        return self.value(name)

    def put(self: Adjustable, value: Any) -> None:
        self.change(name, value)

    return property(get, put, doc=f"The {name} in use: a number, or a tensor that carries the gradient.")


def _signature(entry: Entry) -> inspect.Signature:
    """Of the module's constructor: the setting, dim, the mapping's options, and how the setting is learned."""
    kind, of = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter
    arguments, setting = [of("dim", kind, default=-1)], entry.setting
    arguments += [of(name, kind, default=value) for name, value in entry.options.items()]
    if setting is not None:
        default = of.empty if setting.default is None else setting.default
        arguments.insert(0, of(setting.name, kind, default=default))
        if setting.continuous:
            arguments += [of("learnable", kind, default=False), of("shape", kind, default=())]
            arguments += [of("interval", kind, default=None)]
    return inspect.Signature(arguments)


def _docstring(entry: Entry) -> str:
    name, module, setting = entry.name, entry.module.__name__, entry.setting
    about, shown = f":func:`{name}` as a module.", ""
    if setting is not None:
        shown = f"{setting.example:g}"
        kinds = ", a tensor, a schedule or ``" + '"learned"``' if setting.continuous else " or a schedule"
        about = f":func:`{name}` as a module, with its ``{setting.name}``: a number{kinds}."
    call, dim = f"{module}({shown})", f"{setting.name}={shown}, dim=-1" if setting else "dim=-1"
    lines = [
        about,
        "",
        "The arguments are those of the function, and how a setting is learned, as in :class:`Entmax`.",
        "",
        "Example:",
        "    >>> import torch, parsimax",
        f"    >>> parsimax.{call}",
        f"    {module}({dim})",
        f"    >>> parsimax.{call}(torch.zeros(2, 5)).shape",
        "    torch.Size([2, 5])",
    ]
    return "\n".join(lines)

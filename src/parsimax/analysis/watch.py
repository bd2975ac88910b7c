"""Watching a model run: what its attention layers show, sorted into examples."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from .example import KEYS, SOURCE, TARGET, Example, make_example
from .layers import Layer, attention_name, guess_kinds, in_decoder
from .weights import RowBlocks, SparseWeights

# Which argument of a module says where padding is, of which sequence, and whether its True means a token.
MASKS = {
    "attention_mask": (SOURCE, True),
    "encoder_attention_mask": (SOURCE, True),
    "decoder_attention_mask": (TARGET, True),
    "src_key_padding_mask": (SOURCE, False),
    "memory_key_padding_mask": (SOURCE, False),
    "tgt_key_padding_mask": (TARGET, False),
}
OWN_MASK = "key_padding_mask"  # of an attention module: of the keys of that layer, True (or -inf) is padding
MASKS_OF_A_DECODER = {**MASKS, "attention_mask": (TARGET, True)}


class Observation(Protocol):
    """What the core of an attention layer tells its observers after each call."""

    core: Any
    batch: int
    heads: int
    queries: int
    keys: int
    alpha: Tensor | None
    again: bool  # a second forward pass of activation checkpointing

    def blocks(self) -> Iterator[tuple[int, Tensor]]: ...

    def visible(self) -> Tensor: ...

    def padding(self) -> Tensor | None: ...


@dataclass
class Shown:
    """What one outermost call of a part of the model showed: by layer, the weights of each example."""

    weights: dict[str, list[list[SparseWeights]]] = field(default_factory=dict)
    masks: dict[str, Tensor] = field(default_factory=dict)

    @property
    def batch(self) -> int:
        sizes = {name: len(weights) for name, weights in self.weights.items()}
        if len({*sizes.values()}) > 1:
            seen = ", ".join(f"{name} {size}" for name, size in sizes.items())
            raise ValueError(f"record: layers saw different numbers of examples ({seen}); record one part at a time")
        return next(iter(sizes.values()), 0)


class Watch:
    """Observes the cores of a model, and sorts what they show into examples."""

    def __init__(self, model: nn.Module) -> None:
        cores = {name: m for name, m in model.named_modules() if isinstance(vars(m).get("observers"), list)}
        if not cores:
            raise ValueError(
                f"record: {type(model).__name__} has no attention layer of parsimax. Change a transformers model by "
                "parsimax.huggingface.sparsify(model, mapping=…), which takes softmax too, or build yours with "
                "parsimax.MultiheadAttention"
            )
        self.names = {module: attention_name(name) for name, module in cores.items()}
        self.kinds = guess_kinds(self.names.values())
        self.around = {
            name: module
            for name, module in model.named_modules()
            if any(core == name or core.startswith(f"{name}." if name else "") for core in cores)
        }
        self.layers: list[Layer] = []
        self.examples: list[Example] = []
        self.seen: dict[str, Layer] = {}
        self.inside: list[nn.Module] = []
        self.call = Shown()
        self.group: Shown | None = None  # the batch that may still get more rows or more layers
        self.generated = False
        self.ran = self.observed = False  # a part of the model that holds attention; the attention itself
        self.handles: list[Any] = []

    def start(self) -> None:
        for core in self.names:
            core.observers.append(self.observe)
        for name, module in self.around.items():
            decodes = in_decoder(name) and "decoder" in self.kinds.values()
            masks = MASKS_OF_A_DECODER if decodes else MASKS
            if kind := next((self.kinds[self.names[part]] for part in module.children() if part in self.names), None):
                masks = {**masks, OWN_MASK: (KEYS[kind], False)}
            enter = partial(self.enter, [*_parameters(module)], masks)
            self.handles.append(module.register_forward_pre_hook(enter, with_kwargs=True))
            self.handles.append(module.register_forward_hook(self.leave, always_call=True))

    def stop(self) -> None:
        for core in self.names:
            core.observers.remove(self.observe)
        for handle in self.handles:
            handle.remove()
        self.close()

    def enter(
        self,
        parameters: Sequence[str],
        masks: Mapping[str, tuple[str, bool]],
        module: nn.Module,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
    ) -> None:
        if not self.inside:
            self.call = Shown()
        self.inside.append(module)
        given = {**dict(zip(parameters, args, strict=False)), **kwargs}
        for argument, (side, keeps) in masks.items():
            mask = given.get(argument)
            if argument == OWN_MASK and isinstance(mask, Tensor) and mask.dim() == 1:
                mask = mask[None]  # of a single example
            if isinstance(mask, Tensor) and mask.dim() == 2:
                kept = mask.detach() != 0 if keeps else mask.detach() == 0
                self.call.masks.setdefault(side, kept.cpu())  # what the outermost module was given counts

    def leave(self, module: nn.Module, args: Any, output: Any) -> None:
        if module not in self.inside:
            return
        while self.inside.pop() is not module:
            pass
        if not self.inside:
            call, self.call = self.call, Shown()
            failed = output is None and sys.exc_info()[0] is not None
            self.ran = self.ran or not failed
            if call.weights and not failed:
                self.sort(call)

    def observe(self, seen: Observation) -> None:
        if seen.again:
            return
        self.observed = True
        pieces = [RowBlocks(seen.heads, seen.queries, seen.keys) for _ in range(seen.batch)]
        for _, block in seen.blocks():
            for own, weights in zip(pieces, block, strict=True):
                own.add(weights)
        rows = [own.join(visible.clone()) for own, visible in zip(pieces, seen.visible(), strict=True)]
        name, kind = self.slot(self.names[seen.core], seen.queries), self.kinds[self.names[seen.core]]
        alpha = None if seen.alpha is None else seen.alpha.tolist()
        self.seen[name] = Layer(name, kind, str(seen.core.name), seen.heads, alpha)
        if (padding := seen.padding()) is not None:
            self.call.masks.setdefault(KEYS[kind], padding)
        if name in self.call.weights:
            for so_far, more in zip(self.call.weights[name], rows, strict=True):
                so_far.append(more)
        else:
            self.call.weights[name] = [[each] for each in rows]
        if not self.inside:  # its forward was called directly, around the hooks
            call, self.call = self.call, Shown()
            self.sort(call)

    def slot(self, name: str, queries: int) -> str:
        """A core called again in the same call is the same layer's next step, or with several queries a further layer
        that shares its weights."""
        slot, times = name, 1
        while slot in self.call.weights and queries != 1:
            times += 1
            slot = f"{name} ({times})"
        return slot

    def sort(self, call: Shown) -> None:
        """Join a call to the open batch: further layers of it, further rows of it, or the beginning of another."""
        group, batch = self.group, call.batch
        if group is None or not self.belongs(call, group):
            self.close()
            self.group = call
            return
        if batch > group.batch:  # beams: each example several times, one beside the other
            times = batch // group.batch
            group.weights = {n: [list(w) for w in own for _ in range(times)] for n, own in group.weights.items()}
            group.masks = {side: mask.repeat_interleave(times, 0) for side, mask in group.masks.items()}
        for name, rows in call.weights.items():
            if name not in group.weights:
                group.weights[name] = rows
                continue
            self.generated = True
            for own, more in zip(group.weights[name], rows, strict=True):
                own += more
        group.masks |= call.masks

    def belongs(self, call: Shown, group: Shown) -> bool:
        again = [name for name in call.weights if name in group.weights]
        if not again:
            return group.batch > 0 and call.batch % group.batch == 0
        if call.batch != group.batch or call.batch == 0 or any(len(call.weights[name][0]) > 1 for name in again):
            return False
        inside = [name for name in again if self.seen[name].kind != "cross"]
        return all(_goes_on(group.weights[name][0], call.weights[name][0][0]) for name in inside or again)

    def close(self) -> None:
        """Make examples of the open batch."""
        group, self.group = self.group, None
        if group is None:
            return
        for name, rows in group.weights.items():
            known = next((layer for layer in self.layers if layer.name == name), None)
            if known is None:
                known = self.seen[name]
                known.kind = _kind(known, rows)
                self.layers.append(known)
                for example in self.examples:
                    example.weights.append(SparseWeights.empty(known.heads))
            known.alpha = self.seen[name].alpha
        for i in range(group.batch):
            weights = [
                _join(layer, group.weights[layer.name][i])
                if layer.name in group.weights
                else SparseWeights.empty(layer.heads)
                for layer in self.layers
            ]
            masks = {side: mask[i] for side, mask in group.masks.items() if len(mask) == group.batch}
            self.examples.append(make_example(self.layers, weights, masks, self.generated))
        self.generated = False


def _parameters(module: nn.Module) -> Iterable[str]:
    try:
        return inspect.signature(module.forward).parameters
    except (TypeError, ValueError):  # not a Python function
        return ()


def _goes_on(before: Sequence[SparseWeights], piece: SparseWeights) -> bool:
    """Whether a piece continues the rows of an example: its keys are those of before, or these and its own."""
    _, queries, keys = piece.shape
    last = before[-1].shape[2]
    grown, fixed = keys == last + queries, keys == last and (queries == 1 or _fills_room(before[-1], piece))
    return queries < keys and (grown or fixed)


def _fills_room(before: SparseWeights, piece: SparseWeights) -> bool:
    """Whether each query may see one key more than the one before it: those of a cache of fixed size."""
    if before.visible is None or piece.visible is None:
        return False
    return bool((torch.cat([before.visible[:1, -1:], piece.visible[:1]], 1).diff() == 1).all())


def _join(layer: Layer, pieces: Sequence[SparseWeights]) -> SparseWeights:
    """All rows. The keys of a sliding cache are the last ones of those so far."""
    placed, rows = [], 0
    for piece in pieces:
        rows += piece.shape[1]
        gone = rows - piece.shape[2] if layer.kind != "cross" else 0
        placed.append(piece.moved(gone) if gone > 0 else piece)
    return SparseWeights.join(placed)


def _kind(layer: Layer, rows: Sequence[Sequence[SparseWeights]]) -> str:
    """A layer whose queries and keys differ in number attends across sequences, unless its name says "self"."""
    if layer.kind == "cross" or "self" in layer.name.lower() or not rows:
        return layer.kind
    pieces = rows[0]
    across = len({p.shape[2] for p in pieces}) == 1 and sum(p.shape[1] for p in pieces) != pieces[0].shape[2]
    return "cross" if across else layer.kind

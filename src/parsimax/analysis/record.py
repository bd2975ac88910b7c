"""Recording attention while a model runs."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import nn

from .example import Example
from .layers import Layer
from .recording import Recording, Tokens, check_tokens
from .storage import load
from .watch import Watch

__all__ = ["Example", "Layer", "Recording", "load", "record"]


@contextmanager
def record(model: nn.Module, tokens: Tokens | None = None, target_tokens: Tokens | None = None) -> Iterator[Recording]:
    """Record the attention weights of a model while it runs.

    Each example of each batch becomes one example of the recording, when the block ends. Weights lose their zeros a
    block of rows at a time, so that a long input needs no matrix of all its weights. The model is as before afterwards,
    whatever happens in the block; in the block compiled models run as if they were not compiled.

    Padding is left out where a 2-dimensional ``attention_mask`` (or ``src_key_padding_mask``, the same of the decoder,
    or ``key_padding_mask`` of an attention module) that was given says where it is, else where an example has fewer
    tokens than queries, which means padding on the right. Generating with a cache appends one query after the other to
    the same examples. Beams change places while they are searched: to see the attention of the result, run the model
    on it once more.

    Args:
        model: any module with :class:`parsimax.MultiheadAttention` in it, or one that
            ``parsimax.huggingface.sparsify`` has changed. The mapping may be softmax.
        tokens: a list of strings for each example, of the encoder or of the only sequence; or assign
            ``recording.tokens`` later. With the padding or without. Those of a generated sequence are its whole output.
        target_tokens: the same for the decoder.

    Returns:
        A context manager that gives the :class:`Recording`.

    Example:
        >>> import torch, parsimax
        >>> from parsimax import analysis
        >>> layer = parsimax.MultiheadAttention(16, 4, mapping="sparsemax", batch_first=True)
        >>> x = torch.randn(1, 3, 16)
        >>> with analysis.record(layer, tokens=["a", "small", "example"]) as recording:
        ...     output, _ = layer(x, x, x)
        >>> recording.layers[0].mapping, recording.examples[0].weights[0].shape
        ('sparsemax', (4, 3, 3))

    Reference: Correia, Niculae and Martins, Adaptively Sparse Transformers, EMNLP 2019 (section 5, what to look for).
    """
    for given in (tokens, target_tokens):
        if given is not None:
            check_tokens(given, "record")
    watch = Watch(model)
    recording = Recording(watch.layers, watch.examples)
    with _eager():
        watch.start()
        try:
            yield recording
        finally:
            watch.stop()
    if watch.ran and not watch.observed:
        raise RuntimeError(_unseen(model))
    recording.give(tokens, target_tokens, "record")


def _unseen(model: nn.Module) -> str:
    what = f"record: {type(model).__name__} ran, but its attention did not go through parsimax: "
    now = getattr(getattr(model, "config", None), "_attn_implementation", None)
    if now is None:
        return f"{what}none of its attention layers was called, so that there is nothing to record"
    return (
        f"{what}the attention implementation was changed to {now!r} afterwards (set_attn_implementation does so); "
        "call parsimax.huggingface.sparsify(model, …) again"
    )


def _eager() -> AbstractContextManager[Any]:
    """A compiled graph has no place for observers. Without torch's compiler loaded, a long import, there is none."""
    return torch.compiler.set_stance("force_eager") if "torch._dynamo" in sys.modules else nullcontext()

"""The one call for all methods."""

from __future__ import annotations

import torch
from torch import Tensor

from ..structured import OneOf, Structure
from ..structured.structure import Scores
from .expected import Expected, LossOf
from .marginalisers import Method


def expected_loss(
    scores: Scores,
    loss_of: LossOf,
    method: Method,
    *,
    structure: Structure | None = None,
    context: Tensor | None = None,
    chunk: int | None = None,
) -> Expected:
    r"""The expectation of a loss over a discrete latent variable, and its gradient, by any method.

    .. math:: \mathbb{E}_{z \sim \pi(\eta)} [\ell(x, z)]

    Args:
        scores: (batch, …), η: the scores of one-of-n, or those that the structure takes.
        loss_of: ``loss_of(example, z)`` is called once, on the pairs that the method needs: ``example`` (pairs,) are
            rows of the batch, ``z`` (pairs, …) indices, bits, labels, or relaxed vectors for
            :class:`~parsimax.latent.Gumbel`. It returns (pairs,) losses, or a tuple of them and a dictionary of
            (pairs,) metrics.
        method: ``Marginal``, ``TopK``, ``SparseMAP``, ``ScoreFunction``, ``Gumbel`` or ``SumAndSample`` of
            :mod:`parsimax.latent`. They are modules: baselines have state.
        structure: of z; one-of-n if it is not given.
        context: (batch, …), what a baseline network reads.
        chunk: evaluate so many pairs at a time, and again in the backward pass, instead of holding all activations.

    Returns:
        An :class:`~parsimax.latent.Expected`: loss, entropy, calls, and what was evaluated.

    Example:
        >>> import torch, parsimax
        >>> encoder, decoder = torch.nn.Linear(4, 10), torch.nn.Linear(10, 4)
        >>> x, code = torch.randn(3, 4), torch.eye(10)
        >>> def reconstruction(example, z):
        ...     return (decoder(code[z]) - x[example]).square().sum(-1)
        >>> out = parsimax.expected_loss(encoder(x), reconstruction, parsimax.latent.Marginal("sparsemax"))
        >>> (out.loss - 0.1 * out.entropy).mean().backward()
        >>> len(out.z) == out.calls.sum()
        tensor(True)

    Reference: Correia, Niculae, Aziz and Martins, Efficient Marginalization of Discrete and Structured Latent Variables
    via Sparsity, NeurIPS 2020.
    """
    chosen = OneOf() if structure is None else structure
    if not isinstance(method, Method):
        given = f"the class {method.__name__}; write {method.__name__}(…)" if isinstance(method, type) else repr(method)
        raise TypeError(f"expected_loss: method is one of parsimax.latent, got {given}")
    if not isinstance(chosen, Structure):
        given = f"the class {chosen.__name__}; write {chosen.__name__}()" if isinstance(chosen, type) else repr(chosen)
        raise TypeError(f"expected_loss: structure is one of parsimax.structured, such as Bits(), got {given}")
    if not callable(loss_of):
        raise TypeError(f"expected_loss: loss_of is a function of (example, z), got {type(loss_of).__name__}")
    parts = scores if isinstance(scores, tuple) else (scores,)
    if not parts or not all(isinstance(part, Tensor) for part in parts):
        kinds = ", ".join(type(part).__name__ for part in parts)
        given = f"a tuple of ({kinds})" if isinstance(scores, tuple) else f"a {kinds}"
        raise TypeError(
            f"expected_loss: scores are a tensor, or a tuple of tensors where the structure takes one, got {given}; "
            "make tensors with torch.tensor(…) or torch.stack(…)"
        )
    first = parts[0]
    if first.dim() != chosen.dims + 1:
        raise ValueError(
            f"expected_loss: scores have one dimension of examples before those of {chosen}, {chosen.form}, got "
            f"{tuple(first.shape)}; flatten several into one"
        )
    with torch.no_grad():  # raises what is wrong with the scores, in the name of this function
        chosen.problem(scores, "expected_loss")
    if context is not None and (not isinstance(context, Tensor) or context.shape[:1] != first.shape[:1]):
        given = str(tuple(context.shape)) if isinstance(context, Tensor) else type(context).__name__
        raise ValueError(f"expected_loss: context is a tensor with the {len(first)} examples first, got {given}")
    if chunk is not None and (not isinstance(chunk, int) or isinstance(chunk, bool) or chunk < 1):
        raise ValueError(f"expected_loss: chunk is a whole number of pairs, 1 or more, got {chunk!r}")
    out: Expected = method(scores, loss_of, chosen, context, chunk)
    return out

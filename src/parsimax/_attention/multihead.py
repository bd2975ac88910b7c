"""``nn.MultiheadAttention`` with any mapping in place of softmax."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..engine.arguments import Interval, check_count, check_number
from ..mappings.registry import MappingLike
from ..parameters import Schedule
from . import biases, masks
from .cache import KeyValueCache
from .core import AttentionCore

WHERE = "MultiheadAttention"


class MultiheadAttention(nn.Module):
    r"""Multi-head attention with the constructor, call and state of ``torch.nn.MultiheadAttention``, and any mapping.

    .. math:: \operatorname{concat}_h\bigl(\operatorname{mapping}(q_h k_h^\top / \sqrt{d})\, v_h\bigr)\, W_o

    Weights of a ``torch.nn.MultiheadAttention`` load into it and, with ``mapping="softmax"``, give the same output. It
    takes its place in ``nn.TransformerEncoderLayer``, ``nn.TransformerDecoderLayer`` and ``nn.Transformer``, and runs
    there in every mode: torch's fast path, which would compute softmax from its weights, is not taken.
    :func:`replace_attention` puts it into a whole model.

    Args:
        embed_dim: features of query and output.
        num_heads: heads, which share the features.
        dropout: share of weights to drop in training.
        bias: add biases to the projections.
        add_bias_kv: add a learned key and value to each sequence.
        add_zero_attn: add a key and value of zeros to each sequence.
        kdim: features of key, if other than ``embed_dim``.
        vdim: features of value, if other than ``embed_dim``.
        batch_first: (batch, length, features) rather than (length, batch, features).
        device: of the parameters.
        dtype: of the parameters.
        mapping: a mapping of parsimax: its name, function or module. Not given it is "softmax", or "entmax" if there
            is an ``alpha``.
        alpha: a number, a tensor of one per head, a schedule, or ``"learned"``: one parameter per head.
        settings: the mapping's own such as ``rate=0.8``, and further arguments of :class:`AttentionCore`:
            ``start``, ``interval``, ``heads``, ``length_scaling``.

    Example:
        >>> import torch, parsimax
        >>> layer = parsimax.MultiheadAttention(16, 2, batch_first=True, alpha="learned")
        >>> layer.core
        AttentionCore(num_heads=2, mapping=entmax, alpha=1.5 learned)
        >>> text = torch.randn(3, 5, 16)
        >>> out, weights = layer(text, text, text, key_padding_mask=torch.arange(5).expand(3, 5) > 3)
        >>> out.shape, weights[..., 4].unique()
        (torch.Size([3, 5, 16]), tensor([0.], grad_fn=<Unique2Backward0>))

    It differs from torch in that a query with nothing to attend to gets zeros before the output projection, where
    torch gives NaN; weights are those before dropout; ``is_causal=True`` needs no ``attn_mask`` beside it; masks of
    different types may be mixed; and keys added by ``add_bias_kv`` stay visible under ``is_causal``.

    Reference: Vaswani et al., Attention Is All You Need, 2017; Correia, Niculae and Martins, Adaptively Sparse
    Transformers, EMNLP 2019.
    """

    in_proj_weight: Tensor | None
    in_proj_bias: Tensor | None
    q_proj_weight: Tensor
    k_proj_weight: Tensor
    v_proj_weight: Tensor
    bias_k: Tensor | None
    bias_v: Tensor | None

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        add_bias_kv: bool = False,
        add_zero_attn: bool = False,
        kdim: int | None = None,
        vdim: int | None = None,
        batch_first: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        mapping: MappingLike | None = None,
        alpha: float | Tensor | str | Schedule | None = None,
        **settings: Any,
    ) -> None:
        super().__init__()
        self.embed_dim = check_count(embed_dim, "embed_dim", WHERE)
        self.num_heads = check_count(num_heads, "num_heads", WHERE)
        if embed_dim % num_heads:
            raise ValueError(f"{WHERE}: embed_dim must be divisible by num_heads, got {embed_dim} and {num_heads}")
        self.head_dim = embed_dim // num_heads
        self.kdim = embed_dim if kdim is None else check_count(kdim, "kdim", WHERE)
        self.vdim = embed_dim if vdim is None else check_count(vdim, "vdim", WHERE)
        self.dropout = check_number(dropout, Interval(0, 1), "dropout", WHERE)
        self.batch_first = batch_first
        self.add_zero_attn = add_zero_attn
        one = self.kdim == self.vdim == embed_dim
        shapes = {
            "in_proj_weight": (3 * embed_dim, embed_dim) if one else None,
            "q_proj_weight": None if one else (embed_dim, embed_dim),
            "k_proj_weight": None if one else (embed_dim, self.kdim),
            "v_proj_weight": None if one else (embed_dim, self.vdim),
            "in_proj_bias": (3 * embed_dim,) if bias else None,
            "bias_k": (1, 1, embed_dim) if add_bias_kv else None,
            "bias_v": (1, 1, embed_dim) if add_bias_kv else None,
        }
        for name, shape in shapes.items():
            parameter = None if shape is None else nn.Parameter(torch.empty(shape, device=device, dtype=dtype))
            self.register_parameter(name, parameter)
        self.out_proj = nn.Linear(embed_dim, embed_dim, bias=bias, device=device, dtype=dtype)
        self.core = AttentionCore(num_heads, mapping, alpha=alpha, **settings).to(device=device, dtype=dtype)
        self._reset_parameters()
        self.register_forward_pre_hook(_is_called)

    @property
    def _qkv_same_embed_dim(self) -> bool:
        """As in torch: one matrix projects query, key and value.

        ``nn.TransformerEncoderLayer`` asks this before it takes its fast path, which computes softmax without calling
        us. It does not take it where a module has hooks, so the answer is yes as long as ours is there.
        """
        return self.in_proj_weight is not None and _is_called in self._forward_pre_hooks.values()

    def _reset_parameters(self) -> None:
        """As torch does, and with the same random numbers."""
        for name in ("in_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight"):
            if getattr(self, name) is not None:
                nn.init.xavier_uniform_(getattr(self, name))
        for bias in (self.in_proj_bias, self.out_proj.bias):
            if bias is not None:
                nn.init.zeros_(bias)
        for token in (self.bias_k, self.bias_v):
            if token is not None:
                nn.init.xavier_normal_(token)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
        *,
        cache: KeyValueCache | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Attend from each position of ``query`` to those of ``key`` and ``value``.

        Args:
            query: (length, batch, features), or (batch, length, features) if ``batch_first``, or (length, features).
            key: the same with its own length and ``kdim`` features.
            value: the same with the length of ``key`` and ``vdim`` features.
            key_padding_mask: (batch, keys), or (keys,) without batch: True = not to be attended to, or numbers to add.
            need_weights: give the weights too. Without them a kernel of the CPU computes softmax, the entmax family and
                the mappings that :func:`attention` names with no matrix of queries x keys; any other mapping makes one.
            attn_mask: (queries, keys) or (batch x heads, queries, keys): True = forbidden, or numbers to add; or a
                causal bias of ``torch.nn.attention.bias``. Keys in a cache count, and come first.
            average_attn_weights: average the weights over the heads.
            is_causal: query i attends to keys 0…i; in a cache, i counts from its first key. Beside an ``attn_mask`` it
                says that this is the causal one, and is believed.
            cache: attend to the keys of earlier calls too, and remember those of this one.

        Returns:
            A pair: the output, shaped as the query, and the weights (batch, queries, keys), (batch, heads, queries,
            keys) if not averaged, or None.
        """
        if query.is_nested or key.is_nested or value.is_nested:
            masks_given = key_padding_mask is not None or attn_mask is not None or is_causal or cache is not None
            return self._forward_nested(query, key, value, masks_given or need_weights)
        self._check(query, key, value)
        batched = query.dim() == 3
        if not batched:
            at = 0 if self.batch_first else 1
            given = {id(t): t.unsqueeze(at) for t in (query, key, value)}  # the same ones stay the same
            query, key, value = (given[id(t)] for t in (query, key, value))
            key_padding_mask = None if key_padding_mask is None else key_padding_mask.unsqueeze(0)
        before, grown = 0 if cache is None else len(cache), cache
        new = key.shape[1 if self.batch_first else 0]
        if cache is None:
            q, k, v = self._project(query, key, value)
        elif cache.static and cache.filled:
            q, k, v, new, before = self._project_query(query), cache.key, cache.value, len(cache), 0
            if len(k) != len(q):
                raise ValueError(f"{WHERE}: the static cache holds a batch of {len(k)}, the query has one of {len(q)}")
            key_padding_mask = cache.padding
        else:
            q, k, v = self._project(query, key, value)
            masks.checked(None, key_padding_mask, len(k), self.num_heads, (0, 0, new), WHERE)
            grown = cache.appended(k, v, key_padding_mask)
            k, v, key_padding_mask, new = grown.key, grown.value, grown.padding, len(grown)
        sizes = (q.shape[2], k.shape[2], new)
        if biases.is_bias(attn_mask):
            allowed, is_causal = biases.resolved(attn_mask, False, *sizes[:2], q.device, WHERE, before)
            attn_mask = None if allowed is None else ~allowed
        attn_mask = masks.checked(attn_mask, key_padding_mask, len(q), self.num_heads, sizes, WHERE)
        mask, is_causal = self._mask(q, k, attn_mask, key_padding_mask, before, is_causal, need_weights)
        k, v = self._extended(k, v)
        dropout = self.dropout if self.training else 0.0
        result = self.core(q, k, v, attn_mask=mask, is_causal=is_causal, dropout_p=dropout, return_weights=need_weights)
        if cache is not None and grown is not None:
            cache.become(grown)  # not before the call has gone well
        out, weights = result if need_weights else (result, None)
        out = out.transpose(1, 2) if self.batch_first else out.permute(2, 0, 1, 3)
        out = self.out_proj(out.flatten(2))
        if weights is not None and average_attn_weights:
            weights = weights.mean(1)
        if not batched:
            out, weights = out.squeeze(0 if self.batch_first else 1), None if weights is None else weights.squeeze(0)
        return out, weights

    def _check(self, query: Tensor, key: Tensor, value: Tensor) -> None:
        if query.dim() not in (2, 3) or not query.dim() == key.dim() == value.dim():
            raise ValueError(
                f"{WHERE}: query, key and value must all be (length, batch, features) or all (length, features), got "
                f"{tuple(query.shape)}, {tuple(key.shape)} and {tuple(value.shape)}"
            )
        given = tuple(t.shape[-1] for t in (query, key, value))
        wanted = (self.embed_dim, self.kdim, self.vdim)
        batch = 0 if self.batch_first else 1
        if given != wanted or key.shape[:-1] != value.shape[:-1]:
            raise ValueError(
                f"{WHERE}: query, key and value must have {wanted} features, and key and value one length and batch, "
                f"got {tuple(query.shape)}, {tuple(key.shape)} and {tuple(value.shape)}"
            )
        if query.dim() == 3 and query.shape[batch] != key.shape[batch]:
            raise ValueError(
                f"{WHERE}: query and key must have one batch size, got {query.shape[batch]} and {key.shape[batch]} "
                f"with batch_first={self.batch_first}"
            )

    def _split(self, x: Tensor) -> Tensor:
        """(batch, heads, length, features of a head) of a projection."""
        x = x.unflatten(-1, (self.num_heads, self.head_dim))
        return x.transpose(1, 2) if self.batch_first else x.permute(1, 2, 0, 3)

    def _weights(self) -> tuple[Tensor, ...]:
        if self.in_proj_weight is not None:
            return self.in_proj_weight.chunk(3)
        return self.q_proj_weight, self.k_proj_weight, self.v_proj_weight

    def _biases(self) -> tuple[Tensor | None, ...]:
        return (None, None, None) if self.in_proj_bias is None else self.in_proj_bias.chunk(3)

    def _project_query(self, query: Tensor) -> Tensor:
        return self._split(F.linear(query, self._weights()[0], self._biases()[0]))

    def _project(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, ...]:
        weight, bias = self.in_proj_weight, self.in_proj_bias
        if weight is not None and query is key is value:
            return tuple(self._split(x) for x in F.linear(query, weight, bias).chunk(3, -1))
        if weight is not None and key is value:
            size = self.embed_dim
            both = F.linear(key, weight[size:], None if bias is None else bias[size:])
            return (self._project_query(query), *(self._split(x) for x in both.chunk(2, -1)))
        each = zip((query, key, value), self._weights(), self._biases(), strict=True)
        return tuple(self._split(F.linear(x, w, b)) for x, w, b in each)

    def _mask(
        self,
        q: Tensor,
        k: Tensor,
        attn_mask: Tensor | None,
        padding: Tensor | None,
        before: int,
        is_causal: bool,
        need_weights: bool,
    ) -> tuple[Tensor | None, bool]:
        """What each query may attend to, and whether that is what the kernel calls causal."""
        queries, keys, extra = q.shape[2], k.shape[2], (self.bias_k is not None) + self.add_zero_attn
        if is_causal and not (before or extra or padding is not None) and (attn_mask is None or not need_weights):
            return None, True
        mask = masks.allowed_or_added(attn_mask)
        if is_causal and mask is None and before + 1 < keys:  # else the first query sees all
            mask = masks.causal(queries, keys, before, q.device)
        mask = masks.joined(mask, masks.allowed_or_added(None if padding is None else padding[:, None, None]))
        return masks.widened(mask, extra), False

    def _extended(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """With the keys that ``add_bias_kv`` and ``add_zero_attn`` add."""
        if self.bias_k is not None and self.bias_v is not None:
            shape = (1, self.num_heads, 1, self.head_dim)
            tokens = (t.view(shape).to(k.dtype).expand(len(k), -1, -1, -1) for t in (self.bias_k, self.bias_v))
            k, v = (torch.cat(pair, 2) for pair in zip((k, v), tokens, strict=True))
        if self.add_zero_attn:
            k, v = (F.pad(x, (0, 0, 0, 1)) for x in (k, v))
        return k, v

    def _forward_nested(self, query: Tensor, key: Tensor, value: Tensor, more: bool) -> tuple[Tensor, None]:
        """Self-attention of a nested tensor, as an ``nn.TransformerEncoder`` made before us may send it."""
        if more or not (query is key is value and self.batch_first):
            raise ValueError(
                f"{WHERE}: a nested tensor can only attend to itself, with batch_first=True, need_weights=False and "
                "no mask; pad it with to_padded_tensor() and pass key_padding_mask"
            )
        lengths = [len(each) for each in query.unbind()]
        text = query.to_padded_tensor(0.0)
        padding = torch.arange(text.shape[1], device=text.device) >= torch.tensor(lengths, device=text.device)[:, None]
        out, _ = self(text, text, text, key_padding_mask=padding, need_weights=False)
        parts = [row[:length] for row, length in zip(out, lengths, strict=True)]
        return torch.nested.as_nested_tensor(parts, layout=query.layout), None


def _is_called(*_: object) -> None:
    """A hook that does nothing: a layer that has one is called, and not replaced by torch's fast path."""

"""Keys and values of earlier steps, so that a decoder computes each of them once."""

from __future__ import annotations

from copy import copy

import torch
from torch import Tensor

FIRST = 16  # places reserved at first; from there on twice as many each time


class KeyValueCache:
    """The projected keys and values of one attention layer, which grow as a text is decoded.

    Each :class:`MultiheadAttention` needs its own. A call with ``cache=`` appends its keys and values and attends to
    all there are; ``is_causal=True`` then counts positions from the first key in the cache.

    Args:
        static: for attention to an encoder's output, which does not grow: the first call projects it, later calls use
            what it found and do not look at their ``key``, ``value`` and ``key_padding_mask``.

    Example:
        >>> import torch, parsimax
        >>> layer = parsimax.MultiheadAttention(16, 2, batch_first=True, mapping="entmax15").eval()
        >>> text = torch.randn(3, 5, 16)
        >>> whole, _ = layer(text, text, text, is_causal=True, need_weights=False)
        >>> cache = parsimax.KeyValueCache()
        >>> with torch.no_grad():
        ...     steps = [layer(t, t, t, is_causal=True, need_weights=False, cache=cache)[0] for t in text.split(1, 1)]
        >>> torch.allclose(torch.cat(steps, 1), whole, atol=1e-6), cache
        (True, KeyValueCache(batch=3, heads=2, length=5))

    Without gradients it writes to memory it has reserved; with them it concatenates.
    """

    def __init__(self, static: bool = False) -> None:
        self.static = static
        self.clear()

    def clear(self) -> None:
        """Forget all."""
        self.length = 0
        self._key: Tensor | None = None
        self._value: Tensor | None = None
        self._padding: Tensor | None = None  # (batch, length), True = padding; None while there is none

    def __len__(self) -> int:
        return self.length

    @property
    def filled(self) -> bool:
        """A call has been made since the beginning."""
        return self._key is not None

    @property
    def key(self) -> Tensor:
        """The keys so far (batch, heads, length, features)."""
        return self._held(self._key)

    @property
    def value(self) -> Tensor:
        """The values so far (batch, heads, length, features)."""
        return self._held(self._value)

    @property
    def padding(self) -> Tensor | None:
        """(batch, length), True where a key is padding; None if no call said so."""
        return None if self._padding is None else self._padding[:, : self.length]

    def append(self, key: Tensor, value: Tensor, padding: Tensor | None = None) -> None:
        """Add keys and values (batch, heads, new, features) after those there are, and which of them are padding."""
        if self._key is not None and self._key.shape[:2] != key.shape[:2]:
            raise ValueError(
                f"KeyValueCache: it holds (batch, heads) = {tuple(self._key.shape[:2])}, got {tuple(key.shape[:2])}; "
                "use a cache for each layer, reorder() when the batch changes and clear() for a new text"
            )
        if padding is not None and padding.dtype != torch.bool:
            raise TypeError(f"KeyValueCache: key_padding_mask must be boolean with a cache, got {padding.dtype}")
        total = self.length + key.shape[2]
        self._key, self._value = self._grown(self._key, key, total), self._grown(self._value, value, total)
        if padding is not None or self._padding is not None:
            batch, device = key.shape[0], key.device
            before = self.padding
            if before is None:
                before = torch.zeros(batch, self.length, dtype=torch.bool, device=device)
            if padding is None:
                padding = torch.zeros(batch, key.shape[2], dtype=torch.bool, device=device)
            self._padding = torch.cat([before, padding.to(device)], 1)
        self.length = total

    def appended(self, key: Tensor, value: Tensor, padding: Tensor | None = None) -> KeyValueCache:
        """Another cache with these appended; this one stays as it is until it is to :meth:`become` the other."""
        other = copy(self)
        other.append(key, value, padding)
        return other

    def become(self, other: KeyValueCache) -> None:
        """Hold what ``other`` holds."""
        self.__dict__.update(other.__dict__)

    def _grown(self, store: Tensor | None, new: Tensor, total: int) -> Tensor:
        if self.static or torch.is_grad_enabled():
            return new if store is None else torch.cat([store[:, :, : self.length], new], 2)
        fixed = store is not None and (store.requires_grad or store.is_inference() > torch.is_inference_mode_enabled())
        if store is None or store.shape[2] < total or fixed:
            room = new.new_empty(*new.shape[:2], max(FIRST, total, 2 * self.length), new.shape[3])
            if store is not None:
                room[:, :, : self.length] = store[:, :, : self.length]
            store = room
        store[:, :, self.length : total] = new
        return store

    def reorder(self, index: Tensor) -> None:
        """Keep these rows of the batch, in this order: after a beam step those of the beams that go on.

        Args:
            index: (new batch,), int64; a row may be repeated, which is how beams begin, or left out.
        """
        if self._key is None or self._value is None:
            return
        # With the room that is reserved: the next step writes there and copies nothing.
        self._key, self._value = (t.index_select(0, index) for t in (self._key, self._value))
        if self._padding is not None:
            self._padding = self._padding.index_select(0, index)

    def crop(self, length: int) -> None:
        """Keep the first keys only: to go back and try another continuation."""
        if not 0 <= length <= self.length:
            raise ValueError(f"KeyValueCache: length must be in 0…{self.length}, got {length}")
        self.length = length
        if self._padding is not None:
            self._padding = self._padding[:, :length]

    def _held(self, store: Tensor | None) -> Tensor:
        if store is None:
            raise RuntimeError("KeyValueCache: it is empty; call a layer with it first")
        return store[:, :, : self.length]

    def __repr__(self) -> str:
        size = "empty" if self._key is None else f"batch={self._key.shape[0]}, heads={self._key.shape[1]}"
        shown = size if self._key is None else f"{size}, length={self.length}"
        return f"KeyValueCache({shown}{', static=True' if self.static else ''})"

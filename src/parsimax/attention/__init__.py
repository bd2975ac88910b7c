"""q, k, v → context. The functional face is that of ``F.scaled_dot_product_attention``."""

from .functional import attention, entmax_attention

__all__ = ["attention", "entmax_attention"]

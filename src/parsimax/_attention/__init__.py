"""q, k, v → context. The functional face is that of ``F.scaled_dot_product_attention``."""

from .cache import KeyValueCache
from .core import AttentionCore
from .functional import attention, entmax_attention
from .multihead import MultiheadAttention
from .observation import Observation
from .replace import replace_attention
from .scaling import LengthScaling

__all__ = [
    "AttentionCore",
    "KeyValueCache",
    "LengthScaling",
    "MultiheadAttention",
    "Observation",
    "attention",
    "entmax_attention",
    "replace_attention",
]

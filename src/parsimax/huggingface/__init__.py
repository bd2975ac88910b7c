"""Any ``transformers`` model on the attention interface → the same model with sparse attention and output."""

try:
    import transformers as _transformers  # noqa: F401
except ImportError as error:
    raise ImportError("parsimax.huggingface needs transformers: pip install 'parsimax[hf]'") from error

from .heads import replace_head
from .logits import EntmaxLogitsProcessor
from .pretrained import from_pretrained
from .sparsify import desparsify, sparsify
from .training import AlphaCallback

__all__ = ["AlphaCallback", "EntmaxLogitsProcessor", "desparsify", "from_pretrained", "replace_head", "sparsify"]

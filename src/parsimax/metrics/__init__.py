"""What sparse distributions need that dense ones do not."""

from .divergence import jensen_shannon
from .quality import epsilon_perplexity, log_probs, sparsemax_score, support_size
from .sampling import sample

__all__ = ["epsilon_perplexity", "jensen_shannon", "log_probs", "sample", "sparsemax_score", "support_size"]

"""Every public name; :mod:`parsimax` hands them on."""

from . import latent as latent
from . import mappings
from . import schedules as schedules
from . import structured as structured
from ._attention import (
    AttentionCore,
    KeyValueCache,
    LengthScaling,
    MultiheadAttention,
    Observation,
    attention,
    entmax_attention,
    replace_attention,
)
from ._explain import explain
from ._scripting import refuse_scripting
from ._verify import verify
from .heads import (
    PLIF,
    Head,
    LinearHead,
    MixtureOfSoftmaxes,
    Monotonic,
    MonotonicHead,
    PLIFHead,
    SigSoftmaxHead,
    head_loss,
    make_head,
    monotonic,
    monotonic_inverse,
    plif,
    plif_inverse,
)
from .kernels.dispatch import set_default as set_kernels
from .kernels.dispatch import use as use_kernels
from .latent import expected_loss
from .losses import (
    Entmax15Loss,
    EntmaxLoss,
    FenchelYoungLoss,
    LinearEntmaxLoss,
    SparsemaxLoss,
    entmax15_loss,
    entmax_loss,
    fenchel_young_loss,
    linear_entmax_loss,
    multilabel_loss,
    sparsemax_loss,
)
from .mappings import *  # noqa: F403
from .metrics import (
    epsilon_perplexity,
    jensen_shannon,
    log_probs,
    sample,
    sparsemax_score,
    support_size,
)
from .parameters import set_step
from .structured import FactorGraph, SparseMAPLoss, sparsemap, sparsemap_loss
from .structured import topk as structured_topk

__all__ = [
    "PLIF",
    "AttentionCore",
    "Entmax15Loss",
    "EntmaxLoss",
    "FactorGraph",
    "FenchelYoungLoss",
    "Head",
    "KeyValueCache",
    "LengthScaling",
    "LinearEntmaxLoss",
    "LinearHead",
    "MixtureOfSoftmaxes",
    "Monotonic",
    "MonotonicHead",
    "MultiheadAttention",
    "Observation",
    "PLIFHead",
    "SigSoftmaxHead",
    "SparseMAPLoss",
    "SparsemaxLoss",
    "attention",
    "entmax15_loss",
    "entmax_attention",
    "entmax_loss",
    "epsilon_perplexity",
    "expected_loss",
    "explain",
    "fenchel_young_loss",
    "head_loss",
    "jensen_shannon",
    "linear_entmax_loss",
    "log_probs",
    "make_head",
    "monotonic",
    "monotonic_inverse",
    "multilabel_loss",
    "plif",
    "plif_inverse",
    "replace_attention",
    "sample",
    "set_kernels",
    "set_step",
    "sparsemap",
    "sparsemap_loss",
    "sparsemax_loss",
    "sparsemax_score",
    "structured_topk",
    "support_size",
    "use_kernels",
    "verify",
]
__all__ += mappings.__all__
__all__.remove("REGISTRY")

refuse_scripting(globals()[name] for name in __all__)

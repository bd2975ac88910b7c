"""Hidden states to log-probabilities and loss: output heads, and functions that break the softmax bottleneck."""

from .head import Head, head_loss
from .linear import LinearHead, MonotonicHead, PLIFHead, SigSoftmaxHead
from .make import make_head
from .mixture import MixtureOfSoftmaxes
from .monotonic import Monotonic, monotonic, monotonic_inverse
from .plif import PLIF, plif, plif_inverse

__all__ = [
    "PLIF",
    "Head",
    "LinearHead",
    "MixtureOfSoftmaxes",
    "Monotonic",
    "MonotonicHead",
    "PLIFHead",
    "SigSoftmaxHead",
    "head_loss",
    "make_head",
    "monotonic",
    "monotonic_inverse",
    "plif",
    "plif_inverse",
]

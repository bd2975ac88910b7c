# Written by docs/build.py, for type checkers.

from .declaration import REGISTRY as REGISTRY
from .binary import entmoid15 as entmoid15
from .binary import sparsemoid as sparsemoid
from .budget_sparsemax import BudgetSparsemax as BudgetSparsemax
from .budget_sparsemax import budget_sparsemax as budget_sparsemax
from .entmax import Entmax as Entmax
from .entmax import entmax as entmax
from .entmax15 import Entmax15 as Entmax15
from .entmax15 import entmax15 as entmax15
from .log_entmax import log_entmax as log_entmax
from .normmax import Normmax as Normmax
from .normmax import normmax as normmax
from .rsoftmax import RSoftmax as RSoftmax
from .rsoftmax import rsoftmax as rsoftmax
from .segments import segment_entmax as segment_entmax
from .segments import segment_entmax15 as segment_entmax15
from .segments import segment_softmax as segment_softmax
from .segments import segment_sparsemax as segment_sparsemax
from .sigsoftmax import SigSoftmax as SigSoftmax
from .sigsoftmax import sigsoftmax as sigsoftmax
from .softmax import Softmax as Softmax
from .softmax import softmax as softmax
from .sparsegen import Sparsegen as Sparsegen
from .sparsegen import sparsegen as sparsegen
from .sparsehourglass import SparseHourglass as SparseHourglass
from .sparsehourglass import sparsehourglass as sparsehourglass
from .sparsemax import Sparsemax as Sparsemax
from .sparsemax import sparsemax as sparsemax
from .support import support as support
from .topk_sparsemax import TopKSparsemax as TopKSparsemax
from .topk_sparsemax import topk_sparsemax as topk_sparsemax
from .tsoftmax import TSoftmax as TSoftmax
from .tsoftmax import tsoftmax as tsoftmax

__all__ = [
    "BudgetSparsemax",
    "Entmax",
    "Entmax15",
    "Normmax",
    "REGISTRY",
    "RSoftmax",
    "SigSoftmax",
    "Softmax",
    "SparseHourglass",
    "Sparsegen",
    "Sparsemax",
    "TSoftmax",
    "TopKSparsemax",
    "budget_sparsemax",
    "entmax",
    "entmax15",
    "entmoid15",
    "log_entmax",
    "normmax",
    "rsoftmax",
    "segment_entmax",
    "segment_entmax15",
    "segment_softmax",
    "segment_sparsemax",
    "sigsoftmax",
    "softmax",
    "sparsegen",
    "sparsehourglass",
    "sparsemax",
    "sparsemoid",
    "support",
    "topk_sparsemax",
    "tsoftmax",
]

"""Looking at attention: record it, measure it, name what heads do, compare models, draw figures."""

from . import figures
from .compare import Comparison, Match, compare
from .example import Example
from .layers import Layer
from .measures import HeadMeasures, measures
from .record import record
from .recording import Recording
from .report import write_report
from .roles import PREDICATES, HeadRoles, roles
from .storage import load
from .tables import Table
from .weights import SparseWeights

__all__ = [
    "PREDICATES",
    "Comparison",
    "Example",
    "HeadMeasures",
    "HeadRoles",
    "Layer",
    "Match",
    "Recording",
    "SparseWeights",
    "Table",
    "compare",
    "figures",
    "load",
    "measures",
    "record",
    "roles",
    "write_report",
]

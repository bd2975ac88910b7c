"""Looking at attention: record it, measure it, name what heads do, compare models, draw figures. Rank of an output."""

from . import figures
from .compare import Comparison, Match, compare
from .example import Example
from .layers import Layer
from .measures import HeadMeasures, measures
from .record import record
from .recording import Recording
from .report import write_report
from .roles import PREDICATES, HeadRoles, roles
from .spectrum import Spectrum, rank
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
    "Spectrum",
    "Table",
    "compare",
    "figures",
    "load",
    "measures",
    "rank",
    "record",
    "roles",
    "write_report",
]

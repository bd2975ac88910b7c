"""Exact, sparse and fast alternatives to softmax, and what people do with them.

>>> import torch, parsimax
>>> parsimax.entmax(torch.tensor([1.0, 0.5, -1.0]), 1.5)
tensor([0.6740, 0.3260, 0.0000])
"""

import sys
from importlib import import_module
from typing import TYPE_CHECKING

from . import _hub as _hub

__version__ = "0.1.0"

_hub.install()

# A program gets all names at once, and with them the operators that exported programs need. The command has an entry
# module of its own; when that is what runs, they come with their first use: its help must not wait seconds for torch.
if TYPE_CHECKING or "parsimax_command" not in sys.modules:
    from . import latent as latent
    from . import schedules as schedules
    from . import structured as structured
    from ._public import *  # noqa: F403
    from ._public import __all__ as __all__

    if TYPE_CHECKING:  # type checkers know these by the stub of mappings; at run time they are in _public too
        from .mappings import *  # noqa: F403
else:

    def __getattr__(name: str) -> object:
        if name.startswith("__") and name != "__all__":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        public = import_module("._public", __name__)
        globals().update({each: getattr(public, each) for each in public.__all__}, __all__=public.__all__)
        if name in globals():
            return globals()[name]
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

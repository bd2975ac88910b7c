"""Scores to probabilities, one family a file: each file of this folder that declares a mapping is found and exported.

Type checkers read ``__init__.pyi``, which ``docs/build.py`` writes.
"""

from importlib import import_module
from pkgutil import iter_modules

from .declaration import REGISTRY

for _file in iter_modules(__path__):
    import_module(f"{__name__}.{_file.name}")
_entries = sorted(REGISTRY.values(), key=lambda entry: entry.place)
REGISTRY.clear()  # from the order of the files to that of the family
REGISTRY.update({entry.name: entry for entry in _entries})
_exports = {each.__name__: each for entry in _entries for each in (entry.function, entry.module)}

from .binary import entmoid15, sparsemoid  # noqa: E402
from .log_entmax import log_entmax  # noqa: E402
from .segments import segment_entmax, segment_entmax15, segment_softmax, segment_sparsemax  # noqa: E402
from .support import support  # noqa: E402

_beside = (
    entmoid15,
    log_entmax,
    segment_entmax,
    segment_entmax15,
    segment_softmax,
    segment_sparsemax,
    sparsemoid,
    support,
)
_exports |= {each.__name__: each for each in _beside}
globals().update(_exports)  # after the imports: a function takes the place of the file of its name
__all__ = sorted(["REGISTRY", *_exports])

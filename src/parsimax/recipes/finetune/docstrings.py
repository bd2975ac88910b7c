"""The embedded default: docstrings of Python's standard library, and what kind of module each of them is from."""

from __future__ import annotations

import ast
import random
import sysconfig
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

from ..kit.recipe import DataError

FAMILIES = {
    "concurrency": "asyncio concurrent contextvars multiprocessing queue sched threading",
    "documents": "configparser csv email html json plistlib xml",
    "files": "bz2 dbm filecmp fileinput gzip lzma os pathlib shelve shutil tarfile tempfile zipfile",
    "network": "ftplib http imaplib ipaddress poplib selectors smtplib socket socketserver ssl urllib wsgiref xmlrpc",
    "numbers": "_pydatetime _pydecimal calendar datetime fractions numbers random statistics",
    "testing": "bdb cProfile doctest logging pdb pstats timeit trace traceback unittest",
}
WORDS = range(4, 61)  # of a docstring's first paragraph
HELD_OUT = 400


@lru_cache(1)
def splits() -> dict[str, list[tuple[str, str]]]:
    """(Text, family) of train, val and test. What a text is can change with the version of Python.

    A text that modules of several families have is left out.
    """
    families: dict[str, set[str]] = {}
    for family, modules in FAMILIES.items():
        for module in modules.split():
            for text in _texts(module):
                families.setdefault(text, set()).add(family)
    rows = sorted((text, family) for text, found in families.items() for family in found if len(found) == 1)
    if len(rows) < 4 * HELD_OUT:
        raise DataError(
            f"the standard library has {len(rows)} docstrings here, at {_library()}; give data.root=PATH instead"
        )
    random.Random(0).shuffle(rows)
    return {"val": rows[:HELD_OUT], "test": rows[HELD_OUT : 2 * HELD_OUT], "train": rows[2 * HELD_OUT :]}


def _library() -> Path:
    return Path(sysconfig.get_paths()["stdlib"])


def _texts(module: str) -> Iterator[str]:
    """First paragraphs, read from the source: nothing is imported."""
    folder = _library() / module
    for path in sorted(folder.rglob("*.py")) if folder.is_dir() else [folder.with_suffix(".py")]:
        if not path.is_file() or {"test", "tests"} & {*path.parts}:
            continue
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
                text = " ".join((ast.get_docstring(node) or "").partition("\n\n")[0].split())
                if len(text.split()) in WORDS:
                    yield text

"""Mulan's data: ARFF, dense or sparse, and the XML file that says which attributes are labels."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.parsers import expat

import arff as liac

from ..kit.inputs import shortened
from ..kit.recipe import DataError
from ..text.files import lines

NUMBERS = ("NUMERIC", "REAL")
QUOTED = re.compile(r"""^\s*@attribute\s+(["'])((?:\\.|(?!\1)[^\\])*)\1\s""", re.IGNORECASE)
ESCAPED = {"n": "\n", "r": "\r", "t": "\t"}  # other letters behind a backslash are themselves
INTEGER = re.compile(r"^(\s*@attribute\s.*\s)integer\s*$", re.IGNORECASE)  # liac-arff would make 1 of 1.5


def label_places(path: Path) -> dict[str, int]:
    """The names in an XML file of labels, those inside others too, each with its line."""
    found: dict[str, int] = {}
    parser = expat.ParserCreate(namespace_separator="}")

    def begin(tag: str, attributes: dict[str, str]) -> None:
        if tag.rpartition("}")[2] != "label":
            return
        name, place = attributes.get("name", ""), parser.CurrentLineNumber
        if not name or name in found:
            problem = f"the label {name!r} is there twice; leave one of them" if name else "a label without a name"
            raise DataError(f"{path}, line {place}: {problem}")
        found[name] = place

    def refuse(name: str, *declared: Any) -> None:  # a few that hold each other many times would fill the memory
        where = f"{path}, line {parser.CurrentLineNumber}"
        raise DataError(f"{where}: it declares the entity {shortened(name)!r}; write out what it stands for")

    parser.StartElementHandler, parser.EntityDeclHandler = begin, refuse
    try:
        parser.Parse(path.read_bytes(), True)
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from None
    except expat.ExpatError as error:
        raise DataError(f"{path}, line {error.lineno}: not XML ({error}), or not in the encoding it declares") from None
    except DataError:
        raise
    except (LookupError, ValueError) as error:
        raise DataError(f"{path}: not XML ({error}); save it as UTF-8") from None
    if not found:
        raise DataError(f"{path} has no <label name=…>")
    return found


def read(path: Path) -> tuple[list[str], list[list[float]], list[int]]:
    """Names of the columns, the rows as numbers, and the line of each row.

    An attribute of names, such as {red, green}, becomes a column of 0 and 1 for each, unless the names are numbers.
    """
    text, at = lines(path), 0

    def fed() -> Iterator[str]:
        nonlocal at
        for line in text:
            at += 1
            yield INTEGER.sub(r"\1NUMERIC", line)

    try:
        found = liac.ArffDecoder().decode(fed(), return_type=liac.DENSE)
    except (liac.ArffException, csv.Error, ValueError, IndexError) as error:  # these of {}, a missing name, '\\u'
        raise DataError(f"{path}, line {at}: {_problem(error, text[at - 1] if at else '')}") from None
    declared = [at for at, line in enumerate(text, 1) if line.strip().lower().startswith("@attribute")]
    kinds = [_kind(path, at, name, kind) for at, (name, kind) in zip(declared, found["attributes"], strict=True)]
    names: dict[str, None] = {}
    for at, (name, _), kind in zip(declared, found["attributes"], kinds, strict=True):
        for column in _names(_meant(text[at - 1], name), kind):
            if column in names:
                raise DataError(f"{path}, line {at}: the column {column!r} is there twice; name it otherwise")
            names[column] = None
    places = _places(text)
    _check_sparse(path, text, places)
    rows = []
    for row, place in zip(found["data"], places, strict=True):
        if None in row:
            name = found["attributes"][row.index(None)][0]
            raise DataError(f"{path}, line {place}: {name} is missing (?); fill it in or remove the row")
        rows.append([number for value, kind in zip(row, kinds, strict=True) for number in _numbers(value, kind)])
    return list(names), rows, places


def _problem(error: Exception, line: str) -> str:
    """What is wrong, in a few words: liac-arff repeats the whole line."""
    if isinstance(error, csv.Error):
        return f"not ARFF: {error}"
    kinds = {
        "BadAttributeType": "the type of the attribute is not known",
        "BadDataFormat": "the row has too few or too many values",
        "BadNumericalValue": "a value is not a number",
        "BadNominalValue": "a value is not one of its attribute's",
        "BadAttributeName": "the name of the attribute is there twice",
    }
    return f"{kinds.get(type(error).__name__, 'not ARFF')}, in {shortened(line)!r}"


def _meant(line: str, name: str) -> str:
    """The name of an attribute; liac-arff leaves the backslashes that a quoted one has before quotes."""
    quoted = QUOTED.match(line)
    return name if quoted is None else re.sub(r"\\(.)", lambda one: ESCAPED.get(one[1], one[1]), quoted[2])


def _kind(path: Path, place: int, name: str, kind: Any) -> list[str] | None:
    """None for a column of numbers, else the names that become columns; the attribute is declared in line ``place``."""
    if isinstance(kind, str):
        if kind.upper() in NUMBERS:
            return None
        raise DataError(f"{path}, line {place}: {name} is of type {kind}; numbers and lists of names can be read")
    return None if all(map(_is_number, kind)) else list(kind)


def _is_number(text: str) -> bool:
    try:
        return float(text) == float(text)
    except ValueError:
        return False


def _names(name: str, kind: list[str] | None) -> list[str]:
    return [name] if kind is None else [f"{name}={one}" for one in kind]


def _numbers(value: Any, kind: list[str] | None) -> list[float]:
    return [float(value)] if kind is None else [float(value == one) for one in kind]


def _check_sparse(path: Path, text: list[str], places: list[int]) -> None:
    """What liac-arff lets pass: a dense row among sparse ones, and a place of a sparse row that is there twice."""
    lines = [(place, text[place - 1].strip()) for place in places]
    sparse = bool(lines) and lines[0][1].startswith("{")
    for place, line in lines:
        if line.startswith("{") != sparse:
            kinds = ("sparse, in braces", "dense") if sparse else ("dense", "sparse, in braces")
            raise DataError(f"{path}, line {place}: the rows before it are {kinds[0]}, this one is {kinds[1]}")
        if sparse:
            bare = re.sub(r"'[^']*'|\"[^\"]*\"", "", line).strip("{} ")  # commas in names are none between places
            given = [part.split(maxsplit=1)[0] for part in bare.split(",") if part.strip()]
            if twice := [one for one in given if given.count(one) > 1]:
                raise DataError(f"{path}, line {place}: column {twice[0]} is there twice")


def _places(text: list[str]) -> list[int]:
    """The lines of the rows, from 1 on."""
    start = next(at for at, line in enumerate(text) if line.strip().lower().startswith("@data"))
    rows = enumerate(map(str.strip, text[start + 1 :]), start + 2)
    return [at for at, line in rows if line and not line.startswith("%")]

"""Mulan's data: ARFF, dense or sparse, and the XML file that says which attributes are labels."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from xml.parsers import expat

import arff as liac

from ..kit.inputs import number, shortened
from ..kit.recipe import DataError
from ..text.files import lines

NUMBERS = ("numeric", "real", "integer")  # all the same, as in Weka
HEADER = re.compile(r"\s*@(relation|attribute|data)(?![^\s%])(.*)", re.IGNORECASE)
# A name is quoted, with quotes in it escaped; or quoted, and quotes in it are the name's; or bare. Then its type.
ATTRIBUTE = re.compile(r"""(?:(["'])((?:\\.|(?!\1)[^\\])*)\1|(".*?"|'.*?'|[^{}%,\s"'][^{}%,\s]*))\s+([^%\s].*)""")
QUOTED = r"""'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*\""""
ONE = rf"""(?:{QUOTED}|(?!\?[\s,}}])[^,\s"'{{}}]+)"""
LIST = re.compile(rf"(\{{\s*{ONE}(?:\s*,\s*{ONE})*\s*\}})\s*(?:%.*)?")  # liac-arff tries for ever where it is none
ESCAPED = {"n": "\n", "r": "\r", "t": "\t"}  # other letters behind a backslash are themselves


class Attribute(NamedTuple):
    """A line of the header: its number, the name as it is meant, and the list of names that it may have, as written;
    none for a number.
    """

    place: int
    name: str
    names: str


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
    text = lines(path)
    attributes, start = _header(path, text)
    found = _decoded(path, text, attributes, start)
    kinds = [None if kind == "STRING" or all(map(_is_number, kind)) else list(kind) for _, kind in found["attributes"]]
    names = _columns(path, attributes, kinds)
    rows_from = enumerate(map(str.strip, text[start:]), start + 1)
    places = [at for at, line in rows_from if line and not line.startswith("%")]
    _check_sparse(path, text, places)
    rows = []
    for row, place in zip(found["data"], places, strict=True):
        numbers: list[float] = []
        for value, kind, attribute in zip(row, kinds, attributes, strict=True):
            numbers += _numbers(f"{path}, line {place}: {attribute.name}", value, kind)
        rows.append(numbers)
    return names, rows, places


def _header(path: Path, text: list[str]) -> tuple[list[Attribute], int]:
    """The attributes, and the line of @data. liac-arff leaves out what it does not know, and all columns shift."""
    found: dict[str, Attribute] = {}
    for at, line in enumerate(text, 1):
        if not line.strip() or line.lstrip().startswith("%"):
            continue
        where, given = f"{path}, line {at}", repr(shortened(line.strip()))
        if (known := HEADER.match(line)) is None:
            raise DataError(f"{where}: not ARFF: before @data there is a comment, @relation or @attribute, got {given}")
        word, rest = known[1].lower(), known[2].strip()
        if word == "data":
            if rest and not rest.startswith("%"):
                raise DataError(f"{where}: not ARFF: the rows begin below @data, got {given}")
            return [*found.values()], at
        if word == "attribute":
            one = _attribute(where, at, rest, given)
            if one.name in found:
                raise DataError(f"{where}: the column {one.name!r} is there twice; name it otherwise")
            found[one.name] = one
    raise DataError(f"{path}: not ARFF: it has no @data")


def _attribute(where: str, at: int, rest: str, given: str) -> Attribute:
    if (parts := ATTRIBUTE.fullmatch(rest)) is None:
        raise DataError(f"{where}: not ARFF, in {given}; an attribute has a name and a type")
    _, quoted, other, kind = parts.groups()
    if quoted is None:
        name = other[1:-1] if other[0] in "\"'" else other
    else:
        name = re.sub(r"\\(.)", lambda one: ESCAPED.get(one[1], one[1]), quoted)
    if not kind.startswith("{"):
        if kind.partition("%")[0].strip().lower() not in NUMBERS:
            raise DataError(f"{where}: {name} is of type {shortened(kind)}; numbers and lists of names can be read")
        return Attribute(at, name, "")
    if (names := LIST.fullmatch(kind)) is None:
        raise DataError(f"{where}: not ARFF, in {given}; a list of names is {{red,'light blue'}}")
    return Attribute(at, name, names[1])


def _decoded(path: Path, text: list[str], attributes: list[Attribute], start: int) -> Any:
    """What liac-arff makes of the rows; numbers stay texts, since it would take 1_0 for 10 and cut fractions off."""
    at = start

    def fed() -> Iterator[str]:
        nonlocal at
        yield "@relation rows"
        for one in attributes:
            at = one.place
            yield f"@attribute a{at} {one.names or 'string'}"
        at = start
        yield "@data"
        for line in text[start:]:
            at += 1
            yield line

    try:
        return liac.ArffDecoder().decode(fed(), return_type=liac.DENSE)
    except (liac.ArffException, csv.Error, ValueError) as error:  # ValueError of '\\u' in a name
        raise DataError(f"{path}, line {at}: {_problem(error, text[at - 1])}") from None


def _problem(error: Exception, line: str) -> str:
    """What is wrong, in a few words: liac-arff repeats the whole line."""
    if isinstance(error, csv.Error):
        return f"not ARFF: {error}"
    kinds = {
        "BadDataFormat": "the row has too few or too many values",
        "BadNominalValue": "a value is not one of its attribute's",
    }
    return f"{kinds.get(type(error).__name__, 'not ARFF')}, in {shortened(line)!r}"


def _columns(path: Path, attributes: list[Attribute], kinds: list[list[str] | None]) -> list[str]:
    """The names of the columns that the attributes become."""
    names: dict[str, None] = {}
    for (place, name, _), kind in zip(attributes, kinds, strict=True):
        for column in [name] if kind is None else [f"{name}={one}" for one in kind]:
            if column in names:
                raise DataError(f"{path}, line {place}: the column {column!r} is there twice; name it otherwise")
            names[column] = None
    return [*names]


def _is_number(text: str) -> bool:
    try:
        return number(text) == number(text)
    except ValueError:
        return False


def _numbers(where: str, value: str | None, kind: list[str] | None) -> list[float]:
    if value is None:
        raise DataError(f"{where} is missing (?); fill it in or remove the row")
    if kind is not None:
        return [float(value == one) for one in kind]
    try:
        return [number(value)]
    except ValueError:
        raise DataError(f"{where} must be a number, got {shortened(value)!r}") from None


def _check_sparse(path: Path, text: list[str], places: list[int]) -> None:
    """What liac-arff lets pass: a dense row among sparse ones, and a place of a sparse row that is there twice."""
    sparse = bool(places) and text[places[0] - 1].lstrip().startswith("{")
    for place in places:
        line = text[place - 1].strip()
        if line.startswith("{") != sparse:
            kinds = ("sparse, in braces", "dense") if sparse else ("dense", "sparse, in braces")
            raise DataError(f"{path}, line {place}: the rows before it are {kinds[0]}, this one is {kinds[1]}")
        if sparse and (twice := _place_twice(line)) is not None:
            raise DataError(f"{path}, line {place}: column {twice} is there twice")


def _place_twice(line: str) -> int | None:
    bare = re.sub(QUOTED, "", line).strip("{} \t")  # commas in names are none between places
    seen: set[int] = set()
    for part in filter(str.strip, bare.split(",")):
        if (place := int(part.split(maxsplit=1)[0])) in seen:
            return place
        seen.add(place)
    return None

"""Typed settings: dataclasses of dataclasses, set by dotted ``key=value`` words or a YAML file.

Nothing heavy is imported here, so that a mistake in a setting is told before torch is loaded. jsonargparse, tyro and
pydantic take 0.2 s and more to import, and would replace the conversion of values only: nearest names, short keys, and
errors that name the file and the key would be written around them.
"""

from __future__ import annotations

import contextlib
import difflib
import operator
import types
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

S = TypeVar("S")
TRUTH: dict[str, bool | None] = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
NOTHING: dict[str, bool | None] = dict.fromkeys(("none", "null", ""))


class SettingsError(ValueError):
    """A key that does not exist or a value that does not fit, with what to write instead."""


def setting(
    default: Any, text: str, *, low: float | None = None, high: float | None = None, later: bool = False
) -> Any:
    """A field of a settings class: its default, what it does, the ends of a number (inclusive).

    ``later`` says that a run that has begun may go on with another value.
    """
    return field(default=default, metadata={"help": text, "low": low, "high": high, "later": later})


def group(kind: type[S], **other: Any) -> S:
    """A field that holds settings of its own; ``other`` are defaults that differ here."""
    made: S = field(default_factory=lambda: kind(**other))
    return made


@dataclass(frozen=True)
class Leaf:
    """One setting: its dotted key, its type, its value and what is known about it."""

    key: str
    kind: Any
    value: Any
    help: str
    low: float | None
    high: float | None
    later: bool


def leaves(settings: Any, prefix: str = "") -> Iterator[Leaf]:
    """Every setting of ``settings`` in the order of its class."""
    hints = get_type_hints(type(settings))
    for one in fields(settings):
        value, key = getattr(settings, one.name), f"{prefix}{one.name}"
        if is_dataclass(value):
            yield from leaves(value, f"{key}.")
        else:
            about = one.metadata
            yield Leaf(key, hints[one.name], value, about["help"], about["low"], about["high"], about["later"])


def flat(settings: Any) -> dict[str, Any]:
    """Dotted keys and values."""
    return {leaf.key: leaf.value for leaf in leaves(settings)}


def refuse_unread(settings: Any, keys: Iterable[str], chosen: str) -> None:
    """Raise for a value that was given in vain: what is ``chosen`` does not read these keys or groups."""
    plain = flat(type(settings)())
    for name, value in flat(settings).items():
        if value != plain[name] and any(f"{name}.".startswith(f"{key}.") for key in keys):
            raise SettingsError(f"{name}={shown(value)}: {chosen} does not read {name}; leave it out")


def changed(settings: S, words: Mapping[str, Any], source: str = "") -> S:
    """``settings`` with the dotted keys of ``words`` set; texts are read as the type of their key.

    A key may leave out its group where that is clear: ``steps=10`` is ``train.steps=10``.
    """
    known = {leaf.key: leaf for leaf in leaves(settings)}
    given: dict[str, str] = {}
    for word, value in words.items():
        if value is None and any(key.startswith(f"{word}.") for key in known):
            continue  # a group of a file with nothing in it
        key = full(word, known, source)
        if key in given:
            raise SettingsError(f"{source}{key} is given twice, as {given[key]} and as {word}")
        given[key] = word
        settings = _put(settings, key.split("."), _read(value, known[key], source))
    return settings


def words_of(arguments: Sequence[str]) -> dict[str, str]:
    """The ``key=value`` words of a command line."""
    words: dict[str, str] = {}
    for argument in arguments:
        key, equals, value = argument.partition("=")
        if not equals or not key:
            raise SettingsError(f"{argument!r} is not a setting; write key=value, such as seed=1")
        if key in words:
            raise SettingsError(f"{key} is given twice, as {words[key]!r} and as {value!r}")
        words[key] = value
    return words


def from_yaml(path: Path) -> dict[str, Any]:
    """Dotted keys and values of a file; its groups may be nested or dotted."""
    import yaml

    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"cannot read {path}: {error.strerror}") from None
    except (yaml.YAMLError, ValueError) as error:  # such as an integer of more digits than Python reads
        raise SettingsError(f"{path} is not YAML: {' '.join(str(error).split())}") from None
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise SettingsError(f"{path} must hold settings (key: value), got a {type(content).__name__}")
    return dict(_dotted(content, ""))


def to_yaml(settings: Any) -> str:
    """What :func:`from_yaml` reads."""
    import yaml

    tree: dict[str, Any] = {}
    for key, value in flat(settings).items():
        *groups, name = key.split(".")
        place = tree
        for one in groups:
            place = place.setdefault(one, {})
        place[name] = str(value) if isinstance(value, Path) else list(value) if isinstance(value, tuple) else value
    text: str = yaml.safe_dump(tree, sort_keys=False, allow_unicode=True)
    return text


def unknown(name: str, known: Sequence[str] | Mapping[str, Any], what: str) -> str:
    """The message for a name that is none of ``known``: the nearest of them, or where to see them all."""
    tails = {key.rpartition(".")[2]: key for key in known}
    near = difflib.get_close_matches(name, [*known], 1, 0.6) or [
        tails[tail] for tail in difflib.get_close_matches(name.rpartition(".")[2], [*tails], 1, 0.7)
    ]
    hint = f"did you mean {near[0]}?" if near else f"there is {', '.join(known)}"
    return f"no {what} is called {name!r}; {hint}"


def kind_text(kind: Any, ends: str = "") -> str:
    """A type as people read it: ``number``, ``softmax | entmax``, ``path | none``; ``ends`` are those of numbers."""
    if get_origin(kind) is Literal:
        return " | ".join(map(str, get_args(kind)))
    if get_origin(kind) in (Union, types.UnionType):
        return " | ".join(kind_text(one, ends) for one in get_args(kind))
    if get_origin(kind) is tuple:
        return f"{kind_text(get_args(kind)[0])},…"
    names = {int: "integer", float: "number", bool: "true | false", str: "text", Path: "path", types.NoneType: "none"}
    return names[kind] + (ends if kind in (int, float) else "")


def shown(value: Any) -> str:
    """A value as it is written on the command line."""
    if value is None or isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return ",".join(map(shown, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def full(word: str, known: Mapping[str, Any], source: str = "") -> str:
    """The key that a word means, which may leave out its groups; SettingsError if that is none or several."""
    if word in known:
        return word
    ends = [key for key in known if key.endswith(f".{word}")]
    if len(ends) > 1:
        raise SettingsError(f"{source}{word!r} may be {' or '.join(ends)}; write the one you mean")
    if not ends:
        raise SettingsError(f"{source}{unknown(word, known, 'setting')}")
    return ends[0]


def _dotted(tree: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from _dotted(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _put(settings: Any, keys: list[str], value: Any) -> Any:
    if len(keys) > 1:
        value = _put(getattr(settings, keys[0]), keys[1:], value)
    return replace(settings, **{keys[0]: value})


def _read(value: Any, leaf: Leaf, source: str) -> Any:
    try:
        made = as_kind(value, leaf.kind)
    except (TypeError, ValueError):
        kinds = get_args(leaf.kind) if get_origin(leaf.kind) in (Union, types.UnionType) else (leaf.kind,)
        options = [str(one) for kind in kinds if get_origin(kind) is Literal for one in get_args(kind)]
        near = difflib.get_close_matches(str(value), options, 1, 0.5)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise SettingsError(f"{source}{leaf.key} must be {kind_text(leaf.kind)}, got {value!r}{hint}") from None
    if isinstance(made, (int, float)) and not isinstance(made, bool):
        for bound, outside, side in ((leaf.low, operator.lt, "least"), (leaf.high, operator.gt, "most")):
            if bound is not None and outside(made, bound):
                raise SettingsError(f"{source}{leaf.key} must be at {side} {bound:g}, got {value}")
    return made


def as_kind(value: Any, kind: Any) -> Any:
    """``value`` as ``kind``; ValueError or TypeError where it is not one."""
    if get_origin(kind) in (Union, types.UnionType):
        return _first(value, get_args(kind))
    if get_origin(kind) is Literal:
        return {str(one): one for one in get_args(kind)}[_checked(str(value), {str(one) for one in get_args(kind)})]
    if get_origin(kind) is tuple:
        if isinstance(value, Mapping):
            raise ValueError
        parts = filter(None, value.split(",")) if isinstance(value, str) else value
        return tuple(as_kind(part, get_args(kind)[0]) for part in parts)
    if kind in (bool, types.NoneType):
        words = NOTHING if kind is types.NoneType else TRUTH
        return words[_checked(str(value).lower(), words)]
    if value is None or isinstance(value, bool) or (kind is Path and value in ("", "none", "null")):
        raise ValueError
    if kind is str and not isinstance(value, (str, int, float)):
        raise ValueError
    if kind is Path:
        return Path(value).expanduser().absolute()  # a run may be opened from elsewhere
    try:
        made = kind(value)
    except OverflowError:  # of what is infinite, or an integer too large for a float
        raise ValueError from None
    if made != made or (kind is int and isinstance(value, float) and made != value):
        raise ValueError
    return made


def _first(value: Any, kinds: Sequence[Any]) -> Any:
    """``value`` as the first of ``kinds`` that it can be."""
    for kind in kinds:
        with contextlib.suppress(TypeError, ValueError):
            return as_kind(value, kind)
    raise ValueError


def _checked(word: str, words: Container[str]) -> str:
    if word not in words:
        raise ValueError
    return word

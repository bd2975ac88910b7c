"""Answers to streams of queries: at once, in order, and one that fails marked in its place."""

import gzip
import json
import os
from dataclasses import dataclass
from pathlib import Path

import pytest

from parsimax.recipes.kit import inputs
from parsimax.recipes.kit.answers import answers, arriving
from parsimax.recipes.kit.recipe import Answer, DataError, Options, Recipe
from parsimax.recipes.kit.settings import SettingsError


@dataclass(frozen=True)
class Sum:
    first: int
    second: float | None = None


class Adder(Recipe):
    """Cannot add 13; whole groups with it fail, as where memory ends."""

    query = Sum

    def start(self, settings, run):
        raise NotImplementedError

    reopen = evaluate = start

    def check(self, task, query, options):
        if query.first < 0:
            raise DataError("first is below 0")

    def predict(self, task, settings, queries, options):
        if any(query.first == 13 for query in queries):
            raise RuntimeError("no memory\nfor 13")
        return [
            Answer(
                (f"{one.first + (one.second or 0):g}",),
                ("large numbers",) if one.first > 99 else (),
                ("cut",) if one.first in (50, 51) else (),
            )
            for one in queries
        ]


def asked(lines, form="text", json=False):
    groups = iter([lines])
    return list(answers(Adder(), None, None, Options(json=json), groups, form))


def test_every_line_has_its_answer():
    lines = [b"1\t2\n", b"13\t1\n", b"\n", b"-3\t1\n", b"\xff\t1\n", b"x\t1\n", b"100\t1\n", b"200\tnone\n"]
    found = asked(lines)
    assert [answer.lines[0] for answer in found if not answer.failed] == ["3", "101", "200"]
    assert [answer.failed for answer in found] == [False, True, True, True, True, True, False, False]
    said = [answer.lines[0] for answer in found if answer.failed]
    assert [line.partition(":")[0] for line in said] == [f"#ERROR line {number}" for number in (2, 3, 4, 5, 6)]
    for line, part in zip(said, ("no memory for 13", "1 columns", "below 0", "not UTF-8", "integer"), strict=True):
        assert part in line
    assert [note for answer in found for note in answer.notes] == ["line 7: large numbers"], "told once"


def test_records():
    found = asked([b"second,first\n", b"2,1\n", b"1\n", b'"2",3\n'], "csv")
    assert [answer.lines[0] for answer in found] == [
        "3",
        "#ERROR line 3: 1 cells where the header has 2",
        "5",
    ]
    lines = [b'{"first": 1, "other": 0}\n', b"{\n", b"[" * 100_000 + b"\n", b'{"frist": 1}\n', b'{"first": 1.5}\n']
    first, *wrong = asked(lines, "jsonl", json=True)
    assert first.lines == ("1",)
    errors = [json.loads(answer.lines[0]) for answer in wrong]
    assert [error["line"] for error in errors] == [2, 3, 4, 5]
    assert "did you mean frist?" in errors[2]["error"] and "must be integer" in errors[3]["error"]


@pytest.mark.parametrize(
    "line, message",
    [
        (b'{"first": 1, "second": "\\ud800"}', r"'\ud800' is half of a character"),
        (b'{"first": 1, "other": [{"a\\uDFFFb": 1}]}', r"'\udfff' is half of a character"),
        (b'{"first": 1, "second": 1' + b"0" * 400 + b"}", "second must be number | none, got 1000"),
        (b'{"first": Infinity}', "first must be integer, got inf"),
        (b'{"first": 1' + b"0" * 5000 + b"}", "not JSON: Exceeds the limit"),
        (b'{"first": {"1": 2}}', "first must be integer"),
    ],
)
def test_no_record_ends_the_others(line, message):
    lines = [b'{"first": 1, "second": 2}\n', line + b"\n", b'{"first": 3, "other": "\\ud83d\\ude00"}\n']
    one, wrong, other = asked(lines, "jsonl")
    assert (one.lines, other.lines) == (("3",), ("3",)) and wrong.failed
    assert wrong.lines[0].startswith("#ERROR line 2: ") and message in wrong.lines[0]
    wrong.lines[0].encode()


class Breaking(Adder):
    """Fails in ways that nobody thought of."""

    def check(self, task, query, options):
        if query.first == 1:
            raise KeyError("one")
        if query.first == 2:
            raise SettingsError("an option that no line can take")

    def predict(self, task, settings, queries, options):
        if any(query.first == 3 for query in queries):
            raise OverflowError("three")
        return super().predict(task, settings, queries, options)


def test_what_nobody_thought_of_fails_one_line():
    def said(*lines):
        return [answer.lines[0] for answer in answers(Breaking(), None, None, Options(), iter([[*lines]]), "text")]

    lines = [b"1\t0\n", b"3\t0\n", b"4\t0\n"]
    assert said(*lines) == ["#ERROR line 1: KeyError: 'one'", "#ERROR line 2: OverflowError: three", "4"]
    with pytest.raises(SettingsError, match="no line can take"):
        said(*lines, b"2\t0\n")


def test_what_is_told_of_every_line():
    found = asked([b"50\t0\n", b"100\t0\n", b"50\t0\n", b"51\t0\n", b"100\t0\n"])
    notes = [note for answer in found for note in answer.notes]
    assert notes == ["line 1: cut", "line 2: large numbers", "line 3: cut", "line 4: cut"]


def test_tables_by_tabs_have_a_header_and_no_quotes():
    found = asked([b"second\tfirst\n", b"2\t1\n", b'"2\t1\n', b"3\t4\n"], "tsv")
    assert [answer.lines[0][:14] for answer in found] == ["3", "#ERROR line 3:", "7"]


def test_a_quoted_cell_may_have_several_lines():
    """As in the training data; whatever is wrong is told with the first line of the row, and the next is read."""
    lines = [
        b'first,"no\n',
        b'te"\n',
        b'1,"two\n',
        b"lines, \n",
        b'of ""it"""\n',
        b"2,x\n",
        b'3,5" wide\n',
        b'y,"a\n',
        b'b"\n',
    ]
    for groups in ([lines], [[line] for line in lines]):
        found = list(answers(Adder(), None, None, Options(), iter(groups), "csv"))
        assert [answer.lines[0] for answer in found[:3]] == ["1", "2", "3"]
        assert found[3].lines[0].startswith("#ERROR line 8: first must be integer") and len(found) == 4
    (ended,) = asked([b"first,note\n", b'1,"never\n', b"closed,\n"], "csv")
    assert ended.lines[0] == "#ERROR line 2: not CSV: a quote that opens in it is not closed"


@pytest.mark.parametrize("form, mark", [("csv", b","), ("tsv", b"\t")])
def test_a_column_that_is_there_twice_is_refused(form, mark):
    found = asked([mark.join([b"first", b"second", b"first\n"]), mark.join([b"1", b"2", b"3\n"])], form)
    assert found[0].lines[0] == "#ERROR line 1: the header has the column 'first' twice; leave one of them"
    assert all(answer.failed for answer in found)


def test_a_cell_too_large_for_csv_is_marked():
    found = asked([b"first\n", b"1" * 200_000 + b"\n", b"4\n"], "csv")
    assert [answer.failed for answer in found] == [True, False] and found[1].lines == ("4",)
    assert found[0].lines[0].startswith("#ERROR line 2: not CSV: field larger than")


def test_no_line_is_taken_for_a_header_that_cannot_be_read():
    for header in (b"fir\xffst\n", b"\n"):
        found = asked([header, b"1\n", b"2\n"], "csv")
        assert all(answer.failed for answer in found) and "header" in found[-1].lines[0]
        assert len(found) == (3 if header.strip() else 2)


class Torn:
    """A file whose disk fails after a line."""

    def __iter__(self):
        yield b"1\n"
        raise OSError(5, "Input/output error")


def test_what_fails_in_reading_is_raised_after_the_lines_before_it():
    groups = arriving(Torn())
    assert next(groups) == [b"1\n"]
    with pytest.raises(OSError, match="Input/output error"):
        next(groups)


def test_a_packed_file_is_unpacked_and_its_damage_named(tmp_path):
    path = tmp_path / "a.csv.gz"
    path.write_bytes(gzip.compress(b"first\n1\n" + os.urandom(9999).hex().encode()))
    assert inputs.form_of(path) == "csv"
    assert next(inputs.lines_of(path)) == b"first\n"
    path.write_bytes(path.read_bytes()[:-50])
    with pytest.raises(RuntimeError, match=r"a\.csv\.gz to its end"):
        list(inputs.lines_of(path))
    with pytest.raises(RuntimeError, match=r"cannot read .*nothing: No such file"):
        list(inputs.lines_of(tmp_path / "nothing"))


def test_a_line_does_not_wait_for_the_next():
    read, write = os.pipe()
    with os.fdopen(read, "rb") as source, os.fdopen(write, "wb", buffering=0) as sink:
        groups = arriving(source)
        for line in (b"one\n", b"two\n"):
            sink.write(line)
            assert next(groups) == [line]
        sink.write(b"three\nlast")
        sink.close()
        assert b"".join(line for group in groups for line in group) == b"three\nlast"


def test_groups_are_not_larger_than_asked():
    import io

    groups = list(arriving(io.BytesIO(b"x\n" * 1000), 256))
    assert sum(map(len, groups)) == 1000 and max(map(len, groups)) <= 256


@pytest.mark.parametrize(
    "name, form",
    [
        ("a.csv", "csv"),
        ("a.b.jsonl", "jsonl"),
        ("csv", "text"),
        ("x-test.gz", "text"),
        ("U.CSV", "csv"),
        ("a.tsv.GZ", "tsv"),
    ],
)
def test_the_ending_says_the_format(name, form):
    assert inputs.form_of(Path(name)) == form

"""The recipe ``multilabel``: Mulan's ARFF, CSV, Parquet and made data; every layer; figures against scikit-learn."""

import gzip
import io
import json
import random
import sys
import time
from pathlib import Path

import pytest
import torch

from parsimax import cli

pytest.importorskip("sklearn")
pytest.importorskip("arff")

from sklearn.metrics import accuracy_score, f1_score, hamming_loss

from parsimax import losses, sparsemax
from parsimax.recipes import find
from parsimax.recipes.kit.answers import answers
from parsimax.recipes.kit.runs import Run
from parsimax.recipes.kit.settings import changed
from parsimax.recipes.multilabel import arff, data, layers, model, pictures, tables
from parsimax.recipes.multilabel import recipe as recipe_module
from parsimax.recipes.multilabel.scores import figures as figures_of
from parsimax.recipes.multilabel.settings import Data, Layer, Model, Options
from parsimax.recipes.text import files

LAYERS = Layer.__args__
TINY = ["width=8", "steps=4", "eval_every=2", "tensorboard=false"]
SPACE = "http://mulan.sourceforge.net/labels"
XML = f'<labels xmlns="{SPACE}"><label name="b"/><label name="a"><label name="c"/></label></labels>'
HEAD = """@relation x
@attribute one numeric
@attribute 'colour' {red,green}
@attribute a {0,1}
@attribute b {0,1}
@attribute c numeric
@attribute two real
"""


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def mulan(folder, train, test=None, xml=XML, head=HEAD):
    folder = Path(folder)
    folder.mkdir()
    (folder / "x.xml").write_text(xml)
    (folder / "x-train.arff").write_text(f"{head}\n@data\n{train}")
    (folder / "x-test.arff.gz").write_bytes(gzip.compress(f"{head}@data\n{test or train}".encode()))
    return folder


DENSE = "1,red,1,0,0,2\n% a comment\n\n3,green,0,1,1,4\n5,red,0,0,0,6\n-7,green,1,1,1,8\n9,red,1,0,1,0\n"
SPARSE = "{0 1,2 1,5 2}\n{0 3,1 green,3 1,4 1,5 4}\n{0 5,5 6}\n{0 -7,1 green,2 1,3 1,4 1,5 8}\n{0 9,2 1,4 1}\n"


def test_arff_dense_and_sparse_are_the_same():
    dense, sparse = (data.load(Data(root=mulan(name, rows)), "test") for name, rows in (("d", DENSE), ("s", SPARSE)))
    assert dense.columns == ["one", "colour=red", "colour=green", "two"] and dense.names == ["b", "a", "c"]
    assert dense.numbers.tolist() == [[1, 1, 0, 2], [3, 0, 1, 4], [5, 1, 0, 6], [-7, 0, 1, 8], [9, 1, 0, 0]]
    assert dense.labels.int().tolist() == [[0, 1, 0], [1, 0, 1], [0, 0, 0], [1, 1, 1], [0, 1, 1]]
    assert torch.equal(dense.numbers, sparse.numbers) and torch.equal(dense.labels, sparse.labels)
    file = mulan("c", DENSE.replace("% a", "  % a")) / "x-train.arff"
    file.write_text(file.read_text().replace("@data", "@DATA % rows"))
    assert len(data.load(Data(root=Path("c")), "train").numbers) == 4


def test_an_integer_may_have_a_fraction():
    """As in Weka, where the word means the same as numeric."""
    root = mulan("d", DENSE.replace("3,green", "3.5,green"), head=HEAD.replace("one numeric", "one  Integer"))
    assert data.load(Data(root=root), "test").numbers[:, 0].tolist() == [1, 3.5, 5, -7, 9]


@pytest.mark.parametrize(
    "head, rows, columns, numbers",
    [
        (
            "@relation\tx\n\t @attribute\ta\tnumeric\t\n@ATTRIBUTE\tb\tInteger\n",
            "{0 1,1 2}\n{1 3}",
            "ab",
            [[1, 2], [0, 3]],
        ),
        ("@relation x\n@attribute 'a' {'p' , 'q'}\n@attribute 'b c' real\n", "q,2", ["a=p", "a=q", "b c"], [[0, 1, 2]]),
        (
            "@relation x\n@attribute a {'q\\', 1 z', \"p\"}\n@attribute b real\n@attribute c real\n",
            "{0 'q\\', 1 z', 1 2, 2 1}\n{ }\n{0 p ,2 4 }",
            ["a=q', 1 z", "a=p", "b", "c"],
            [[1, 0, 2, 1], [1, 0, 0, 0], [0, 1, 0, 4]],
        ),
        (
            "@relation x\n@attribute f' real\n@attribute 'it's' real\n@attribute f real\n",
            "1,2,3",
            ["f'", "it's", "f"],
            [[1, 2, 3]],
        ),
        ("@relation x\n@attribute a {1_0, 2}\n", "1_0\n2", ["a=1_0", "a=2"], [[1, 0], [0, 1]]),
        ("@relation x\n@attribute a {-1, 2}\n", "{}\n{0 2}", "a", [[-1], [2]]),
        (
            "\ufeff@relation\r\n@attribute 'a% b' REAL% {c}\r\n@attribute d {'5%','6 %'}  % 'e\r\n",
            "1,'6 %'\r\n2,5%\r",
            ["a% b", "d=5%", "d=6 %"],
            [[1, 0, 1], [2, 1, 0]],
        ),
    ],
)
def test_what_is_arff_is_read(head, rows, columns, numbers):
    Path("x.arff").write_bytes(f"{head}% a comment\n\n@data\n{rows}\n".encode())
    found = arff.read(Path("x.arff"))
    assert found[:2] == ([*columns], numbers)


def test_a_long_row_or_list_takes_no_time():
    """Once the square of the places, and two to the power of the names."""
    head = "".join(f"@attribute a{at} numeric\n" for at in range(50_000))
    row = ",".join(f"{at} 1" for at in range(50_000))
    Path("x.arff").write_text(f"@relation x\n{head}@data\n{{{row}}}\n")
    began = time.process_time()
    arff.read(Path("x.arff"))
    Path("x.arff").write_text(f"@relation x\n@attribute a {{{row.replace(' ', '')},b c}}\n@data\n")
    with pytest.raises(data.DataError, match=r"line 2: not ARFF"):
        arff.read(Path("x.arff"))
    assert time.process_time() - began < 10


def test_rows_are_held_out_once():
    settings = Data(root=mulan("d", DENSE), held_out=0.4)
    train, val = (data.load(settings, split).numbers[:, 0].tolist() for split in ("train", "val"))
    assert len(val) == 2 and sorted(train + val) == [-7, 1, 3, 5, 9]


def test_no_share_is_held_out_beside_rows_to_validate_on(tmp_path):
    for split in ("train", "val"):
        (tmp_path / f"x-{split}.csv").write_text("one,a\n1,0\n2,1\n")
    assert len(data.load(Data(root=tmp_path, labels=("a",)), "train").numbers) == 2
    given = Data(root=tmp_path, labels=("a",), held_out=0.4)
    assert len(data.load(given, "val").numbers) == 2
    with pytest.raises(data.DataError, match=r"data\.held_out=0\.4: .*x-val\.csv is there to validate on; leave"):
        data.load(given, "train")


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda t: t.replace("two real", "two weird"), "x-train.arff, line 7: two is of type weird; numbers"),
        (lambda t: t.replace("two real", "two string"), "x-train.arff, line 7: two is of type string"),
        (lambda t: t.replace("3,green,0,1,1,4", "3,green,0,1"), "x-train.arff, line 13: the row has too few or"),
        (lambda t: t.replace("3,green", "x,green"), "line 13: one must be a number, got 'x'"),
        (lambda t: t.replace("3,green", "1_0,green"), "line 13: one must be a number, got '1_0'"),
        (lambda t: t.replace("3,green", "3,blue"), "line 13: a value is not one of its attribute's"),
        (lambda t: t.replace("3,green,0,1,1", "3,green,0,1,2"), "line 13: the label c must be 0 or 1, got 2"),
        (lambda t: t.replace("3,green", "?,green"), "line 13: one is missing"),
        (lambda t: t.replace("3,green", "nan,green"), "line 13: one must be a number of float32, got nan"),
        (lambda t: t.replace("3,green", "1e40,green"), "line 13: one must be a number of float32, got 1e+40"),
        (
            lambda t: t.replace("attribute a", "attribute A"),
            "x.xml, line 1: x-train.arff does not have this label: no column is called 'a'",
        ),
        (lambda t: t.replace("@attribute c numeric", "@attribute o string"), "line 6: o is of type string"),
        (lambda t: t.replace("@attribute two real", "  @Attribute two string"), "line 7: two is of type string"),
        (lambda t: t.partition("1,red")[0], "has no rows"),
        (lambda t: t.partition("1,red")[0] + SPARSE + "3,green,0,1,1,4", "line 15: the rows before it are sparse"),
        (lambda t: t + "{0 1}", "line 17: the rows before it are dense, this one is sparse"),
        (lambda t: t.partition("1,red")[0] + SPARSE + "{0 1,1 green,0 2}", "line 15: column 0 is there twice"),
        (lambda t: t.partition("1,red")[0] + SPARSE + "{0 1, 00 2}", "line 15: column 0 is there twice"),
        (lambda t: "garbage", "x-train.arff, line 1: not ARFF: before @data there"),
        (lambda t: t.replace("@attribute a ", "@atribute a "), "@relation or @attribute, got '@atribute a {0,1}'"),
        (lambda t: t.replace("@attribute a ", "@attributes a "), "line 4: not ARFF: before @data there"),
        (
            lambda t: t.replace("@data", "@data 1,red,1,0,0,2"),
            "line 9: not ARFF: the rows begin below @data, got '@data 1",
        ),
        (lambda t: t.replace("@data", ""), "x-train.arff, line 10: not ARFF: before @data there"),
        (lambda t: HEAD, "x-train.arff: not ARFF: it has no @data"),
        (lambda t: t.replace("c numeric", "a real"), "line 6: the column 'a' is there twice; name it otherwise"),
        (lambda t: t.replace("{red,green}", "{red,?}"), "line 3: not ARFF"),
        (lambda t: "\n\n" + t.replace("3,green", "x,green"), "line 15: one must be a number, got 'x'"),
        (lambda t: t.replace("{red,green}", "{}"), "line 3: not ARFF, in \"@attribute 'colour' {}\""),
        (lambda t: t.replace("@attribute two real", "@attribute"), "line 7: not ARFF, in '@attribute'"),
        (lambda t: t.replace("3,green", "'\\u12',green"), "line 13: not ARFF"),
        (lambda t: t.replace("3,green", f"{'3' * 200_000},green"), "line 13: not ARFF: field larger than field limit"),
        (lambda t: t.replace("attribute c", "attribute colour=red"), "line 6: the column 'colour=red' is there twice"),
        (lambda t: "", "x-train.arff is empty"),
    ],
)
def test_malformed_arff_is_named_with_its_line(change, message, capsys):
    file = mulan("d", DENSE) / "x-train.arff"
    file.write_text(change(file.read_text()))
    assert cli.main(["train", "multilabel", *TINY, "data.root=d", "--run", "run"]) == 2
    said = capsys.readouterr().err
    assert message in said and said.count("\n") == 1
    assert not Path("run").exists(), "something was left behind"


@pytest.mark.parametrize(
    "xml, message",
    [
        ("<labels>\n<label", "x.xml, line 2: not XML"),
        ("<labels/>", "x.xml has no <label"),
        ('<labels><label name="a"/>\n<label name="a"/></labels>', "x.xml, line 2: the label 'a' is there twice"),
        ('<labels><label name="a"/>\n<label/></labels>', "x.xml, line 2: a label without a name"),
        ('<?xml version="1.0" encoding="none-such"?>\n<labels/>', "x.xml: not XML (unknown encoding"),
        ('<?xml version="1.0" encoding="shift_jis"?>\n<labels/>', "x.xml: not XML (multi-byte encodings are not"),
        (
            '<labels>\n<label name="a"/>\n<label name="colour"/></labels>',
            "x.xml, line 3: x-train.arff does not have this",
        ),
        ("<labels>\n\n<label name='a&amp;b'/></labels>", "x.xml, line 3: x-train.arff does not have this"),
    ],
)
def test_a_bad_label_list_is_named(xml, message, capsys):
    mulan("d", DENSE, xml=xml)
    assert cli.main(["train", "multilabel", *TINY, "data.root=d"]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    "content",
    [
        b'<labels>\n<label name="\xc3\xa9 \xc3\xbc"/></labels>',
        b'\xef\xbb\xbf<?xml version="1.0" encoding="utf-8"?>\n<labels><label name="\xc3\xa9 \xc3\xbc"/></labels>',
        b'<?xml version="1.0" encoding="ISO-8859-1"?>\n<labels><label name="\xe9 \xfc"/></labels>',
        b'<?xml version="1.0" encoding="windows-1252"?>\n<labels><label name="\xe9 &#252;"/></labels>',
        '<?xml version="1.0" encoding="UTF-16"?>\n<labels><label name="é ü"/></labels>'.encode("utf-16"),
    ],
)
def test_labels_are_read_in_the_encoding_that_is_declared(content):
    Path("x.xml").write_bytes(content)
    assert arff.label_places(Path("x.xml")) == {"é ü": 2}


def test_a_label_list_that_declares_entities_is_refused():
    """Ten of ten of ten …: a few lines that would be gigabytes."""
    bomb = "".join(f'<!ENTITY e{at} "{f"&e{at - 1};" * 10}">' for at in range(1, 12))
    for declared in (f'<!ENTITY e0 "ha">{bomb}', '<!ENTITY e11 SYSTEM "file:///etc/hostname">'):
        Path("x.xml").write_text(f'<!DOCTYPE labels [\n{declared}]>\n<labels><label name="a">&e11;</label></labels>')
        with pytest.raises(data.DataError, match=r"x\.xml, line 2: it declares the entity 'e"):
            arff.label_places(Path("x.xml"))


def test_quoted_names_are_read_as_they_are_meant():
    head = HEAD.replace("attribute a", r"attribute 'a\'s'").replace("attribute c", r'attribute "c \\ \"d\" 100\%"')
    xml = XML.replace('"a"', '"a\'s"').replace('"c"', '"c \\ &quot;d&quot; 100%"')
    assert data.load(Data(root=mulan("d", DENSE, xml=xml, head=head)), "test").names == ["b", "a's", 'c \\ "d" 100%']
    rows = data.load(Data(root=mulan("e", DENSE, head=HEAD.replace("one", "'it's'"))), "test")
    assert rows.columns[0] == "it's", "a quote that is not escaped is the name's, as it was"


def table(folder, rows=40, seed=0):
    """Two columns and two labels that follow from them, as CSV."""
    chance = random.Random(seed)
    Path(folder).mkdir(exist_ok=True)
    numbers = [[chance.gauss(0, 1), chance.gauss(0, 1)] for _ in range(rows)]
    return ["x,up,y,down", *(f"{x:.6f},{int(x > 0)},{y:.6f},{int(y < 0.3)}" for x, y in numbers)]


def write_tables(folder):
    for seed, split in enumerate(("train", "val", "test")):
        (Path(folder) / f"{split}.csv").write_text("\n".join(table(folder, seed=seed)))


@pytest.mark.parametrize(
    "line, words, message",
    [
        ("x,up,y", ["labels=up,down"], "train.csv, line 1: no column is called 'down'"),
        (None, ["labels=upp"], "did you mean up?"),
        (None, [], "say which columns are labels"),
        (None, ["labels=up,down,x,y"], "has no column that is not a label"),
        ("x,up,x,down", ["labels=up,down"], "train.csv, line 1: the column 'x' is there twice"),
        ("", ["labels=up,down"], "train.csv, line 1: empty; the names of the columns belong there"),
        (" , , , ", ["labels=up,down"], "train.csv, line 1: empty; the names of the columns belong there"),
        ("x,up, ,down", ["labels=up,down"], "train.csv, line 1: column 3 of 4 has no name"),
    ],
)
def test_a_csv_without_its_labels_is_refused(line, words, message, capsys):
    table("d")
    write_tables("d")
    if line is not None:
        rows = Path("d/train.csv").read_text().splitlines()
        size = line.count(",") + 1
        Path("d/train.csv").write_text("\n".join([line, *(",".join(row.split(",")[:size]) for row in rows[1:])]))
    assert cli.main(["train", "multilabel", *TINY, "data.root=d", *words]) == 2
    assert message in capsys.readouterr().err
    assert not Path("runs/multilabel/0001").exists()


@pytest.mark.parametrize(
    "cell, message",
    [("x", "x must be a number, got 'x'"), ("nan", "must be a number"), ("1,2", "5 cells"), ("1_0", "got '1_0'")],
)
def test_a_bad_cell_is_named_with_its_line(cell, message, capsys):
    table("d")
    write_tables("d")
    rows = Path("d/train.csv").read_text().splitlines()
    rows[3] = cell + rows[3][rows[3].index(",") :]
    Path("d/train.csv").write_text("\n".join(rows))
    assert cli.main(["train", "multilabel", *TINY, "data.root=d", "labels=up,down"]) == 2
    said = capsys.readouterr().err
    assert "train.csv, line 4" in said and message in said


@pytest.mark.parametrize(
    "text, place",
    [
        ('"x,up\n' + "1,0\n" * 999, 1),
        ('x,up\n1,0\n"1,0\n' + "1,0\n" * 999, 3),
        ('x,up\n1,0\n"\n1",0\n"1"1,0\n', 5),
        ('x,up\n1,0\n"1,0\n' + "1,0\n" * 99_999, 3),
    ],
)
def test_a_quote_that_is_not_closed_swallows_no_rows(text, place):
    Path("train.csv").write_text(text)
    with pytest.raises(data.DataError, match=rf"train\.csv, line {place}: cannot be read: .*; a quote in") as caught:
        tables.read_csv(Path("train.csv"))
    assert len(str(caught.value)) < 300


def test_a_row_is_named_by_its_first_line():
    Path("train.csv").write_text('x,up\n\n"\n1",0\n1,0\n')
    assert tables.read_csv(Path("train.csv")) == (["x", "up"], [[1, 0], [1, 0]], [3, 5])


def test_a_parquet_with_a_column_twice_is_refused():
    arrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    parquet.write_table(arrow.table([[1], [2]], names=["x", "x"]), "train.parquet")
    with pytest.raises(data.DataError, match=r"train\.parquet: the column 'x' is there twice"):
        tables.read_parquet(Path("train.parquet"))


def test_what_is_wrong_in_test_is_said_before_training(capsys, monkeypatch):
    mulan("d", DENSE, DENSE.replace("3,green", "x,green"))
    assert cli.main(["train", "multilabel", *TINY, "data.root=d", "--run", "run"]) == 2
    assert "x-test.arff.gz, line 12: one must be a number, got 'x'" in capsys.readouterr().err
    assert not Path("run").exists()


def test_what_breaks_at_the_start_leaves_no_run(monkeypatch):
    def broken(*given):
        Path("run/folder").mkdir()
        Path("run/folder/half").write_text("written")
        raise IndexError("no such thing")

    monkeypatch.setattr("parsimax.recipes.multilabel.recipe.MultiLabel.start", broken)
    with pytest.raises(IndexError):
        cli.main(["train", "multilabel", *TINY, "--run", "run"])
    assert not Path("run").exists()


def test_parquet_is_read_as_csv_is():
    arrow = pytest.importorskip("pyarrow")
    from pyarrow import csv, parquet

    table("d")
    write_tables("d")
    Path("p").mkdir()
    for split in ("train", "val", "test"):
        parquet.write_table(csv.read_csv(f"d/{split}.csv"), f"p/{split}.parquet")
    one, other = (data.load(Data(root=Path(folder).absolute(), labels=("up", "down")), "val") for folder in "dp")
    assert one.columns == other.columns == ["x", "y"] and torch.equal(one.labels, other.labels)
    torch.testing.assert_close(one.numbers, other.numbers)
    for cell in ("a", "1_0", b"1_0"):
        parquet.write_table(arrow.table({"x": [cell], "up": [1]}), "p/val.parquet")
        with pytest.raises(data.DataError, match=r"val\.parquet, line 1: x must be a number"):
            data.load(Data(root=Path("p").absolute(), labels=("up",)), "val")
    Path("p/val.parquet").write_bytes(b"PAR1 damaged")
    with pytest.raises(data.DataError, match=r"val\.parquet, it is damaged"):
        data.load(Data(root=Path("p").absolute(), labels=("up",)), "val")


def test_endings_may_be_in_capitals_and_packed():
    arrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    root = mulan("d", DENSE)
    for name, other in (("x-test.arff.gz", "X-TEST.ARFF.GZ"), ("x-train.arff", "x-train.Arff"), ("x.xml", "x.XML")):
        (root / name).rename(root / other)
    for split in ("train", "test"):
        assert data.load(Data(root=root), split).names == ["b", "a", "c"]
    assert files.ending(Path("train.tsv.GZ")) == ".tsv"
    (root / "y.xml").write_text(XML)
    with pytest.raises(data.DataError, match=r"must have one XML file .* it has x\.XML, y\.xml"):
        data.load(Data(root=root), "test")
    parquet.write_table(arrow.table({"x": [1.5, 2], "up": [1, 0]}), "test.parquet")
    Path("test.parquet.gz").write_bytes(gzip.compress(Path("test.parquet").read_bytes()))
    Path("test.parquet").unlink()
    settings = Data(root=Path.cwd(), labels=("up",))
    assert data.load(settings, "test").numbers.tolist() == [[1.5], [2]]
    Path("test.parquet.gz").write_bytes(Path("test.parquet.gz").read_bytes()[:-9])
    with pytest.raises(data.DataError, match=r"test\.parquet\.gz, it is damaged"):
        data.load(settings, "test")


@pytest.mark.parametrize("layer", LAYERS)
def test_rows_without_any_label_are_refused(layer, capsys):
    table("d")
    write_tables("d")
    rows = Path("d/train.csv").read_text().splitlines()
    Path("d/train.csv").write_text("\n".join([rows[0], *(row[:-1] + "0" for row in rows[1:])]))
    words = ["train", "multilabel", *TINY, f"layer={layer}", "data.root=d", "--run", "run"]
    assert cli.main([*words, "labels=down"]) == 2
    assert "train.csv: no row to train on has a label (down); at least one must" in capsys.readouterr().err
    assert not Path("run").exists()


def test_two_files_of_a_split_are_refused():
    table("d")
    write_tables("d")
    Path("d/more_train.csv").write_text("x\n1")
    with pytest.raises(data.DataError, match="more than one file of train"):
        data.load(Data(root=Path("d").absolute(), labels=("up",)), "train")


@pytest.mark.parametrize(
    "words, unread",
    [
        (["layer=sigmoid", "rate=0.6"], "model.layer=sigmoid does not read model.rate"),
        (["rate=0.6"], "model.layer=rsoftmax-predicted does not read model.rate"),
        (["layer=entmax", "q=3"], "model.layer=entmax does not read model.q"),
        (["layer=rsoftmax", "alpha=1.5"], "model.layer=rsoftmax does not read model.alpha"),
        (["layer=softmax", "count_weight=2"], "model.layer=softmax does not read model.count_weight"),
    ],
)
def test_numbers_of_other_layers_are_refused(words, unread, capsys):
    assert cli.main(["train", "multilabel", *TINY, *words, "--run", "run"]) == 2
    said = capsys.readouterr()
    assert unread in said.err and not said.out and not Path("run").exists()


@pytest.mark.parametrize(
    "words, unread",
    [
        (["data.root=d", "labels=up", "data.classes=5"], "data.root does not read data.classes"),
        (["data.root=d", "labels=up", "average=2"], "data.root does not read data.average"),
        (["data.root=d", "labels=up", "rows=99"], "data.root does not read data.rows"),
        (["held_out=0.5"], "the embedded data, whose parts are fixed, does not read data.held_out"),
        (["shape=1,4,5"], "model.net=mlp does not read data.shape"),
    ],
)
def test_settings_that_nothing_would_read_are_refused_at_the_start_alone(words, unread, capsys):
    table("d")
    write_tables("d")
    assert cli.main(["train", "multilabel", *TINY, *words, "--run", "run"]) == 2
    said = capsys.readouterr()
    assert unread in said.err and not said.out and not Path("run").exists()
    changed(find("multilabel").settings(), dict(word.split("=") for word in words)).check()  # a run that has begun


def test_plans_give_a_layer_what_it_reads(monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "benchmarks")
    from tuned_plans import PLANS

    for name in ("scene", "yeast", "corel5k"):
        assert {*PLANS[name].cells} == {*LAYERS} and "model.rate" in " ".join(PLANS[name].cells["rsoftmax"])
    for plan in PLANS.values():
        for words in plan.cells.values():
            given = dict(word.split("=") for word in [*plan.common, *words])
            changed(find(plan.recipe).settings(), given).check_new()


@pytest.mark.parametrize(
    "words, message",
    [
        (["layer=sparsehourglass", "q=inf"], "model.q of sparsehourglass must be in (0, inf), got inf"),
        (["layer=entmax", "alpha=0"], "model.alpha of the loss of entmax must be in (0, inf], got 0"),
    ],
)
def test_numbers_that_a_mapping_does_not_take_are_refused(words, message, capsys):
    assert cli.main(["train", "multilabel", *TINY, *words, "--run", "run"]) == 2
    said = capsys.readouterr()
    assert message in said.err and not said.out and not Path("run").exists()


def test_the_dial_says_what_a_mapping_does_not_take_before_it_measures(capsys, monkeypatch):
    words = [*TINY, "layer=sparsehourglass", "data.classes=5", "rows=200", "--run", "run"]
    assert cli.main(["train", "multilabel", *words]) == 0
    monkeypatch.setattr("parsimax.recipes.multilabel.recipe.MultiLabel.evaluate", None)
    assert cli.main(["eval", "run", "q=1,inf"]) == 2
    assert "model.q of sparsehourglass must be in (0, inf), got inf" in capsys.readouterr().err


def test_a_rate_takes_the_place_of_the_predicted_one(capsys):
    small = [*TINY, "data.classes=5", "rows=200"]
    assert cli.main(["train", "multilabel", *small, "--run", "run"]) == 0
    assert cli.main(["eval", "run"]) == 0
    own = Path("run/results.json").read_bytes()
    capsys.readouterr()
    assert cli.main(["eval", "run", "layer=rsoftmax", "rate=0.2,0.4,…,0.8"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in said[2:6]] == [["rsoftmax", f"0.{at}"] for at in (2, 4, 6, 8)]
    assert [line.split()[3] for line in said[2:6]] == ["0.2", "0.4", "0.6", "0.8"], "zeros that are those asked for"
    assert Path("run/results.json").read_bytes() == own
    assert cli.main(["eval", "run", "rate=0.7"]) == 2
    assert "eval can turn model.layer=rsoftmax, model.layer=rsoftmax-predicted" in capsys.readouterr().err
    assert cli.main(["eval", "run", "layer=rsoftmax-predicted,rsoftmax"]) == 0
    assert cli.main(["train", "multilabel", *small, "layer=sigmoid", "--run", "other"]) == 0
    for word in ("layer=rsoftmax", "layer=rsoftmax-predicted"):
        assert cli.main(["eval", "other", word]) == 2
        assert f"model.{word} cannot take the place of sigmoid; train" in capsys.readouterr().err


@pytest.mark.parametrize("layer", LAYERS)
def test_every_layer_trains_and_gives_labels(layer, capsys):
    words = [*TINY, f"layer={layer}", "data.classes=5", "rows=200", *(["rate=0.6"] if layer == "rsoftmax" else [])]
    assert cli.main(["train", "multilabel", *words, "--run", "run"]) == 0, capsys.readouterr().err
    assert cli.main(["eval", "run"]) == 0
    figures = json.loads(Path("run/results.json").read_text())["test"]
    assert ("threshold" in figures, "alpha" in figures) == (layer == "softmax", layer == "entmax")
    outputs = [json.loads(line) for line in Path("run/outputs/test.jsonl").read_text().splitlines()]
    names = [f"label {at}" for at in range(5)]
    right, found = ([[name in one[key] for name in names] for one in outputs] for key in ("wanted", "labels"))
    for kind, name in (("micro", "micro F1"), ("macro", "macro F1"), ("samples", "example F1")):
        assert figures[name] == pytest.approx(f1_score(right, found, average=kind, zero_division=0))
    assert figures["predicted labels a row"] == pytest.approx(sum(map(sum, found)) / len(found))
    if layer == "rsoftmax":
        assert all(len(one["possible"]) == len(one["labels"]) == 2 for one in outputs), "the rate that was asked for"
    if layer not in ("sigmoid", "softmax"):
        assert all({*one["possible"]} == {*one["labels"]} for one in outputs)


@pytest.mark.parametrize("labels", [1, 2, 3, 30])
def test_figures_are_those_of_scikit_learn(labels):
    """Which takes one label for two classes, and would count where it is not wanted and not given: there by hand."""
    torch.manual_seed(0)
    for share in (0.0, 0.05, 0.5, 1.0):
        p = torch.rand(40, labels)
        wanted, given = torch.rand(40, labels) < share, p > 0.6
        found = figures_of(wanted, given, p)
        right, said = wanted.int().numpy(), given.int().numpy()
        assert found["subset accuracy"] == pytest.approx(accuracy_score(right, said), rel=1e-12)
        assert found["Hamming loss"] == pytest.approx(hamming_loss(right, said), rel=1e-12)
        if labels == 1:
            right, said = ([[*row, 0] for row in some.tolist()] for some in (right, said))
        for kind, name in (("micro", "micro F1"), ("macro", "macro F1"), ("samples", "example F1")):
            own = f1_score(right, said, average=kind, zero_division=0) * (2 if (labels, kind) == (1, "macro") else 1)
            assert found[name] == pytest.approx(own, rel=1e-12)


def test_one_label_that_is_not_found_is_no_success():
    wanted, given = torch.tensor([[1], [0], [0], [0]]).bool(), torch.zeros(4, 1).bool()
    found = figures_of(wanted, given, torch.zeros(4, 1))
    assert found["micro F1"] == found["macro F1"] == found["example F1"] == 0
    assert found["subset accuracy"] == 0.75 and found["Hamming loss"] == 0.25


@pytest.mark.parametrize("layer", LAYERS)
def test_one_label_trains_and_is_drawn(layer, capsys):
    table("d")
    write_tables("d")
    words = [*TINY, f"layer={layer}", "data.root=d", "labels=up", "--run", "run"]
    assert cli.main(["train", "multilabel", *words]) == 0, capsys.readouterr().err
    assert cli.main(["eval", "run"]) == 0 and cli.main(["report", "run"]) == 0, capsys.readouterr().err


@pytest.mark.parametrize("layer", LAYERS)
def test_a_batch_without_labels_is_no_error(layer):
    torch.manual_seed(0)
    made = layers.LabelLayer(Model(layer=layer), 4, 3)
    hidden, wanted = torch.randn(5, 4), torch.rand(5, 3) < 0.5
    assert wanted.any()
    without = torch.cat([wanted, torch.zeros(2, 3, dtype=torch.bool)])
    empty = made.loss(hidden, torch.zeros(5, 3, dtype=torch.bool))
    assert empty.isfinite()
    empty.backward()
    assert made.linear.weight.grad.isfinite().all()
    if layer not in ("sigmoid", "rsoftmax-predicted"):
        assert empty == 0
        same = made.loss(torch.cat([hidden, torch.randn(2, 4)]), without)
        torch.testing.assert_close(same, made.loss(hidden, wanted))


def test_predicted_counts_are_the_number_of_labels():
    torch.manual_seed(0)
    layer = layers.LabelLayer(Model(layer="rsoftmax-predicted"), 6, 7)
    hidden = torch.randn(200, 6) * 4
    p, given = layer(hidden)
    assert torch.equal(given.sum(-1), layer.count(hidden).argmax(-1)) and {*given.sum(-1).tolist()} >= {0, 1, 4, 7}
    assert torch.equal(p > 0, given)


def test_the_hinge_of_sparsemax():
    """Laha et al.'s loss with a = 1, pair by pair; where it is 0, sparsemax gives the labels their shares."""
    torch.manual_seed(0)
    layer = layers.LabelLayer(Model(layer="sparsemax-hinge"), 5, 4).double()
    hidden = torch.randn(6, 5, dtype=torch.double)
    wanted = torch.tensor([[1, 0, 0, 1], [1, 1, 1, 1], [0, 1, 0, 0], [0, 0, 0, 0], [1, 1, 0, 1], [0, 0, 1, 1]]).bool()
    total, rows = 0.0, 0
    for scores, marks in zip(layer.linear(hidden), wanted, strict=True):
        on, off = marks.nonzero().flatten().tolist(), (~marks).nonzero().flatten().tolist()
        rows += bool(on)
        total += sum(abs(scores[i] - scores[j]) / 2 for i in on for j in on)
        total += sum(max(1 / len(on) - (scores[i] - scores[j]), 0) for i in on for j in off)
    torch.testing.assert_close(layer.loss(hidden, wanted), total / rows, rtol=1e-9, atol=0)
    scores = torch.tensor([[1.0, 0.5, 1.0, 0.2]])
    loss = losses.multilabel_loss(scores, torch.tensor([[1, 0, 1, 0]]), "sparsehourglass", q=layers.SPARSEMAX_Q)
    assert loss < 10 / layers.SPARSEMAX_Q, "0 but for what q is less than infinite"
    assert sparsemax(scores).tolist() == [[0.5, 0, 0.5, 0]]


def test_the_threshold_is_the_best_of_all():
    torch.manual_seed(0)
    for trial in range(100):
        p = torch.rand(12, 4).softmax(-1) if trial % 2 else torch.randint(1, 4, (12, 4)) / 10.0
        wanted = torch.rand(12, 4) < 0.4

        def f1(cut, p=p, wanted=wanted):
            given = p > cut
            return 2 * (given & wanted).sum() / (given.sum() + wanted.sum())

        best = max(f1(cut) for cut in [0.0, *(p.flatten().double() - 1e-6).tolist()])
        assert f1(layers.best_threshold(p, wanted)) == best


def test_the_threshold_that_is_kept_gives_what_was_counted():
    """Between 0.5 and the number of float32 below it there is none; the second row has both."""
    layer = layers.LabelLayer(Model(layer="softmax"), 2, 2)
    with torch.no_grad():
        layer.linear.weight.copy_(torch.tensor([[0.0, 1.2e-7], [0.0, 0.0]]))
        layer.linear.bias.zero_()
    hidden, wanted = torch.eye(2), torch.tensor([[True, True], [True, False]])
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        layer.to(dtype)
        p, _ = layer(hidden.to(dtype))
        wanted = p >= 0.5
        layer.tune(p, wanted)
        assert torch.equal(layer(hidden.to(dtype))[1], wanted)
    layer.float().tune(torch.tensor([[1e-45, 0.0]]), torch.tensor([[True, False]]))
    assert layer.threshold == 0


def test_from_training_to_predictions_and_report(capsys, monkeypatch):
    table("d")
    write_tables("d")
    words = [
        "layer=sigmoid",
        "width=16",
        "steps=150",
        "eval_every=50",
        "lr=0.02",
        "tensorboard=false",
        "labels=up,down",
    ]
    assert cli.main(["train", "multilabel", *words, "data.root=d", "--run", "run"]) == 0, capsys.readouterr().err
    assert cli.main(["eval", "run"]) == 0
    assert json.loads(Path("run/results.json").read_text())["test"]["micro F1"] > 0.9
    capsys.readouterr()
    lines = "3 -3\n-3,3\n3\nx 1\n1e39 0\n\n2\t2\n1,,2\nnan 1\n1 , 2\n"
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(lines.encode())))
    assert cli.main(["predict", "run"]) == 1
    said = capsys.readouterr().out.splitlines()
    assert [said[0], said[1], said[6]] == ["up\tdown", "", "up"]
    assert [line.partition(":")[0] for line in said[2:6]] == [f"#ERROR line {number}" for number in (3, 4, 5, 6)]
    assert said[7] == "#ERROR line 8: a row is 2 numbers, got '1,,2'" and said[8] == "#ERROR line 9: a number is NaN"
    assert not said[9].startswith("#ERROR")
    Path("a.csv").write_text("other,y,x\n0,-3,3\n0,1\n0,3,-3\n")
    assert cli.main(["predict", "run", "--input", "a.csv", "--json"]) == 1
    said = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert said[0]["labels"] == ["up", "down"] and said[2]["labels"] == [] and "2 cells" in said[1]["error"]
    Path("b.csv").write_text("y,z\n1,2\n")
    assert cli.main(["predict", "run", "--input", "b.csv"]) == 1
    assert "no column is called 'x'" in capsys.readouterr().out
    Path("c.jsonl").write_text('{"numbers": [3, -3]}\n{"x": 3, "y": -3}\n')
    assert cli.main(["predict", "run", "--input", "c.jsonl", "--probabilities"]) == 0
    one, other = capsys.readouterr().out.splitlines()
    assert one == other and one.count(":") == 2
    assert cli.main(["report", "run"]) == 0
    written = [Path(line) for line in capsys.readouterr().out.splitlines()]
    assert [path.name for path in written] == ["training.png", "labels.png"] and all(map(Path.exists, written))
    Path("d/test.csv").write_text("y,up,x,down\n1,0,1,0\n")
    assert cli.main(["eval", "run", "--changed-data"]) == 2
    assert "test.csv, line 1: the columns of test are not those of the training data: their order" in (
        capsys.readouterr().err
    )
    Path("run/names.json").write_text('{"columns": []}')
    assert cli.main(["predict", "run"]) == 2
    assert "names.json is damaged" in capsys.readouterr().err


SMALL = changed(find("multilabel").settings(), {"model.width": "4"})


def untrained(labels=("a", "b"), columns=("x", "y")):
    rows = data.Rows(torch.zeros(0, len(columns)), torch.zeros(0, len(labels)).bool(), [*columns], [*labels])
    return recipe_module._task(SMALL, rows, rows)


def asked(lines, form, task=None):
    groups = iter([[f"{line}\n".encode() for line in lines]])
    given = answers(recipe_module.RECIPE, task or untrained(), SMALL, Options(), groups, form)
    return [answer.lines[0] for answer in given]


def test_an_answer_is_one_line_of_cells_whatever_labels_are_called():
    task = untrained(labels=["a\r\nb", "c\td", "e"])
    found = recipe_module.known(task, torch.tensor([True, True, False]), torch.tensor([0.75, 0.25, 0.0]))
    assert recipe_module.line(found, Options()) == "a b\tc d"
    assert recipe_module.line(found, Options(probabilities=True)) == "a b:0.75\tc d:0.25"
    assert json.loads(recipe_module.line(found, Options(json=True)))["labels"] == ["a\r\nb", "c\td"]


def test_what_is_possible_is_not_0():
    p = torch.tensor([1 / 3, 1.23456789e-9])
    found = recipe_module.known(untrained(), p > 0, p)
    assert found["possible"] == {"a": 0.333333, "b": 1.23457e-9}


@pytest.mark.parametrize(
    "mean, deviation, near", [(0.0, 1.0, "-1 0"), (0.0, 1e-3, "-1 0"), (-3e38, 1.0, "-3e38 -3e38")]
)
def test_a_row_too_far_from_those_trained_on_is_refused(mean, deviation, near):
    task = untrained()
    task.hidden[0].mean.fill_(mean)
    task.hidden[0].deviation.fill_(deviation)
    far, good = asked(["3e38 3e38", near], "text", task)
    assert far == "#ERROR line 1: x is too far from the rows that the run was trained on"
    assert not good.startswith("#ERROR")


@pytest.mark.parametrize("split", ["val", "test"])
def test_rows_too_far_away_are_not_judged(split, capsys):
    """They came out as rows without labels."""
    table("d")
    write_tables("d")
    with Path(f"d/{split}.csv").open("a") as file:
        file.write("\n3e38,1,0,1")
    words = [*TINY, "data.root=d", "labels=up,down", "--run", "run"]
    assert cli.main(["train", "multilabel", *words]) == 2
    said = f"{split}.csv: x is too far from the rows that the run was trained on"
    assert said in capsys.readouterr().err and not Path("run").exists()
    far = Path(f"d/{split}.csv").read_text()
    write_tables("d")
    assert cli.main(["train", "multilabel", *words]) == 0
    Path(f"d/{split}.csv").write_text(far)
    assert cli.main(["eval", "run", "--split", split, "--changed-data"]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("small", [[1e-45, 0, 0, 0], [0.1] * 4])
def test_a_column_without_a_deviation_is_constant(small):
    table = torch.tensor([[1.0, 2, 3, 4], small]).T
    scaled = model.Scaled(2)
    scaled.learn(table)
    assert scaled.deviation[1] == 1 and scaled(table).isfinite().all()


def test_columns_too_far_apart_are_refused(capsys):
    table("d")
    write_tables("d")
    with Path("d/train.csv").open("a") as file:
        file.write("\n3e38,1,0,1\n-3e38,1,0,1\n3e38,1,0,1\n3e38,1,0,1\n" + "3e38,1,0,1\n" * 200)
    assert cli.main(["train", "multilabel", *TINY, "data.root=d", "labels=up,down", "--run", "run"]) == 2
    assert "train.csv: the numbers of x lie too far apart" in capsys.readouterr().err
    assert not Path("run").exists()


@pytest.mark.parametrize(
    "form, lines, message",
    [
        ("csv", ["y,x", "2,"], "x must be number, got ''"),
        ("csv", ["x,y", " ,2"], "x must be number, got ' '"),
        ("csv", ["numbers", '"1,,2"'], "a row is 2 numbers, got '1,,2'"),
        ("csv", ["numbers", '"1_0,2"'], "a row is 2 numbers, got '1_0,2'"),
        ("csv", ["x,y", "1_0,2"], "x must be number, got '1_0'"),
        ("jsonl", ['{"numbers": [1, "2_0"]}'], "numbers must be number, got '2_0'"),
        ("jsonl", ['{"x": "", "y": 2}'], "x must be number, got ''"),
        ("jsonl", ['{"x": 1, "y": null}'], "y must be number, got None"),
        ("jsonl", ['{"x": 1, "y": [2]}'], "y must be number, got [2]"),
        ("jsonl", ['{"x": 1, "y": 1' + "0" * 400 + "}"], "y must be number, got 1000"),
        ("jsonl", ['{"numbers": [1, "", 2]}'], "numbers must be number, got ''"),
        ("jsonl", ['{"numbers": {"1": 0, "2": 0}}'], "numbers must be number,…"),
        ("jsonl", ['{"numbers": null}'], "numbers must be number,…, got None"),
        ("jsonl", ['{"numbers": []}'], "a row is 2 numbers, got 0"),
    ],
)
def test_what_is_no_number_is_refused(form, lines, message):
    first, good = {"csv": (1, "3,4"), "jsonl": (0, '{"numbers": "3 4", "x": 3, "y": 4}')}[form]
    good = {"numbers": '"3,4"'}.get(lines[0], good)
    wrong, answered = asked([*lines, good], form)
    assert wrong.startswith(f"#ERROR line {first + 1}: {message}"), wrong
    assert not answered.startswith("#ERROR")


def test_names_of_labels_are_drawn_as_they_are():
    names = [r"$\frac{a", r"$\bad$", "$a_b$", "中文", "_x"]
    rows = data.Rows(torch.zeros(3, 1), torch.ones(3, 5).bool(), ["x"], names)
    figure = pictures.by_label(rows, rows.labels)
    figure.canvas.draw()
    shown = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert shown == [f"{name} (3)" for name in (*names[:3], "□□", "_x")]
    assert pictures.pictures(rows, rows.labels, Run(Path("run")), Path("report")) == [Path("report/labels.png")]


def test_the_pace_is_that_of_many_passes(monkeypatch):
    from parsimax.recipes import find
    from parsimax.recipes.kit.settings import changed

    recipe = find("multilabel").recipe()
    settings = changed(find("multilabel").settings(), {"data.rows": "60", "model.width": "8"})
    rows, passes = data.load(settings.data, "val"), []
    task = recipe_module._task(settings, rows, rows)
    task.register_forward_hook(lambda *given: passes.append(1))
    found = recipe.evaluate(task, settings, "val", lambda text: None).figures
    assert len(passes) > 1 and found["rows a second"] <= len(passes) * 12 / 0.2


def test_images_by_convolutions(capsys):
    words = [*TINY, "net=conv", "data.classes=6", "data.rows=60"]
    assert cli.main(["train", "multilabel", *words, "shape=3,2,2", "--run", "run"]) == 0, capsys.readouterr().err
    assert cli.main(["train", "multilabel", *words]) == 2
    assert "model.net=conv needs data.shape" in capsys.readouterr().err
    assert cli.main(["train", "multilabel", *words, "shape=3,2,3"]) == 2
    assert "3×2×3 is 18 numbers, a row has 12" in capsys.readouterr().err
    assert not Path("runs/multilabel/0001").exists()


def test_settings_that_cannot_be_meant(capsys):
    Path("t").mkdir()
    assert cli.main(["train", "multilabel", *TINY, "data.root=t", "data.labels=up,up"]) == 2
    assert "data.labels names a column twice: up,up" in capsys.readouterr().err
    mulan("m", DENSE)
    assert cli.main(["train", "multilabel", *TINY, "data.root=m", "data.labels=nonsense,xx", "--run", "r"]) == 2
    said = capsys.readouterr().err
    assert "leave it out" in said and "has its labels in" in said and not Path("r").exists()
    for words, message in (
        (["data.classes=3", "average=4"], "data.average=4 labels a row of data.classes=3"),
        (["labels=a"], "give their folder too"),
        (["count_weight=inf"], "model.count_weight must be at most 1e+06, got inf"),
        (["shape=3"], "channels,height,width"),
    ):
        assert cli.main(["train", "multilabel", *words]) == 2
        assert message in capsys.readouterr().err


def test_stopped_and_resumed_it_ends_with_the_same_bits():
    """The threshold of softmax, which validation chooses, too."""
    words = ["layer=softmax", "width=8", "data.rows=200", "eval_every=4", "tensorboard=false"]
    assert cli.main(["train", "multilabel", *words, "steps=12", "--run", "whole"]) == 0
    assert cli.main(["train", "multilabel", *words, "steps=12", "patience=0", "--run", "broken"]) == 0
    last = Path("broken/checkpoints/previous.ckpt").read_bytes()
    for name in ("last", "previous"):
        Path(f"broken/checkpoints/{name}.ckpt").write_bytes(last)
    assert cli.main(["train", "--resume", "broken"]) == 0
    one, other = (torch.load(f"{run}/checkpoints/last.ckpt", weights_only=True) for run in ("whole", "broken"))
    assert one["global_step"] == other["global_step"] == 12
    assert all(torch.equal(value, other["state_dict"][name]) for name, value in one["state_dict"].items())
    assert "layer.threshold" in one["state_dict"] and one["state_dict"]["layer.threshold"] != 0.1


def test_a_label_that_is_cut_off_comes_back():
    """At the full rate it has no gradient at all, which is why training has a share of the rate."""
    hidden, wanted = torch.eye(4)[:1], torch.tensor([[False, True, False, False]])
    for share, comes_back in ((1.0, False), (0.5, True)):
        layer = layers.LabelLayer(Model(layer="rsoftmax", rate=0.75, train_rate=share), 4, 4)
        with torch.no_grad():
            layer.linear.weight.copy_(torch.tensor([[3.0], [2.0], [1.0], [0.0]]).expand(4, 4))
            layer.linear.bias.zero_()
        layer.loss(hidden, wanted).backward()
        assert bool((layer.linear.bias.grad[1] < 0).item()) == comes_back

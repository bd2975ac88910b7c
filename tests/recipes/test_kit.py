"""The kit of the recipes: settings, run folders, batches, text files, embedded data."""

import gzip
import random
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pytest

from parsimax.recipes import RECIPES, commands, find
from parsimax.recipes.inflection import harmony
from parsimax.recipes.inflection.symbols import Symbols
from parsimax.recipes.kit import runs
from parsimax.recipes.kit.batches import Endless, Shuffled
from parsimax.recipes.kit.recipe import DataError, Train
from parsimax.recipes.kit.settings import (
    SettingsError,
    changed,
    flat,
    from_yaml,
    group,
    leaves,
    setting,
    to_yaml,
    words_of,
)
from parsimax.recipes.kit.training import rate_at
from parsimax.recipes.text import files, numbers
from parsimax.recipes.text.codec import Pieces
from parsimax.recipes.text.lengths import Bucketed, bucketed, in_order


@dataclass(frozen=True)
class Inner:
    width: int = setting(8, "a width", low=1, high=64)
    alpha: float | Literal["learned"] = setting(1.5, "a number or a word", low=1)


@dataclass(frozen=True)
class Outer:
    inner: Inner = group(Inner)
    other: Inner = group(Inner, width=4)
    root: Path | None = setting(None, "a path")
    on: bool = setting(True, "a switch")
    names: tuple[str, ...] = setting((), "several")
    steps: int = setting(10, "a count", low=1)


def test_the_extra_has_what_recipes_need():
    """Who lacks a package is told to install parsimax[recipes]."""
    project = (Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8")
    extra = re.search(r"^recipes = \[(.*)\]$", project, re.MULTILINE)
    assert extra is not None
    packages = {re.split("[>=;]", name)[0] for name in re.findall(r'"([^"]+)"', extra[1])}
    called = {"sklearn": "scikit-learn", "arff": "liac-arff", "yaml": "pyyaml"}
    needed = {name for entry in RECIPES.values() for name in (*commands.NEEDED, *entry.about.needs)}
    assert {called.get(name, name) for name in needed} <= packages


def test_words_become_typed_values():
    made = changed(
        Outer(),
        words_of(
            ["inner.width=16", "inner.alpha=learned", "other.alpha=2", "root=~/x", "on=no", "names=a,b", "steps=5"]
        ),
    )
    assert made == Outer(Inner(16, "learned"), Inner(4, 2.0), Path.home() / "x", False, ("a", "b"), 5)
    assert changed(made, {"root": "none", "names": ""}) == Outer(made.inner, made.other, None, False, (), 5)


@pytest.mark.parametrize(
    "words, message",
    [
        ({"inner.widht": "3"}, "no setting is called 'inner.widht'; did you mean inner.width?"),
        ({"step": "3"}, "did you mean steps?"),
        ({"width": "3"}, "'width' may be inner.width or other.width"),
        ({"zzzzz": "3"}, "there is inner.width, inner.alpha"),
        ({"inner.width": "many"}, "inner.width must be integer, got 'many'"),
        ({"inner.width": "1.5"}, "must be integer"),
        ({"inner.width": 1.5}, "must be integer"),
        ({"inner.width": True}, "must be integer"),
        ({"inner.width": "0"}, "inner.width must be at least 1, got 0"),
        ({"inner.width": "65"}, "at most 64"),
        ({"inner.alpha": "lerned"}, "did you mean learned?"),
        ({"inner.alpha": "nan"}, "must be number | learned, got 'nan'"),
        ({"on": "maybe"}, "on must be true | false, got 'maybe'"),
    ],
)
def test_a_wrong_setting_is_told_with_the_right_one(words, message):
    with pytest.raises(SettingsError, match=re.escape(message)):
        changed(Outer(), words)


@pytest.mark.parametrize(
    "content, message",
    [
        ("steps: .inf", "x.yaml: steps must be integer, got inf"),
        (f"inner: {{alpha: 1{'0' * 400}}}", "x.yaml: inner.alpha must be number | learned, got 1000"),
        (f"steps: 1{'0' * 5000}", "x.yaml is not YAML: Exceeds the limit"),
    ],
)
def test_a_number_too_large_is_told_with_its_file(content, message, tmp_path):
    (tmp_path / "x.yaml").write_text(content)
    with pytest.raises(SettingsError, match=re.escape(message)):
        changed(Outer(), from_yaml(tmp_path / "x.yaml"), "x.yaml: ")


def test_an_empty_part_is_dropped_from_a_text_alone():
    assert changed(Outer(), {"names": "a,,b,"}).names == ("a", "b")
    assert changed(Outer(), {"names": ["a", ""]}).names == ("a", "")
    with pytest.raises(SettingsError, match="names must be text,…"):
        changed(Outer(), {"names": {"a": 1}})


@pytest.mark.parametrize("key", ["weight_decay", "alpha_lr"])
def test_an_infinite_number_that_spoils_the_weights_is_refused(key):
    with pytest.raises(SettingsError, match=rf"train\.{key} must be at most .*, got inf"):
        changed(find("digits").settings(), {key: "inf"})


def test_a_name_that_matplotlib_cannot_draw_is_drawn_all_the_same():
    from matplotlib.figure import Figure

    from parsimax.recipes.kit.pictures import drawable

    assert drawable("a é $x$ \\frac") == "a é $x$ \\frac" and drawable("中\t文é") == "□□□é"
    figure = Figure()
    figure.text(0, 0, drawable("中文"))
    figure.canvas.draw()


@pytest.mark.parametrize("words", [["x"], ["=3"], ["a=1", "a=2"]])
def test_what_is_no_setting_is_refused(words):
    with pytest.raises(SettingsError):
        words_of(words)


@pytest.mark.parametrize("name", RECIPES)
def test_settings_survive_their_file(name, tmp_path):
    settings = find(name).settings()
    path = tmp_path / "config.yaml"
    path.write_text(to_yaml(settings), encoding="utf-8")
    assert changed(settings, from_yaml(path)) == settings
    assert all(leaf.help for leaf in leaves(settings))
    assert flat(settings)["train.seed"] == 1


@pytest.mark.parametrize("content", ["- 1\n", "a: [", "\x00"])
def test_a_file_that_holds_no_settings_is_refused(content, tmp_path):
    (tmp_path / "x.yaml").write_text(content)
    with pytest.raises(SettingsError, match=r"x\.yaml"):
        from_yaml(tmp_path / "x.yaml")
    with pytest.raises(SettingsError, match="cannot read"):
        from_yaml(tmp_path / "missing.yaml")


def test_a_run_is_never_overwritten(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    settings = find("translation").settings()
    first, second = (runs.create("translation", settings) for _ in range(2))
    assert (first.folder.name, second.folder.name) == ("0001", "0002")
    with pytest.raises(SettingsError, match="--resume"):
        runs.create("translation", settings, first.folder)
    again = runs.open_run(first.folder)
    assert again.recipe == "translation" and again.settings(settings) == settings
    again.add_results("val", {"accuracy": 0.5})
    again.add_results("test", {"accuracy": 0.4})
    assert again.read_results() == {"val": {"accuracy": 0.5}, "test": {"accuracy": 0.4}}
    with pytest.raises(SettingsError, match="under it there is"):
        runs.open_run(tmp_path)


@pytest.mark.parametrize("budget", [1, 7, 64, 10_000])
def test_batches_hold_every_example_once_and_keep_their_budget(budget):
    sizes = [random.Random(0).randrange(1, 30) for _ in range(101)]
    sizes[50] = 90
    for batches in (bucketed(sizes, budget, seed=3), in_order(sizes, budget)):
        assert sorted(index for batch in batches for index in batch) == list(range(101))
        for batch in batches:
            assert len(batch) == 1 or len(batch) * max(sizes[index] for index in batch) <= budget
    assert bucketed(sizes, budget, 3) == bucketed(sizes, budget, 3) != bucketed(sizes, budget, 4)


@pytest.mark.parametrize("batches", [Bucketed([3, 5, 2, 7, 1, 4, 4, 6], 8, tuple), Shuffled(11, 2, tuple)])
def test_batches_can_begin_anywhere(batches):
    def some(start, count=30):
        endless = Endless(batches, 1, lambda: start)
        return [batch for _, batch in zip(range(count), endless, strict=False)]

    whole = some(0, 60)
    for start in (1, 5, 6, 7, 29):
        assert some(start) == whole[start : start + 30]
    assert len({*whole[:30]}) > 5, "every pass has its own order"


def test_processes_share_a_batch():
    batches = Shuffled(10, 5, list)
    parts = [Endless(batches, 0, lambda: 0, lambda rank=rank: (rank, 2)) for rank in (0, 1)]
    whole = Endless(batches, 0)
    for _, one, other, both in zip(range(6), *parts, whole, strict=False):
        assert sorted(one + other) == sorted(both)
    with pytest.raises(ValueError, match="no examples"):
        Endless(Shuffled(0, 5, list), 0)


def test_the_learning_rate_rises_and_falls():
    settings = Train(steps=100, warmup=10)
    rates = [rate_at(step, settings) for step in range(100)]
    assert rates[0] == 0.1 and max(rates) == rates[10] == 1 and rates[-1] < 0.01
    assert rates[:10] == sorted(rates[:10]) and rates[10:] == sorted(rates[10:], reverse=True)
    slow = Train(steps=100, warmup=10, decay="inverse-sqrt")
    assert abs(rate_at(39, slow) - 0.5) < 1e-9
    assert rate_at(5, Train(warmup=0, decay="none")) == 1


def test_files_plain_or_packed(tmp_path):
    (tmp_path / "a.en").write_text("one\ntwo\r\nthree", encoding="utf-8")
    (tmp_path / "b.en.gz").write_bytes(gzip.compress(b"eins\nzwei\ndrei\n"))
    assert files.parallel(files.find(tmp_path, ["a.en"]), files.find(tmp_path, ["x", "b.en"])) == [
        ("one", "eins"),
        ("two", "zwei"),
        ("three", "drei"),
    ]


@pytest.mark.parametrize(
    "content, message",
    [
        (b"a\tb\tc\na\tb\n", r"data, line 2: 2 columns where lemma, form, tags are 3"),
        (b"a\tb\tc\n\na\t\tc\n", r"data, line 3: form is empty"),
        (b"", r"data is empty"),
        (b"\n \n", r"data is empty"),
        (b"a\tb\tc\n\xff\tb\tc\n", r"data, line 2: not UTF-8"),
    ],
)
def test_bad_columns_are_named_with_their_line(content, message, tmp_path):
    (tmp_path / "data").write_bytes(content)
    with pytest.raises(DataError, match=message):
        files.columns(tmp_path / "data", 3, "lemma, form, tags")


def test_bad_parallel_text_is_named_with_its_line(tmp_path):
    (tmp_path / "x.en").write_text("a\nb\n")
    (tmp_path / "x.de").write_text("a\n\nc\n")
    with pytest.raises(DataError, match=r"has 2 lines and .* has 3"):
        files.parallel(tmp_path / "x.en", tmp_path / "x.de")
    (tmp_path / "x.de").write_text("a\n\n")
    (tmp_path / "x.en").write_text("a\nb\n")
    with pytest.raises(DataError, match=r"x.de"):
        files.parallel(tmp_path / "x.en", tmp_path / "x.de")
    (tmp_path / "broken.gz").write_bytes(b"no gzip")
    with pytest.raises(DataError, match="cannot read"):
        files.lines(tmp_path / "broken.gz")
    with pytest.raises(DataError, match="is not the name of a file"):
        files.find(tmp_path, ["../x.en"])
    with pytest.raises(DataError, match=r"has no train\.en .* it holds broken\.gz, x\.de, x\.en"):
        files.find(tmp_path, ["train.en"])


@pytest.mark.parametrize(
    "number, english, german",
    [
        (0, "zero", "null"),
        (1, "one", "eins"),
        (16, "sixteen", "sechzehn"),
        (21, "twenty-one", "einundzwanzig"),
        (30, "thirty", "dreißig"),
        (101, "one hundred and one", "einhunderteins"),
        (1001, "one thousand and one", "eintausendeins"),
        (71_017, "seventy-one thousand and seventeen", "einundsiebzigtausendsiebzehn"),
        (
            999_999,
            "nine hundred and ninety-nine thousand nine hundred and ninety-nine",
            "neunhundertneunundneunzigtausendneunhundertneunundneunzig",
        ),
    ],
)
def test_number_words(number, english, german):
    assert (numbers.english(number), numbers.german(number)) == (english, german)


@pytest.mark.parametrize(
    "lemma, tags, form",
    [
        ("kadap", ("PL", "POSS1", "ACC"), "kadaplarımı"),
        ("kadap", ("SG", "", "ACC"), "kadabı"),
        ("kedi", ("SG", "POSS3", "DAT"), "kedisiye"),
        ("gölük", ("SG", "POSS1", "LOC"), "gölügümde"),
        ("bozu", ("PL", "", "ABL"), "bozulardan"),
        ("gön", ("SG", "", "NOM"), "gön"),
    ],
)
def test_suffixes_follow_the_vowels(lemma, tags, form):
    assert harmony.inflect(lemma, *tags) == form


@pytest.mark.parametrize("splits", [numbers.splits(500, 50), harmony.splits(500, 50)])
def test_splits_do_not_overlap(splits):
    sources = {split: {row[0] for row in rows} for split, rows in splits.items()}
    assert {split: len(rows) for split, rows in splits.items()} == {"train": 500, "val": 50, "test": 50}
    assert not sources["train"] & sources["test"] and not sources["train"] & sources["val"]


@pytest.mark.parametrize("harm", [lambda content: content[:-9], lambda content: content[:20] + b"\x00" + content[21:]])
def test_a_damaged_gz_is_named(harm, tmp_path):
    whole = gzip.compress("\n".join(f"line {number}" for number in range(200)).encode())
    (tmp_path / "x.gz").write_bytes(harm(whole))
    with pytest.raises(DataError, match=r"cannot read .*x\.gz, it is damaged or cut off"):
        files.lines(tmp_path / "x.gz")
    with pytest.raises(DataError, match=r"cannot read .*none: No such file"):
        files.lines(tmp_path / "none")


@pytest.mark.parametrize("codec", [Symbols, Pieces])
@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"{}", b"\xff", b'{"names": 3, "tokenizer": "x", "lowercase": true}']
)
def test_a_damaged_vocabulary_is_named(codec, content, tmp_path):
    (tmp_path / "vocabulary.json").write_bytes(content)
    with pytest.raises(ValueError, match=r"vocabulary\.json is damaged"):
        codec.load(tmp_path)
    (tmp_path / "vocabulary.json").unlink()
    with pytest.raises(DataError, match=r"has no vocabulary\.json"):
        codec.load(tmp_path)


def test_codecs_survive_their_file_and_name_what_they_have_not_seen(tmp_path):
    pairs = [("xx\tab\tN;PL", "aab"), ("yy\tba\tN", "b")]
    symbols = Symbols.learn(pairs)
    symbols.save(tmp_path)
    assert Symbols.load(tmp_path) == symbols and symbols.languages == ("xx", "yy")
    assert symbols.unseen("xx\tabc\tN;SG") == ["<SG>", "c"] and symbols.knows("yy") and not symbols.knows("N")
    older = Symbols.of({"names": list(symbols.names)})  # which did not keep its languages
    assert older.knows("xx") and not older.knows("zz")
    pieces = Pieces.learn([("a bc", "cab")] * 5, 20, True)
    pieces.save(tmp_path)
    again = Pieces.load(tmp_path)
    assert again.source("abc a") == pieces.source("abc a") and again.lowercase
    assert pieces.unseen("aß b") == ["ß"] and pieces.unseen("A bc") == []


def test_what_mappings_learn_is_told_by_module_and_place(tmp_path):
    from torch import nn

    from parsimax import Entmax, EntmaxLoss
    from parsimax.recipes.kit import durable
    from parsimax.recipes.kit.pictures import learned as picture
    from parsimax.recipes.kit.training import learned

    model = nn.ModuleDict(
        {"heads": Entmax(1.3, learnable=True, shape=(2, 1, 1)), "one": EntmaxLoss(1.7, learnable=True), "no": Entmax()}
    )
    told = learned(model)
    assert told == pytest.approx({"heads.alpha.0": 1.3, "heads.alpha.1": 1.3, "one.alpha": 1.7})
    run = runs.Run(tmp_path)
    lines = ["step,val/loss," + ",".join(f"learned/{name}" for name in told), "9,1,1.3,1.3,1.7", "19,0.5,1.4,1.2,1.6"]
    durable.replace(run.metrics, "\n".join(lines).encode())
    figure = picture(run)
    shown = {axes.get_title(): len(axes.lines) for axes in figure.axes if axes.get_title()}
    assert shown == {"heads.alpha": 2, "one.alpha": 1}
    assert [list(line.get_ydata()) for line in figure.axes[0].lines] == [[1.3, 1.4], [1.3, 1.2]]
    durable.replace(run.metrics, b"step,val/loss\n9,1\n")
    assert picture(run) is None

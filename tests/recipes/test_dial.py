"""The dial: `parsimax eval RUN key=…` turns a mapping's number without training again, in every recipe with one."""

import csv
import json
import math
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from parsimax import cli
from parsimax.recipes import find
from parsimax.recipes.kit import dial
from parsimax.recipes.kit.beside import STEPS, step_ratio
from parsimax.recipes.kit.dial import Sweep, Turn, listed, numbers_of_mappings, settings_of, spoken
from parsimax.recipes.kit.settings import SettingsError, changed

QUICK = ["steps=4", "eval_every=2", "tensorboard=false"]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(dial, "ROUNDS", 1)  # more are for the clock


def test_lists_of_values():
    assert listed("0.5") == ["0.5"] and listed("1, 2,inf") == ["1", "2", "inf"]
    assert listed("0,0.1,…,0.4") == ["0", "0.1", "0.2", "0.3", "0.4"]
    assert listed("0,0.25,...,0.9,1") == ["0", "0.25", "0.5", "0.75", "0.9", "1"], (
        "the last one need not be a step away"
    )
    assert listed("2,1.75,…,1") == ["2", "1.75", "1.5", "1.25", "1"]
    assert listed("0,10,…,30") == ["0", "10", "20", "30"]
    for wrong in ("…,1", "1,…,2", "1,2,…", "1,1,…,2", "1,2,…,0", "a,b,…,c", "0,1e-999999,…,1e999999"):
        with pytest.raises(SettingsError, match="between two numbers and a last one"):
            listed(wrong)
    with pytest.raises(SettingsError, match="more than 1000 values; take larger steps"):
        listed("0,0.00001,…,1")
    with pytest.raises(SettingsError, match="empty value"):
        listed("1,,2")


def test_what_can_be_turned():
    settings = changed(find("inflection").settings(), {"model.attention.mapping": "rsoftmax"})
    dials = find("inflection").recipe().dials
    assert dials(settings) == ["model.attention.rate", "model.output.alpha", "search.beam"]
    learned = changed(settings, {"model.output.alpha": "learned"})
    assert numbers_of_mappings(learned) == ["model.attention.rate", "model.output.alpha"], "a number in its place"
    turns = settings_of(settings, {"model.attention.rate": "0,0.5", "model.output.alpha": "1.5"}, dials)
    assert [values for values, _ in turns] == [
        {"model.attention.rate": "0", "model.output.alpha": "1.5"},
        {"model.attention.rate": "0.5", "model.output.alpha": "1.5"},
    ]
    assert [own.model.attention.rate for _, own in turns] == [0, 0.5]
    (other,) = settings_of(settings, {"model.output.mapping": "softmax"}, dials)
    assert other[1].model.output.mapping == "softmax"
    cases = [
        ({"model.width": "2,3"}, "model.width is no number of this run's mapping; eval can turn model.attention.rate"),
        ({"model.attention.alpha": "1,2"}, "model.attention.alpha is no number of this run's mapping"),
        ({"model.attention.rate": "0,2"}, "at most 1, got 2"),
        ({"attention.rate": "0", "model.attention.rate": "1"}, "model.attention.rate is given twice"),
        ({"model.attention.rat": "0"}, "did you mean model.attention.rate"),
        ({"rate": "0"}, "may be"),
        ({"model.output.alpha": "1.5,learned"}, "model.output.alpha=learned is for training"),
        ({"model.attention.rate": "0,1", "model.output.alpha": "1,1.2,1.3"}, "must be of one length"),
        (
            {"model.output.mapping": "normmax", "model.output.alpha": "2,0.5"},
            "model.output.alpha of normmax must be in",
        ),
    ]
    for words, message in cases:
        with pytest.raises(SettingsError, match=message):
            settings_of(settings, words, dials)


def test_where_nothing_can_be_turned_the_reason_is_said():
    soft = changed(find("finetune").settings(), {"mapping": "sparsemax"})
    with pytest.raises(
        SettingsError, match=r"none: its mapping has no number that is set; .*mapping=rsoftmax model\.rate"
    ):
        settings_of(soft, {"model.rate": "0,0.1"}, find("finetune").recipe().dials)
    words = {"model.attention.mapping": "softmax", "model.output.mapping": "softmax"}
    text = changed(find("inflection").settings(), words)
    with pytest.raises(SettingsError, match=r"eval can turn search\.beam alone: its mapping .*mapping=rsoftmax"):
        settings_of(text, {"model.attention.rate": "0,0.1"}, find("inflection").recipe().dials)


def test_other_lists_checkpoints_and_mappings_have_other_files(tmp_path):
    def written(split, *values):
        sweep = Sweep("accuracy", "max", "rows a second", [Turn(one, 0.5, 0.1, 1.0, {"f": 1.0}) for one in values])
        return dial.write(sweep, split, {"rate": 0.5, "mapping": "rsoftmax"}, tmp_path)[0].name

    short = [{"rate": "0"}, {"rate": "0.5"}]
    assert written("val", *short) == "val-rate.csv"
    assert written("val", *short, {"rate": "0.9"}) == "val-rate-2.csv"
    assert written("val", *short) == "val-rate.csv", "the same again takes its place"
    assert written("val-last", *short) == "val-last-rate.csv"
    other = [{"mapping": "rsoftmax", **one} for one in short]
    assert written("val", *other) == "val-rate-mapping=rsoftmax.csv"
    assert len([*tmp_path.glob("*.png")]) == 4


def sweep_of(rows, mode="max"):
    turns = [Turn({"rate": str(rate)}, quality, zeros, 1.0, {}) for rate, quality, zeros in rows]
    return Sweep("accuracy", mode, "rows a second", turns)


def test_zeros_are_those_of_the_first_key_that_has_some():
    """A penalty of the search has none, wherever it stands among the keys."""
    found = SimpleNamespace(figures={"accuracy": 0.5}, outputs=[])
    recipe = SimpleNamespace(
        evaluate=lambda *arguments: found,
        zeros=lambda task, figures, key: 0.25 if key == "model.alpha" else None,
        quality=lambda task: ("accuracy", "max"),
    )
    for keys in (("search.conserve", "model.alpha"), ("model.alpha", "search.conserve")):
        made = dial.sweep(recipe, [(dict.fromkeys(keys, "1"), None)], "val", lambda settings: None, lambda text: None)
        assert made.turns[0].zeros == 0.25 and made.counts_zeros
    places = [({"search.conserve": number, "model.alpha": "1"}, None) for number in "01"]
    made = dial.sweep(recipe, places, "val", lambda settings: None, lambda text: None)
    assert not made.counts_zeros, "those of a mapping that stays as it is are of no turn"


@pytest.mark.parametrize(
    ("values", "trained", "ringed"),
    [
        ({"rate": "0.70"}, {"rate": 0.7, "mapping": "rsoftmax"}, True),
        ({"rate": "0.1234567"}, {"rate": 0.1234567}, True),
        ({"rate": "0.5"}, {"rate": 0.7}, False),
        ({"mapping": "entmax", "alpha": "1.5"}, {"mapping": "rsoftmax", "alpha": 1.5}, False),
        ({"mapping": "entmax", "alpha": "1.5"}, {"mapping": "entmax", "alpha": 1.5}, True),
        ({"alpha": "1.5"}, {"alpha": "learned"}, False),
    ],
)
def test_what_is_ringed_was_trained(values, trained, ringed):
    other = {**values, [*values][-1]: "0.9"}
    turns = [Turn(one, 0.5, 0.1, 1.0, {}) for one in (values, other)]
    drawn = dial.picture(Sweep("accuracy", "max", "rows a second", turns), trained)
    assert [len(axes.lines) for axes in drawn.axes] == [1 + ringed, 1 + ringed]
    assert ("as trained" in drawn.get_suptitle()) == ringed


def test_values_that_give_the_same_are_one_point():
    """Rates of a row of few labels: their numbers stood on top of each other."""
    drawn = dial.picture(sweep_of([(0.4, 0.5, 0.5), (0.5, 0.5, 0.5), (0.6, 0.7, 0.6)]), {"rate": 0.5})
    quality = drawn.axes[0]
    assert [text.get_text() for text in quality.texts] == ["0.4; 0.5", "0.6"]
    line, ring = quality.lines
    assert (line.get_xydata().tolist(), ring.get_xydata().tolist()) == ([[0.5, 0.5], [0.6, 0.7]], [[0.5, 0.5]])


def test_what_was_measured_before_ctrl_c_is_kept(capsys, monkeypatch):
    assert cli.main(["train", "digits", *QUICK, "mapping=rsoftmax", "rate=0.5", "--run", "run"]) == 0
    real, calls = dial.measured, []

    def stopped(*arguments):
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return real(*arguments)

    monkeypatch.setattr(dial, "measured", stopped)
    capsys.readouterr()
    assert cli.main(["eval", "run", "rate=0,0.2,…,0.8"]) == 130
    assert "stopped: these are the first 2 values; best accuracy" in capsys.readouterr().out
    key = "model.output.rate"
    assert [row[key] for row in rows_of(f"run/dial/test-{key}.csv")] == ["0", "0.2"]
    calls[:] = [1, 1]
    assert cli.main(["eval", "run", "rate=0.6,0.9"]) == 130
    assert not Path(f"run/dial/test-{key}-2.csv").exists(), "nothing was measured"


def test_a_tolerance_without_values_to_compare_is_refused(capsys):
    assert cli.main(["eval", "run", "--tolerance", "0.1"]) == 2
    assert "--tolerance is for values to compare" in capsys.readouterr().err


def test_a_step_is_timed_often_where_there_are_few_batches():
    one, other, calls = torch.nn.Linear(1, 1), torch.nn.Linear(1, 1), []

    def loss(model, batch):
        calls.append(model)
        return model(batch).sum()

    assert 0 < step_ratio(one, other, loss, [[0]], lambda indices: torch.ones(1, 1)) < math.inf
    assert calls.count(one) == calls.count(other) == STEPS + 1


def test_the_sparsest_within_a_tolerance():
    rows = [(0.1, 0.80, 0.1), (0.5, 0.793, 0.5), (0.7, math.nan, 0.7), (0.9, 0.79, 0.9), (0.95, 0.5, 0.95)]
    sweep = sweep_of(rows)
    assert sweep.best.values == {"rate": "0.1"} and sweep.sparsest(0).values == {"rate": "0.1"}
    assert sweep.sparsest(0.01).values == {"rate": "0.5"} and sweep.sparsest(0.0126).values == {"rate": "0.9"}
    assert "rate=0.5, accuracy 0.793, 0.5 of the weights" in spoken(sweep, 0.01)[1]
    assert sweep_of([(0.8, 0.79, 0.8), (0.85, 0.8, 0.8)]).sparsest(0.02).quality == 0.8, "of as many zeros, the best"
    errors = sweep_of([(0.1, 20.0, 0.1), (0.5, 20.1, 0.5), (0.9, 30.0, 0.9)], "min")
    assert errors.best.quality == 20 and errors.sparsest(0.01).quality == 20.1
    with pytest.raises(SettingsError, match="no number at any"):
        sweep_of([(0.1, math.nan, 0.1)]).best  # noqa: B018


def rows_of(path):
    with Path(path).open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_labels_follow_the_rate(capsys):
    pytest.importorskip("arff")
    words = [*QUICK, "layer=rsoftmax", "width=8", "data.classes=5", "rows=200", "rate=0.6"]
    assert cli.main(["train", "multilabel", *words, "--run", "run"]) == 0
    before = Path("run/results.json").read_bytes()
    capsys.readouterr()
    assert cli.main(["eval", "run", "--split", "val", "model.rate=0.2,0.4,…,0.8"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[1].split() == ["model.rate", "micro", "F1", "zeros", "rows", "a", "second"]
    assert [line.split()[2] for line in said[2:6]] == ["0.2", "0.4", "0.6", "0.8"], "zeros that are those asked for"
    assert said[6].startswith("best micro F1") and "sparsest within 1 % of it: model.rate=" in said[7]
    assert [Path(line).stat().st_size > 100 for line in said[8:]] == [True, True]
    rows = rows_of("run/dial/val-model.rate.csv")
    own = json.loads(before)["val"]
    assert float(rows[2]["micro F1"]) == own["micro F1"] and float(rows[2]["zeros of the mapping"]) == 0.6
    assert Path("run/results.json").read_bytes() == before, "figures of the run itself stay"
    assert cli.main(["eval", "run", "--tolerance", "1", "--split", "val", "rate=0.2,0.8"]) == 0
    assert "sparsest within 100 % of it: model.rate=0.8" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        cli.main(["eval", "run", "rate=0.2", "--tolerance", "2"])
    assert cli.main(["eval", "run", "q=1,2"]) == 2
    assert "model.q is no number of this run's mapping; eval can turn model.rate" in capsys.readouterr().err
    assert cli.main(["train", "multilabel", *words, "layer=sigmoid", "--run", "other"]) == 2, "given twice"
    assert cli.main(["train", "multilabel", *words[:3], "layer=sigmoid", "rows=60", "--run", "other"]) == 0
    assert cli.main(["eval", "other", "rate=0.2"]) == 2
    assert "eval can turn none" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("recipe", "words", "key"),
    [
        ("digits", ["mapping=entmax", "alpha=learned"], "model.output.alpha"),
        ("multilabel", ["layer=entmax", "width=8", "data.classes=5", "rows=200"], "model.alpha"),
    ],
)
def test_a_number_takes_the_place_of_what_was_learned(recipe, words, key, capsys):
    pytest.importorskip("arff")
    assert cli.main(["train", recipe, *QUICK, *words, "--run", "run"]) == 0
    capsys.readouterr()
    assert cli.main(["eval", "run", f"{key}=1,1.5,2"]) == 0, capsys.readouterr().err
    zeros = [float(row["zeros of the mapping"]) for row in rows_of(f"run/dial/test-{key}.csv")]
    assert zeros[0] == 0 < zeros[2] and zeros == sorted(zeros)
    assert cli.main(["eval", "run", f"{key}=learned"]) == 2
    assert f"{key}=learned is for training" in capsys.readouterr().err
    if recipe == "digits":
        assert cli.main(["eval", "run", "mapping=sparsemax"]) == 0, capsys.readouterr().err


TEXT = ["width=16", "layers=1", "batch_tokens=512", "beam=2", "exact_budget=0", "search.longest=4"]
CASES = {
    "digits": (["mapping=entmax"], "model.output.alpha=1,1.5,2", "accuracy"),
    "lm": (
        ["kind=transformer", "embedding=16", "hidden=16", "vocabulary=200", "eval_words=500"],
        "model.attention.alpha=1,1.5,2",
        "ε-perplexity",
    ),
    "inflection": ([*TEXT, "model.attention.mapping=rsoftmax"], "model.attention.rate=0.1,0.9", "accuracy"),
}


@pytest.mark.parametrize("name", CASES)
def test_every_recipe_with_a_number(name, tmp_path, capsys, monkeypatch):
    words, turned, quality = CASES[name]
    if name == "inflection":
        for part, count in (("train-medium", 30), ("dev", 6), ("test", 6)):
            lines = [f"wort{index}\tworte{index}\tN;PL" for index in range(count)]
            (tmp_path / f"aa-{part}").write_text("\n".join(lines))
        words = [*words, f"data.root={tmp_path}"]
    if name == "lm":
        monkeypatch.setattr("parsimax.recipes.lm.recipe.LENGTH", 5)  # of the texts that it writes
        for split in ("train", "valid", "test"):
            (tmp_path / f"{split}.txt").write_text("a b c d e f g h\n" * 60)
        words = [*words, f"data.root={tmp_path}"]
    assert cli.main(["train", name, *QUICK, *words, "--run", "run"]) == 0, capsys.readouterr().err
    capsys.readouterr()
    assert cli.main(["eval", "run", turned]) == 0, capsys.readouterr().err
    rows = rows_of(next(Path("run/dial").glob("*.csv")))
    zeros = [float(row["zeros of the mapping"]) for row in rows]
    assert zeros == sorted(zeros) and 0 <= zeros[0] < zeros[-1] < 1 and all(row[quality] for row in rows)
    if name == "lm":
        assert zeros[0] == 0, "α = 1 is softmax"
    if name == "inflection":
        assert zeros[0] < 0.4 < zeros[1]
        capsys.readouterr()
        assert cli.main(["eval", "run", "search.beam=1,3"]) == 0, capsys.readouterr().err
        assert "best accuracy" in (said := capsys.readouterr().out) and "sparsest" not in said
        rows = rows_of("run/dial/test-search.beam.csv")
        assert [(row["search.beam"], row["zeros of the mapping"]) for row in rows] == [("1", ""), ("3", "")]

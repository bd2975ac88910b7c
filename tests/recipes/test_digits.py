"""The recipe ``digits``: an image in, digits out, through the same kit as text."""

import io
import json
import re
import shutil
import sys
from pathlib import Path

import pytest
import torch

from parsimax import cli, recipes
from parsimax.recipes.digits.images import splits

pytest.importorskip("sklearn")


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def said_to(monkeypatch, text):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))


def line(image):
    return " ".join(f"{pixel * 16:g}" for pixel in image)


def test_the_parts_share_no_image():
    parts = splits()
    assert {name: len(part.digits) for name, part in parts.items()} == {"test": 300, "val": 300, "train": 1197}
    rows = {name: {tuple(row) for row in part.pixels.tolist()} for name, part in parts.items()}
    assert not rows["train"] & rows["test"] and not rows["train"] & rows["val"] and not rows["val"] & rows["test"]
    assert parts["test"].pixels.max() == 1 and {*parts["test"].digits.tolist()} == {*range(10)}


def test_from_training_to_report(capsys, monkeypatch):
    assert cli.main(["train", "digits", "steps=300", "eval_every=100", "tensorboard=false", "--run", "run"]) == 0
    said = capsys.readouterr().out
    assert len(re.findall(r"^step \d+ of 300  val/accuracy .* train/images a second \d", said, re.M)) == 3
    assert cli.main(["eval", "run"]) == 0
    figures = json.loads(Path("run/results.json").read_text())["test"]
    assert figures["accuracy"] > 0.9 and 1 <= figures["possible digits"] < 5 and figures["right digit possible"] > 0.95
    outputs = [json.loads(one) for one in Path("run/outputs/test.jsonl").read_text().splitlines()]
    assert sum(one["digit"] == one["wanted"] for one in outputs) / 300 == pytest.approx(figures["accuracy"])
    test = splits()["test"]
    image = test.pixels[0]
    said_to(monkeypatch, f"{line(image)}\n1 2 3\nx\n{line(image * 2)}\n")
    capsys.readouterr()
    assert cli.main(["predict", "run"]) == 1
    digit, *wrong = capsys.readouterr().out.splitlines()
    assert int(digit) == outputs[0]["digit"]
    assert [one.split(":")[0] for one in wrong] == [f"#ERROR line {number}" for number in (2, 3, 4)]
    said_to(monkeypatch, line(image))
    assert cli.main(["predict", "run", "--probabilities"]) == 0
    shares = dict(one.split(":") for one in capsys.readouterr().out.split())
    assert sum(map(float, shares.values())) == pytest.approx(1, abs=1e-3) and digit in shares
    said_to(monkeypatch, json.dumps({"pixels": [pixel * 16 for pixel in image.tolist()]}))
    assert cli.main(["predict", "run", "--json", "--format", "jsonl"]) == 0
    assert json.loads(capsys.readouterr().out)["digit"] == int(digit)
    assert cli.main(["report", "run"]) == 0
    written = [Path(one) for one in capsys.readouterr().out.splitlines()]
    assert [path.name for path in written] == ["training.png", "doubtful.png"] and all(map(Path.exists, written))
    assert cli.main(["predict", "run", "--nbest", "3"]) == 2  # an option of other recipes
    assert "--nbest" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["mapping=softmax"], ["mapping=sparsemax"], ["alpha=learned"], ["mapping=rsoftmax"]])
def test_any_mapping_is_the_output(words, capsys):
    steps = ["steps=20", "eval_every=10", "tensorboard=false", "--run", "run"]
    assert cli.main(["train", "digits", *words, *steps]) == 0, capsys.readouterr().err
    figures = json.loads(Path("run/results.json").read_text())["val"]
    if words != ["alpha=learned"]:  # which is nearly dense at first
        assert (figures["possible digits"] == 10) == (words == ["mapping=softmax"])
    state = torch.load("run/checkpoints/best.ckpt", weights_only=True)["state_dict"]
    assert any("learned" in name for name in state) == (words == ["alpha=learned"])


def test_the_folder_holds_nothing_but_its_subject():
    """What another recipe would write again belongs to the kit."""
    folder = Path(cli.__file__).parent / "recipes" / "digits"
    text = "".join(path.read_text() for path in folder.glob("*.py"))
    for word in ("argparse", "lightning", "optimizer", "checkpoint", "torch.load", "yaml", "sys."):
        assert word not in text, word
    assert "digits" not in (folder.parent / "commands.py").read_text() + Path(cli.__file__).read_text()


def test_a_recipe_is_one_folder(tmp_path, monkeypatch, capsys):
    """A copy under another name, anywhere on the path of the recipes, is a recipe: nothing else names it."""
    shutil.copytree(Path(cli.__file__).parent / "recipes" / "digits", tmp_path / "more" / "figures")
    monkeypatch.setattr(recipes, "__path__", [*recipes.__path__, str(tmp_path / "more")])
    for name, entry in recipes.discover().items():
        monkeypatch.setitem(recipes.RECIPES, name, entry)
    assert cli.main(["train", "figures", "steps=2", "eval_every=1", "tensorboard=false", "--run", "run"]) == 0
    assert cli.main(["list"]) == 0
    assert "figures " in capsys.readouterr().out
    assert json.loads(Path("run/run.json").read_text())["recipe"] == "figures"
    assert cli.main(["eval", "run"]) == 0

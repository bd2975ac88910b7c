"""The recipe ``bottleneck``: every head through the kit, and the effect that it is about."""

import io
import json
import sys
from pathlib import Path

import pytest
import torch

from parsimax import cli
from parsimax.heads.make import KINDS
from parsimax.recipes import commands
from parsimax.recipes.bottleneck import paper
from parsimax.recipes.bottleneck.model import distributions
from parsimax.recipes.bottleneck.settings import Data

SMALL = ["contexts=300", "classes=30", "width=3", "tensorboard=false"]
OWN = {"plif": ["knots=100"], "mixture-plif": ["knots=100"], "monotonic": ["units=20"]}


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def results(run):
    return json.loads((Path(run) / "results.json").read_text())["val"]


@pytest.mark.parametrize("head", KINDS)
def test_every_head_trains(head, capsys):
    words = [*SMALL, f"model.head={head}", *OWN.get(head, ()), "steps=30", "eval_every=15", "warmup=0"]
    assert cli.main(["train", "bottleneck", *words, "--run", "run"]) == 0, capsys.readouterr().err
    run, entry, settings = commands.opened(Path("run"))
    start = entry.recipe().reopen(settings, run)
    before, after = start.state_dict(), torch.load(run.last, weights_only=True)["state_dict"]
    still = [key for key in before if torch.equal(before[key], after[key])]
    assert not still and "head.weight" in before
    found = results("run")
    assert 0 < found["KL"] < start.validate()["KL"] - 0.2
    assert 0 <= found["mode match"] <= 1 and found["rank of linear softmax"] == 4
    assert ("paper KL" in found) == (head in paper.KL)


def test_the_bottleneck_and_a_way_out(capsys, monkeypatch):
    for head, own in (("linear", ()), ("mixture", ("tanh=false",))):
        words = [*SMALL, f"model.head={head}", *own, "steps=150", "eval_every=150"]
        assert cli.main(["train", "bottleneck", *words, "--run", head]) == 0
    assert "mixture: on the data it was trained on, with the best" in capsys.readouterr().out
    assert cli.main(["eval", "linear"]) == 0
    assert capsys.readouterr().out.startswith("linear, the data it was trained on, best checkpoint\n")
    linear, mixture = results("linear"), results("mixture")
    assert linear["rank"] <= 4 < mixture["rank"] and mixture["KL"] < linear["KL"] - 0.1
    capsys.readouterr()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"0\n300\nx\n")))
    assert cli.main(["predict", "linear"]) == 1
    first, *wrong = capsys.readouterr().out.splitlines()
    assert len(first.split()) == 5 and all(line.startswith("#ERROR") for line in wrong)
    assert "from 0 to 299, got 300" in wrong[0]
    assert cli.main(["report", "mixture"]) == 0
    assert {Path(line).name for line in capsys.readouterr().out.splitlines()} == {"training.png", "spectrum.png"}


def test_settings_that_nothing_reads(capsys):
    for words, message in (
        (["model.components=9"], "model.components=9: model.head=linear does not read model.components"),
        (["model.head=monotonic", "tanh=false"], "model.head=monotonic does not read model.tanh"),
    ):
        assert cli.main(["train", "bottleneck", *words]) == 2
        assert message in capsys.readouterr().err and not Path("runs").exists()


def test_the_distributions_are_those_of_the_seed():
    p = distributions(Data(contexts=50, classes=20, seed=3))
    torch.testing.assert_close(p.sum(-1), torch.ones(50))
    assert torch.equal(p, distributions(Data(contexts=50, classes=20, seed=3)))
    assert not torch.equal(p, distributions(Data(contexts=50, classes=20, seed=4)))


def test_the_cells_of_the_paper():
    assert paper.figures("linear", 10, 100) == {"paper mode match": 0.488, "paper KL": 1.334}
    assert paper.figures("mixture", 3, 30) == {"paper mode match": 0.785, "paper KL": 0.810}
    assert paper.figures("linear", 100, 30) == paper.figures("plif", 10, 100) == paper.figures("linear", 11, 100) == {}

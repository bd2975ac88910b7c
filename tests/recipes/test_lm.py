"""The recipe ``lm``: every head and both networks through the kit; odd texts; the same weights on resuming."""

import io
import json
import sys
from pathlib import Path

import pytest
import torch

from parsimax import cli
from parsimax.heads.make import KINDS
from parsimax.recipes import commands
from parsimax.recipes.kit.runs import Run
from parsimax.recipes.kit.settings import changed
from parsimax.recipes.lm.model import Windows, repetition
from parsimax.recipes.lm.settings import Settings
from parsimax.recipes.lm.words import EOS, UNK, Words, embedded

TINY = ["embedding=8", "hidden=12", "columns=4", "window=6", "vocabulary=50", "eval_words=200"]
OWN = {"plif": ["knots=100"], "monotonic": ["units=5"], "mixture": ["components=2", "tanh=false"]}
OWN["mixture-plif"] = [*OWN["mixture"], *OWN["plif"]]
QUICK = ["steps=4", "eval_every=2", "tensorboard=false"]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def data(tmp_path):
    """Lines of counting, which a model can learn."""
    root = tmp_path / "data"
    root.mkdir()
    for split, count in (("train", 300), ("valid", 40), ("test", 40)):
        lines = [" ".join(f"w{(start + step) % 11}" for step in range(8)) for start in range(count)]
        (root / f"{split}.txt").write_text("\n".join(lines))
    return root


def said_to(monkeypatch, text):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))


def weights(run):
    return torch.load(Path(run) / "checkpoints" / "last.ckpt", weights_only=True)["state_dict"]


@pytest.mark.parametrize("head", KINDS)
def test_every_head_trains(head, data, capsys):
    words = [*TINY, f"data.root={data}", f"model.head={head}", *OWN.get(head, ()), "weight_drop=0.2", "--run", "run"]
    words += ["steps=60", "eval_every=60", "tensorboard=false", "warmup=0", "lr=0.05", "decay=none"]
    assert cli.main(["train", "lm", *words]) == 0, capsys.readouterr().err
    run, entry, settings = commands.opened(Path("run"))
    start = entry.recipe().reopen(settings, run).eval()
    before, after = start.state_dict(), weights("run")
    still = [key for key in before if key.startswith("model.head.") and torch.equal(before[key], after[key])]
    assert not still and "model.head.bias" in before
    found = json.loads(Path("run/results.json").read_text())["val"]
    assert found["loss"] < start.validate()["loss"] - 1 and found["seconds per epoch"] > 0
    assert 1 < found["perplexity"] < 20 and found["rank"] >= 1


def test_from_training_to_text(data, capsys, monkeypatch):
    words = [*TINY, "steps=150", "eval_every=50", "tensorboard=false", "lr=0.02", f"data.root={data}"]
    words += ["model.output.mapping=entmax15", "embedding=16", "--run", "run"]
    words.remove("embedding=8")
    assert cli.main(["train", "lm", *words]) == 0, capsys.readouterr().err
    assert cli.main(["eval", "run"]) == 0
    found = json.loads(Path("run/results.json").read_text())["test"]
    assert found["accuracy"] > 0.8 and found["possible words"] < 5 and found["ε-perplexity"] < 3
    assert found["sparsemax score"] > 0.7 and 0 <= found["Jensen–Shannon"] < 0.3 and "rank" not in found
    assert len(Path("run/outputs/test.jsonl").read_text().splitlines()) == 20
    capsys.readouterr()
    said_to(monkeypatch, "w1 w2 w3\nw1 strange w3\n\n")
    assert cli.main(["predict", "run", "--words", "5", "--samples", "2"]) == 0
    out = capsys.readouterr()
    lines = out.out.splitlines()
    assert len(lines) == 6 and all(len(line.split()) == 5 for line in lines)
    assert any(line.startswith("w4 w5 w6") for line in lines[:2]) and "strange" in out.err
    said_to(monkeypatch, "w1 w2 w3\n")
    assert cli.main(["predict", "run", "--words", "5", "--samples", "2", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["goes on"] == lines[:2]
    assert cli.main(["report", "run"]) == 0
    assert {Path(line).name for line in capsys.readouterr().out.splitlines()} == {"training.png"}


def test_a_transformer_with_any_attention(data, capsys, monkeypatch):
    words = [*TINY, *QUICK, f"data.root={data}", "kind=transformer", "heads=2", "model.attention.alpha=learned"]
    words += ["model.head=plif", "knots=100", "--run", "run"]
    assert cli.main(["train", "lm", *words]) == 0, capsys.readouterr().err
    capsys.readouterr()
    said_to(monkeypatch, "w1 w2 w3 w4 w5 w6 w7 w8 w9\n")
    assert cli.main(["predict", "run", "--words", "9"]) == 0
    assert len(capsys.readouterr().out.split()) == 9
    assert cli.main(["report", "run"]) == 0
    names = {Path(line).name for line in capsys.readouterr().out.splitlines()}
    assert names == {"training.png", "spectrum.png", "function.png"}


def test_a_resumed_run_ends_with_the_same_weights(data, capsys):
    words = [*TINY, "tensorboard=false", "eval_every=3", "decay=none", f"data.root={data}", "weight_drop=0.2"]
    assert cli.main(["train", "lm", *words, "steps=9", "--run", "whole"]) == 0
    assert cli.main(["train", "lm", *words, "steps=3", "--run", "parts"]) == 0
    assert cli.main(["train", "--resume", "parts", "steps=9"]) == 0, capsys.readouterr().err
    for (name, one), other in zip(weights("whole").items(), weights("parts").values(), strict=True):
        assert torch.equal(one, other), name


def test_the_embedded_text(capsys, monkeypatch):
    parts = embedded()
    assert all(len(parts[split]) > 100 for split in ("train", "val", "test"))
    assert sum(map(len, parts["train"])) > 50_000
    words = [*TINY, "steps=1", "eval_every=1", "tensorboard=false", "--run", "run"]
    assert cli.main(["train", "lm", *words]) == 0, capsys.readouterr().err
    said = []
    for prompt in ("The class, of a module.", "the class , of a module ."):  # a prompt is parted as the text was
        said_to(monkeypatch, prompt + "\n")
        capsys.readouterr()
        assert cli.main(["predict", "run", "--words", "5"]) == 0
        said.append(capsys.readouterr())
    assert said[0].out == said[1].out and "." in Words.load(Run(Path("run"))).words
    assert not {"The", "module."} & {*said[0].err.split()}


def test_texts_that_are_odd(data, capsys, monkeypatch):
    (data / "train.txt").write_text(" ".join(f"w{n % 13}" for n in range(100_000)))  # one line
    (data / "test.txt").write_text("never seen words\n")
    words = [*TINY, *QUICK, f"data.root={data}", "--run", "long"]
    assert cli.main(["train", "lm", *words]) == 0, capsys.readouterr().err
    assert cli.main(["eval", "long"]) == 0
    assert json.loads(Path("long/results.json").read_text())["test"]["unknown"] == pytest.approx(0.75)
    said_to(monkeypatch, " ".join(["w1"] * 100_000) + "\n")
    capsys.readouterr()
    assert cli.main(["predict", "long", "--words", "3"]) == 0
    assert len(capsys.readouterr().out.split()) == 3
    for content, message in (("", "train.txt is empty"), ("a b", "too few for 4 columns"), ("\n \n", "is empty")):
        (data / "train.txt").write_text(content)
        assert cli.main(["train", "lm", *TINY, *QUICK, f"data.root={data}", "--run", "none"]) == 2
        assert message in capsys.readouterr().err


def test_settings_that_cannot_be_meant(capsys):
    for words, message in (
        (["kind=transformer", "heads=3"], "must divide"),
        (["devices=2"], "one process"),
        (["model.head=plif", "model.output.mapping=sparsemax"], "goes with model.head=linear"),
        (["model.head=plif", "knots=11"], "model.knots must be even, got 11"),
        (["model.components=9"], "model.components=9: model.head=linear does not read model.components"),
        (["model.head=mixture", "knots=10"], "model.head=mixture does not read model.knots"),
        (["kind=transformer", "weight_drop=0.5"], "model.kind=transformer does not read model.weight_drop"),
        (["model.attention.mapping=sparsemax"], "model.kind=lstm does not read model.attention.mapping"),
        (["model.head=plif", "model.output.alpha=1.7"], "model.head=plif does not read model.output.alpha"),
        (["model.output.alpha=1.3"], "model.output.mapping=softmax does not read model.output.alpha"),
        (["kind=transformer", "model.attention.rate=0.3"], "mapping=entmax does not read model.attention.rate"),
        (["data.lowercase=true"], "data.lowercase=true: the embedded text, which is lower case, does not read"),
        (["model.output.mapping=entmax", "model.output.alpha=0"], "alpha of the loss of entmax must be in (0, inf]"),
        (["model.output.mapping=normmax", "model.output.alpha=0.5"], "normmax must be in (1, inf), got 0.5"),
    ):
        assert cli.main(["train", "lm", *words]) == 2
        said = capsys.readouterr()
        assert message in said.err and not said.out and not Path("runs").exists()


def test_a_mixture_takes_numbers_that_no_loss_takes():
    """Its loss is that of the mixture, so α = 0 is a mapping like others."""
    words = {"model.head": "mixture", "model.output.mapping": "entmax", "model.output.alpha": "0"}
    changed(Settings(), words).check_new()


def test_windows_cover_the_text_in_its_order():
    text = torch.arange(50)
    windows = Windows(text, 3, 5, "train")
    seen = list(windows)
    assert len(seen) == len(windows) == 3 and [one.first for one in seen] == [True, False, False]
    assert torch.equal(torch.cat([one.wanted for one in seen])[:, 1], torch.arange(17, 32))
    assert all(torch.equal(one.entered + 1, one.wanted) for one in seen)


def test_words_and_repetition():
    words = Words.learn([["b", "a", "b"], ["c"]], 4)
    assert words.words == ["<eos>", "<unk>", "b", "a"] and words.numbered(["c", "b"]) == [UNK, 2]
    assert words.text([2, EOS]) == "b <eos>"
    assert repetition([[1, 2, 3, 4] * 2]) == pytest.approx(1 / 5) and repetition([[1]]) == 0

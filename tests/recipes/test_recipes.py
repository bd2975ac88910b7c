"""Every recipe through the real command line: a few steps, killed and resumed, evaluated, compared, looked at."""

import contextlib
import csv
import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

import fresh
from parsimax import cli
from parsimax.mappings import REGISTRY
from parsimax.recipes import RECIPES, find
from parsimax.recipes.kit.settings import changed, from_yaml

COMMAND = [str(Path(sys.executable).with_name("parsimax"))]
TINY = {
    "translation": ["width=16", "inner=16", "layers=1", "heads=2", "batch_tokens=512", "beam=2", "exact_budget=20"],
    "inflection": ["width=16", "layers=1", "batch_tokens=512", "beam=2", "exact_budget=20"],
}
TEXT = [*TINY]
QUICK = ["steps=6", "eval_every=3", "tensorboard=false", "search.longest=5"]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def quick(name):
    return [*TINY[name], *QUICK]


def said_to(monkeypatch, content):
    """Let this be the standard input."""
    monkeypatch.setattr(
        sys, "stdin", io.TextIOWrapper(io.BytesIO(content if isinstance(content, bytes) else content.encode()))
    )


def weights(run):
    return torch.load(Path(run) / "checkpoints" / "last.ckpt", weights_only=True)["state_dict"]


def small_data(root, pairs=40):
    """Parallel text and inflection in their standard formats."""
    root.mkdir()
    for split, count in (("train", pairs), ("val", 8), ("test", 8)):
        for language, word in (("en", "house"), ("de", "Haus")):
            lines = [f"{word} number {index % 7} of {split}" for index in range(count)]
            (root / f"{split}.{language}").write_text("\n".join(lines))
    for language in ("aa", "bb"):
        for part, count in (("train-medium", 30), ("dev", 6), ("test", 6)):
            lines = [f"wort{index}\tworte{index}\tN;PL" for index in range(count)]
            (root / f"{language}-{part}").write_text("\n".join(lines))
    return root


@pytest.mark.parametrize("name", TEXT)
def test_a_recipe_from_training_to_report(name, tmp_path, capsys, monkeypatch):
    data = small_data(tmp_path / "data")
    words = [*quick(name), f"data.root={data}", *(["vocabulary=60"] if name == "translation" else [])]
    assert cli.main(["train", name, *words]) == 0
    run = Path("runs") / name / "0001"
    said = capsys.readouterr().out
    assert str(run) in said and "accuracy" in said and "beam proved exact" in said
    assert "step time / softmax" in said
    assert {path.name for path in run.iterdir()} >= {
        "config.yaml",
        "run.json",
        "metrics.csv",
        "results.json",
        "checkpoints",
    }
    assert json.loads((run / "run.json").read_text())["versions"]["torch"] == torch.__version__
    assert cli.main(["eval", str(run)]) == 0
    said = capsys.readouterr().out
    assert "next tokens a step" in said and "test" in said
    assert name == "translation" or "aa 0" in said
    outputs = [json.loads(line) for line in (run / "outputs" / "test.jsonl").read_text(encoding="utf-8").splitlines()]
    assert len(outputs) == json.loads((run / "results.json").read_text())["test"]["examples"]
    assert {"source", "wanted", "output", "probability", "proved"} <= {*outputs[0]}
    line = "house number 1" if name == "translation" else "aa\twort1\tN;PL"
    said_to(monkeypatch, f"{line}\n" * 3)
    assert cli.main(["predict", str(run)]) == 0
    best = capsys.readouterr().out.splitlines()
    assert len(best) == 3
    said_to(monkeypatch, f"{line}\n" * 3)
    assert cli.main(["predict", str(run), "--nbest", "2"]) == 0
    table = [row.split("\t") for row in capsys.readouterr().out.splitlines()]
    assert [row[3] for row in table if row[0] == "1"] == best
    assert {row[2] for row in table} <= {"proved", "-"} and all(0 <= float(row[1]) <= 1 for row in table)
    said_to(monkeypatch, f"{line}\n")
    assert cli.main(["predict", "--json", "--exact", str(run)]) == 0
    known = json.loads(capsys.readouterr().out)
    assert known["source"][-1] == "</s>" and isinstance(known["proved best"], bool)
    for place in known["outputs"][0]["alignment"]:
        assert place[0] < len(known["outputs"][0]["tokens"]) and place[1] < len(known["source"]) and place[2] > 0
    assert cli.main(["compare", str(run), str(run), "--split", "test"]) == 0
    assert capsys.readouterr().out.splitlines()[0].split() == [str(run), str(run)]
    assert cli.main(["report", str(run)]) == 0
    written = [Path(line) for line in capsys.readouterr().out.splitlines()]
    assert {path.suffix for path in written} == {".png", ".html"} and all(
        path.stat().st_size > 1000 for path in written
    )


def test_the_embedded_data_and_every_mapping(capsys):
    """Without a path; and each mapping in attention and output."""
    for index, mapping in enumerate(("softmax", "sparsemax", "rsoftmax", "entmax")):
        name = ("inflection", "translation")[index % 2]
        kinds = ("attention", "output") if name == "inflection" else ("encoder", "decoder", "context", "output")
        words = [word for kind in kinds for word in (f"model.{kind}.mapping={mapping}", f"model.{kind}.alpha=learned")]
        steps = ["steps=1", "eval_every=1", "search.longest=2", "exact_budget=0", "smoothing=0.1"]
        assert cli.main(["train", name, *TINY[name][:-1], *steps, *words]) == 0, capsys.readouterr().err


SOME = [
    *TINY["translation"][:-1],
    "exact_budget=0",
    "steps=30",
    "eval_every=10",
    "tensorboard=false",
    "search.longest=3",
    "vocabulary=60",
]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run that was left alone."""
    folder = tmp_path_factory.mktemp("runs") / "whole"
    data = small_data(folder.parent / "data", 900)  # an epoch has more steps than there are before the signal
    assert cli.main(["train", "translation", *SOME, f"data.root={data}", "--run", str(folder)]) == 0
    return folder


def figures(run):
    """What was logged, without what the clock says."""
    rows = csv.DictReader((Path(run) / "metrics.csv").read_text().splitlines())
    return [{name: value for name, value in row.items() if value and "a second" not in name} for row in rows]


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_stopped_in_mid_epoch_and_resumed_it_ends_with_the_same_weights(how, whole, tmp_path):
    """`test_runs.py` has those that are killed."""
    last = tmp_path / "broken" / "checkpoints" / "last.ckpt"

    def stop(process):
        deadline = time.monotonic() + 120
        with contextlib.suppress(ProcessLookupError):  # it ended early: what it said is below
            while not last.exists() and time.monotonic() < deadline:
                os.kill(process, 0)
                time.sleep(0.02)
            os.kill(process, how)

    words = ["train", "translation", *SOME, f"data.root={whole.parent / 'data'}", "--run", "broken"]
    done = fresh.run("-m", "parsimax_command", *words, imports="lightning.pytorch", during=stop)
    if done.returncode:
        assert done.returncode == 130 and "--resume" in done.stderr and "Traceback" not in done.stderr, done.stderr
    assert last.exists(), done.stderr
    step = torch.load(last, weights_only=True)["global_step"]
    assert step >= 10
    assert cli.main(["train", "--resume", "broken"]) == 0
    left, broken = weights(whole), weights("broken")
    assert left.keys() == broken.keys()
    for name, value in left.items():
        assert torch.equal(value, broken[name]), f"{name} differs after resuming at step {step}"
    assert figures(whole) == figures("broken")


def test_two_processes(tmp_path):
    words = [*quick("translation"), "devices=2", "strategy=ddp", "steps=3"]
    words.remove("steps=6")
    words += [f"data.root={small_data(tmp_path / 'data')}", "vocabulary=60"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    call = [*COMMAND, "train", "translation", *words, "--run", "both"]
    run = subprocess.run(call, capture_output=True, text=True, env=environment, timeout=300)
    assert run.returncode == 0, run.stderr
    assert "accuracy" in run.stdout and run.stdout.count("run: both") == 1
    assert torch.load("both/checkpoints/last.ckpt", weights_only=True)["global_step"] == 3


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["train", "translaton"], "did you mean translation?"),
        (["train"], "parsimax list"),
        (["train", "translation", "widht=3"], "did you mean model.width?"),
        (["train", "translation", "mapping"], "write key=value"),
        (["train", "translation", "data.root=/no/such"], "is not a folder"),
        (["train", "translation", "model.width=7", "model.heads=2"], "7"),
        (["train", "--resume", "nothing"], "is not the folder of a run"),
        (["train", "inflection", "--resume", "x"], "takes no recipe"),
        (["train", "inflection", "--config", "sigmorfon"], "did you mean sigmorphon?"),
        (["eval", "."], "is not the folder of a run"),
        (["config", "nothing"], f"there is {', '.join(RECIPES)}"),
        (["train", "translation", "--config", "none.yaml", "steps=1"], "cannot read none.yaml"),
    ],
)
def test_mistakes_are_told_in_one_line(arguments, message, capsys):
    assert cli.main(arguments) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
    assert not Path("runs").exists() or not any(Path("runs").glob("*/*")), "nothing was begun"


@pytest.mark.parametrize(
    "name, file, content, message",
    [
        ("inflection", "aa-train-medium", "lemma\tform\n", "aa-train-medium, line 1: 2 columns"),
        ("inflection", "aa-dev", "", "aa-dev is empty"),
        ("inflection", "bb-train-medium", "a\t\tN\n", "bb-train-medium, line 1: form is empty"),
        ("translation", "train.de", "x\n" * 39 + "\n", "train.de"),
        ("translation", "val.en", "x\n", "val.en has 1 lines and"),
        ("translation", "train.en", b"caf\xe9\n" * 40, "train.en, line 1: not UTF-8"),
    ],
)
def test_bad_data_is_refused_before_training(name, file, content, message, tmp_path, capsys):
    data = small_data(tmp_path / "data")
    (data / file).write_bytes(content if isinstance(content, bytes) else content.encode())
    assert cli.main(["train", name, *quick(name), f"data.root={data}"]) == 2
    assert message in capsys.readouterr().err
    assert not any(Path("runs").glob("*/*")), "an empty run was left behind"


def test_list_does_not_wait_for_torch():
    code = "import sys; from parsimax_command import main; main(['list']); print('torch' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    *lines, loaded = run.stdout.splitlines()
    assert loaded == "False" and [line.split()[0] for line in lines] == list(RECIPES)


def test_config_offers_every_mapping_that_fits(capsys):
    assert cli.main(["config", "inflection"]) == 0
    text = capsys.readouterr().out
    assert "\ntrain.seed=1 " in text and max(map(len, text.splitlines())) <= 140
    offered = text[text.index("\nmodel.output.mapping=") : text.index("\nsearch.")]
    assert "model.output.lam=0.25 " in offered and "number ≤ 1 | learned" in offered
    fitting = [entry for entry in REGISTRY.values() if entry.total == 1]
    assert len(fitting) == len(REGISTRY) - 1 and "budget" not in offered
    for entry in fitting:
        assert entry.name in offered
        assert entry.setting is None or f"model.output.{entry.setting.name}=" in offered


@pytest.mark.parametrize(
    "path", sorted(Path(cli.__file__).parent.glob("recipes/*/configs/*.yaml")), ids=lambda p: p.stem
)
def test_every_shipped_config_fits_its_recipe(path):
    settings = find(path.parent.parent.name).settings()
    assert changed(settings, from_yaml(path)) != settings


def test_predict_answers_every_line(tmp_path, capsys, monkeypatch):
    data = small_data(tmp_path / "data")
    (data / "aa-train-medium").write_bytes(
        b"\xef\xbb\xbf" + (data / "aa-train-medium").read_bytes()
    )  # a byte-order mark
    assert cli.main(["train", "inflection", *quick("inflection"), f"data.root={data}", "--run", "run"]) == 0
    assert "\ufeff" not in (Path("run") / "vocabulary.json").read_text(encoding="utf-8")
    capsys.readouterr()
    good = "aa\twort1\tN;PL"
    wrong = {
        b"zz\twort\tN": "'zz'",
        b"wort\tN": "by tabs",
        b"": "by tabs",
        b"aa\twort\xff\tN": "not UTF-8",
        b"aa\t" + b"w" * 100_000 + b"\tN": "more than the 2048",
        b"aa\t\tN": "lemma is empty",
    }
    said_to(monkeypatch, b"\n".join([good.encode(), *wrong, "aa\twö\tN;PL".encode(), good.encode()]))
    assert cli.main(["predict", "run"]) == 1
    out = capsys.readouterr()
    first, *marked, unseen, last = out.out.splitlines()
    assert first == last and not first.startswith("#ERROR") and not unseen.startswith("#ERROR")
    assert len(marked) == len(wrong)
    for number, (line, said) in enumerate(zip(marked, wrong.values(), strict=True), 2):
        assert line.startswith(f"#ERROR line {number}: ") and said in line and len(line) < 300
    assert f"{len(wrong)} of {len(wrong) + 3} lines" in out.err and out.err.count("'ö' was not seen") == 1
    covered = "wort1\tN;PL\nwort1\twhatever\tN;PL\n"
    Path("aa-covered").write_text(covered)
    for arguments, text in (
        (["--language", "aa"], covered),
        (["--language", "aa", "--input", "aa-covered"], ""),
        (["--format", "jsonl"], '{"language": "aa", "lemma": "wort1", "tags": "N;PL"}\n' * 2),
        (["--format", "csv"], "tags,id,lemma,language\n" + "N;PL,7,wort1,aa\n" * 2),
    ):
        said_to(monkeypatch, text)
        assert cli.main(["predict", "run", *arguments]) == 0
        assert capsys.readouterr().out.splitlines() == [first, first]
    said_to(monkeypatch, '[]\n{"lemma": "x"}\n{"language": "aa", "lemma": [1], "tags": "N"}\n')
    assert cli.main(["predict", "run", "--format", "jsonl", "--json"]) == 1
    errors = [json.loads(line)["error"] for line in capsys.readouterr().out.splitlines()]
    assert "JSON object" in errors[0] and "'language'" in errors[1] and "lemma must be text, got [1]" in errors[2]


def test_a_run_may_be_moved_and_opened_from_elsewhere(tmp_path, capsys, monkeypatch):
    small_data(tmp_path / "data")
    assert cli.main(["train", "inflection", *quick("inflection"), "data.root=data", "--run", "run"]) == 0
    (tmp_path / "other").mkdir()
    Path("run").rename("moved")
    monkeypatch.chdir(tmp_path / "other")
    results = json.loads((tmp_path / "moved" / "results.json").read_text())
    assert cli.main(["eval", str(tmp_path / "moved"), "--split", "val", "--checkpoint", "last"]) == 0
    after = json.loads((tmp_path / "moved" / "results.json").read_text())
    assert after["val"] == results["val"] and "val, last checkpoint" in after
    before = weights(tmp_path / "moved")
    assert cli.main(["train", "--resume", str(tmp_path / "moved")]) == 0  # it has ended: nothing is trained
    assert all(torch.equal(value, before[name]) for name, value in weights(tmp_path / "moved").items())
    again = json.loads((tmp_path / "moved" / "results.json").read_text())["val"]
    assert again["training seconds"] == results["val"]["training seconds"] > 0


def test_a_run_that_lost_patience_is_not_trained_on(tmp_path, capsys):
    words = [*quick("inflection"), "steps=40", "eval_every=2", "patience=2", "lr=0"]
    words = [word for word in words if word not in ("steps=6", "eval_every=3")]
    assert cli.main(["train", "inflection", *words, "--run", "run"]) == 0

    def step():
        return torch.load(Path("run") / "checkpoints" / "last.ckpt", weights_only=True)["global_step"]

    stopped = step()
    assert stopped < 40
    assert cli.main(["train", "--resume", "run"]) == 0
    assert step() == stopped


@pytest.mark.parametrize(
    "words, said",
    [
        (["languages=german"], "data.root"),
        (["steps=20", "train.steps=10"], "twice"),
        (["lr=inf"], "at most"),
        (["seed=99999999999999999"], "at most"),
    ],
)
def test_settings_that_cannot_be_meant(words, said, capsys):
    assert cli.main(["train", "inflection", *words]) == 2
    assert said in capsys.readouterr().err and not Path("runs").exists()


def test_data_that_changed_are_named(tmp_path, capsys):
    data = small_data(tmp_path / "data")
    assert cli.main(["train", "inflection", *quick("inflection"), "data.root=data", "--run", "run"]) == 0
    assert {*json.loads(Path("run/data.json").read_text())["test"]} == {"aa-test", "bb-test"}
    data.rename("moved")
    assert cli.main(["train", "--resume", "run", "steps=7"]) == 2
    said = capsys.readouterr().err
    assert "data is not a folder" in said and "leave it out" not in said
    assert cli.main(["train", "--resume", "run", "data.root=moved"]) == 0
    assert "moved" in Path("run/config.yaml").read_text()
    with open("moved/bb-dev", "a") as file:
        file.write("\nneu\tneues\tN;PL")
    capsys.readouterr()
    for arguments in (["train", "--resume", "run", "steps=7"], ["eval", "run", "--split", "val"], ["report", "run"]):
        assert cli.main(arguments) == 2
        said = capsys.readouterr().err
        assert "changed since the run began" in said and "moved/bb-dev" in said and "--changed-data" in said
    assert cli.main(["eval", "run"]) == 0, "the test data are as they were"
    assert cli.main(["eval", "run", "--split", "val", "--changed-data"]) == 0
    Path("moved/aa-test").unlink()
    assert cli.main(["eval", "run"]) == 2
    assert "aa-test" in capsys.readouterr().err


def test_data_settings_stay_in_their_root(tmp_path, capsys):
    small_data(tmp_path / "data")
    Path("secret-train-medium").write_text("a\tb\tN\n")
    assert cli.main(["train", "inflection", "data.root=data", "languages=../secret"]) == 2
    assert "is not the name of a file" in capsys.readouterr().err
    assert cli.main(["train", "translation", "data.root=data", "source=/../../x"]) == 2
    assert "is not the name of a file" in capsys.readouterr().err


def test_the_report_says_whose_output_it_shows(tmp_path, capsys):
    """An LSTM of one head, r-softmax without α: what there is nothing to draw of is left out."""
    data = small_data(tmp_path / "data")
    words = [*quick("inflection"), f"data.root={data}", "model.attention.mapping=rsoftmax", "--run", "run"]
    assert cli.main(["train", "inflection", *words]) == 0
    capsys.readouterr()
    assert cli.main(["report", "run"]) == 0
    written = [Path(line).name for line in capsys.readouterr().out.splitlines()]
    assert written == ["training.png", "density.png", "attention.html"]
    page = (Path("run") / "report" / "attention.html").read_text(encoding="utf-8")
    facts = json.loads(re.search(r'id="report">(.*?)</script>', page, re.S)[1])
    captions = [example["caption"] for example in facts["examples"]]
    assert any(caption.startswith("The reference is the target") for caption in captions)
    assert any(caption.startswith("The model's own output is the target") for caption in captions)
    assert all(
        [side["label"] for side in example["sentences"]] == ["Source", "Target"] for example in facts["examples"]
    )
    assert page.count("<img ") == 2 and "accuracy (val)" in page

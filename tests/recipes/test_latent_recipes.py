"""The recipes with a latent variable: every method takes a step, and each recipe goes from training to its report."""

import gzip
import io
import json
import math
import sys
from pathlib import Path
from typing import get_args, get_type_hints

import pytest
import torch

from parsimax import cli
from parsimax.latent import Best
from parsimax.recipes import find
from parsimax.recipes.images.data import splits
from parsimax.recipes.kit.recipe import DataError
from parsimax.recipes.kit.settings import changed

pytest.importorskip("sklearn")

TINY = {
    "ssvae": ["classifier=16", "width=16", "supervised=2"],
    "emergent": ["width=16", "hidden=8", "messages=20"],
    "bitvae": ["model.width=16", "bits=8"],
}
QUICK = ["steps=6", "eval_every=3", "tensorboard=false", "baseline=8"]
METHODS = [
    (name, method) for name in TINY for method in get_args(get_type_hints(type(find(name).settings().model))["method"])
]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def task_of(name, *words):
    entry = find(name)
    settings = changed(entry.settings(), dict(word.split("=") for word in [*TINY[name], "baseline=8", *words]))
    settings.check()
    task = entry.recipe().reopen(settings, None)
    task.log = lambda *_, **__: None  # there is no trainer
    return task


@pytest.mark.parametrize(("name", "method"), METHODS)
def test_every_method_takes_a_step(name, method):
    task = task_of(name, f"method={method}", *(["supervised=0"] if name == "ssvae" else []))
    batch = task.batches.make([*range(8)])
    torch.manual_seed(0)
    loss = task.loss(batch)
    loss.backward()
    assert loss.isfinite() and task.amount(batch) == 8
    for part in ("classifier", "sender", "encoder"):
        if hasattr(task, part):
            assert sum(p.grad.abs().sum() for p in getattr(task, part).parameters()) > 0, part
    task.val = task.val.part(slice(40))
    figures = task.eval().validate()
    assert task.monitor in figures and all(torch.tensor(value).isfinite() for value in figures.values())
    calls = {"dense": {"ssvae": 10, "emergent": 20}.get(name), "sfe": 1, "nvil": 1, "gumbel": 1, "st-gumbel": 1}
    calls |= {"sfe+": 2, "sum-sample": 2}
    if method in calls:
        assert figures["calls"] == calls[method]
    else:
        assert 1 <= figures["calls"] < 256


@pytest.mark.parametrize("name", TINY)
def test_from_training_to_report(name, capsys, monkeypatch):
    assert cli.main(["train", name, *TINY[name], *QUICK, "--run", "run"]) == 0, capsys.readouterr().err
    assert cli.main(["eval", "run"]) == 0
    outputs = [json.loads(one) for one in Path("run/outputs/test.jsonl").read_text().splitlines()]
    image = splits(None)["test"].levels[0].tolist()
    lines = f"{' '.join(map(str, image))}\n1 2 3\nx\n{' '.join(['17'] * 64)}\n"
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(lines.encode())))
    capsys.readouterr()
    assert cli.main(["predict", "run"]) == 1
    answer, *wrong = capsys.readouterr().out.splitlines()
    assert answer == str(outputs[0][{"ssvae": "class", "emergent": "message", "bitvae": "bits"}[name]])
    assert [one.split(":")[0] for one in wrong] == [f"#ERROR line {number}" for number in (2, 3, 4)]
    assert cli.main(["report", "run"]) == 0
    written = [Path(one) for one in capsys.readouterr().out.splitlines()]
    assert len(written) >= 2 and all(path.stat().st_size > 1000 for path in written)


@pytest.mark.parametrize(("name", "method"), [("emergent", "sfe"), ("ssvae", "gumbel")])
def test_a_run_that_went_on_is_one_that_was_left_alone(name, method, capsys):
    """Running means are part of the checkpoint, temperatures and samples are functions of the step."""
    words = [*TINY[name], "eval_every=2", "tensorboard=false", f"method={method}"]
    assert cli.main(["train", name, *words, "steps=4", "--run", "whole"]) == 0
    assert cli.main(["train", name, *words, "steps=3", "--run", "parts"]) == 0
    assert cli.main(["train", "--resume", "parts", "steps=4"]) == 0, capsys.readouterr().err
    whole, parts = (
        torch.load(f"{run}/checkpoints/last.ckpt", weights_only=True)["state_dict"] for run in ("whole", "parts")
    )
    assert whole.keys() == parts.keys() and all(torch.equal(whole[key], parts[key]) for key in whole)


def idx(path, magic, numbers, packed=False):
    header = magic.to_bytes(4, "big") + b"".join(size.to_bytes(4, "big") for size in numbers.shape)
    content = header + bytes(numbers.flatten().tolist())
    path.write_bytes(gzip.compress(content) if packed else content)


@pytest.fixture
def mnist(tmp_path):
    """A few images of 4 × 4 in MNIST's files; one of them is packed."""
    root = tmp_path / "data"
    root.mkdir()
    for part, count in (("train", 18), ("t10k", 3)):
        images = torch.arange(count * 16).view(count, 4, 4) % 256
        idx(root / f"{part}-labels-idx1-ubyte", 2049, torch.arange(count) % 10)
        packed = part == "train"
        idx(root / f"{part}-images-idx3-ubyte{'.gz' if packed else ''}", 2051, images, packed)
    return root


def test_files_of_mnist(mnist):
    parts = splits(mnist)
    assert {name: len(part) for name, part in parts.items()} == {"train": 15, "val": 3, "test": 3}
    assert parts["train"].levels[1].tolist() == [*range(16, 32)] and parts["val"].labels.tolist() == [5, 6, 7]
    assert parts["test"].pixels().max() == 47 / 255 and parts["test"].side == 4
    words = ["candidates=3", "batch=4", *TINY["emergent"], *QUICK, f"data.root={mnist}", "--run", "run"]
    assert cli.main(["train", "emergent", *words]) == 0
    assert [Path(name).name for name in json.loads(Path("run/data.json").read_text())["test"]] == [
        "t10k-images-idx3-ubyte",
        "t10k-labels-idx1-ubyte",
    ]


def test_too_few_images_for_a_round(mnist, capsys):
    assert cli.main(["train", "emergent", *TINY["emergent"], *QUICK, f"data.root={mnist}", "--run", "run"]) == 2
    assert "model.candidates=16 are more than the 15 images" in capsys.readouterr().err


def test_files_that_are_none(mnist):
    def fails(words):
        splits.cache_clear()
        with pytest.raises(DataError, match=words):
            splits(mnist)

    labels, packed = mnist / "train-labels-idx1-ubyte", mnist / "train-images-idx3-ubyte.gz"
    whole = packed.read_bytes()
    packed.write_bytes(whole[:20] + bytes(len(whole) - 20))
    fails("train-images-idx3-ubyte.gz cannot be read")
    idx(packed, 2051, torch.zeros(18, 5, 5, dtype=torch.long), packed=True)
    fails("images of train are 5 pixels wide, and those of t10k 4")
    idx(packed, 2051, torch.zeros(5, 4, 4, dtype=torch.long), packed=True)
    idx(labels, 2049, torch.zeros(5, dtype=torch.long))
    fails("got 5; 6 or more are needed")
    packed.write_bytes(whole)
    idx(labels, 2049, torch.full((18,), 11))
    fails("labels are 0 to 9, got 11")
    idx(labels, 2049, torch.zeros(5, dtype=torch.long))
    fails("18 images and 5 labels")
    idx(labels, 2050, torch.zeros(18, dtype=torch.long))
    fails("it begins with 00000802, not 00000801")
    labels.write_bytes(labels.read_bytes()[:-2].replace(b"\x08\x02", b"\x08\x01"))
    fails("should hold 18 bytes after its header, got 16")
    labels.unlink()
    fails("has neither train-labels-idx1-ubyte nor")


@pytest.mark.parametrize(
    ("name", "words", "said"),
    [
        ("ssvae", ["supervised=9", "steps=9"], "leaves no step"),
        ("ssvae", ["lr=0"], "train.lr is above 0 where train.supervised steps come first, got 0"),
        ("ssvae", ["labelled=5000"], "train.labelled=5000 are more than the 1197 images to train on"),
        ("bitvae", ["budget=40"], "model.budget=40 is above model.bits=32"),
        ("bitvae", ["budget=4", "method=sfe"], "for topk and sparsemap, not for sfe"),
    ],
)
def test_settings_that_do_not_go_together(name, words, said, capsys):
    assert cli.main(["train", name, *words]) == 2
    assert said in capsys.readouterr().err


def test_a_budget_is_kept():
    task = task_of("bitvae", "budget=3")
    out = task.expected(task.val.levels[:20], task.method)
    assert out.z.sum(-1).max() <= 3 and task.log_prior == pytest.approx(-math.log(1 + 8 + 28 + 56))


@pytest.mark.parametrize("method", ["topk", "sparsemap"])
def test_a_small_budget_has_a_likelihood(method):
    """Of independent bits few draws would keep it, and none of them made the loss infinite."""
    task = task_of("bitvae", "budget=1", f"method={method}", "judged=40", "bits=64").eval()
    assert math.isfinite(task.validate()["loss"])


def test_gumbel_cools_by_the_step():
    from parsimax.recipes.images.methods import at_step

    task = task_of("ssvae", "method=gumbel")
    seen = []
    for step in (0, 999, 1000, 100_000):
        at_step(task.method, step, task.settings.latent)
        seen.append(round(task.method.temperature, 3))
    assert seen == [1.0, 1.0, 0.905, 0.5]


@pytest.mark.parametrize("words", [["method=sparsemap"], ["method=topk"], ["method=sfe"], ["budget=3"]])
def test_samples_estimate_the_likelihood_of_every_method_alike(words):
    """With few bits the likelihood is the sum over all vectors that are allowed."""
    levels = splits(None)["val"].levels[:10]
    every = torch.tensor([[float(c) for c in f"{number:08b}"] for number in range(256)])
    torch.manual_seed(0)
    task = task_of("bitvae", *words).eval()
    budget = task.settings.model.budget or 8
    with torch.no_grad():
        kept = every[every.sum(-1) <= budget]
        exact = torch.stack([-task.distortion(levels, z.expand(10, 8)) for z in kept], -1).logsumexp(-1)
        found = task.log_likelihood(levels, task.expected(levels, task.method), 2000)
    torch.testing.assert_close(found, exact + task.log_prior, atol=1.2, rtol=0)  # of about 180 nats


def test_labelled_images_have_a_rate_of_their_own():
    task = task_of("ssvae", "supervised=2", "train.lr=0.0001", "train.supervised_lr=0.002", "steps=10")
    assert [task.train_settings.lr * task.rate(step) for step in range(4)] == pytest.approx([2e-3, 2e-3, 1e-4, 1e-4])


def test_messages_are_heard_alike_whether_many_or_few():
    """Many messages an image go through one product, few through a copy of the candidates for each pair."""
    from parsimax.latent import Marginal
    from parsimax.recipes.emergent import model

    task = task_of("emergent", "method=dense")
    x, candidates = task.round(task.val, [*range(5)])
    with torch.no_grad():
        many = task.play(x, candidates, Marginal("softmax"))
        model.MANY, held = 10**9, model.MANY
        try:
            few = task.play(x, candidates, Marginal("softmax"))
        finally:
            model.MANY = held
    torch.testing.assert_close(many.losses, few.losses)


SAMPLED = ["sfe", "sfe+", "nvil", "gumbel", "st-gumbel"]


@pytest.mark.parametrize("method", [*SAMPLED, "sum-sample", "dense"])
def test_messages_are_judged_as_they_are_sent(method):
    """In expectation over whole messages, also where training sends relaxed ones: no figure depends on a draw."""
    task = task_of("emergent", f"method={method}").eval()
    images = task.val.part(slice(50))
    with torch.no_grad():
        p = torch.softmax(task.scores(task.round(images, [*range(50)])[0]), -1)
        seen = task.look(task.round(images, [*range(50)])[1]) @ task.listen.weight  # (images, candidates, messages)
        right = (seen[:, :1] > seen[:, 1:]).all(1)
    assert task.figures(images)["expected accuracy"] == pytest.approx((p * right).sum(-1).mean().item(), abs=1e-6)


@pytest.mark.parametrize("method", SAMPLED)
def test_bits_are_judged_as_they_are_sent(method):
    """Rate and distortion are those of whole bits: a relaxed method has those of one that samples."""
    task = task_of("bitvae", f"method={method}").eval()
    levels = task.val.levels[:40]
    every = torch.tensor([[float(c) for c in f"{number:08b}"] for number in range(256)])
    with torch.no_grad():
        for layer in (task.encoder[-1], task.decoder[0], task.decoder[-1]):
            layer.weight *= 6  # so that bits matter, and half a bit is not the half of one
        p = torch.softmax(task.scores(levels) @ every.T, -1)
        losses = torch.stack([task.distortion(levels, z.expand(40, 8)) for z in every], -1)
        found = task.figures(task.val, 40, 2)
    mean, rate = (p * losses).sum(-1), (p * p.log()).sum(-1) + 8 * math.log(2)
    error = ((p * losses.square()).sum(-1) - mean.square()).mean().sqrt().item() / math.sqrt(
        40 * 16
    )  # 16 draws of each
    assert found["rate"] == pytest.approx(rate.mean().item(), rel=1e-4)
    assert abs(found["distortion"] - mean.mean().item()) < 4 * error


def test_figures_are_those_of_the_outputs():
    entry = find("ssvae").recipe()
    task = task_of("ssvae")
    found = entry.evaluate(task, task.settings, "test", print)
    right = [one["class"] == one["wanted"] for one in found.outputs]
    assert found.figures["examples"] == len(right)
    assert found.figures["accuracy"] == pytest.approx(sum(right) / len(right))


@pytest.mark.parametrize("name", ["emergent", "bitvae"])
def test_examples_are_those_that_were_judged(name, monkeypatch):
    entry, task = find(name).recipe(), task_of(name)
    module = sys.modules[type(task).__module__]
    for place in (module, sys.modules[type(entry).__module__]):
        if hasattr(place, "SHOWN"):
            monkeypatch.setattr(place, "SHOWN", 20)
    assert entry.evaluate(task, task.settings, "test", print).figures["examples"] == 20


@pytest.mark.parametrize("method", ["sfe", "sfe+", "dense"])
def test_the_reward_for_being_right(method):
    """The loss is the chance to be wrong; what is compared between methods stays the surprise."""
    log, right = (task_of("emergent", f"method={method}", f"reward={one}") for one in ("log", "right"))
    right.load_state_dict(log.state_dict())
    x, candidates = log.round(log.val, [*range(30)])
    surprise, wrong = (task.play(x, candidates, task.eval().method.eval()) for task in (log, right))
    if method == "dense":
        torch.testing.assert_close(wrong.losses, 1 - (-surprise.losses).exp())
    assert wrong.loss.min() > 0 and wrong.loss.max() < 1 and surprise.loss.max() > 1
    wrong.loss.sum().backward()
    assert right.sender[0].weight.grad.abs().sum() > 0 and right.listen.weight.grad.abs().sum() > 0
    assert log.figures(log.val)["loss"] == pytest.approx(right.figures(right.val)["loss"])


def test_the_baseline_of_nvil_is_the_papers():
    widths = [layer.weight.shape[0] for layer in task_of("emergent", "method=nvil").method.network[::2]]
    assert widths == [8, 8, 8, 1]


def test_labels_weigh_as_they_are_told():
    images = splits(None)["val"]
    found = []
    for weight in (0, 1, 3):
        task = task_of("ssvae", f"label_weight={weight}")
        torch.manual_seed(0)
        found.append(task.supervised(images.pixels(slice(8)), images.labels[:8]).item())
    assert found[2] - found[0] == pytest.approx(3 * (found[1] - found[0]), rel=1e-4) and found[1] > found[0]


def test_plans_have_the_rows_of_the_paper():
    sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
    try:
        from tuned_plans import PLANS
    finally:
        sys.path.pop(0)
    assert {"sfe, 0/1", "sfe+, 0/1"} < PLANS["emergent"].cells.keys()
    for name, plan in PLANS.items():
        if name in ("emergent", "ssvae", "bits32", "bits128"):
            for words in plan.cells.values():
                changed(find(plan.recipe).settings(), dict(word.split("=") for word in [*words, *plan.common])).check()


def test_what_a_bit_changes():
    """Titles name the bits; a cell is the image with that bit on less the one with it off."""
    task = task_of("bitvae")
    titles, rows = task.switches(task.val, rows=3, columns=4)
    assert titles[:2] == ["image", "drawn"] and len(titles) == 6 and len(rows) == 3
    (_, first), bit = rows[0], int(titles[2].removeprefix("bit "))
    z = task.expected(task.val.levels[:1], Best()).z.repeat(2, 1)
    z[0, bit], z[1, bit] = 1, 0
    on, off = task.drawn(z)
    torch.testing.assert_close(first[2], on - off)


def test_calls_are_told_by_class():
    task = task_of("ssvae", "method=sparse")
    with torch.no_grad():
        for parameter in task.classifier.parameters():
            parameter *= 3  # so that some images are clear and some not
    logged = {}
    task.log = lambda name, value, **_: logged.update({name: value})
    found = task.validate()
    classes = torch.tensor([logged[f"calls by class/{label}"] for label in range(10)])
    share = task.val.labels.bincount(minlength=10) / len(task.val)
    assert (classes * share).sum().item() == pytest.approx(found["calls"], rel=1e-5) and classes.std() > 0
    figures = find("ssvae").recipe().evaluate(task, task.settings, "val", print).figures
    assert [*figures["calls by class"].values()] == pytest.approx(classes.tolist())

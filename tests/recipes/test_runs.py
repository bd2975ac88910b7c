"""Runs that nothing can break: kills, full disks, power cuts, damaged and hostile files, two writers, other data."""

import contextlib
import errno
import json
import math
import os
import pickle
import signal
import subprocess
import zipfile
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import fresh
from killer import SEARCH, SIZES
from parsimax import cli
from parsimax.recipes import RECIPES, find
from parsimax.recipes.kit import checkpoints, durable, runs
from parsimax.recipes.kit.settings import SettingsError
from parsimax.recipes.kit.watch import Keeper

pytest.importorskip("sklearn")

WORDS = ["digits", "width=8", "steps=12", "eval_every=4", "tensorboard=false"]
KILLER = Path(__file__).parents[1] / "killer.py"
KILLS = {"digits": 6, "translation": 1}


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run that was left alone."""
    folder = tmp_path_factory.mktemp("runs") / "whole"
    assert cli.main(["train", *WORDS, "--run", str(folder)]) == 0
    assert "PARSIMAX_RUN" not in os.environ
    return folder


@pytest.fixture
def run(whole):
    """A copy that may be broken."""
    subprocess.run(["cp", "-a", str(whole), "run"], check=True)
    return runs.Run(Path("run"))


def weights(folder, name="last"):
    return checkpoints.weights(Path(folder) / "checkpoints" / f"{name}.ckpt")


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def step(path):
    return checkpoints.load(path)["global_step"]


def cut(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def flip(path):
    """One bit, in the middle of the largest part."""
    content = bytearray(path.read_bytes())
    with zipfile.ZipFile(path) as archive:
        largest = max(archive.infolist(), key=lambda one: one.file_size)
    content[largest.header_offset + 200 + largest.file_size // 2] ^= 4
    path.write_bytes(content)


@pytest.mark.parametrize("harm", [cut, flip, Path.unlink, lambda path: path.write_bytes(b"")])
@pytest.mark.parametrize("lost", [["last"], ["last", "previous"]])
def test_resuming_falls_back_and_ends_with_the_same_bits(harm, lost, whole, run, capsys):
    for name in lost:
        harm(run.last.with_stem(name))
    before = {name: run.best.with_stem(name) for name in ("best", "previous") if name not in lost}
    best = max(step(path) for path in before.values())
    assert cli.main(["train", "--resume", "run", "steps=12"]) == 0
    said = capsys.readouterr().out
    assert "Going on from" in said and "last.ckpt" in said
    assert f"step {best}" in said
    assert same(weights("run"), weights(whole)) and same(weights("run", "best"), weights(whole, "best"))


def test_without_any_checkpoint_nothing_begins_anew(run, capsys):
    for path in run.last.parent.iterdir():
        path.unlink()
    metrics = run.metrics.read_bytes()
    assert cli.main(["train", "--resume", "run"]) == 2
    assert "no checkpoint is left" in capsys.readouterr().err
    assert run.metrics.read_bytes() == metrics


def test_killed_before_the_first_checkpoint_it_begins_again(run, whole, capsys):
    """The figures of the first validation are on the disk before its checkpoint is."""
    for path in run.last.parent.iterdir():
        path.unlink()
    head, *rows = run.metrics.read_text().splitlines()
    first = next(number for number, row in enumerate(rows, 1) if row.startswith("4,") or row.startswith("7,"))
    run.metrics.write_text("\n".join([head, *rows[: first - 1]]) + "\n")
    assert cli.main(["train", "--resume", "run"]) == 0
    assert "begins again" in capsys.readouterr().out
    assert same(weights("run"), weights(whole))


@pytest.mark.parametrize("place", range(0, 100, 7))
def test_a_flipped_byte_is_told_or_changes_nothing(place, run):
    """Anywhere in the file: headers and names of the archive too, which no checksum of a part covers."""
    content = bytearray(run.last.read_bytes())
    right = weights("run")
    content[place * len(content) // 100 + place] ^= 0x10
    run.last.write_bytes(content)
    try:
        found = weights("run")
    except SettingsError as error:
        assert "last.ckpt" in str(error)
    else:
        assert same(found, right)


def test_the_previous_checkpoint_is_kept(run):
    assert (step(run.previous), step(run.last)) == (8, 12)


def killer(*words, **more):
    return fresh.run(KILLER, *words, env={**os.environ, **more}, imports="lightning.pytorch")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
@pytest.mark.parametrize("name", RECIPES if "PARSIMAX_KILLS" in os.environ else KILLS)
def test_killed_again_and_again(name, tmp_path):
    """At random times and inside writes; TMPDIR on another file system. PARSIMAX_KILLS=50: every recipe, so often."""
    elsewhere = "/dev/shm" if os.access("/dev/shm", os.W_OK) else str(tmp_path)
    done = killer("random", os.environ.get("PARSIMAX_KILLS") or KILLS[name], name, TMPDIR=elsewhere)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "same bits" in done.stdout


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
def test_power_cuts(tmp_path):
    """What was not synced is lost: files as if never written, names as if never changed."""
    done = killer("power", 8)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "same bits" in done.stdout


def test_a_full_disk_loses_nothing(run, whole, capsys, monkeypatch):
    before = {path: path.read_bytes() for path in run.last.parent.iterdir()}
    real = os.fsync

    def full(number):
        if "ckpt" in os.readlink(f"/proc/self/fd/{number}"):
            raise OSError(errno.ENOSPC, "No space left on device")
        real(number)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        assert cli.main(["train", "--resume", "run", "steps=16"]) == 2
    said = capsys.readouterr().err
    assert "cannot write run/checkpoints/" in said and "No space left on device" in said and "Traceback" not in said
    assert before == {path: path.read_bytes() for path in run.last.parent.iterdir()}, "something was left or lost"
    assert cli.main(["train", "--resume", "run", "steps=16"]) == 0


@pytest.mark.skipif(os.name != "posix" or not hasattr(os, "geteuid") or os.geteuid() != 0, reason="mounts")
def test_a_small_file_system(tmp_path, run, capsys):
    """A real one, on which the checkpoints do not have room."""
    small = tmp_path / "small"
    small.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(small)], capture_output=True).returncode:
        pytest.skip("may not mount")
    try:
        words = [
            "digits",
            "width=3000",
            "steps=4",
            "eval_every=1",
            "tensorboard=false",
        ]  # 0.9 MB of weights, 2.7 a file
        assert cli.main(["train", *words, "--run", str(small / "run")]) == 2
        said = capsys.readouterr().err
        assert "cannot write" in said and str(small / "run") in said and "Traceback" not in said
        left = {path.name for path in (small / "run" / "checkpoints").iterdir()}
        assert left <= {"best.ckpt", "last.ckpt", "previous.ckpt"}, "no piece is left"
        for name in left:
            checkpoints.check(small / "run" / "checkpoints" / name)
        with contextlib.suppress(OSError), (small / "filled").open("wb") as file:
            for _ in range(4000):
                os.write(file.fileno(), bytes(1000))
        assert cli.main(["report", "run", "--out", str(small / "pictures")]) == 2
        assert "cannot write" in capsys.readouterr().err, "the path is named"
        (small / "filled").unlink()
        subprocess.run(["mount", "-o", "remount,size=20m", str(small)], check=True)
        assert cli.main(["train", "--resume", str(small / "run")]) == 0
        assert cli.main(["train", *words, "--run", "alone"]) == 0
        assert same(weights(small / "run"), weights("alone"))
    finally:
        subprocess.run(["umount", str(small)], check=True)


def test_evaluations_that_end_together_keep_each_others_figures(run):
    children = []
    for number in range(8):
        children.append(os.fork())
        if not children[-1]:
            run.add_results(f"split {number}", {"accuracy": number})
            os._exit(0)
    for child in children:
        os.waitpid(child, 0)
    assert {f"split {number}" for number in range(8)} <= {*run.read_results()}


def test_a_training_that_was_quicker_keeps_its_settings(tmp_path, monkeypatch):
    """Both have seen an empty folder; the second must not write its settings over those of the first."""
    settings, folder, real = find("digits").settings(), tmp_path / "new", durable.folder

    def quicker(path):
        monkeypatch.setattr(durable, "folder", real)
        runs.create("digits", settings, folder)
        (folder / "config.yaml").write_text("of the first")

    monkeypatch.setattr(durable, "folder", quicker)
    with pytest.raises(SettingsError, match="not overwritten"):
        runs.create("digits", settings, folder)
    assert (folder / "config.yaml").read_text() == "of the first"


def test_figures_of_other_weights_are_set_aside(run, capsys):
    """Those of test are measured by hand, and would stay when training goes on."""
    assert cli.main(["eval", "run", "--split", "test"]) == 0
    before, outputs = run.read_results(), run.outputs("test").read_bytes()
    assert cli.main(["train", "--resume", "run", "tensorboard=false"]) == 0
    assert run.read_results().keys() == before.keys(), "nothing was trained"
    worse(run)
    capsys.readouterr()
    assert cli.main(["train", "--resume", "run"]) == 0
    assert "figures of test are in run/before now" in capsys.readouterr().out
    assert run.read_results().keys() == before.keys() - {"test"} and not run.outputs("test").exists()
    aside = runs.Run(run.before / "0001")
    assert aside.read_results() == before and aside.outputs("test").read_bytes() == outputs


def worse(run):
    """Back to the checkpoint before the last, to which any figure is the best: what comes next is written as such."""
    run.previous.replace(run.last)
    saved = checkpoints.load(run.last)
    Keeper.state_of(saved)["best"] = None
    checkpoints.save(saved, run.last)


def test_a_stop_leaves_no_figures_of_other_weights(run, capsys, monkeypatch):
    """Neither Ctrl-C nor a kill: figures go before the weights do. What was exported follows them."""
    assert cli.main(["eval", "run", "--split", "test"]) == 0
    worse(run)
    exported, recipe = [], type(find("digits").recipe())
    monkeypatch.setattr(recipe, "export", lambda self, task, run: exported.append(task) or [])
    real = Keeper.on_validation_end

    def stopped(self, trainer, task):
        real(self, trainer, task)
        raise KeyboardInterrupt

    monkeypatch.setattr(Keeper, "on_validation_end", stopped)
    capsys.readouterr()
    assert cli.main(["train", "--resume", "run", "steps=24"]) == 130
    assert "figures of test are in run/before now" in capsys.readouterr().out
    assert not run.read_results() and len(exported) == 1

    worse(run)
    run.add_results("test", {"accuracy": 1.0})
    monkeypatch.setattr(runs.durable, "replace", broken := Broken(durable.replace, run.best))
    assert cli.main(["train", "--resume", "run", "steps=24"]) == 2 and broken.met
    assert not run.read_results(), "the weights had not changed yet"


class Broken:
    """The disk fails as a file is written."""

    def __init__(self, real, path):
        self.real, self.path, self.met = real, path, False

    def __call__(self, path, *arguments):
        if path == self.path:
            self.met = True
            raise RuntimeError("the disk is gone")
        return self.real(path, *arguments)


def test_what_was_set_aside_is_not_lost(run, capsys):
    """By other settings, and then by the weights that come of them; a dial goes too, and that is said."""
    run.add_results("test", {"accuracy": 1.0})
    (run.folder / "dial").mkdir()
    assert run.set_aside(keep="val") == ["test", "the dial"] and run.set_aside() == ["val"]
    first, second = (runs.Run(run.before / number) for number in ("0001", "0002"))
    assert [*first.read_results()] == ["test"] and first.dial.exists() and [*second.read_results()] == ["val"]
    (run.folder / "dial").mkdir()
    worse(run)
    assert cli.main(["train", "--resume", "run"]) == 0
    assert "figures of the dial are in run/before now" in capsys.readouterr().out


def test_a_kill_leaves_no_figures_of_other_settings(run, monkeypatch):
    assert cli.main(["eval", "run"]) == 0
    monkeypatch.setattr("parsimax.recipes.commands._answers", lambda key: True)
    monkeypatch.setattr(runs.durable, "replace", broken := Broken(durable.replace, run.config))
    assert cli.main(["train", "--resume", "run", "steps=24"]) == 2 and broken.met
    assert run.read_results().keys() == {"val"}


def test_what_is_refused_changes_nothing(run, capsys):
    assert cli.main(["eval", "run"]) == 0
    config, results = run.config.read_bytes(), run.read_results()
    known = json.loads(run.data.read_text())
    run.data.write_text(json.dumps({split: {"gone": "0"} for split in known}))
    assert cli.main(["train", "--resume", "run", "steps=24"]) == 2
    assert "are others than when the run began" in capsys.readouterr().err
    assert run.config.read_bytes() == config and run.read_results() == results
    assert cli.main(["train", *WORDS, "--changed-data"]) == 2
    assert "--changed-data is for --resume" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "content", "command", "message"),
    [
        ("results.json", {"test": 3}, ["compare", "run"], "results.json is damaged: test has no figures"),
        ("results.json", {"test": 3}, ["eval", "run"], "results.json is damaged: test has no figures"),
        ("data.json", {"test": 3}, ["eval", "run"], "data.json is damaged: it must name the files of test"),
        ("checkpoints/best.ckpt", {"state_dict": [1]}, ["predict", "run"], "has no state_dict of weights"),
    ],
)
def test_what_has_another_form_is_called_damaged(run, name, content, command, message, capsys):
    path = run.folder / name
    torch.save(content, path) if path.suffix == ".ckpt" else path.write_text(json.dumps(content))
    assert cli.main(command) == 2
    said = capsys.readouterr().err
    assert message in said and said.count("\n") == 1


def test_one_writer(run, capsys):
    with durable.only_writer(run.folder):
        assert cli.main(["train", "--resume", "run", "steps=16"]) == 2
        said = capsys.readouterr().err
        assert "run is in use" in said and str(os.getpid()) in said
        assert cli.main(["eval", "run"]) == 0, "reading is allowed"
    assert step(run.last) == 12
    assert cli.main(["train", "--resume", "run", "steps=16"]) == 0


class Payload:
    """What a stranger may put into a checkpoint."""

    def __reduce__(self):
        return os.mkdir, ("owned",)


@pytest.mark.parametrize("command", [["predict"], ["eval"], ["report"], ["train", "--resume"]])
def test_a_hostile_checkpoint_is_refused(command, run, capsys):
    content = checkpoints.load(run.last)
    for path in (run.best, run.last, run.previous):
        torch.save({**content, "callbacks": {"x": Payload()}}, path)
    assert cli.main([*command, "run"]) == 2
    said = capsys.readouterr().err
    assert "could run code" in said and "mkdir" in said and "Traceback" not in said and said.count("\n") == 1
    assert not Path("owned").exists()
    run.best.write_bytes(pickle.dumps(Payload()))
    assert cli.main(["eval", "run"]) == 2
    assert not Path("owned").exists()


@pytest.mark.parametrize(
    "file, content, message",
    [
        ("config.yaml", "!!python/object/apply:os.mkdir [owned]", "config.yaml is not YAML"),
        ("config.yaml", "seed: !!python/object/apply:os.mkdir [owned]", "config.yaml is not YAML"),
        ("run.json", '{"recipe": "os"}', "no recipe is called 'os'"),
        ("run.json", '{"recipe": "kit.runs"}', "no recipe is called 'kit.runs'"),
    ],
)
@pytest.mark.parametrize("command", [["predict"], ["eval"], ["report"], ["train", "--resume"]])
def test_settings_of_a_stranger_run_nothing(command, file, content, message, run, capsys):
    (run.folder / file).write_text(content)
    assert cli.main([*command, "run"]) == 2
    said = capsys.readouterr().err
    assert message in said and said.count("\n") == 1 and not Path("owned").exists()


def test_comparing_reads_no_checkpoint(run, capsys):
    for path in (run.best, run.last, run.previous):
        path.write_bytes(pickle.dumps(Payload()))
    assert cli.main(["compare", "run"]) == 0
    assert "run" in capsys.readouterr().out and not Path("owned").exists()


@pytest.mark.parametrize(
    "file, content, message",
    [
        ("run.json", b"{", "run.json is damaged"),
        ("run.json", b"[]", "run.json is damaged"),
        ("run.json", b"{}", "does not say of which recipe"),
        ("run.json", b"\xff\xfe", "run.json is damaged"),
        ("results.json", b"{", "results.json is damaged"),
        ("data.json", b"[", "data.json is damaged"),
        ("config.yaml", b"\x00", "config.yaml is not YAML"),
        ("config.yaml", b"model: 3", "config.yaml: no setting is called 'model'"),
        ("config.yaml", b"model: {width: 9}", "does not fit the model"),
        ("checkpoints/best.ckpt", b"PK", "best.ckpt is damaged"),
    ],
)
def test_a_damaged_file_is_named(file, content, message, run, capsys):
    (run.folder / file).write_bytes(content)
    assert cli.main(["eval", "run"]) == 2
    said = capsys.readouterr().err
    assert message in said and said.count("\n") == 1


def test_damaged_metrics_are_named(run, capsys):
    run.metrics.write_bytes(b"step,val/loss\n1\x00,\xff\n")
    assert cli.main(["train", "--resume", "run", "steps=16"]) == 2
    assert "metrics.csv is damaged" in capsys.readouterr().err


def keeper_after(figures, mode="max", patience=0):
    """A keeper that has seen these (figure, loss), and after which of them it saved the best."""
    keeper, saved = Keeper(runs.Run(Path("x")), patience), []
    task = SimpleNamespace(monitor="accuracy" if mode == "max" else "loss", mode=mode)
    for number, (accuracy, loss) in enumerate(figures):
        trainer = SimpleNamespace(
            callback_metrics={"val/accuracy": accuracy, "val/loss": loss},
            save_checkpoint=lambda path, number=number: path.stem == "best" and saved.append(number),
            should_stop=False,
            is_global_zero=False,
        )
        keeper.on_validation_end(trainer, task)
        if trainer.should_stop:
            break
    return keeper, saved


def test_the_best_is_the_best():
    assert keeper_after([(0, 3), (0, 2), (0, 2.5), (0, 1), (0.1, 9), (0.1, 9)])[1] == [0, 1, 3, 4]
    assert keeper_after([(0, math.nan), (0, 2), (math.nan, 1)])[1] == [0, 1]
    assert keeper_after([(1, 3), (0, 2), (0, 2), (0, 1)], mode="min")[1] == [0, 1, 3]
    keeper, saved = keeper_after([(0, 3), (0, 2), (0, 1), (0, 1), (0, 1), (0, 1)], patience=2)
    assert saved == [0, 1, 2] and keeper.lost_patience and keeper.wait == 2


def test_a_checkpoint_of_the_first_version_goes_on(run):
    """Lightning's own callbacks kept the best and the patience then."""
    content = checkpoints.load(run.last)
    content["callbacks"] = {
        "Checkpoint{'monitor': 'val/accuracy', 'mode': 'max'}": {"best_model_score": torch.tensor(0.5)},
        "EarlyStopping{'monitor': 'val/accuracy', 'mode': 'max'}": {"wait_count": 2, "patience": 3},
    }
    assert Keeper.state_of(content) == {"best": (0.5, -math.inf), "wait": 2}
    torch.save({**content, "callbacks": {}}, run.last)
    run.data.unlink()
    run.previous.unlink()
    assert cli.main(["train", "--resume", "run", "steps=14"]) == 0
    assert step(run.last) == 14


def test_settings_that_may_change_later(run, capsys):
    assert cli.main(["train", "--resume", "run", "model.width=9"]) == 2
    assert "model.width is fixed" in capsys.readouterr().err
    assert cli.main(["train", "--resume", "run", "stepz=9"]) == 2
    assert "did you mean train.steps?" in capsys.readouterr().err
    assert cli.main(["train", "--resume", "run", "steps=14"]) == 0
    assert step(run.last) == 14 and "steps: 14" in run.config.read_text()
    assert [int(row["step"]) for row in run.rows() if row["val/loss"]][:3] == [3, 7, 11]


def test_a_name_is_changed_only_after_its_content_is_synced(tmp_path, monkeypatch):
    happened = []
    real = {name: getattr(os, name) for name in ("fsync", "replace")}

    def fsync(number):
        happened.append(("sync", Path(os.readlink(f"/proc/self/fd/{number}")).name))
        real["fsync"](number)

    def replace(source, target):
        happened.append(("name", Path(target).name))
        real["replace"](source, target)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "replace", replace)
    durable.write(tmp_path / "x", "text")
    assert happened == [("sync", f".x.{os.getpid()}.part"), ("name", "x"), ("sync", tmp_path.name)]
    assert (tmp_path / "x").read_text() == "text\n" and [path.name for path in tmp_path.iterdir()] == ["x"]


def test_a_run_that_was_killed_at_its_birth_can_be_begun(whole, tmp_path):
    for left in ([], ["run.json"], ["run.json", ".lock", ".config.yaml.7.part"]):
        folder = tmp_path / f"run{len(left)}"
        folder.mkdir()
        for name in left:
            (folder / name).write_text("")
        assert runs.create("digits", find("digits").settings(), folder).recipe == "digits"
    with pytest.raises(SettingsError, match="not overwritten"):
        runs.create("digits", None, whole)


def test_settings_of_a_user_are_not_overwritten_by_a_run_beside_them(tmp_path, capsys):
    own = tmp_path / "mine" / "config.yaml"
    own.parent.mkdir()
    own.write_text("train: {steps: 4}\n")
    assert cli.main(["train", "digits", "--config", str(own), "--run", str(own.parent)]) == 2
    said = capsys.readouterr().err
    assert "mine exists and is not overwritten; name another folder" in said and "--resume" not in said
    assert own.read_text() == "train: {steps: 4}\n" and [*own.parent.iterdir()] == [own]


def test_a_folder_that_was_there_stays_when_the_start_fails(tmp_path, monkeypatch):
    def broken(self, settings, run):
        (run.folder / "half").mkdir()
        raise IndexError("no such thing")

    monkeypatch.setattr(type(find("digits").recipe()), "start", broken)
    for folder, there in ((tmp_path / "old", True), (tmp_path / "new", False)):
        if there:
            folder.mkdir()
        with pytest.raises(IndexError):
            cli.main(["train", "digits", "--run", str(folder)])
        assert folder.exists() == there and not (there and [*folder.iterdir()])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_saves(number, run, monkeypatch, capsys):
    """After the step that it meets: step 14 of 20, which no validation follows."""
    from parsimax.recipes.digits.model import Digits

    real = Digits.loss

    def loss(self, batch):
        if self.training and self.global_step == 13:
            os.kill(os.getpid(), number)
        return real(self, batch)

    monkeypatch.setattr(Digits, "loss", loss)
    assert cli.main(["train", "--resume", "run", "steps=20"]) == 130
    assert "--resume run" in capsys.readouterr().err
    assert step(run.last) == 14


def test_training_in_bfloat16_clips_and_resumes(whole, tmp_path):
    """Weights and optimiser stay in float32; a gradient clipped to nothing moves nothing."""
    words = ["digits", "width=8", "eval_every=4", "tensorboard=false", "precision=bf16-mixed"]
    kinds = {"a": ["steps=12"], "b": ["steps=4"], "still": ["clip=1e-12", "steps=1"], "start": ["lr=0", "steps=1"]}
    for name, more in kinds.items():
        assert cli.main(["train", *words, *more, "--run", name]) == 0
    assert cli.main(["train", "--resume", "b", "steps=12"]) == 0
    assert not same(weights("a"), weights(whole)), "bfloat16 rounds"
    assert {one.dtype for one in weights("a").values()} == {torch.float32}
    assert same(weights("a"), weights("b"))
    start, still = weights("start"), weights("still")
    assert all((still[name] - start[name]).abs().max() < 1e-5 for name in start)
    state = torch.load("a/checkpoints/last.ckpt", weights_only=True)["optimizer_states"][0]["state"]
    assert {one["exp_avg"].dtype for one in state.values()} == {torch.float32}


@pytest.mark.parametrize("recipe", SIZES)
def test_every_recipe_trains_in_bfloat16(recipe):
    words = [*SIZES[recipe], *SEARCH.get(recipe, [])]
    words = [word for word in words if not word.startswith(("steps", "eval_every"))]
    more = {"ssvae": ["method=gumbel"], "bitvae": ["method=sparsemap"]}.get(recipe, [])
    words += ["train.steps=5", "train.eval_every=5", "precision=bf16-mixed", *more]
    assert cli.main(["train", recipe, *words, "--run", "run"]) == 0
    assert {one.dtype for one in weights("run").values() if one.is_floating_point()} == {torch.float32}


def test_the_precision_of_products_is_that_asked_for_while_training(tmp_path, monkeypatch):
    from parsimax.recipes.digits.model import Digits

    real, seen = Digits.loss, set()
    monkeypatch.setattr(
        Digits, "loss", lambda self, batch: seen.add(torch.get_float32_matmul_precision()) or real(self, batch)
    )
    for name, more in (("a", ["matmul=medium"]), ("b", [])):
        seen.clear()
        assert cli.main(["train", *WORDS, *more, "--run", name]) == 0
        assert "medium" in seen if more else seen == {"highest"}
    assert torch.get_float32_matmul_precision() == "highest"


def test_results_keep_what_is_not_a_number(run):
    run.add_results("val", {"accuracy": math.nan})
    assert json.loads(run.results.read_text())["val"]["accuracy"] is None


def test_a_folder_is_replaced_whole_or_not_at_all(tmp_path):
    path = tmp_path / "model"

    def full(folder):
        (folder / "new").write_text("half")
        raise OSError(errno.ENOSPC, "No space left on device")

    durable.replace_folder(path, lambda folder: (folder / "a").write_text("1"))
    durable.replace_folder(path, lambda folder: (folder / "b").write_text("2"))
    assert [one.name for one in path.iterdir()] == ["b"]
    with pytest.raises(RuntimeError, match=r"cannot write .*model: No space left"):
        durable.replace_folder(path, full)
    assert [one.name for one in path.iterdir()] == ["b"] and [one.name for one in tmp_path.iterdir()] == ["model"]
    (tmp_path / ".model.1.part").mkdir()  # of one that was killed
    durable.sweep(tmp_path)
    assert [one.name for one in tmp_path.iterdir()] == ["model"]

"""Trains a tiny run again and again, each time killed, until it ends; then its weights must be those of one left alone.

    python tests/killer.py random 50 [RECIPE]   # kill -9 at random times, a third inside a write of a checkpoint
    python tests/killer.py power 20 [RECIPE]    # power cuts: what was not synced is lost

The trainings are forks of this process, which has imported everything: a kill costs no start.
"""

import os
import random
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

import torch

torch.set_num_threads(1)
from parsimax import cli  # noqa: E402
from parsimax.recipes import find  # noqa: E402
from parsimax.recipes.kit import checkpoints, durable, training  # noqa: E402, F401

SIZES = {
    "ape": [
        *("pretrain=2", "judged=4", "beam=1", "width=16", "inner=16", "layers=1", "heads=2", "search.longest=4"),
        *("steps=12", "eval_every=2", "batch_tokens=512"),
    ],
    "bitvae": ["model.width=16", "bits=8", "steps=20", "eval_every=2", "baseline=8"],
    "bottleneck": ["contexts=300", "classes=30", "width=3", "steps=40", "eval_every=4"],
    "digits": ["width=8", "steps=30", "eval_every=3"],
    "emergent": ["width=16", "hidden=8", "messages=20", "steps=20", "eval_every=2", "baseline=8"],
    "finetune": [
        *("width=16", "heads=2", "layers=1", "inner=16", "pretrain=2", "vocabulary=150"),
        *("steps=12", "eval_every=2", "batch_tokens=256"),
    ],
    "inflection": ["width=8", "layers=1", "steps=12", "eval_every=2", "batch_tokens=64", "beam=1", "longest=3"],
    "lm": [
        *("embedding=8", "hidden=12", "columns=4", "window=6", "vocabulary=50", "eval_words=200"),
        *("steps=20", "eval_every=2"),
    ],
    "multilabel": ["layer=softmax", "width=8", "data.rows=200", "steps=40", "eval_every=2"],
    "ssvae": ["classifier=16", "width=16", "supervised=4", "steps=20", "eval_every=2", "baseline=8"],
    "translation": ["width=8", "heads=2", "layers=1", "steps=6", "eval_every=2", "batch_tokens=64", "beam=1"],
}
SEARCH = {"inflection": ["exact_budget=0"], "translation": ["exact_budget=0", "search.longest=3"]}


def in_fork(action, *arguments):
    """Run ``action`` in a fork; its process number."""
    sys.stdout.flush()
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        silent = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silent, 1)
        status = action(*arguments)
    finally:
        os._exit(status)


def command(run):
    name = run.parent.name
    words = [name, *SIZES[name], *SEARCH.get(name, []), "tensorboard=false"]
    begun = (run / "config.yaml").exists()
    return cli.main(["train", "--resume", str(run)] if begun else ["train", *words, "--run", str(run)])


def ended(child):
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def dying_in_a_write(run, chance):
    """The training, which kills itself when it has written a part of some checkpoint."""
    left = chance.randrange(1, 6)
    real = Path.open

    def opened(self, *arguments, **words):
        nonlocal left
        file = real(self, *arguments, **words)
        if self.suffix == durable.PART and "ckpt" in self.name:
            left -= 1
            if not left:
                write = file.write

                def some(content):
                    write(content[: chance.randrange(len(content))])
                    file.flush()
                    os.kill(os.getpid(), signal.SIGKILL)

                class Half:
                    def __enter__(self):
                        return self

                    def __exit__(self, *error):
                        file.close()

                    def __getattr__(self, name):
                        return some if name == "write" else getattr(file, name)

                return Half()
        return file

    Path.open = opened
    return command(run)


def losing_power(run, chance):
    """The training, in which after some renames all is lost that was not synced, and the process too."""
    left = chance.randrange(1, 30)
    synced, undo = set(), {}  # files whose content is on the disk; by folder, how to take back renames
    made = {}  # by folder, the folders that were made in it
    fsync, replace, mkdir = os.fsync, os.replace, os.mkdir

    def safe(number):
        fsync(number)
        found = os.fstat(number)
        synced.add((found.st_ino, found.st_mtime_ns))
        undo.pop(found.st_ino, None)  # of a folder: its names are on the disk
        made.pop(found.st_ino, None)

    def make(path, *mode):
        mkdir(path, *mode)
        made.setdefault(os.stat(Path(path).parent).st_ino, []).append(path)

    def named(source, target):
        nonlocal left
        target = Path(target)
        found = os.stat(source)
        content = Path(source).read_bytes() if (found.st_ino, found.st_mtime_ns) in synced else b""
        before = target.read_bytes() if target.exists() else None
        replace(source, target)
        undo.setdefault(os.stat(target.parent).st_ino, []).append((target, before, content))
        left -= 1
        if not left:
            for renames in undo.values():
                for path, old, new in reversed(renames):
                    some = chance.choice((old, new))  # a rename that was not synced may have happened, or not
                    path.unlink() if some is None else path.write_bytes(some)
            for path in [path for paths in made.values() for path in paths]:
                shutil.rmtree(path)
            os.kill(os.getpid(), signal.SIGKILL)

    os.fsync, os.replace, os.mkdir = safe, named, make
    return command(run)


def main(how, kills, name="digits"):
    place = Path(tempfile.mkdtemp(dir=os.getcwd()))
    folder = place / name
    folder.mkdir()
    chance = random.Random(int(os.environ.get("PARSIMAX_SEED", time.time_ns() % 1000)))
    find(name).recipe()  # imported here, not in every fork
    began = time.monotonic()
    assert ended(in_fork(command, folder / "whole")) == 0, "the run that is left alone"
    seconds = time.monotonic() - began
    killed = number = 0
    while killed < kills:
        number += 1
        run = folder / f"broken{number}"
        status = 1
        while status != 0:
            way = how if how == "power" else chance.choice(("random", "random", "write"))
            if killed >= kills:
                child = in_fork(command, run)
            elif way == "random":
                child = in_fork(command, run)
                time.sleep(chance.random() * seconds * 0.5)
                os.kill(child, signal.SIGKILL)
            else:
                chance.random()  # the fork draws from a copy
                child = in_fork(dying_in_a_write if way == "write" else losing_power, run, chance)
            status = ended(child)
            if status == -signal.SIGKILL:
                killed += 1
            elif status:
                sys.exit(f"{run} ended with {status} after {killed} kills")
        one, other = (checkpoints.weights(path / "checkpoints" / "last.ckpt") for path in (folder / "whole", run))
        if one.keys() != other.keys() or not all(torch.equal(one[name], other[name]) for name in one):
            sys.exit(f"{run}: other bits than the run that was left alone")
    print(f"{name}: {killed} kills, {number} runs, same bits in the end, {time.monotonic() - began:.0f} s")
    shutil.rmtree(place)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), *sys.argv[3:])

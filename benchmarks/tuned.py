"""Tables of trainings, such as docs/inflection_results.md: every cell tuned alike, then repeated.

    python benchmarks/tuned.py run inflection --data PATH/sigmorphon2018 --runs out/inflection
    python benchmarks/tuned.py table inflection --runs out/inflection
    python benchmarks/tuned.py run scene --data PATH/multilabel/scene --runs out/scene
    python benchmarks/tuned.py run sst2 --data PATH/sst2 --runs out/sst2

Each cell (a pair of output and attention mapping, or a layer) chooses its settings from the same grid by its own dev
figure, one setting after the other or all combinations at once, as the plan says; what it chose is trained with more
seeds and only then evaluated on the test data. `run` does
what is missing, on one thread, and goes on with what was stopped; several may run at once in the same folder. Each
finished training is a line of RUNS/results.jsonl. `table` prints the page from that file alone, also when not all is
done. Words such as ``train.steps=100`` after `run` are settings for every training.
"""

from __future__ import annotations

import argparse
import csv
import fcntl
import json
import os
import resource
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

for threads in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):  # two trainings of one thread are faster than one of two
    os.environ[threads] = "1"
os.environ["OMP_WAIT_POLICY"] = "passive"

import torch  # noqa: E402
from tuned_plans import PLANS, Plan, Values  # noqa: E402
from tuned_table import page  # noqa: E402

from parsimax import cli  # noqa: E402
from parsimax.bench.measure import keep_freed_memory  # noqa: E402
from parsimax.recipes import find  # noqa: E402


@dataclass(frozen=True)
class Training:
    """One training of the plan; ``stage`` orders them: the settings of the grid and their values, then the seeds."""

    stage: tuple[int, int]
    cell: str
    values: Values
    seed: int
    test: bool = False

    @property
    def folder(self) -> str:
        name = self.cell.replace(" / ", "-").replace(", ", "-").replace(" ", "").replace("/", "")
        settings = "-".join(f"{key.partition('.')[2]}{value:g}" for key, value in self.values.items())
        return f"{name}-{settings}-{self.seed}"


@dataclass
class Done:
    """What is known of a finished training: figures by split, and the curve of its validations."""

    cell: str
    values: Values
    seed: int
    dev: dict[str, Any] = field(default_factory=dict)
    test: dict[str, Any] = field(default_factory=dict)
    curve: list[dict[str, float]] = field(default_factory=list)
    failed: str = ""
    core_seconds: float = 0.0  # processor time of the training, its validations and the test; 0 if nobody looked

    def is_of(self, training: Training) -> bool:
        return (self.cell, self.values, self.seed) == (training.cell, training.values, training.seed)


def read(runs: Path) -> list[Done]:
    """The lines of the results; of several for one training, the last, which has its test figures."""
    file, found = runs / "results.jsonl", {}
    for line in file.read_text(encoding="utf-8").splitlines() if file.exists() else []:
        done = Done(**json.loads(line))
        found[done.cell, tuple(done.values.items()), done.seed] = done
    return list(found.values())


def tuning(plan: Plan, cell: str, known: list[Done]) -> tuple[Values, list[Training]]:
    """The settings that a cell chose so far, and the trainings that are missing before it can choose further."""
    own = [done for done in known if done.cell == cell]
    values = {key: plan.start.get(key, choices[0]) for key, choices in plan.grid.items()}
    for stage, options in enumerate(plan.options()):
        tries = [Training((stage, at), cell, option, plan.seeds[0]) for at, option in enumerate(options(values))]
        if open_ := [each for each in tries if not any(done.is_of(each) for done in own)]:
            return values, open_
        tried = [done for each in tries for done in own if done.is_of(each)]
        values = max(tried, key=lambda done: plan.better(done.dev)).values
    return values, []


def missing(plan: Plan, cell: str, known: list[Done]) -> list[Training]:
    """The trainings of a cell that can be begun now."""
    own = [done for done in known if done.cell == cell]
    values, open_ = tuning(plan, plan.like.get(cell, cell), known)
    if open_:
        return [] if cell in plan.like else open_
    stages = plan.options()
    wanted = [Training((len(stages) + at, 0), cell, values, seed) for at, seed in enumerate(plan.seeds)]
    left = []
    for each in wanted:
        done = next((done for done in own if done.is_of(each)), None)
        if done is None:
            left.append(each)
        elif not done.test and not done.failed:
            left.append(Training(each.stage, cell, values, each.seed, test=True))
    return left


def command(*words: str) -> tuple[int, str]:
    """Run ``parsimax`` on one thread in a fork of this process, which has imported all that takes long."""
    with tempfile.TemporaryFile() as said:
        sys.stdout.flush()
        child = os.fork()
        if not child:
            status = 1
            try:
                os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
                os.dup2(said.fileno(), 2)
                status = cli.main(list(words))
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(status)
        try:
            code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        except KeyboardInterrupt:
            code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])  # it saves what it has
        said.seek(0)
        return code, said.read().decode(errors="replace").strip()[-300:]


def core_seconds() -> float:
    """Processor time of all that `command` has run."""
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    return spent.ru_utime + spent.ru_stime


def curve(folder: Path) -> list[dict[str, float]]:
    with (folder / "metrics.csv").open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row.get("val/loss")]
    return [
        {
            name.removeprefix("val/"): float(value)
            for name, value in row.items()
            if value and (name == "step" or name.startswith("val/"))
        }
        for row in rows
    ]


def figures_of(folder: Path) -> dict[str, Any]:
    """By split; those of val are written when a training is done."""
    file = folder / "results.json"
    found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    return found


def carry_out(plan: Plan, training: Training, options: argparse.Namespace) -> Done:
    """Train, or go on with a training, or evaluate it on the test data."""
    folder = options.runs / training.folder
    begun = (folder / "config.yaml").exists()
    if training.test and "val" not in figures_of(folder):  # only lines of the results were kept, or it was stopped
        again = carry_out(plan, replace(training, test=False), options)
        if again.failed:
            return again
    if training.test:
        code, error = command("eval", str(folder))
    elif begun:
        code, error = command("train", "--resume", str(folder))
    else:
        settings = [f"{key}={value:g}" for key, value in training.values.items()]
        given = [f"data.root={options.data}", f"train.seed={training.seed}", f"train.matmul={matmul()}"]
        all_words = [*plan.cells[training.cell], *settings, *plan.common, *given, *options.settings]
        words = {word.partition("=")[0]: word for word in all_words}.values()  # the last of a setting counts
        config = ["--config", plan.config] if plan.config else []
        code, error = command("train", plan.recipe, *config, "--run", str(folder), *words)
    if code < 0 or code == 130:
        sys.exit(f"{folder} was stopped by signal {-code}; `run` goes on with it")
    if code and "the loss is" not in error:  # a rate too high is a result; a full disk, say, is not
        sys.exit(f"{folder}: {error or f'exit {code}'}")
    if code:
        return Done(training.cell, training.values, training.seed, failed=error or f"exit {code}")
    results = figures_of(folder)
    figures = (results["val"], results.get("test", {}))
    return Done(training.cell, training.values, training.seed, *figures, curve=curve(folder))


@contextmanager
def claimed(path: Path) -> Iterator[bool]:
    """Whether this process alone may work on ``path``; the claim ends with the process, however it ends."""
    with path.with_name(f".{path.name}.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True


def do_next(plan: Plan, options: argparse.Namespace) -> bool | None:
    """Do the earliest of what is missing and not being done by another worker; None if there is none."""
    known = read(options.runs)
    open_ = [each for cell in plan.cells for each in missing(plan, cell, known) if each.stage[0] < options.stages]
    later = list(plan.cells)[plan.first :]
    for training in sorted(open_, key=lambda each: (each.cell in later, each.stage)):
        with claimed(options.runs / training.folder) as mine:
            if not mine or any(
                done.is_of(training) and (done.test or not training.test) for done in read(options.runs)
            ):
                continue
            began, spent = time.time(), core_seconds()
            done = carry_out(plan, training, options)
            before = next((one.core_seconds for one in known if one.is_of(training)), 0.0)
            done.core_seconds = round(before + core_seconds() - spent, 1)
            with (options.runs / "results.jsonl").open("a", encoding="utf-8") as file:
                file.write(json.dumps(asdict(done), ensure_ascii=False) + "\n")
            said = done.failed or f"dev {plan.figure} {done.dev[plan.figure]:.4g}"
            kind = "test" if training.test else "trained"
            print(
                f"{time.strftime('%H:%M')} {training.folder}: {kind}, {said}, {time.time() - began:.0f} s", flush=True
            )
            return True
    return False if open_ else None


def matmul() -> str:
    """Of float32: medium is twice as quick on AMD and float32 all the same, which it is not by AMX."""
    return "highest" if torch.cpu._is_amx_tile_supported() else "medium"


def run(plan: Plan, options: argparse.Namespace) -> None:
    """Work until nothing is missing. Several processes may do so in one folder."""
    options.runs.mkdir(parents=True, exist_ok=True)
    keep_freed_memory()  # a tenth of a step of MiniLM is spent on pages that were given back
    torch.set_float32_matmul_precision(matmul())
    find(plan.recipe).recipe()  # imported here, not in every fork
    from parsimax.recipes.kit import training  # noqa: F401

    count = 0
    while count != options.limit and (did := do_next(plan, options)) is not None:
        count += did
        if not did:  # others work on all that could be begun; what they find opens more
            time.sleep(20)


def rows(plan: Plan, known: list[Done]) -> Iterator[tuple[str, list[Done], list[Done]]]:
    """Each cell that was begun: its name, all its trainings, and those of the settings it chose."""
    for cell in plan.cells:
        own = [done for done in known if done.cell == cell]
        first = [done for done in own if done.seed == plan.seeds[0] and not done.failed]
        if first:
            values, open_ = tuning(plan, plan.like.get(cell, cell), known)
            if open_:  # not all was tried yet
                values = max(first, key=lambda done: plan.better(done.dev)).values
            yield cell, own, [done for done in own if done.values == values]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("do", choices=("run", "table"))
    parser.add_argument("table", choices=PLANS)
    parser.add_argument("settings", nargs="*", metavar="KEY=VALUE")
    parser.add_argument("--data", type=Path, metavar="DIR")
    parser.add_argument("--runs", type=Path, required=True, metavar="DIR", help="where the trainings are kept")
    parser.add_argument("--limit", type=int, help="end after so many trainings and evaluations")
    parser.add_argument("--stages", type=int, default=99, help="only the first so many stages of the plan")
    options = parser.parse_intermixed_args()
    plan = PLANS[options.table]
    if options.do == "table":
        print(page(plan, list(rows(plan, read(options.runs)))))
    elif options.data is None:
        parser.error("run needs --data")
    else:
        run(plan, options)


if __name__ == "__main__":
    main()

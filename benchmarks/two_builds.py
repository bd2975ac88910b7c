"""Is a build slower than another one? The cases that both have, in turns, each build in a process of its own.

    python benchmarks/two_builds.py OLD/src NEW/src [CASE …] [--threads 2] [--seconds 1] [--again 1.03]

OLD/src and NEW/src are source trees with built kernels (`python setup.py build_ext --inplace`). Printed is the ratio of
the least times, new to old. A case above `--again` is measured again, for three times as long, before it counts.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from fnmatch import fnmatchcase
from typing import Any

WORKER = """
import sys, time
from parsimax.bench import measure
measure.keep_freed_memory()
import torch
from parsimax.bench.cases import CASES, Case
from parsimax.bench.inputs import make
from parsimax.bench.sides import SIDES
torch.set_num_threads({threads})
seen = {{}}
for case in CASES.values():
    if isinstance(case, Case) and (case.threads is None or case.threads == {threads}):
        key = (case.ours, case.shape, case.dtype, case.scale, case.nonzeros, case.causal, case.gradient)
        seen.setdefault(key, case)
print(*(case.name for case in seen.values()), flush=True)
for line in sys.stdin:
    word, _, name = line.strip().partition(" ")
    if word == "case":
        call = inputs = None
        inputs = make(CASES[name])
        call = measure._call(SIDES[CASES[name].ours], CASES[name], inputs)
        repeat = max(1, round(2e-3 / measure._roughly(call)))
        print("ready", flush=True)
    else:
        print(min(measure._timed(call, repeat) for _ in range(3)), flush=True)
"""


class Build:
    """A process that times the cases of one source tree."""

    def __init__(self, source: str, threads: int) -> None:
        environment = os.environ | {"PYTHONPATH": os.path.abspath(source), "OMP_NUM_THREADS": str(threads)}
        self.process: Any = subprocess.Popen(
            [sys.executable, "-c", WORKER.format(threads=threads)],
            env=environment,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self.cases = self.process.stdout.readline().split()

    def ask(self, words: str) -> str:
        self.process.stdin.write(f"{words}\n")
        self.process.stdin.flush()
        answer: str = self.process.stdout.readline().strip()
        if not answer:
            sys.exit(f"{self.process.args[0]}: no answer to {words}; its error is above")
        return answer


def ratio(builds: list[Build], seconds: float) -> tuple[float, float]:
    """The least times of old and new, taken in turns."""
    least, end, turn = [float("inf")] * 2, time.monotonic() + seconds, 0
    while time.monotonic() < end or turn < 4:
        for at in (0, 1) if turn % 2 else (1, 0):
            least[at] = min(least[at], float(builds[at].ask("time")))
        turn += 1
    return least[0], least[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old")
    parser.add_argument("new")
    parser.add_argument("case", nargs="*", default=["*"])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--again", type=float, default=1.03)
    given = parser.parse_intermixed_args()
    builds = [Build(source, given.threads) for source in (given.old, given.new)]
    both = [name for name in builds[0].cases if name in builds[1].cases]
    wanted = [name for name in both if any(fnmatchcase(name, pattern) for pattern in given.case)]
    if not wanted:
        sys.exit(f"no case of both builds is like {' '.join(given.case)}; there is {' '.join(both)}")
    slower = []
    for name in wanted:
        for build in builds:
            build.ask(f"case {name}")
        old, new = ratio(builds, given.seconds)
        if new > given.again * old:
            old, new = (min(pair) for pair in zip((old, new), ratio(builds, 3 * given.seconds), strict=True))
        print(f"{name:52} {1e3 * old:10.4g} ms {1e3 * new:10.4g} ms {new / old:6.3f}", flush=True)
        slower += [name] if new > given.again * old else []
    print(f"{len(slower)} of {len(wanted)} are slower: {' '.join(slower) or 'none'}")


if __name__ == "__main__":
    main()

"""Time and memory of language models under every head, one after the other: run it on an idle machine.

    python benchmarks/lm_pace.py wikitext2 --data PATH/wikitext2 [--steps 60]

Each cell of the plan trains for a few steps in a process of its own, on all cores. A step is the median without the
time between steps; the memory is the most that the process had before its first validation.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from tuned_plans import PLANS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("plan", choices=[name for name, plan in PLANS.items() if plan.recipe == "lm"])
    parser.add_argument("--data", type=Path, required=True, metavar="DIR")
    parser.add_argument("--steps", type=int, default=60)
    given = parser.parse_args()
    plan = PLANS[given.plan]
    print("| head | step, ms | seconds an epoch | of linear | peak memory, MB |\n|---|---|---|---|---|")
    first = 0.0
    for cell, words in plan.cells.items():
        with tempfile.TemporaryDirectory() as folder:
            few = [f"train.steps={given.steps}", f"train.eval_every={given.steps}", "train.eval_words=2000"]
            settings = {word.partition("=")[0]: word for word in (*words, *plan.common, *few)}
            call = ["train", "lm", "--run", f"{folder}/run", f"data.root={given.data}", *settings.values()]
            subprocess.run([sys.executable, "-m", "parsimax_command", *call], check=True, stdout=subprocess.DEVNULL)
            figures = json.loads(Path(folder, "run/results.json").read_text(encoding="utf-8"))["val"]
        epoch = figures["seconds per epoch"]
        first = first or epoch
        times = f"{figures['step ms']:.0f} | {epoch:.0f} | {epoch / first:.2f}"
        print(f"| {cell} | {times} | {figures['peak memory MB']:.0f} |", flush=True)


if __name__ == "__main__":
    main()

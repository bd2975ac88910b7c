"""Peak extra memory of one side of a case, in a process of its own.

The kernel of the operating system counts the pages that the process holds, so what the C++ kernels allocate for
themselves counts as well; a profiler of torch would not see it. The peak is set back just before the call
(``/proc/self/clear_refs``), or what it took to make the inputs would hide a part.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

from .cases import Case

SMALL = 64  # rows, or length of the sequences, of the call that loads libraries and starts threads
STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def peak_extra(case: Case, side: str) -> float:
    """Bytes that the process held at most, beyond what it held before the call: results and gradients included."""
    import torch

    order = json.dumps({"case": asdict(case), "side": side, "threads": torch.get_num_threads()})
    # Freed blocks go back to the system at once: the peak is then that of live memory.
    settings = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
    call = [sys.executable, "-m", "parsimax.bench.memory", order]
    run = subprocess.run(call, capture_output=True, text=True, env={**os.environ, **settings})
    if run.returncode:
        raise RuntimeError(f"memory of {side} in {case.name}: {run.stderr.strip().splitlines()[-1]}")
    return float(run.stdout)


def _held(what: str) -> float:
    """``VmRSS``, the bytes held now, or ``VmHWM``, the most since the peak was set back."""
    line = next(line for line in STATUS.read_text().splitlines() if line.startswith(what))
    return 1024 * float(line.split()[1])


def _small(case: Case) -> Case:
    first, *rest = case.shape
    shape = (first, SMALL, *rest[1:]) if "attention" in case.ours else (min(first, SMALL), *rest)
    return replace(case, shape=shape, scale=1.0, nonzeros=None)


def main(order: str) -> None:
    import torch

    from .inputs import make
    from .sides import SIDES, evaluate

    given = json.loads(order)
    case = Case(**{**given["case"], "shape": tuple(given["case"]["shape"])})
    torch.set_num_threads(given["threads"])
    side = SIDES[given["side"]]
    evaluate(side, make(_small(case)), case.gradient)
    inputs = make(case)
    CLEAR.write_text("5")
    before = _held("VmRSS")
    result = evaluate(side, inputs, case.gradient)
    print(_held("VmHWM") - before)
    del result


if __name__ == "__main__":
    main(sys.argv[1])

"""Virtual machines that announce AMX and do not run it: there torch's own bfloat16 products end the process."""

import os
import signal
import subprocess
import sys
from pathlib import Path

NAME = "ONEDNN_MAX_CPU_ISA"
WITHOUT = "AVX512_CORE_FP16"  # the most that oneDNN uses before AMX
TRY = "import torch; x = torch.ones(64, 64, dtype=torch.bfloat16); x @ x"


def avoid_broken_amx() -> None:
    """Keep oneDNN from AMX, in this process and its children, where a product by it is an illegal instruction.

    What the user has set stays. The children of a machine whose AMX works do not try again.
    """
    flags = Path("/proc/cpuinfo")
    if NAME in os.environ or not flags.exists() or "amx_tile" not in flags.read_text():
        return
    broken = subprocess.run([sys.executable, "-c", TRY]).returncode == -signal.SIGILL
    os.environ[NAME] = WITHOUT if broken else "ALL"

"""Virtual machines that announce AMX and do not run it: there torch's own bfloat16 products end the process."""

import faulthandler
import os
import signal
import sys

import torch

WITHOUT = "AVX512_CORE_FP16"  # the most that oneDNN uses before AMX


def avoid_broken_amx() -> None:
    """Keep oneDNN from AMX, in this process and its children, where a product by it is an illegal instruction.

    A fork tries, so it must be called before the first product; what the user has set stays.
    """
    if sys.platform != "linux" or "ONEDNN_MAX_CPU_ISA" in os.environ:
        return
    if child := os.fork():
        if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGILL:
            os.environ["ONEDNN_MAX_CPU_ISA"] = WITHOUT
        return
    faulthandler.disable()
    square = torch.ones(64, 64, dtype=torch.bfloat16)
    square @ square
    os._exit(0)

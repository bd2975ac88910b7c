"""Programs in processes of their own, forks of one that has imported torch and nothing of ours.

Most of what a short program takes is that import. A program that has to come before torch, to set its threads or to
show that it is not imported, is started by ``subprocess`` instead.
"""

import atexit
import functools
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

LONGEST = 600  # seconds
SERVER = """
import atexit, gc, json, os, runpy, sys, tempfile, traceback

def asked():
    gc.freeze()
    for line in sys.stdin:
        job = json.loads(line)
        child = os.fork()
        if not child:
            return job
        print(child, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
    sys.exit()

job = asked()
for number, name in enumerate([os.devnull, *job["files"]]):
    os.dup2(os.open(name, os.O_RDWR), number)
sys.stdin = open(os.devnull)
os.environ.clear()
os.environ.update(job["env"])
os.chdir(job["cwd"])
tempfile.tempdir = None  # that of the environment above
how, *rest = job["words"]
own = job["cwd"] if how in ("-c", "-m") else os.path.dirname(os.path.abspath(how))
sys.path[:1] = [own, *filter(None, job["env"].get("PYTHONPATH", "").split(os.pathsep))]
status = 0
try:
    if how == "-m":
        sys.argv = rest
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    elif how == "-c":
        sys.argv = ["-c", *rest[1:]]
        exec(compile(rest[0], "<string>", "exec"), {"__name__": "__main__"})
    else:
        sys.argv = job["words"]
        runpy.run_path(how, run_name="__main__")
except SystemExit as end:
    status = end.code if isinstance(end.code, int) else int(end.code is not None)
    if isinstance(end.code, str):
        print(end.code, file=sys.stderr)
except BaseException:
    status = 1
    traceback.print_exc()
atexit._run_exitfuncs()
sys.stdout.flush()
sys.stderr.flush()
os._exit(status)  # to take down what torch has made would take a second
"""


@functools.cache
def server(imports: str) -> subprocess.Popen:
    """One for each process of the tests, of one thread, so that it can be forked."""
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    found = subprocess.Popen([sys.executable, "-c", f"import {imports}\n{SERVER}"], env=env, text=True, **pipes)
    atexit.register(found.communicate)  # it ends with its input
    return found


def run(
    *words: object,
    cwd: object = ".",
    env: dict[str, str] | None = None,
    imports: str = "torch",
    during: Callable[[int], None] = lambda process: None,
) -> subprocess.CompletedProcess:
    """What ``python *words`` does: ``-c`` and code, ``-m`` and a module, or a file, and their arguments.

    ``imports`` is what its parent has imported; ``during`` is called with the number of the process while it runs.
    What Python and torch read from ``env`` when they start is that of the parent, of one thread.
    """
    words, env = tuple(map(str, words)), dict(os.environ if env is None else env)
    if sys.platform != "linux":  # elsewhere a fork with torch in it may not run
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "stdin": subprocess.DEVNULL}
        alone = subprocess.Popen([sys.executable, *words], cwd=cwd, env=env, text=True, **pipes)
        during(alone.pid)
        said = alone.communicate(timeout=LONGEST)
        return subprocess.CompletedProcess(words, alone.returncode, *said)
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder, name) for name in ("out", "err")]
        for file in files:
            file.touch()
        job = {"words": words, "cwd": os.path.abspath(cwd), "env": env, "files": [*map(str, files)]}
        print(json.dumps(job), file=server(imports).stdin, flush=True)
        child = int(server(imports).stdout.readline())
        hangs = threading.Timer(LONGEST, os.kill, (child, signal.SIGKILL))
        hangs.start()
        try:
            during(child)
        finally:
            status = int(server(imports).stdout.readline())
            hangs.cancel()
        return subprocess.CompletedProcess(words, status, *(file.read_text() for file in files))

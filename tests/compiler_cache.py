"""A C++ compiler that remembers: the slow tests build the same kernels several times.

Called as ``python compiler_cache.py FOLDER g++ …``. A compilation is looked up by its preprocessed source and its
flags; anything else, linking above all, is passed on.
"""

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path


def main(folder: Path, command: list[str]) -> int:
    if "-c" not in command:
        return subprocess.run(command).returncode
    source, output = command[command.index("-c") + 1], command[command.index("-o") + 1]
    plain = [c for c in command if c not in ("-c", "-o", source, output)]
    text = subprocess.run([*plain, "-E", "-P", source], capture_output=True)
    if text.returncode:
        sys.stderr.buffer.write(text.stderr)
        return text.returncode
    flags = [c for c in plain if not c.startswith("-I")]  # what the folders hold is in the preprocessed source
    kept = folder / hashlib.sha256("\0".join(flags).encode() + text.stdout).hexdigest()
    if not kept.exists():
        done = subprocess.run(command).returncode
        if done:
            return done
        shutil.copy(output, kept.with_suffix(f".{id(command)}"))
        kept.with_suffix(f".{id(command)}").rename(kept)
    shutil.copy(kept, output)
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))

"""Files that are whole after a kill, a power cut or on a full disk, and one writer for a folder.

A file is written beside its place, on the same file system, synced, and renamed over the old one; then the folder is
synced, since a rename is a change of the folder. Whatever happens, the old content is there or the new one.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import IO

from .settings import SettingsError

fcntl: ModuleType | None
try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

PART = ".part"  # ending of a file that is not yet in its place


def replace(path: Path, content: bytes, prove: Callable[[Path], None] | None = None) -> None:
    """Write ``content`` as ``path``; ``prove`` reads the new file before it takes the place of the old one."""
    beside = path.with_name(f".{path.name}.{os.getpid()}{PART}")
    try:
        with beside.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        if prove:
            prove(beside)
        os.replace(beside, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            beside.unlink(missing_ok=True)
        raise RuntimeError(f"cannot write {path}: {error.strerror or error}; what it held before is kept") from None
    sync(path.parent)


def write(path: Path, text: str) -> None:
    replace(path, (text if text.endswith("\n") else f"{text}\n").encode())


def keep(path: Path, name: Path) -> None:
    """Let ``name`` be what ``path`` is now, at once: a second name of the same file."""
    if not path.exists():
        return
    link = name.with_name(f".{name.name}.{os.getpid()}{PART}")
    link.unlink(missing_ok=True)
    try:
        os.link(path, link)
    except OSError:  # a file system without links
        replace(name, path.read_bytes())
        return
    os.replace(link, name)


def sync(folder: Path) -> None:
    """Make the names in ``folder`` durable, where the system can."""
    with contextlib.suppress(OSError):  # Windows opens no folders
        number = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(number)
        finally:
            os.close(number)


def folder(path: Path) -> None:
    """Make a folder and those above it; each name is durable before anything is put below it."""
    missing = [one for one in (path, *path.parents) if not one.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for one in missing:
        sync(one.parent)


def replace_folder(path: Path, fill: Callable[[Path], None]) -> None:
    """Let ``path`` be a folder that ``fill`` has filled; whatever happens, no half-filled one has its name."""
    beside, old = (path.with_name(f".{path.name}.{os.getpid()}{kind}{PART}") for kind in ("", ".old"))
    try:
        beside.mkdir()
        fill(beside)
        for one in sorted(beside.rglob("*")):
            if one.is_file():
                with one.open("rb") as file:
                    os.fsync(file.fileno())
        if path.exists():
            path.rename(old)
        beside.rename(path)
    except OSError as error:
        raise RuntimeError(f"cannot write {path}: {error.strerror or error}") from None
    finally:
        if old.exists() and not path.exists():
            old.rename(path)
        for one in (beside, old):
            shutil.rmtree(one, ignore_errors=True)
    sync(path.parent)


@contextlib.contextmanager
def turn(path: Path) -> Iterator[None]:
    """Wait until no other process is in its turn for this folder; the turn ends with the process, however it ends."""
    number = os.open(path, os.O_RDONLY) if fcntl else None  # Windows opens no folders
    try:
        if fcntl and number is not None:
            fcntl.flock(number, fcntl.LOCK_EX)
        yield
    finally:
        if number is not None:
            os.close(number)


def sweep(folder: Path) -> None:
    """Remove what a writer that was killed left of checkpoints and folders; only the holder of the lock may."""
    for path in (folder / "checkpoints").glob(f".*{PART}"):
        path.unlink(missing_ok=True)
    for path in folder.glob(f".*{PART}"):
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)


@contextlib.contextmanager
def only_writer(folder: Path) -> Iterator[None]:
    """Hold the folder's lock, which ends with the process however it ends; SettingsError if another one has it."""
    try:
        file = (folder / ".lock").open("a+", encoding="utf-8")
    except OSError as error:
        raise SettingsError(f"cannot write in {folder}: {error.strerror}") from None
    with file:
        if not _locked(file):
            file.seek(0)
            raise SettingsError(f"{folder} is in use: another training writes there (process {file.read().strip()})")
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        sweep(folder)
        yield


def _locked(file: IO[str]) -> bool:
    if fcntl is None:
        import msvcrt

        try:
            file.seek(1 << 30)  # a byte behind all others, which stay readable
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined]
        except OSError:
            return False
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True

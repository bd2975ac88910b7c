"""The build backend: setuptools, and the torch of the environment that parsimax is installed into.

The kernels need torch's headers and one of its libraries, never torch itself as a module. Under pip's build isolation
torch cannot be imported, but the interpreter is the one of the target environment, so its folders tell. Where no torch
is found (uv and ``python -m build`` work in an environment of their own), torch becomes a requirement of the build.

``PARSIMAX_NO_KERNELS=1`` builds the package without kernels, and then torch is not needed at all.
"""

from __future__ import annotations

import importlib.util
import os
import re
import site
import sys
from importlib.machinery import PathFinder
from pathlib import Path
from typing import NamedTuple

from setuptools import build_meta as _setuptools
from setuptools.build_meta import *  # noqa: F403 - the hooks that need no torch

KERNELS_NEED = (2, 10)  # the first torch with all of the stable ABI that the kernels use
REQUIREMENT = "torch>=" + ".".join(map(str, KERNELS_NEED))


class Torch(NamedTuple):
    root: Path
    version: str

    @property
    def serves(self) -> bool:
        """Whether kernels can be built on it and run in it."""
        return tuple(map(int, self.version.split(".")[:2])) >= KERNELS_NEED


def wanted() -> bool:
    """Whether this build is to have kernels."""
    answer = os.environ.get("PARSIMAX_NO_KERNELS", "0")
    if answer not in ("", "0", "1"):
        raise SystemExit(f"PARSIMAX_NO_KERNELS must be 1 (build no kernels) or 0, got {answer!r}")
    # They are written for g++ and clang++; on Windows the package runs in plain torch.
    return answer != "1" and sys.platform != "win32"


def _folders() -> list[str]:
    """The packages of the environment whose interpreter runs this, isolated or not."""
    own = site.getsitepackages([sys.prefix])
    settings = Path(sys.prefix, "pyvenv.cfg")
    if settings.exists() and not re.search(r"include-system-site-packages\s*=\s*true", settings.read_text(), re.I):
        return own
    return [*own, site.getusersitepackages(), *site.getsitepackages([sys.base_prefix])]


def find_torch() -> Torch | None:
    """The torch to build on: one that can be imported, or else that of the target environment."""
    for spec in (importlib.util.find_spec("torch"), PathFinder.find_spec("torch", _folders())):
        if spec is not None and spec.origin is not None:
            root = Path(spec.origin).parent
            version = re.search(r"^__version__ = '([^']+)'", (root / "version.py").read_text(), re.M)
            if version:
                return Torch(root, version[1])
    return None


def _with_torch(requirements: list[str]) -> list[str]:
    return [*requirements, REQUIREMENT] if wanted() and find_torch() is None else requirements


def get_requires_for_build_wheel(config_settings=None):  # type: ignore[no-untyped-def]
    return _with_torch(_setuptools.get_requires_for_build_wheel(config_settings))


def get_requires_for_build_editable(config_settings=None):  # type: ignore[no-untyped-def]
    return _with_torch(_setuptools.get_requires_for_build_editable(config_settings))

"""Which torch the build backend finds, and what it makes of it."""

import importlib.util
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def backend(monkeypatch):
    spec = importlib.util.spec_from_file_location("parsimax_build", ROOT / "tools" / "parsimax_build.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.delenv("PARSIMAX_NO_KERNELS", raising=False)
    return module


@pytest.fixture
def isolated(backend, monkeypatch, tmp_path):
    """As under pip's isolation: torch cannot be imported, and the target environment is this empty folder."""
    monkeypatch.setattr(backend.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(backend.site, "getsitepackages", lambda prefixes: [str(tmp_path)])
    monkeypatch.setattr(backend.site, "getusersitepackages", lambda: str(tmp_path / "user"))
    return tmp_path


def put_torch(folder, version):
    (folder / "torch").mkdir(parents=True)
    (folder / "torch" / "__init__.py").touch()
    (folder / "torch" / "version.py").write_text(
        f"from typing import Optional\n__version__ = '{version}'\ndebug = False\n"
    )


def test_torch_that_can_be_imported_is_found(backend):
    import torch

    found = backend.find_torch()
    assert found.root == Path(torch.__file__).parent
    assert found.version == torch.__version__


def test_torch_of_the_target_environment_is_found_under_isolation(backend, isolated):
    put_torch(isolated, "2.13.0+cpu")
    assert backend.find_torch() == (isolated / "torch", "2.13.0+cpu")
    assert backend._with_torch(["wheel"]) == ["wheel"]


def test_torch_is_asked_for_where_there_is_none(backend, isolated):
    assert backend.find_torch() is None
    assert backend._with_torch([]) == ["torch>=2.10"]


def test_an_empty_folder_named_torch_is_no_torch(backend, isolated):
    (isolated / "torch").mkdir()
    assert backend.find_torch() is None


@pytest.mark.parametrize("system", [True, False])
def test_a_venv_sees_the_packages_of_the_system_only_if_it_says_so(backend, isolated, monkeypatch, tmp_path, system):
    venv = tmp_path / "venv"
    venv.mkdir()
    (venv / "pyvenv.cfg").write_text(f"home = /usr\ninclude-system-site-packages = {str(system).lower()}\n")
    monkeypatch.setattr(sys, "prefix", str(venv))
    monkeypatch.setattr(backend.site, "getsitepackages", lambda prefixes: [f"{prefixes[0]}/packages"])
    monkeypatch.setattr(sys, "base_prefix", str(tmp_path / "system"))
    put_torch(tmp_path / "system" / "packages", "2.13.0")
    assert (backend.find_torch() is not None) is system


@pytest.mark.parametrize(
    ("version", "serves"), [("2.9.1", False), ("2.10.0", True), ("2.13.0+cpu", True), ("3.0.0a0", True)]
)
def test_an_old_torch_gets_no_kernels(backend, isolated, version, serves):
    put_torch(isolated, version)
    assert backend.find_torch().serves is serves
    assert backend._with_torch([]) == []  # and no other torch is drawn in for them


def test_no_kernels_no_torch(backend, isolated, monkeypatch):
    monkeypatch.setenv("PARSIMAX_NO_KERNELS", "1")
    assert not backend.wanted() and backend._with_torch([]) == []
    monkeypatch.setenv("PARSIMAX_NO_KERNELS", "yes")
    with pytest.raises(SystemExit, match="PARSIMAX_NO_KERNELS must be 1"):
        backend.wanted()


def test_backend_and_package_agree_on_the_torch_that_kernels_need(backend):
    from parsimax.kernels import library

    assert backend.KERNELS_NEED == library.NEEDS
    assert library.too_old("2.10.0+cu130") is None and library.too_old("2.13.0") is None
    assert "need torch 2.10 or newer and this is 2.9.1" in library.too_old("2.9.1")

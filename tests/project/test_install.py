"""The commands of the README, in fresh environments: each way of installing gives the kernels or says why not.

Slow: ``make test-install``. An environment is fresh but for torch, which is linked into it from this one.
"""

import os
import re
import shutil
import subprocess
import sys
import zipfile
from importlib import metadata
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
LOADED = r"C\+\+ kernels +loaded"


def run(*command, fails=False, **variables):
    """What a command prints, all of it; it must succeed, or must fail."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "PARSIMAX", "CXX"))}
    done = subprocess.run(
        [*map(str, command)], stdout=-1, stderr=subprocess.STDOUT, text=True, env=kept | variables, cwd="/"
    )
    assert bool(done.returncode) == fails, done.stdout[-4000:]
    return done.stdout


def with_what_it_needs(name):
    """A distribution and those it requires, without extras."""
    found, left = {}, [name]
    while left:
        each = left.pop()
        try:
            if each not in found:
                found[each] = metadata.distribution(each)
                required = found[each].requires or []
                left += [re.match(r"[\w.-]+", r)[0] for r in required if "extra ==" not in r]
        except metadata.PackageNotFoundError:
            continue  # for another platform
    return found.values()


class Environment:
    """A fresh venv in which torch was installed before."""

    def __init__(self, folder, torch=True):
        run(sys.executable, "-m", "venv", folder)
        self.python = folder / "bin" / "python"
        self.packages = Path(run(self.python, "-c", "import site; print(site.getsitepackages()[0])").strip())
        for distribution in with_what_it_needs("torch") if torch else ():
            if distribution.name == "setuptools":  # a venv may have one of its own, older
                continue
            home = Path(distribution.locate_file(""))
            for top in {f.parts[0] for f in distribution.files or () if not f.parts[0].startswith(("..", "__py"))}:
                if not (self.packages / top).exists():
                    (self.packages / top).symlink_to(home / top)

    def install(self, *what, **options):
        return run(self.python, "-m", "pip", "install", "-v", *what, **options)

    def info(self):
        return run(self.python, "-W", "ignore", "-m", "parsimax.info")


@pytest.fixture
def fresh(tmp_path):
    return Environment(tmp_path / "env")


@pytest.fixture(scope="module")
def compiler(tmp_path_factory):
    """The compiler of this machine, which compiles a file once for all tests here."""
    folder = tmp_path_factory.mktemp("objects")
    return f"{sys.executable} {ROOT / 'tests' / 'compiler_cache.py'} {folder} {os.environ.get('CXX', 'g++')}"


@pytest.fixture(scope="module")
def clone(tmp_path_factory):
    """The files that git knows, committed or not."""
    folder = tmp_path_factory.mktemp("clone")
    names = run("git", "-C", ROOT, "ls-files", "-co", "--exclude-standard").split()
    for name in names:
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    return folder


@pytest.fixture(scope="module")
def sdist(clone, tmp_path_factory):
    """Built in an isolated environment, where there is no torch: none is needed for it."""
    out = tmp_path_factory.mktemp("sdist")
    run(sys.executable, "-m", "build", "--sdist", "--outdir", out, clone)
    return next(out.glob("*.tar.gz"))


@pytest.fixture(scope="module")
def wheel(sdist, compiler, tmp_path_factory):
    out = tmp_path_factory.mktemp("wheel")
    builder = Environment(out / "env")
    run(builder.python, "-m", "pip", "wheel", "--no-deps", "-w", out, sdist, CXX=compiler)
    return next(out.glob("*.whl"))


def test_pip_from_a_clone_builds_the_kernels(fresh, clone, compiler):
    fresh.install(clone, CXX=compiler)
    assert re.search(LOADED, fresh.info())


def test_pip_from_the_sdist_builds_the_kernels(fresh, sdist, compiler):
    fresh.install(sdist, CXX=compiler)
    assert re.search(LOADED, fresh.info())


def test_the_wheel_installs_without_a_compiler(fresh, wheel):
    assert re.fullmatch(r"parsimax-.*-py3-none-(linux|macosx)_.*\.whl", wheel.name)
    fresh.install(wheel, CXX="/bin/false")
    assert re.search(LOADED, fresh.info())


def test_the_wheel_is_fit_to_be_given_away(wheel):
    assert "nothing to complain about" in run(sys.executable, ROOT / "tools" / "check_wheel.py", wheel)


def test_the_check_of_wheels_can_fail(tmp_path):
    """A library linked to OpenMP, in a wheel for one Python, beside a source."""
    library = tmp_path / "library.so"
    (tmp_path / "library.cpp").write_text("#include <omp.h>\nint threads() { return omp_get_max_threads(); }")
    run("g++", "-shared", "-fPIC", "-fopenmp", tmp_path / "library.cpp", "-o", library)
    bad = tmp_path / "parsimax-0-cp311-cp311-linux_x86_64.whl"
    with zipfile.ZipFile(bad, "w") as archive:
        archive.write(library, "parsimax/kernels/_cpu.so")
        archive.writestr("parsimax/kernels/cpu/rows.cpp", "")
    said = run(sys.executable, ROOT / "tools" / "check_wheel.py", bad, fails=True)
    assert "libgomp" in said and "serves one Python only" in said and "rows.cpp is a source" in said


def test_the_wheel_holds_every_file_that_the_package_reads(wheel, clone):
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    files = [f for f in (clone / "src/parsimax").rglob("*") if f.is_file() and "kernels/cpu" not in f.as_posix()]
    files = [f for f in files if f.suffix != ".md"]
    assert {f.relative_to(clone / "src").as_posix() for f in files} <= names


def test_a_compiler_that_fails_fails_the_installation(fresh, clone):
    said = fresh.install(clone, fails=True, CXX="/bin/false")
    assert "building the C++ kernels failed" in said and "set PARSIMAX_NO_KERNELS=1" in said


def test_kernels_can_be_refused(fresh, clone):
    fresh.install(clone, CXX="/bin/false", PARSIMAX_NO_KERNELS="1")
    assert re.search(r"C\+\+ kernels +the C\+\+ kernels were not built", fresh.info())


def test_torch_is_a_requirement_of_the_build_only_where_there_is_none(tmp_path, clone):
    """As uv and ``python -m build`` do it, in an environment of their own."""
    ask = "import sys; sys.path.insert(0, 'tools'); import parsimax_build as b; print(b.get_requires_for_build_wheel())"
    for torch in (True, False):
        environment = Environment(tmp_path / f"env{torch}", torch)
        environment.install("setuptools>=77")
        said = run("sh", "-c", f'cd {clone} && {environment.python} -I -c "{ask}"')
        assert ("torch>=2.10" in said) is not torch
        assert (
            "torch"
            not in run(
                "sh", "-c", f'cd {clone} && {environment.python} -I -c "{ask}"', PARSIMAX_NO_KERNELS="1"
            ).splitlines()[-1]
        )

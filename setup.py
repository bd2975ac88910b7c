"""Builds the C++ kernels, parsimax/kernels/_cpu.so, on libtorch's stable ABI.

A compiler that fails fails the build. PARSIMAX_NO_KERNELS=1 builds none, and parsimax then runs in plain torch; so it
does where torch is too old for them. For tests of the kernels themselves: PARSIMAX_SANITIZE=1 builds with the address
and undefined-behaviour sanitizers, PARSIMAX_MUTATIONS=1 with exits that can be made wrong (tests/mutations.py), and
PARSIMAX_EMULATE=1 with AVX-512 written out in plain vectors, for machines that have AVX2 only.
"""

import os
import platform
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext
from setuptools.errors import BaseError, CCompilerError

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "tools"))
import parsimax_build  # noqa: E402 - the build backend, which also knows where torch is

NO_KERNELS = "to install parsimax without its kernels, in plain torch and slower, set PARSIMAX_NO_KERNELS=1"
CPU = Path("src/parsimax/kernels/cpu")
# -fno-math-errno is the only floating-point flag: NaN, infinities and the order of sums keep their meaning.
FLAGS = ["-std=c++20", "-O3", "-g0", "-fvisibility=hidden", "-fno-math-errno", "-Wno-psabi", "-Wno-ignored-attributes"]
FLAGS += ["-Wno-maybe-uninitialized", "-Wno-uninitialized"]
PER_ENDING = {
    "_avx2": ["-mavx2", "-mfma", "-mf16c"],
    "_avx512": ["-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mfma", "-mf16c", "-mprefer-vector-width=512"],
}
SANITIZE = ["-fsanitize=address,undefined", "-fno-omit-frame-pointer", "-g1", "-O0"]
SANITIZE = SANITIZE if os.environ.get("PARSIMAX_SANITIZE") else []
if os.environ.get("PARSIMAX_EMULATE"):
    PER_ENDING["_avx512"] = [*PER_ENDING["_avx2"], "-include", str(HERE / "tests/emulated_avx512.h")]
FOR_TESTS = [(f"PARSIMAX_{name}", "1") for name in ("MUTATIONS", "EMULATE") if os.environ.get(f"PARSIMAX_{name}")]
MINIMUM = ".".join(map(str, parsimax_build.KERNELS_NEED))
X86 = platform.machine() in ("x86_64", "AMD64")


def own_flags(source):
    """One binary holds several instruction sets: the ending of a file's name says which it is compiled for."""
    return next((flags for ending, flags in PER_ENDING.items() if Path(source).stem.endswith(ending)), [])


class BuildExt(build_ext):
    def build_extension(self, ext):
        torch = parsimax_build.find_torch()
        if torch is None:
            raise SystemExit(
                f"parsimax: no torch was found to build the C++ kernels on; install it first, or {NO_KERNELS}"
            )
        ext.include_dirs += [str(torch.root / "include"), str(torch.root / "include/torch/csrc/api/include")]
        ext.library_dirs.append(str(torch.root / "lib"))
        try:
            self.build_kernels(ext)
        except (BaseError, CCompilerError, OSError) as error:
            raise SystemExit(f"parsimax: building the C++ kernels failed: {error}\n{NO_KERNELS}") from error

    def build_kernels(self, ext):
        compiler = self.compiler
        if not hasattr(compiler, "_compile"):
            raise BaseError("the kernels are built by a Unix compiler, g++ or clang++")
        compile_one, compile_all = compiler._compile, compiler.compile

        def with_flags(obj, src, extension, cc_args, extra, pp_opts):
            return compile_one(obj, src, extension, cc_args, extra + own_flags(src) + SANITIZE, pp_opts)

        def in_parallel(sources, **options):
            with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
                return [o for objects in pool.map(lambda s: compile_all([s], **options), sources) for o in objects]

        compiler._compile, compiler.compile = with_flags, in_parallel
        try:
            super().build_extension(ext)
        finally:
            del compiler._compile, compiler.compile

    def get_ext_filename(self, name):  # it is no Python module: no interpreter tag in the file's name
        return str(Path(*name.split("."))) + ".so"


class Wheel(bdist_wheel):
    def run(self):  # what an earlier build left in there may be gone from the sources
        shutil.rmtree(self.get_finalized_command("build").build_lib, ignore_errors=True)
        super().run()

    def get_tag(self):  # the binary has no Python symbol: one wheel serves every Python
        python, abi, system = super().get_tag()
        return (python, abi, system) if system == "any" else ("py3", "none", system)


def kernels():
    torch = parsimax_build.find_torch()
    if not parsimax_build.wanted():
        return []
    if torch is not None and not torch.serves:
        print(f"parsimax: no kernels are built: {torch.root} is torch {torch.version}, they need {MINIMUM} or newer")
        return []
    sources = sorted(s.relative_to(HERE) for s in (HERE / CPU).rglob("*.cpp"))
    headers = sorted(h.relative_to(HERE) for ending in ("*.h", "*.inl") for h in (HERE / CPU).rglob(ending))
    return [
        Extension(
            "parsimax.kernels._cpu",
            [str(s) for s in sources if X86 or not own_flags(s)],
            depends=list(map(str, headers)),
            libraries=["torch_cpu"],
            # Only the stable part of torch's headers, as it was in the lowest torch that the binary is to serve.
            define_macros=[
                ("TORCH_STABLE_ONLY", None),
                ("TORCH_TARGET_VERSION", "0x020a000000000000"),
                *FOR_TESTS,
            ],
            extra_compile_args=FLAGS,
            extra_link_args=SANITIZE,
            language="c++",
        )
    ]


setup(ext_modules=kernels(), cmdclass={"build_ext": BuildExt, "bdist_wheel": Wheel})

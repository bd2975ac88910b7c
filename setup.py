"""Builds the C++ kernels, parsimax/kernels/_cpu.so, on libtorch's stable ABI.

Without torch at hand or without a compiler the package installs all the same and runs in plain torch.
PARSIMAX_SANITIZE=1 builds with the address and undefined-behaviour sanitizers, PARSIMAX_MUTATIONS=1 with exits that can be
made wrong (tests/mutations.py).
"""

import os
import platform
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

try:
    from torch.utils.cpp_extension import include_paths, library_paths
except ImportError:
    include_paths = library_paths = None

HERE = Path(__file__).parent
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
MUTATIONS = [("PARSIMAX_MUTATIONS", "1")] if os.environ.get("PARSIMAX_MUTATIONS") else []
X86 = platform.machine() in ("x86_64", "AMD64")


def own_flags(source):
    """One binary holds several instruction sets: the ending of a file's name says which it is compiled for."""
    return next((flags for ending, flags in PER_ENDING.items() if Path(source).stem.endswith(ending)), [])


class BuildExt(build_ext):
    def build_extension(self, ext):
        compiler = self.compiler
        if not hasattr(compiler, "_compile"):
            raise RuntimeError("the kernels are built by a Unix compiler, g++ or clang++")
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
    def get_tag(self):  # the binary has no Python symbol: one wheel serves every Python
        python, abi, system = super().get_tag()
        return (python, abi, system) if system == "any" else ("py3", "none", system)


def kernels():
    if include_paths is None:
        print("parsimax: torch is not importable here, so the C++ kernels are not built")
        return []
    sources = [str(s.relative_to(HERE)) for s in sorted((HERE / CPU).glob("*.cpp")) if X86 or not own_flags(s)]
    return [
        Extension(
            "parsimax.kernels._cpu",
            sources,
            depends=[str(h.relative_to(HERE)) for ending in ("*.h", "*.inl") for h in (HERE / CPU).glob(ending)],
            include_dirs=include_paths(),
            library_dirs=library_paths(),
            libraries=["torch_cpu"],
            define_macros=[("TORCH_TARGET_VERSION", "0x020a000000000000"), *MUTATIONS],
            extra_compile_args=FLAGS,
            extra_link_args=SANITIZE,
            language="c++",
            optional=True,
        )
    ]


setup(ext_modules=kernels(), cmdclass={"build_ext": BuildExt, "bdist_wheel": Wheel})

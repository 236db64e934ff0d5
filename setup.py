"""The compiled kernels: one module per instruction set, all of the same sources. kernels/cpu picks one at run time.

Everything else about the package stands in pyproject.toml.
"""

import copy
import os
import platform
from pathlib import Path

import pybind11
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

SOURCES = Path("kernels/cpu/native")
# An instruction family is what decides the bits of a result: only what is named here may be used.
FLAGS = [
    "-std=c++20",
    "-O3",
    "-g0",
    "-fvisibility=hidden",
    "-ffp-contract=off",
    "-Wno-unknown-warning-option",  # clang does not know the next one
    "-Wno-maybe-uninitialized",
    "-Wno-uninitialized",
]
AVX512 = ["-march=x86-64-v4", "-mavx512bf16", "-mavx512vbmi"]
X86 = {
    "_amx": [*AVX512, "-mamx-tile", "-mamx-bf16"],
    "_avx512bf16": AVX512,
    "_avx2": ["-march=x86-64-v3"],
}


class BuildVariants(build_ext):
    """Compiles several variants at once, each into a build folder of its own, because all have the same source file."""

    def build_extension(self, ext: Extension) -> None:
        alone = copy.copy(self)
        alone.build_temp = str(Path(self.build_temp) / ext.name)
        build_ext.build_extension(alone, ext)


def extension(name: str, flags: list[str]) -> Extension:
    return Extension(
        f"kernels.cpu.{name}",
        [str(SOURCES / "module.cpp")],
        include_dirs=[str(SOURCES), pybind11.get_include()],
        depends=[str(header) for header in sorted(SOURCES.glob("*.h"))],
        define_macros=[("TANDEM_MODULE", name)],
        extra_compile_args=[*FLAGS, *flags],
        language="c++",
        optional=True,  # without a compiler the package installs, and the worker says what is missing
    )


variants = {"_portable": [], **(X86 if platform.machine() in ("x86_64", "AMD64") else {})}
setup(
    ext_modules=[extension(name, flags) for name, flags in variants.items()],
    cmdclass={"build_ext": BuildVariants},
    options={"build_ext": {"parallel": os.cpu_count()}},
)

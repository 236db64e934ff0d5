"""Fetches the packages that the calls need beside THERE, as wheels for another machine: the versions of
constraints.txt, without dependencies.

    python -m loadtest.gpu.wheels DIR [--python 3.12] [--also NAME==VERSION ...]

DIR travels with the repository to a machine without a network. Prints the line that installs the wheels there. The exit
status is 1 if a wheel does not fit that Python, or if DIR has more than MAX_BYTES.
"""

import argparse
import re
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

CONSTRAINTS = Path("constraints.txt")
# What the other machine must have; their own dependencies come with them.
THERE = (
    "torch", "triton", "transformers", "numpy", "safetensors", "tokenizers", "huggingface_hub", "jinja2", "grpcio",
    "prometheus-client", "uvloop",
)  # fmt: skip
# What is carried. The last three lines are the shim's; protobuf and typing_extensions are there, but perhaps older.
CARRIED = (
    "msgspec", "llguidance", "pyzmq",
    "protobuf", "googleapis-common-protos", "grpcio-health-checking", "grpcio-reflection",
    "starlette", "uvicorn", "httptools",
    "pydantic", "pydantic_core", "annotated-types", "typing-inspection", "typing_extensions",
)  # fmt: skip
PYTHON = "3.12"
GLIBC_MINORS = range(5, 36)  # manylinux_2_N: glibc up to 2.35; pip matches N exactly
PLATFORMS = ("manylinux1", "manylinux2010", "manylinux2014", *(f"manylinux_2_{minor}" for minor in GLIBC_MINORS))
MAX_BYTES = 64 * 2**20
SITE = "build/gpu-site"  # folder of the installed wheels, in the repository there


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m loadtest.gpu.wheels", description="Fetches wheels to carry.")
    parser.add_argument("folder", type=Path, metavar="DIR")
    parser.add_argument("--python", default=PYTHON, help="version of the Python there (default: %(default)s)")
    parser.add_argument("--also", nargs="+", default=[], metavar="NAME==VERSION", help="further packages to fetch")
    args = parser.parse_args(argv)
    wanted = [*pinned(CARRIED, CONSTRAINTS.read_text()), *args.also]
    for old in args.folder.glob("*.whl"):
        old.unlink()
    status = subprocess.run(pip_download(args.folder, args.python, wanted), check=False).returncode
    if status != 0:
        return status
    found = sorted(args.folder.glob("*.whl"))
    unfit = [wheel.name for wheel in found if not fits(wheel.name, args.python)]
    size = sum(wheel.stat().st_size for wheel in found)
    print(f"{len(found)} wheels, {size / 2**20:.1f} MiB")
    if unfit or len(found) != len(wanted) or size > MAX_BYTES:
        print(f"error: unfit wheels: {unfit}; {len(wanted)} wanted; {MAX_BYTES >> 20} MiB allowed", file=sys.stderr)
        return 1
    print("Type this there, in the repository's root:")
    print(install_line(args.folder))
    return 0


def pinned(names: Iterable[str], constraints: str) -> list[str]:
    """Returns NAME==VERSION for each name, with the versions of `constraints`. Raises KeyError for one without."""
    lines = [line.split("#")[0].strip() for line in constraints.splitlines()]
    versions = {normal(name): version for name, _, version in (line.partition("==") for line in lines) if version}
    return [f"{name}=={versions[normal(name)]}" for name in names]


def normal(name: str) -> str:
    """Returns a distribution's normalized name (PEP 503)."""
    return re.sub("[-_.]+", "-", name).lower()


def pip_download(folder: Path, python: str, wanted: Sequence[str]) -> list[str]:
    """Returns pip's command that fetches the `wanted` wheels for `python` on x86-64 Linux."""
    platforms = [word for name in PLATFORMS for word in ("--platform", f"{name}_x86_64")]
    return [
        *(sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"),
        *("--python-version", python, "--implementation", "cp", *platforms, "--dest", str(folder), *wanted),
    ]


def fits(wheel: str, python: str) -> bool:
    """Returns whether the wheel of this file name can be installed for `python` ("3.12") on x86-64 Linux.

    The name ends with tags of interpreter, ABI and platform (PEP 427), each a set joined by dots.
    """
    interpreters, abis, platforms = (part.split(".") for part in wheel.removesuffix(".whl").split("-")[-3:])
    if platforms != ["any"] and not any(re.fullmatch(r"manylinux\w*_x86_64", platform) for platform in platforms):
        return False
    minor = int(python.partition(".")[2])
    own = f"cp3{minor}"
    if "none" in abis:
        return any(name in ("py3", f"py3{minor}", own) for name in interpreters)
    if "abi3" in abis:
        return any(re.fullmatch(r"cp3\d+", name) and int(name[3:]) <= minor for name in interpreters)
    return own in interpreters and own in abis


def install_line(folder: Path) -> str:
    """Returns the line of a shell that installs the wheels of `folder` into SITE and lets Python find them."""
    install = f"python3 -m pip install -q --no-index --no-deps --no-compile --upgrade --target {SITE} {folder}/*.whl"
    return f"{install} && export PYTHONPATH=$PWD/{SITE}"


if __name__ == "__main__":
    sys.exit(main())

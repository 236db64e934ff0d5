"""The sets of versions: `python -m tests.versions COMMAND`, with any Python that tandem supports.

  lowest             print the lower bounds of pyproject.toml as constraints
  pin                write constraints.txt: all that [all,test] installs today (`make constraints`)
  test SET [ARGS]    install the set `lowest` or `newest` and run the tests with it (`make test-versions`)

Each set has a copy of the tracked files and a virtual environment under build/versions. ARGS go to pytest.
Settings, from the environment: TORCH, TORCH_INDEX (see the Makefile).
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.versions.requirements import CONSTRAINTS, ROOT, lowest, requirements

FOLDER = ROOT / "build" / "versions"
HEADER = "# Written by `make constraints`: the exact set of packages that the extras [all,test] install."
# They start whole servers, which takes many minutes; `make test` runs them with the pinned set.
LEFT_OUT = ("tests/e2e", "tests/loadtest/serving", "tests/recovery", "tests/chaos/test_chaos.py")


def install(name: str, constraints: list[str]) -> tuple[Path, Path]:
    """Installs the tracked files with [all,test] from scratch, into a new environment named `name`. Returns (the folder
    of their copy, its Python)."""
    shutil.rmtree(FOLDER / name, ignore_errors=True)
    tree, venv, file = (FOLDER / name / part for part in ("tree", "venv", "constraints.txt"))
    for tracked in _run("git", "ls-files", "-z", cwd=ROOT, captured=True).split("\0")[:-1]:
        (tree / tracked).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / tracked, tree / tracked)
    file.write_text("".join(f"{line}\n" for line in constraints))
    _run(sys.executable, "-m", "venv", str(venv))
    python = venv / "bin" / "python"
    pip = (str(python), "-m", "pip", "install")
    torch = next(one.text for one in requirements() if one.name == "torch")
    index = os.environ.get("TORCH_INDEX")
    # Without dependencies, because an index of torch has few versions of them.
    _run(*pip, "--no-deps", os.environ.get("TORCH") or torch, *(["--index-url", index] if index else []))
    # Both variables reach isolated builds: the first up to pip 25.2, the second from 25.3.
    limits = {"PIP_CONSTRAINT": str(file), "PIP_BUILD_CONSTRAINT": str(file)}
    _run(*pip, "--editable", ".[all,test]", cwd=tree, env=os.environ | limits)
    return tree, python


def test(name: str, pytest_args: list[str]) -> None:
    """Installs the set `name` and runs the tests with it. Exits with pytest's status unless all tests pass."""
    tree, python = install(name, lowest() if name == "lowest" else [])
    ignored = [f"--ignore={folder}" for folder in LEFT_OUT]
    _run(str(python), "-m", "pytest", *ignored, *pytest_args, cwd=tree)


def pin() -> None:
    """Installs the newest set and writes constraints.txt. A local version (+cpu) names a build, so it is left out."""
    _, python = install("newest", [])
    others = ("--exclude=pip", "--exclude=tandem-llm")
    listed = _run(str(python), "-m", "pip", "list", "--format=freeze", *others, captured=True)
    # What a CUDA build of torch brings, it requires exactly by itself.
    own = [line for line in listed.splitlines() if "==" in line and not line.startswith(("nvidia-", "cuda-"))]
    lines = [line.partition("+")[0] for line in own]
    CONSTRAINTS.write_text("".join(f"{line}\n" for line in [HEADER, *sorted(lines, key=str.lower)]))


def _run(*command: str, cwd: Path = ROOT, env: dict[str, str] | None = None, captured: bool = False) -> str:
    """Returns what the command writes to stdout, if `captured`. Exits with its status when it fails."""
    pipe = subprocess.PIPE if captured else None
    ended = subprocess.run(command, cwd=cwd, env=env, stdout=pipe, text=True, check=False)
    if ended.returncode != 0:
        sys.exit(ended.returncode)
    return ended.stdout


def main(argv: list[str]) -> None:
    match argv:
        case ["lowest"]:
            print("\n".join(lowest()))
        case ["pin"]:
            pin()
        case ["test", "lowest" | "newest" as name, *pytest_args]:
            test(name, pytest_args)
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])

"""compute-sanitizer's memcheck on a tiny model: accesses outside of an allocation, by any kernel of a whole step.

Without graphs every tensor is an allocation of its own, so that an access beyond a tensor is found. Graphs need torch's
caching allocator: with them memcheck finds only accesses outside of the allocator's memory.
https://docs.nvidia.com/compute-sanitizer/ComputeSanitizer/index.html
"""

import contextlib
import functools
import os
import re
import shutil
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path

import torch

from loadtest.gpu import output
from loadtest.gpu.table import Check, Measured, Note

TOOL, PACKAGE = "compute-sanitizer", "nvidia-cuda-sanitizer-api"
SECONDS = 90.0  # of one run
FAULTY = 86  # exit status if memcheck finds an error
SUMMARY = re.compile(r"ERROR SUMMARY: (\d+) error")
FORMS = ("without", "with")


def checks(device: torch.device) -> list[Check]:
    return [Check(f"memcheck of a tiny model {form} graphs", functools.partial(run, device, form)) for form in FORMS]


def run(device: torch.device, form: str) -> Measured:
    """Runs loadtest/gpu/sanitized.py under memcheck, and fails if memcheck reports an error or the run fails.

    Without the tool, and on a CPU, it runs alone, and the result is a Note. So it is if the time is over.
    """
    tool = find_tool() if device.type == "cuda" else None
    command = [sys.executable, "-m", "loadtest.gpu.sanitized", "--device", device.type, "--graphs", form]
    environment = dict(os.environ)
    if tool is not None:
        command = [str(tool), "--tool", "memcheck", "--error-exitcode", str(FAULTY), *command]
        if form == "without":
            environment["PYTORCH_NO_CUDA_MEMORY_CACHING"] = "1"
    log = output.file(f"memcheck-{form}-graphs.txt")
    with log.open("wb") as target:
        try:
            status = subprocess.run(
                command, stdin=subprocess.DEVNULL, stdout=target, stderr=subprocess.STDOUT, env=environment,
                timeout=SECONDS, check=False,
            ).returncode  # fmt: skip
        except subprocess.TimeoutExpired:
            return Note(f"unfinished after {SECONDS:.0f} s")
    text = log.read_text(errors="replace")
    detail = next((line for line in reversed(text.splitlines()) if line.strip()), "it printed nothing")
    found = SUMMARY.search(text)
    assert status != FAULTY and (found is None or found[1] == "0"), f"memcheck: {first_error(text)}"
    assert status == 0, f"status {status}: {detail}"
    if tool is None:
        why = "on a CPU" if device.type == "cpu" else f"no {TOOL} here"
        return Note(f"{why}: the model ran without it: {detail}")
    assert found is not None, f"memcheck printed no summary: {detail}"
    return Measured(f"0 errors ({tool})", errors=0, tool=str(tool))


def first_error(text: str) -> str:
    """Returns the first two lines of memcheck's first error as one, and the summary."""
    lines = [line.removeprefix("=========").strip() for line in text.splitlines() if line.startswith("=========")]
    named = [line for line in lines if line and not line.startswith("COMPUTE-SANITIZER")]
    return " ".join(dict.fromkeys([*named[:2], *named[-1:]])) if named else "no error is named"


def find_tool() -> Path | None:
    """Returns compute-sanitizer: on PATH, in a CUDA toolkit under /usr/local, or in its PyPI package; None without."""
    found = shutil.which(TOOL)
    if found is not None:
        return Path(found)
    candidates = sorted(Path("/usr/local").glob(f"cuda*/bin/{TOOL}"), reverse=True)
    with contextlib.suppress(PackageNotFoundError):
        candidates += [Path(str(path.locate())) for path in files(PACKAGE) or [] if path.name == TOOL]
    return next((path for path in candidates if os.access(path, os.X_OK)), None)

"""`tandem bench serve` as a real process, and what it leaves: a table, a JSON file."""

import json
import subprocess
from pathlib import Path
from typing import Any

from tests.e2e.harness import run_tandem

SECONDS = 240.0  # a deadline for a busy machine, not an expectation


def bench(*args: str, env: dict[str, str] | None = None) -> "subprocess.CompletedProcess[str]":
    return run_tandem("bench", "serve", *args, seconds=SECONDS, env=env)


def bench_result(folder: Path, *args: str) -> dict[str, Any]:
    """Returns the saved numbers of a run, which must succeed."""
    done = bench(*args, "--save-result", f"--result-dir={folder}", "--result-filename=result.json")
    assert done.returncode == 0, done.stderr + done.stdout
    found: dict[str, Any] = json.loads((folder / "result.json").read_text())
    return found


def wait_share_line(found: dict[str, Any]) -> str:
    """Returns the line that a report must have for the wait share in the saved numbers."""
    assert 0 < found["accelerator_wait_share"] < 1
    return f"Accelerator wait share (%): {100 * found['accelerator_wait_share']:.2f}"

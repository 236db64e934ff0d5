"""Runs the program of a client and reads its results. Imports only the standard library."""

import contextlib
import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# A client uses no proxy, asks no hub and sends no telemetry; the server is all that it may reach.
SURROUNDINGS = {
    "NO_PROXY": "*",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "DO_NOT_TRACK": "1",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "OTEL_SDK_DISABLED": "true",
    "OMP_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
}
PROGRAM = "program"  # the task's name where the program itself failed


@dataclass(frozen=True)
class Result:
    task: str
    passed: bool
    reason: str


def run(command: Sequence[str], seconds: float) -> list[Result]:
    """Runs a program in an empty folder, and kills its whole process group after `seconds`. Returns the result of each
    task. A program that ended early, or reported no task, adds a failed one."""
    with tempfile.TemporaryDirectory(prefix="tandem-clients-") as folder:
        work, temporary = Path(folder, "work"), Path(folder, "tmp")
        for path in (work, temporary):
            path.mkdir()
        process = subprocess.Popen(
            command,
            cwd=work,
            env=os.environ | SURROUNDINGS | {"TMPDIR": str(temporary)},  # some clients leave files there
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        late = False
        try:
            out, err = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            late = True
        finally:
            _kill_group(process)
        if late:
            out, err = process.communicate()
    end = f"not done after {seconds:.0f} s" if late else f"exit status {process.returncode}: {_last_line(err)}"
    return read(out, end)


def read(out: str, end: str) -> list[Result]:
    """Returns the results in a program's output. `end` says how the program ended; it is a part of the
    reason if that was early."""
    results: list[Result] = []
    began, ended = PROGRAM, None
    for line in _json_lines(out):
        match line:
            case {"began": str(name)}:
                began = name
            case {"task": str(name), "passed": bool(passed), "reason": str(reason)}:
                results.append(Result(name, passed, reason))
                began = PROGRAM
            case {"ended": int(count)}:
                ended = count
    if ended != len(results) or not results:
        results.append(Result(began, False, f"the program ended early, {end}"))
    return results


def _json_lines(out: str) -> list[Any]:
    found = []
    for line in out.splitlines():
        if line.startswith("{"):
            with contextlib.suppress(ValueError):
                found.append(json.loads(line))
    return found


def _last_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1].strip() if lines else "nothing on stderr"


def _kill_group(process: "subprocess.Popen[str]") -> None:
    """Kills what is left of the program and its children."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)

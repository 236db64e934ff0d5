"""A process that runs checks, and the messages between it and the one that prints their rows.

It says which checks there are, then answers each index on its stdin with a row, until there are no more.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict
from typing import Any

from loadtest.gpu.table import Check, Row, run_check

MARK = "\x1e"  # begins the lines on stdout that are messages; libraries print there too


def serve(checks: list[Check], device_works: Callable[[], bool], indices: Iterable[str] = sys.stdin) -> None:
    """In the child. After a failure the device may answer nothing more, as after an illegal memory access: a fresh
    process must take over then."""
    _send(names=[check.name for check in checks], alone=[check.alone for check in checks])
    for index in indices:
        row = run_check(checks[int(index)])
        gone = row.result == "FAIL" and not device_works()
        _send(row=asdict(row), gone=gone)
        if gone:
            return


def _send(**message: object) -> None:
    sys.stdout.write(f"{MARK}{json.dumps(message)}\n")
    sys.stdout.flush()


class Child:
    """A process at a time: where one has died, the next check begins another. `end` is a time.monotonic()."""

    def __init__(self, command: list[str], scratch: str, end: float) -> None:
        self._command = command
        self._environment = {**os.environ, "TMPDIR": scratch}
        self._end = end
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> dict[str, Any]:
        """What checks there are; nothing if the process ended."""
        self._process = subprocess.Popen(
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=self._environment
        )
        if self._is_over():
            self.kill()
        return self._receive()

    def run(self, index: int, name: str) -> Row:
        if self._process is None:
            self.start()
        assert self._process is not None and self._process.stdin is not None
        try:
            self._process.stdin.write(f"{index}\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # it says nothing, either
        message = self._receive()
        if not message:
            status = self.stop()
            if self._is_over():
                return Row(name, "not run", "was not done when the time was over")
            return Row(name, "FAIL", f"the process ended with status {status} and no answer")
        if message["gone"]:
            self.stop()
        return Row(**message["row"])

    def stop(self) -> int:
        """When it has ended, its status."""
        if self._process is None:
            return 0
        process, self._process = self._process, None
        with process:
            pass
        return process.returncode

    def kill(self) -> None:
        process = self._process
        if process is not None:
            process.kill()

    def _is_over(self) -> bool:
        return time.monotonic() >= self._end

    def _receive(self) -> dict[str, Any]:
        """The next message; nothing if the process ended. What is no message goes to stderr."""
        assert self._process is not None and self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(MARK):
                message: dict[str, Any] = json.loads(line[1:])
                return message
            sys.stderr.write(line)
        return {}

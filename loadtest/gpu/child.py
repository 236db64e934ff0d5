"""A child process that runs checks, and its messages to the parent, which prints the rows.

The child sends the list of its checks. Then it answers each index on its stdin with a row, until stdin closes.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict
from typing import IO, Any

from loadtest.gpu.table import Check, Row, run_check

MARK = "\x1e"  # first character of a message line on stdout; libraries print there too
STOP_SECONDS = 10.0  # a process without its device may never end


def serve(
    checks: list[Check],
    device_works: Callable[[], bool],
    indices: Iterable[str] = sys.stdin,
    about: dict[str, Any] | None = None,
) -> None:
    """Runs in the child: sends the list of `checks` with `about` the machine, then a row for each index. Returns early
    when a failed check left the device unusable (an illegal memory access), which `device_works` tests."""
    _send(names=[check.name for check in checks], alone=[check.alone for check in checks], about=about or {})
    for index in indices:
        row = run_check(checks[int(index)])
        device_lost = row.result == "FAIL" and not device_works()
        _send(row=asdict(row), device_lost=device_lost)
        if device_lost:
            return


def _send(**message: object) -> None:
    sys.stdout.write(f"{MARK}{json.dumps(message)}\n")
    sys.stdout.flush()


class Child:
    """The parent's end of one child process at a time. `command` starts it, as the leader of a process group, which
    ends with it. After a check during which the process ended or lost its device, the next check starts a new one.

    `scratch` is its TMPDIR; `end` is the time limit, as a time.monotonic(). `log` receives its stderr and what it
    prints besides messages; None: this process's stderr.
    """

    def __init__(self, command: list[str], scratch: str, end: float, log: IO[str] | None = None) -> None:
        self._command = command
        self._environment = {**os.environ, "TMPDIR": scratch}
        self._end = end
        self._log = log
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> dict[str, Any]:
        """Starts the process; past the time limit, kills it at once. Returns its first message: `names` and `alone` of
        its checks, `about` the machine; {} if it ended without one."""
        self._process = subprocess.Popen(
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True,
            env=self._environment, process_group=0,
        )  # fmt: skip
        if self._is_over():
            self.kill()
        return self._receive()

    def run(self, index: int, name: str) -> Row:
        """Returns the row of one check. If the process ends without an answer: FAIL, or "not run" after the time limit,
        which the caller enforces with kill(). Starts a process if there is none."""
        if self._process is None:
            self.start()
        assert self._process is not None and self._process.stdin is not None
        try:
            self._process.stdin.write(f"{index}\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # _receive finds that it ended
        message = self._receive()
        if not message:
            status = self.stop()
            if self._is_over():
                return Row(name, "not run", "unfinished at the time limit")
            return Row(name, "FAIL", f"the process ended with status {status} before it answered")
        if message["device_lost"]:
            self.stop()
        return Row(**message["row"])

    def stop(self) -> int:
        """Closes the process's stdin, waits for its end, kills it after STOP_SECONDS, and kills what it left running.
        Returns the exit status (-N after signal N); 0 without a process."""
        if self._process is None:
            return 0
        process, self._process = self._process, None
        assert process.stdin is not None and process.stdout is not None
        # Closing flushes what the process did not read, which fails if it has ended.
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(STOP_SECONDS)
        _kill_group(process)
        process.stdout.close()
        return process.wait()

    def kill(self) -> None:
        """Kills the process and what it started, without waiting for their end."""
        process = self._process
        if process is not None:
            _kill_group(process)

    def _is_over(self) -> bool:
        return time.monotonic() >= self._end

    def _receive(self) -> dict[str, Any]:
        """Returns the child's next message; {} if the process ended. Lines that are no message go to the log."""
        assert self._process is not None and self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(MARK):
                message: dict[str, Any] = json.loads(line[1:])
                return message
            print(line, end="", file=self._log or sys.stderr, flush=True)
        return {}


def _kill_group(process: "subprocess.Popen[str]") -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)

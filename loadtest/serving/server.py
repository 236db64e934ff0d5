"""Runs a server from a command line: starts it on a free port, waits until it is healthy, and ends it completely.

The calling process may have no other child processes: all its descendants are ended with the server, in any process
group or session.
"""

import asyncio
import os
import shlex
import signal
import socket
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from loadtest.serving.processes import adopt_orphans, descendants, reap
from services.errors import Fatal
from services.machine import authority, loopback

PORT = "{port}"  # placeholder in a command line
_STOP_SECONDS = 30.0  # between SIGTERM and SIGKILL
_ORPHAN_SECONDS = 3.0  # the same, for processes that outlive the started one
_KILL_SECONDS = 10.0
_POLL_SECONDS = 0.05
_END_SECONDS = 1.0  # for a process that no longer answers to have ended


@dataclass(frozen=True)
class Command:
    label: str
    line: str  # split like a shell's, without expansion; contains PORT


class Server:
    """`with Server(...) as server:` runs the command at `server.url` and appends its output to the file `log`. At exit,
    ends all descendants of this process.

    Raises Fatal if the command cannot be started, and outside Linux.
    """

    def __init__(self, command: Command, log: Path) -> None:
        self._command, self._log = command, log

    def __enter__(self) -> "Server":
        adopt_orphans()
        port = _free_port()
        self.url = f"http://{authority(loopback(), port)}"
        argv = [part.replace(PORT, str(port)) for part in shlex.split(self._command.line)]
        try:
            with self._log.open("ab") as log:
                self._process = subprocess.Popen(
                    argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
                )
        except OSError as error:
            raise Fatal(f"{self._command.label} cannot be started: {error}") from error
        return self

    def __exit__(self, *exception: object) -> None:
        try:
            self._signal_group(signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_STOP_SECONDS)
            _wait_for_descendants(_ORPHAN_SECONDS)
        finally:  # even if the wait is interrupted
            deadline = time.monotonic() + _KILL_SECONDS
            while (left := _running()) and time.monotonic() < deadline:
                for pid in left:
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                _wait_for_descendants(_POLL_SECONDS)
            self._process.poll()

    def ended(self) -> str | None:
        """Returns how the process ended, as text; None while it runs."""
        code = self._process.poll()
        if code is None:
            return None
        return f"by signal {signal.Signals(-code).name}" if code < 0 else f"with status {code}"

    async def ended_soon(self) -> str | None:
        """As `ended`, but waits a moment for the end: a process that is killed closes its sockets first."""
        with suppress(subprocess.TimeoutExpired):
            await asyncio.to_thread(self._process.wait, _END_SECONDS)
        return self.ended()

    async def healthy(self, session: aiohttp.ClientSession, seconds: float) -> None:
        """Returns when the server is healthy. Raises Fatal if it ends first, or is not healthy after `seconds`."""
        deadline = time.monotonic() + seconds
        while not await self._answers(session):
            if (how := self.ended()) is not None:
                raise Fatal(f"{self._command.label} ended {how} before it was healthy{self._last_line()}")
            if time.monotonic() > deadline:
                raise Fatal(f"{self._command.label} is not healthy after {seconds:g} s{self._last_line()}")
            await asyncio.sleep(_POLL_SECONDS)

    async def _answers(self, session: aiohttp.ClientSession) -> bool:
        """Returns whether /health answers 200; without /health, whether /v1/models does."""
        for path in ("/health", "/v1/models"):
            try:
                async with session.get(self.url + path, timeout=aiohttp.ClientTimeout(total=5)) as response:
                    if response.status != 404:
                        return response.status == 200
            except (aiohttp.ClientError, TimeoutError, OSError):
                return False
        return False

    def _signal_group(self, number: int) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    def _last_line(self) -> str:
        lines = self._log.read_text(errors="replace").split("\n")
        last = next((line.strip() for line in reversed(lines) if line.strip()), "")
        return f"; its last line: {last[:300]}" if last else ""


def _free_port() -> int:
    host = loopback()
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as found:
        found.bind((host, 0))
        return int(found.getsockname()[1])


def _running() -> list[int]:
    """Reaps ended children. Returns the pids of the descendants that are left."""
    reap(descendants(os.getpid()))
    return descendants(os.getpid())


def _wait_for_descendants(seconds: float) -> None:
    """Returns when no descendant is left, or after `seconds`."""
    deadline = time.monotonic() + seconds
    while _running() and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)

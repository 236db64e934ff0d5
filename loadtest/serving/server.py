"""A server that is only a command line: started on a free port, waited for until it is healthy, and ended wholly.

Who uses it has no other child processes: what runs beneath this process at the end is ended, in whatever process group
or session it is.
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

from loadtest.serving.processes import adopt_orphans, beneath, reap
from services.errors import Fatal
from services.machine import authority, loopback

PORT = "{port}"  # in a command line: where the port goes
_STOP_SECONDS = 30.0  # between SIGTERM and SIGKILL
_ORPHAN_SECONDS = 3.0  # the same for what outlives the process that was started
_KILL_SECONDS = 10.0
_POLL_SECONDS = 0.05


@dataclass(frozen=True)
class Command:
    label: str
    line: str  # as for a shell, but only its quotes mean something; with PORT somewhere


class Server:
    """`with Server(...) as server:` runs it; what it says goes to the end of the file `log`.

    Raises Fatal when it cannot be started.
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
            _wait_for_nobody(_ORPHAN_SECONDS)
        finally:  # whatever interrupts the wait
            deadline = time.monotonic() + _KILL_SECONDS
            while (left := _living()) and time.monotonic() < deadline:
                for pid in left:
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                _wait_for_nobody(_POLL_SECONDS)
            self._process.poll()

    def ended(self) -> str | None:
        """How it ended by itself; None while it runs."""
        code = self._process.poll()
        if code is None:
            return None
        return f"by signal {signal.Signals(-code).name}" if code < 0 else f"with status {code}"

    async def healthy(self, session: aiohttp.ClientSession, seconds: float) -> None:
        """Returns when it is. Raises Fatal when it ends before, or isn't after `seconds`."""
        deadline = time.monotonic() + seconds
        while not await self._answers(session):
            if (how := self.ended()) is not None:
                raise Fatal(f"{self._command.label} ended {how} before it was healthy{self._last_line()}")
            if time.monotonic() > deadline:
                raise Fatal(f"{self._command.label} is not healthy after {seconds:g} s{self._last_line()}")
            await asyncio.sleep(_POLL_SECONDS)

    async def _answers(self, session: aiohttp.ClientSession) -> bool:
        """What has no /health is healthy when it lists its models."""
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


def _living() -> list[int]:
    """Whoever runs beneath this process, once the dead among its own children are gone."""
    reap(beneath(os.getpid()))
    return beneath(os.getpid())


def _wait_for_nobody(seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while _living() and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)

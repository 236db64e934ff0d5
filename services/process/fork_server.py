"""The callers' end of a task server (task_server.py): starts its process, has it fork workers and kill them.

Several pools may share it: a pool bounds how many calls run at once, the server what a call may take.
"""

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
from dataclasses import dataclass

from services.process.task_server import COMMAND, FORK, KILL, LENGTH, WorkerLimits

DEATH_SECONDS = 0.01  # after its sockets are closed, a killed process counts as ended
OWN_VARIABLES = "TANDEM_"  # some of these variables hold secrets; a child needs none of them


class ServerDied(Exception):
    """The server process has ended, by none of the limits of a call."""


@dataclass(frozen=True)
class Worker:
    """`server_pid`: of the process that forked it; 0: that had ended."""

    server_pid: int
    number: int
    calls: socket.socket


class ForkServer:
    """One server process and the workers that it has forked.

    `target` is "package.module:maker". `maker(setup)` is called once, in the server process, and returns the function
    that workers call: bytes to bytes. What it expects to go wrong is a result of its own, not an exception.
    """

    def __init__(self, target: str, setup: bytes, *, memory_bytes: int, cpu_seconds: float, nice: int = 5) -> None:
        """`memory_bytes`: what a worker may allocate (Linux only); `cpu_seconds`: of one call. A call that waits for
        the cores may take WALL_FACTOR times as long on the clock."""
        self.limits = WorkerLimits(memory_bytes, cpu_seconds, nice)
        self.is_closed = False
        self._target = target
        self._setup = setup
        self._starting = asyncio.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._reaping: asyncio.Task[None] | None = None
        self._last_number = 0

    @property
    def pid(self) -> int:
        """The server process's, if it runs; else 0. Once it is being killed it counts as ended: its workers end in any
        order."""
        if self._process is None or self._control is None or self._process.poll() is not None:
            return 0
        return self._process.pid

    def has(self, worker: Worker) -> bool:
        """Returns whether the server process that has forked this worker still runs."""
        return 0 != worker.server_pid == self.pid

    async def start(self) -> None:
        """Starts the server process, if it does not run. Otherwise the first call starts it, and waits for imports.

        Raises OSError if the system refuses the process or its socket.
        """
        async with self._starting:
            if self.pid:
                return
            await self._stop()
            own_end, child_end = socket.socketpair()
            own_end.setblocking(False)
            self._control = own_end
            with child_end:
                self._process = self._spawn(child_end)
            asyncio.get_running_loop().add_reader(own_end, self._on_end, own_end, self._process)
            try:
                await asyncio.get_running_loop().sock_sendall(own_end, LENGTH.pack(len(self._setup)) + self._setup)
            except OSError:
                pass  # it has ended: the call says so
            except asyncio.CancelledError:  # it would take orders for the rest of its setup
                await self._stop()
                raise

    def _spawn(self, control: socket.socket) -> "subprocess.Popen[bytes]":
        limits = self.limits
        numbers = map(str, (limits.memory_bytes, limits.cpu_seconds, limits.nice))
        return subprocess.Popen(
            [sys.executable, "-m", "services.process.task_server", str(control.fileno()), self._target, *numbers],
            env={name: value for name, value in os.environ.items() if not name.startswith(OWN_VARIABLES)},
            stdin=subprocess.DEVNULL,
            pass_fds=[control.fileno()],
            start_new_session=True,  # its workers are in the same process group
        )

    async def new_worker(self) -> Worker:
        """Returns a new worker. Raises ServerDied if the server process takes no orders, or after `close`. Raises
        OSError if the system refuses a process or a socket."""
        if self.is_closed:
            raise ServerDied
        await self.start()
        own_end, child_end = socket.socketpair()
        own_end.setblocking(False)
        self._last_number = (self._last_number + 1) % 2**32
        worker = Worker(self.pid, self._last_number, own_end)
        try:
            with child_end:
                self._order(FORK, worker, child_end)
        except OSError as error:
            own_end.close()
            await asyncio.sleep(DEATH_SECONDS)
            raise ServerDied from error
        return worker

    def drop(self, worker: Worker) -> None:
        """Ends a worker."""
        worker.calls.close()
        with contextlib.suppress(OSError):  # the server process has ended, and with it its workers
            self._order(KILL, worker)

    async def kill(self, worker: Worker) -> None:
        """Kills the server process that has forked this worker, if it still runs, and all its workers: it hangs. The
        next call starts another one."""
        async with self._starting:
            if self.has(worker):
                await self._stop()

    async def close(self) -> None:
        """Kills the server process and its workers; no other one starts."""
        self.is_closed = True
        async with self._starting:
            await self._stop()

    def _on_end(self, control: socket.socket, process: "subprocess.Popen[bytes]") -> None:
        """The control socket is readable. The server process writes nothing to it, so it has ended, or ends now."""
        asyncio.get_running_loop().remove_reader(control)
        self._reaping = asyncio.create_task(self._reap(process))

    async def _reap(self, process: "subprocess.Popen[bytes]") -> None:
        """Takes the exit status of a process that has ended: it stays no zombie. The next call starts another one."""
        async with self._starting:
            if self._process is process:
                await self._stop()

    async def _stop(self) -> None:
        if self._control is not None:
            asyncio.get_running_loop().remove_reader(self._control)
            self._control.close()
            self._control = None
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):  # macOS: EPERM for a group of zombies
                os.killpg(self._process.pid, signal.SIGKILL)
            await asyncio.to_thread(self._process.wait)
            self._process = None

    def _order(self, command: int, worker: Worker, *passed: socket.socket) -> None:
        if self._control is None:
            raise OSError("the server process has ended")
        socket.send_fds(self._control, [COMMAND.pack(command, worker.number)], [one.fileno() for one in passed])

"""Runs a function on bytes in child processes with limited memory and time, for an event loop.

What holds Python's global lock for seconds, or never ends, does so in a child: the event loop goes on, and a call
beyond its limits ends its child alone. The children are forked by a server process of their own (task_server.py).
"""

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
from dataclasses import dataclass

from services.process.task_server import (
    COMMAND,
    DONE,
    DONE_AND_ENDING,
    FORK,
    KILL,
    LENGTH,
    OUT_OF_MEMORY,
    REPLY,
    WALL_FACTOR,
    WorkerLimits,
)

START_SECONDS = 30.0  # for the server to start, beside the time of the call
DEATH_SECONDS = 0.01  # after its sockets are closed, a killed process counts as ended
MAX_PART_BYTES = 256 * 1024
OWN_VARIABLES = "TANDEM_"  # some of these variables hold secrets; a child needs none of them


class TaskFailed(Exception):
    """The child could not complete the call: it reached a limit or crashed, or its function raised an exception."""


class _ServerDied(Exception):
    """The server process has ended, by none of the limits of a call."""


@dataclass(frozen=True)
class _Worker:
    number: int
    calls: socket.socket


class TaskPool:
    """At most `max_processes` workers, each of which has one call at a time; further calls wait in order.

    `target` is "package.module:maker". `maker(setup)` is called once, in the server process, and returns the function
    that workers call: bytes to bytes. What it expects to go wrong is a result of its own, not an exception.
    """

    def __init__(
        self,
        target: str,
        setup: bytes,
        *,
        max_processes: int,
        memory_bytes: int,
        cpu_seconds: float,
        nice: int = 5,
    ) -> None:
        """`memory_bytes`: what a worker may allocate (Linux only); `cpu_seconds`: of one call. A call that waits for
        the cores may take WALL_FACTOR times as long on the clock."""
        self._target = target
        self._setup = setup
        self._limits = WorkerLimits(memory_bytes, cpu_seconds, nice)
        self._places = asyncio.Semaphore(max_processes)
        self._idle: list[_Worker] = []
        self._starting = asyncio.Lock()
        self._server: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._last_number = 0
        self._closed = False

    async def start(self) -> None:
        """Starts the server process, if it does not run. Otherwise the first call starts it, and waits for imports."""
        async with self._starting:
            if self._is_running():
                return
            await self._stop_server()
            own_end, child_end = socket.socketpair()
            own_end.setblocking(False)
            with child_end:
                self._server = self._spawn(child_end)
            self._control = own_end
            with contextlib.suppress(OSError):  # it has ended: the call says so
                await asyncio.get_running_loop().sock_sendall(own_end, LENGTH.pack(len(self._setup)) + self._setup)

    def _spawn(self, control: socket.socket) -> "subprocess.Popen[bytes]":
        limits = self._limits
        numbers = map(str, (limits.memory_bytes, limits.cpu_seconds, limits.nice))
        return subprocess.Popen(
            [sys.executable, "-m", "services.process.task_server", str(control.fileno()), self._target, *numbers],
            env={name: value for name, value in os.environ.items() if not name.startswith(OWN_VARIABLES)},
            stdin=subprocess.DEVNULL,
            pass_fds=[control.fileno()],
            start_new_session=True,  # its workers are in the same process group
        )

    async def run(self, payload: bytes | bytearray) -> bytearray:
        """Returns the function's result for `payload`. Waits while all workers are busy.

        Raises TaskFailed. If this call is cancelled, its worker is killed. If the server process has died, the call is
        made once more by another one.
        """
        async with self._places:
            try:
                return await self._run(payload)
            except _ServerDied as error:
                if self._closed:
                    raise self._failure() from error
            try:
                return await self._run(payload)
            except _ServerDied as error:
                raise self._failure() from error

    async def _run(self, payload: bytes | bytearray) -> bytearray:
        """Makes the call in a worker. Raises TaskFailed, and _ServerDied if it ended because the server process did."""
        worker = await self._worker()
        is_reusable = False
        try:
            async with asyncio.timeout(START_SECONDS + WALL_FACTOR * self._limits.cpu_seconds):
                status, result = await _called(worker.calls, payload)
            is_reusable = status == DONE
        except TimeoutError as error:  # the server process hangs, or was stopped
            await self._stop_server()
            raise self._failure() from error
        except OSError as error:
            await asyncio.sleep(DEATH_SECONDS)
            raise (self._failure() if self._is_running() else _ServerDied()) from error
        finally:
            if is_reusable:
                self._idle.append(worker)
            else:
                self._drop(worker)
        if status in (DONE, DONE_AND_ENDING):
            return result
        raise self._failure() if status == OUT_OF_MEMORY else TaskFailed(f"it raised {result.decode()}")

    def _is_running(self) -> bool:
        return self._server is not None and self._server.poll() is None

    async def close(self) -> None:
        """Kills the server process and its workers. Calls that run raise TaskFailed; later ones are no use."""
        self._closed = True
        async with self._starting:
            await self._stop_server()

    async def _stop_server(self) -> None:
        for worker in self._idle:
            worker.calls.close()
        self._idle.clear()
        if self._control is not None:
            self._control.close()
            self._control = None
        if self._server is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):  # macOS: EPERM for a group of zombies
                os.killpg(self._server.pid, signal.SIGKILL)
            await asyncio.to_thread(self._server.wait)
            self._server = None

    async def _worker(self) -> _Worker:
        """Returns an idle worker, or a new one. Raises _ServerDied if the server process takes no orders."""
        while self._idle:
            worker = self._idle.pop()
            if _is_open(worker.calls):
                return worker
            worker.calls.close()
        await self.start()
        own_end, child_end = socket.socketpair()
        own_end.setblocking(False)
        self._last_number = (self._last_number + 1) % 2**32
        worker = _Worker(self._last_number, own_end)
        try:
            with child_end:
                self._order(FORK, worker, child_end)
        except OSError as error:
            own_end.close()
            await asyncio.sleep(DEATH_SECONDS)
            raise _ServerDied from error
        return worker

    def _drop(self, worker: _Worker) -> None:
        worker.calls.close()
        with contextlib.suppress(OSError):  # the server process has ended, and with it its workers
            self._order(KILL, worker)

    def _order(self, command: int, worker: _Worker, *passed: socket.socket) -> None:
        if self._control is None:
            raise OSError("the server process has ended")
        socket.send_fds(self._control, [COMMAND.pack(command, worker.number)], [one.fileno() for one in passed])

    def _failure(self) -> TaskFailed:
        memory, seconds = self._limits.memory_bytes // 2**20, self._limits.cpu_seconds
        return TaskFailed(f"its child process ended; it may use {memory} MiB of memory and {seconds:g} s of CPU time")


async def _called(calls: socket.socket, payload: bytes | bytearray) -> tuple[int, bytearray]:
    """Returns how the call ended, and its result. Raises OSError if the worker ends before."""
    loop = asyncio.get_running_loop()
    await loop.sock_sendall(calls, LENGTH.pack(len(payload)))
    await loop.sock_sendall(calls, payload)
    status, size = REPLY.unpack(await _exactly(calls, REPLY.size))
    return status, await _exactly(calls, size)


async def _exactly(calls: socket.socket, size: int) -> bytearray:
    """Returns the next bytes. They are appended part by part: the event loop never waits for a large copy."""
    loop = asyncio.get_running_loop()
    received = bytearray()
    while len(received) < size:
        part = await loop.sock_recv(calls, min(MAX_PART_BYTES, size - len(received)))
        if not part:
            raise ConnectionResetError("the worker has ended")
        received += part
    return received


def _is_open(calls: socket.socket) -> bool:
    """Returns whether the worker at the other end still runs. It sends nothing outside of a call."""
    try:
        return bool(calls.recv(1, socket.MSG_PEEK))
    except BlockingIOError:
        return True
    except OSError:
        return False

"""Runs a function on bytes in child processes with limited memory and time, for an event loop.

What holds Python's global lock for seconds, or never ends, does so in a child: the event loop goes on, and a call
beyond its limits ends its child alone. The children are forked by a server process of their own (fork_server.py).
"""

import asyncio
import contextlib
import logging
import socket

from services.process.fork_server import DEATH_SECONDS, ForkServer, ServerDied, Worker
from services.process.task_server import DONE, DONE_AND_ENDING, LENGTH, NO_WORKER, OUT_OF_MEMORY, REPLY, WALL_FACTOR
from services.telemetry.logs import RateLimitedLog

log = logging.getLogger(__name__)

FORK_AGAIN_SECONDS = 0.5  # after a fork that failed
START_SECONDS = 30.0  # for the server to start, beside the time of the call
MAX_PART_BYTES = 256 * 1024


class TaskFailed(Exception):
    """The child could not complete the call: it reached a limit or crashed, or its function raised an exception."""


class TaskRefused(TaskFailed):
    """The system refuses a process or a socket for the call, and did so again a moment later."""


class _Refusal(ServerDied):
    """The system has refused a process or a socket, once."""


class TaskPool:
    """At most `max_processes` workers of a server, each of which has one call at a time; further calls wait in order.

    No other pool of the server uses these workers. Close the server first: calls that run raise TaskFailed.
    """

    def __init__(self, server: ForkServer, max_processes: int) -> None:
        self._server = server
        self._places = asyncio.Semaphore(max_processes)
        self._idle: list[Worker] = []
        self._no_worker = RateLimitedLog(log, logging.WARNING)

    async def run(self, payload: bytes | bytearray) -> bytearray:
        """Returns the function's result for `payload`. Waits while all workers are busy.

        Raises TaskFailed. If this call is cancelled, its worker is killed. If the server process has died or hangs, or
        the system refuses a worker, the call is made once more.
        """
        async with self._places:
            try:
                return await self._run(payload)
            except ServerDied as error:
                if self._server.is_closed:
                    raise self._failure() from error
            try:
                return await self._run(payload)
            except _Refusal as error:
                raise TaskRefused(str(error)) from error
            except ServerDied as error:
                raise self._failure() from error

    def close(self) -> None:
        """Frees the sockets of idle workers."""
        while self._idle:
            self._idle.pop().calls.close()

    async def _run(self, payload: bytes | bytearray) -> bytearray:
        """Makes the call in a worker. Raises TaskFailed, and ServerDied if it ended because the server process did."""
        worker = await self._worker()
        is_reusable = False
        try:
            async with asyncio.timeout(START_SECONDS + WALL_FACTOR * self._server.limits.cpu_seconds):
                status, result = await _called(worker.calls, payload)
            is_reusable = status == DONE
        except TimeoutError as error:
            # A call beyond its limits ends its worker, so the server process hangs, or was stopped.
            await self._server.kill(worker)
            raise ServerDied from error
        except OSError as error:
            await asyncio.sleep(DEATH_SECONDS)
            raise (self._failure() if self._server.has(worker) else ServerDied()) from error
        finally:
            if is_reusable:
                self._idle.append(worker)
            else:
                self._server.drop(worker)
        if status in (DONE, DONE_AND_ENDING):
            return result
        if status == NO_WORKER:
            raise await self._refused(result.decode())
        raise self._failure() if status == OUT_OF_MEMORY else TaskFailed(f"it raised {result.decode()}")

    async def _worker(self) -> Worker:
        """Returns an idle worker, or a new one. Raises ServerDied if there is none."""
        while self._idle:
            worker = self._idle.pop()
            if self._server.has(worker) and _is_open(worker.calls):
                return worker
            worker.calls.close()
        try:
            return await self._server.new_worker()
        except OSError as error:
            raise await self._refused(str(error)) from error

    async def _refused(self, why: str) -> _Refusal:
        """Returns, after a pause, the error of a call for which the system has refused a process or a socket."""
        message = f"no process could be forked for a call ({why})"
        self._no_worker.log("%s; it is made again", message)
        await asyncio.sleep(FORK_AGAIN_SECONDS)
        return _Refusal(message)

    def _failure(self) -> TaskFailed:
        memory, seconds = self._server.limits.memory_bytes // 2**20, self._server.limits.cpu_seconds
        return TaskFailed(f"its child process ended; it may use {memory} MiB of memory and {seconds:g} s of CPU time")


async def _called(calls: socket.socket, payload: bytes | bytearray) -> tuple[int, bytearray]:
    """Returns how the call ended, and its result. Raises OSError if the worker ends before."""
    loop = asyncio.get_running_loop()
    with contextlib.suppress(OSError):  # the answer may come before all was read: that there is no worker
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

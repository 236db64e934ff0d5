"""The process behind a TaskPool (task_pool.py): forks workers, each of which runs one function on bytes, call by call.

Started as `python -m services.process.task_server`. It has one thread and small memory, so a fork takes milliseconds
and a killed worker costs no import. A worker limits its own memory and time by the kernel's means: a function that
never returns to Python is ended as well. The end of the control socket ends the server and all its workers.
"""

import contextlib
import gc
import importlib
import os
import resource
import signal
import socket
import struct
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from services.machine import files
from services.machine.files import read

Function = Callable[[bytes], bytes]

COMMAND = struct.Struct("<BI")  # on the control socket: FORK or KILL, number of the worker
FORK, KILL = range(2)
LENGTH = struct.Struct("<Q")  # before a payload
REPLY = struct.Struct("<BQ")  # before a result: how the call ended, length
DONE, DONE_AND_ENDING, OUT_OF_MEMORY, RAISED = range(4)
WALL_FACTOR = 6  # the longest time of a call on the clock, as a multiple of its CPU time: processes share the cores
MAX_GROWTH_BYTES = 48 * 2**20  # a worker whose peak memory has grown by more ends after its call
OOM_SCORE = 500  # of 1,000: if the machine runs out of memory, the kernel ends a worker before the server


@dataclass(frozen=True)
class WorkerLimits:
    """`memory_bytes`: what one worker may allocate beyond the server's memory (Linux only); `cpu_seconds`: of a call.
    `nice`: lowers the priority of all workers."""

    memory_bytes: int
    cpu_seconds: float
    nice: int


def main(argv: list[str]) -> None:
    """Serves the control socket until its end. `argv`: its descriptor, the function's maker, and the limits."""
    control = socket.socket(fileno=int(argv[0]))
    module, _, name = argv[1].partition(":")
    limits = WorkerLimits(int(argv[2]), float(argv[3]), int(argv[4]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C concerns the server above: its end closes the socket
    os.nice(limits.nice)
    function = getattr(importlib.import_module(module), name)(_received(control))
    gc.collect()
    gc.freeze()  # a collection in a worker would otherwise copy every page of the server
    _serve(control, function, limits)
    os.killpg(0, signal.SIGKILL)  # also workers in the middle of a call, and this process


def _serve(control: socket.socket, function: Function, limits: WorkerLimits) -> None:
    """Forks and kills workers as the control socket says, until its end."""
    pids: dict[int, int] = {}  # by worker number; without those that were reaped, whose pids may be used again

    def reap(number: int, frame: Any) -> None:
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG)[0]) != 0:
                for worker in [worker for worker, pid in pids.items() if pid == ended]:
                    del pids[worker]

    signal.signal(signal.SIGCHLD, reap)
    while True:
        try:
            message, descriptors, *_ = socket.recv_fds(control, COMMAND.size, 1)
        except OSError:
            return
        if len(message) < COMMAND.size:
            return
        command, worker = COMMAND.unpack(message)
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
        if command == KILL and worker in pids:
            os.kill(pids[worker], signal.SIGKILL)
        if command == FORK:
            pid = os.fork()
            if pid == 0:
                control.close()
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                _work(socket.socket(fileno=descriptors[0]), function, limits)
                os._exit(0)
            os.close(descriptors[0])
            pids[worker] = pid
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})


def _work(calls: socket.socket, function: Function, limits: WorkerLimits) -> None:
    """Answers calls until the socket ends, a call fails, or the worker has grown."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for standard in range(3):  # a library that aborts prints to stderr: any client could fill the log
        os.dup2(nothing, standard)
    with contextlib.suppress(OSError):
        (files.PROC / "self/oom_score_adj").write_text(str(OOM_SCORE))
    _limit_memory(limits.memory_bytes)
    before = _peak_bytes()
    status = DONE
    with contextlib.suppress(OSError):
        while status == DONE:
            payload = _received(calls)
            status, result = _called(function, payload, limits.cpu_seconds)
            del payload
            if status == DONE and _peak_bytes() - before > MAX_GROWTH_BYTES:
                status = DONE_AND_ENDING
            calls.sendall(REPLY.pack(status, len(result)))
            calls.sendall(result)
            del result


def _called(function: Function, payload: bytes, cpu_seconds: float) -> tuple[int, bytes]:
    """Returns how the call ended, and its result, or the name of the exception. At its time limit, this process ends:
    both timers' signals have their default action."""
    signal.setitimer(signal.ITIMER_PROF, cpu_seconds)
    signal.setitimer(signal.ITIMER_REAL, WALL_FACTOR * cpu_seconds)
    try:
        return DONE, function(payload)
    except MemoryError:
        return OUT_OF_MEMORY, b""
    except Exception as error:  # its message may quote the request
        return RAISED, type(error).__name__.encode()
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)


def _limit_memory(more_bytes: int) -> None:
    """Limits the private memory of this process to what it has now and `more_bytes`; changes nothing beside Linux."""
    lines = read(files.PROC / "self/status").splitlines()
    now = next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmData:")), None)
    if now is not None:
        resource.setrlimit(resource.RLIMIT_DATA, (now + more_bytes, now + more_bytes))


def _peak_bytes() -> int:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _received(connection: socket.socket) -> bytes:
    """Returns the next payload. Raises OSError at the end of the connection."""
    return _exactly(connection, LENGTH.unpack(_exactly(connection, LENGTH.size))[0])


def _exactly(connection: socket.socket, size: int) -> bytes:
    received = bytearray(size)
    view, at = memoryview(received), 0
    while at < size:
        count = connection.recv_into(view[at:])
        if count == 0:
            raise ConnectionResetError("the other end has closed the connection")
        at += count
    view.release()
    return bytes(received)


if __name__ == "__main__":
    with contextlib.suppress(OSError):  # the server above ended before the setup came
        main(sys.argv[1:])

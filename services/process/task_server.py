"""The process behind a TaskPool (task_pool.py): forks workers, each of which runs one function on bytes, call by call.

Started as `python -m services.process.task_server`. It has one thread and small memory, so a fork takes milliseconds
and a killed worker costs no import. A worker limits its own memory and time by the kernel's means: a function that
never returns to Python is ended as well. The end of the control socket ends the server and all its workers.
"""

import contextlib
import gc
import importlib
import os
import select
import signal
import socket
import struct
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from services.machine.own_limits import limit_memory, offer_to_oom_killer, peak_bytes

Function = Callable[[bytes], bytes]

COMMAND = struct.Struct("<BI")  # on the control socket: FORK or KILL, number of the worker
FORK, KILL = range(2)
LENGTH = struct.Struct("<Q")  # before a payload
REPLY = struct.Struct("<BQ")  # before a result: how the call ended, length
DONE, DONE_AND_ENDING, OUT_OF_MEMORY, RAISED, NO_WORKER = range(5)
WALL_FACTOR = 6  # the longest time of a call on the clock, as a multiple of its CPU time: processes share the cores
MAX_SIGNALS = 4096  # bytes read at once, one for each signal
MAX_GROWTH_BYTES = 48 * 2**20  # a worker whose peak memory has grown by more ends after its call


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
    for limit in (signal.SIGPROF, signal.SIGALRM):  # whatever was inherited: these end a worker at its limits
        signal.signal(limit, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    os.nice(limits.nice)
    try:
        setup = _received(control)
    except OSError:
        return  # the server above ended before the setup came
    function = getattr(importlib.import_module(module), name)(setup)
    gc.collect()
    gc.freeze()  # a collection in a worker would otherwise copy every page of the server
    _serve(control, function, limits)
    os.killpg(0, signal.SIGKILL)  # also workers in the middle of a call, and this process


def _serve(control: socket.socket, function: Function, limits: WorkerLimits) -> None:
    """Forks and kills workers as the control socket says, until its end. Reaps them between two commands: a signal
    handler could run inside itself."""
    workers: dict[int, int] = {}  # numbers by pid; without reaped ones, because their pids may be used again
    with _child_signals() as signals:
        readable = select.poll()  # takes any descriptor: select takes none above 1,023
        readable.register(control, select.POLLIN)
        readable.register(signals, select.POLLIN)
        while True:
            ready = [descriptor for descriptor, _ in readable.poll()]
            if signals.fileno() in ready:
                signals.recv(MAX_SIGNALS)
                _reap(workers)
            if control.fileno() not in ready:
                continue
            try:
                message, descriptors, *_ = socket.recv_fds(control, COMMAND.size, 1)
            except OSError:
                return
            if len(message) < COMMAND.size:
                return
            command, worker = COMMAND.unpack(message)
            if command == KILL:
                for pid in [pid for pid, number in workers.items() if number == worker]:
                    os.kill(pid, signal.SIGKILL)
            if command == FORK:
                with socket.socket(fileno=descriptors[0]) as calls:
                    try:
                        workers[_fork(calls, (control, signals), function, limits)] = worker
                    except OSError as error:  # a limit of processes or memory: the call is made again
                        text = str(error).encode()
                        with contextlib.suppress(OSError):  # the caller has left
                            calls.sendall(REPLY.pack(NO_WORKER, len(text)) + text)


@contextlib.contextmanager
def _child_signals() -> Iterator[socket.socket]:
    """Yields a socket that gets a byte when a child has ended, unless thousands of bytes wait there already."""
    signals, sender = socket.socketpair()
    with signals, sender:
        sender.setblocking(False)
        signal.set_wakeup_fd(sender.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        try:
            yield signals
        finally:
            signal.set_wakeup_fd(-1)


def _reap(workers: dict[int, int]) -> None:
    """Reaps all workers that have ended, and removes them from `workers`."""
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG)[0]) != 0:
            workers.pop(ended, None)  # absent: a child of the program that has executed this one


def _fork(calls: socket.socket, inherited: tuple[socket.socket, ...], function: Function, limits: WorkerLimits) -> int:
    """Forks a worker that answers `calls`. Returns its pid. The worker closes `inherited`."""
    pid = os.fork()
    if pid == 0:
        try:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.set_wakeup_fd(-1)
            for one in inherited:
                one.close()
            _work(calls, function, limits)
        finally:
            os._exit(0)  # whatever was raised: this is no second server
    return pid


def _work(calls: socket.socket, function: Function, limits: WorkerLimits) -> None:
    """Answers calls until the socket ends, a call fails, or the worker has grown."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for standard in range(3):  # a library that aborts prints to stderr: any client could fill the log
        os.dup2(nothing, standard)
    offer_to_oom_killer()
    limit_memory(limits.memory_bytes)
    before = peak_bytes()
    status = DONE
    with contextlib.suppress(OSError):
        while status == DONE:
            payload = _received(calls)
            status, result = _called(function, payload, limits.cpu_seconds)
            del payload
            if status == DONE and peak_bytes() - before > MAX_GROWTH_BYTES:
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
    main(sys.argv[1:])

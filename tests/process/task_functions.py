"""Functions for the workers of test_task_pool.py and test_task_server.py: each call says what the worker does."""

import ctypes
import errno
import os
import signal
import sys
import time
from collections.abc import Callable
from types import FrameType
from typing import Any


def calls(setup: bytes) -> Callable[[bytes], bytes]:
    """Returns a function whose payload is a word and an argument. `setup` is the answer to b"setup"."""
    count = 0

    def function(payload: bytes) -> bytes:
        nonlocal count
        count += 1
        word, _, argument = payload.partition(b" ")
        if word == b"echo":
            return argument
        if word == b"setup":
            return setup
        if word == b"pid":
            return str(os.getpid()).encode()
        if word == b"server":
            return str(os.getppid()).encode()
        if word == b"count":
            return str(count).encode()
        if word == b"nice":
            return str(os.nice(0)).encode()
        if word == b"variable":
            return os.environ.get(argument.decode(), "absent").encode()
        if word == b"allocate":
            return str(len(bytearray(int(argument)))).encode()
        if word == b"loop":
            while True:
                pass
        if word == b"busy-in-c":  # never returns to the interpreter
            return str(pow(7, 7 << 22, (1 << 4_000_000) - 1) & 1).encode()
        if word == b"slow":
            time.sleep(0.3)
            return argument
        if word == b"wait":
            signal.pause()
        if word == b"crash":
            ctypes.string_at(0)
        raise LookupError(payload.decode())

    return function


def interrupted_calls(setup: bytes) -> Callable[[bytes], bytes]:
    """As `calls`, in a server that gets SIGCHLD while it reaps: at its first step, the next time at its second."""
    steps = place = 0

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal steps, place
        if frame.f_code.co_filename.endswith("task_server.py"):
            frame.f_trace_opcodes = True
            if event == "call" and frame.f_code.co_name.endswith("reap"):
                steps, place = 0, place + 1
            steps += 1
            if steps == place:
                signal.raise_signal(signal.SIGCHLD)
        return trace

    sys.settrace(trace)
    return calls(setup)


def calls_of_few_forks(setup: bytes) -> Callable[[bytes], bytes]:
    """As `calls`, in a server in which the second fork fails."""
    fork, count = os.fork, 0

    def limited() -> int:
        nonlocal count
        count += 1
        if count == 2:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        return fork()

    os.fork = limited
    return calls(setup)


def calls_without_files(setup: bytes) -> Callable[[bytes], bytes]:
    """As `calls`, in a process that can open no file."""

    def refused(*args: Any) -> int:
        raise OSError(errno.ENFILE, os.strerror(errno.ENFILE))

    os.open = refused
    return calls(setup)

"""Functions for the workers of test_task_pool.py: each call says what the worker does."""

import ctypes
import os
import signal
import time
from collections.abc import Callable


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

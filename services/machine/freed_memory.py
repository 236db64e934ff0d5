"""Gives memory that was freed back to the operating system."""

import ctypes
import threading
import time

PACE_SECONDS = 60.0
_TRIM = getattr(ctypes.CDLL(None), "malloc_trim", None)


def give_back_freed() -> None:
    """Gives back the whole free pages of the C allocator: glibc keeps those of every thread's arena (malloc_trim(3)).
    Does nothing with another C library."""
    if _TRIM is not None:
        _TRIM(0)


def keep_giving_back() -> None:
    """Starts a thread that gives back freed memory every PACE_SECONDS, as long as the process lives. Without it heaps
    grow for hours, although no more of them is in use (docs/log.md, 2026-11-27)."""

    def run() -> None:
        while True:
            time.sleep(PACE_SECONDS)
            give_back_freed()

    threading.Thread(target=run, name="freed-memory", daemon=True).start()

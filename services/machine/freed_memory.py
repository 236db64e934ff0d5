"""Keeps the memory small that the C allocator holds beyond what is in use."""

import ctypes
import threading
import time

PACE_SECONDS = 60.0
M_ARENA_MAX = -8  # malloc.h of glibc
_TRIM, _MALLOPT = (getattr(ctypes.CDLL(None), name, None) for name in ("malloc_trim", "mallopt"))


def use_one_heap() -> None:
    """Makes all threads allocate from one heap (mallopt(3)); call it before there are any. Does nothing with another C
    library than glibc, which has a heap for each thread, up to eight a core: in an engine 14, each with its own gaps,
    which grow for hours (docs/log.md, 2026-11-27)."""
    if _MALLOPT is not None:
        _MALLOPT(M_ARENA_MAX, 1)


def give_back_freed() -> None:
    """Gives back the whole free pages of the C allocator: glibc keeps those between blocks in use (malloc_trim(3)).
    Does nothing with another C library."""
    if _TRIM is not None:
        _TRIM(0)


def keep_giving_back() -> None:
    """Starts a thread that gives back freed memory every PACE_SECONDS, as long as the process lives. Without it a heap
    grows for hours, although no more of it is in use (docs/log.md, 2026-11-27)."""

    def run() -> None:
        while True:
            time.sleep(PACE_SECONDS)
            give_back_freed()

    threading.Thread(target=run, name="freed-memory", daemon=True).start()

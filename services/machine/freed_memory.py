"""Keeps the memory small that the C allocator holds beyond what is in use."""

import ctypes
import os
import threading
import time

PACE_SECONDS = 60.0
# glibc reads these when a program starts (GLIBC_TUNABLES, https://sourceware.org/glibc/manual/latest/html_node/
# Memory-Allocation-Tunables.html). No cache of freed blocks for each thread: those fill for hours, up to 236 KiB each,
# and a block in one keeps its page from being given back. One heap: else there is one for each thread, up to eight a
# core, each with its own gaps (docs/log.md, 2026-11-27 and 2026-11-28).
VARIABLE = "GLIBC_TUNABLES"
SETTINGS = {"glibc.malloc.tcache_count": "0", "glibc.malloc.arena_max": "1"}
_LIBC = ctypes.CDLL(None)
_TRIM, _IS_GLIBC = (getattr(_LIBC, name, None) for name in ("malloc_trim", "gnu_get_libc_version"))


def lacking_variables() -> dict[str, str]:
    """Returns what the environment lacks for a heap that stays small: VARIABLE with SETTINGS, but for those that it has
    already, a parent's or the user's. It must be there when a program starts; children inherit it. Empty with another C
    library than glibc."""
    given = os.environ.get(VARIABLE, "")
    lacking = [f"{name}={value}" for name, value in SETTINGS.items() if name not in given]
    if not lacking or _IS_GLIBC is None:
        return {}
    return {VARIABLE: ":".join([given, *lacking] if given else lacking)}


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

"""Gives memory that was freed back to the operating system."""

import ctypes

_TRIM = getattr(ctypes.CDLL(None), "malloc_trim", None)


def give_back_freed() -> None:
    """Gives back the whole free pages of the C allocator: glibc keeps those of every thread's arena (malloc_trim(3)).
    Does nothing with another C library."""
    if _TRIM is not None:
        _TRIM(0)

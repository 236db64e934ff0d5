"""Threads with a deep stack: llguidance reads nested schemas and expressions by recursion.

The limits of depth hold before that; the stack has room for several times as much.
"""

import threading
from collections.abc import Callable

STACK_BYTES = 256 * 2**20  # of address space; pages that are never used take no memory
_lock = threading.Lock()


def start_deep(target: Callable[[], None], name: str) -> threading.Thread:
    """Starts and returns a daemon thread that calls `target` with STACK_BYTES of stack."""
    thread = threading.Thread(target=target, name=name, daemon=True)
    with _lock:
        before = threading.stack_size(STACK_BYTES)
        try:
            thread.start()
        finally:
            threading.stack_size(before)
    return thread

"""Threads with a deep stack: llguidance reads nested schemas and expressions by recursion.

The limits of depth hold before that; the stack has room for several times as much.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

STACK_BYTES = 256 * 2**20  # of address space; pages that are never used take no memory
_lock = threading.Lock()


def start_deep(target: Callable[[], None], name: str) -> threading.Thread:
    """Starts and returns a daemon thread that calls `target` with STACK_BYTES of stack."""
    thread = threading.Thread(target=target, name=name, daemon=True)
    with _deep_stacks():
        thread.start()
    return thread


def deep_pool(num_threads: int, name: str) -> ThreadPoolExecutor:
    """Returns a pool of `num_threads` threads with STACK_BYTES of stack each, all started.

    They stay: the allocator keeps memory for each thread it has seen, and new ones would spread over all its arenas.
    """
    pool = ThreadPoolExecutor(num_threads, name)
    all_run = threading.Barrier(num_threads)
    with _deep_stacks():
        for _ in range(num_threads):
            pool.submit(all_run.wait)  # in a new thread, because the others wait
    return pool


@contextlib.contextmanager
def _deep_stacks() -> Iterator[None]:
    """Threads that start in the block have STACK_BYTES of stack."""
    with _lock:
        before = threading.stack_size(STACK_BYTES)
        try:
            yield
        finally:
            threading.stack_size(before)

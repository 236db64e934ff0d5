"""Memory that a thread has freed is given back: its arena would keep it."""

import ctypes
import platform
import resource
import threading
from pathlib import Path

import pytest

from services.machine import freed_memory
from services.machine.freed_memory import give_back_freed, keep_giving_back

SIZE, COUNT = 100_000, 400  # below the size that glibc maps by itself


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library")
def test_freed_memory_is_given_back_while_a_block_behind_it_is_used() -> None:
    libc = ctypes.CDLL(None)
    libc.malloc.restype, libc.malloc.argtypes, libc.free.argtypes = (
        ctypes.c_void_p,
        [ctypes.c_size_t],
        [ctypes.c_void_p],
    )
    blocks: list[int] = []

    def fill() -> None:
        blocks.extend(libc.malloc(SIZE) for _ in range(COUNT))
        for block in blocks:
            ctypes.memset(block, 1, SIZE)

    thread = threading.Thread(target=fill)
    thread.start()
    thread.join()
    for block in blocks[:-1]:
        libc.free(block)
    before = resident_bytes()
    give_back_freed()
    assert before - resident_bytes() > SIZE * COUNT // 2
    libc.free(blocks[-1])


def test_a_process_gives_back_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    given = threading.Semaphore(0)
    monkeypatch.setattr(freed_memory, "PACE_SECONDS", 0.001)
    monkeypatch.setattr(freed_memory, "_TRIM", lambda padding: given.release())
    keep_giving_back()
    assert given.acquire(timeout=10) and given.acquire(timeout=10)
    monkeypatch.undo()  # the thread goes on at its usual pace

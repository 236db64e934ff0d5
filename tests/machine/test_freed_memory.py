"""All threads allocate from one heap, and memory that one has freed is given back."""

import ctypes
import platform
import resource
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from services.machine import freed_memory
from services.machine.freed_memory import give_back_freed, keep_giving_back

SIZE, COUNT = 100_000, 400  # below the size that glibc maps by itself
HEAPS_OF_THREADS = """
import ctypes, os, threading
from services.machine.freed_memory import use_one_heap
if {one}:
    use_one_heap()
libc = ctypes.CDLL(None)
libc.malloc.restype = libc.fdopen.restype = ctypes.c_void_p
libc.free.argtypes = libc.fclose.argtypes = [ctypes.c_void_p]
libc.malloc_info.argtypes = [ctypes.c_int, ctypes.c_void_p]
threads = [threading.Thread(target=lambda: libc.free(libc.malloc(100_000))) for _ in range(3)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
out = libc.fdopen(os.dup(1), b"w")
libc.malloc_info(0, out)
libc.fclose(out)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library")
def test_threads_allocate_from_one_heap() -> None:
    def heaps(one: bool) -> int:
        program = HEAPS_OF_THREADS.format(one=one)
        return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.count(
            "<heap nr"
        )

    assert heaps(one=False) > 1
    assert heaps(one=True) == 1


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

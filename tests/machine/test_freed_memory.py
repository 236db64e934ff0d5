"""All threads allocate from one heap and keep no freed blocks, and memory that one has freed is given back."""

import ctypes
import os
import platform
import resource
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from services.machine import freed_memory
from services.machine.freed_memory import VARIABLE, give_back_freed, keep_giving_back, lacking_variables

SIZE, COUNT = 100_000, 400  # below the size that glibc maps by itself
THREADS_THAT_FREE = """
import ctypes, os, threading
libc = ctypes.CDLL(None)
libc.malloc.restype = libc.fdopen.restype = ctypes.c_void_p
libc.free.argtypes = libc.fclose.argtypes = [ctypes.c_void_p]
libc.malloc_info.argtypes = [ctypes.c_int, ctypes.c_void_p]


class Blocks(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in "arena ordblks smblks hblks hblkhd usmblks fsmblks in_use".split()]


libc.mallinfo2.restype = Blocks


def allocate_and_free():
    blocks = [libc.malloc(size) for size in range(200, 1_000, 16) for _ in range(5)]
    for block in blocks:
        libc.free(block)
    libc.free(libc.malloc(100_000))


before = libc.mallinfo2().in_use
allocate_and_free()
kept = libc.mallinfo2().in_use - before
threads = [threading.Thread(target=allocate_and_free) for _ in range(3)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(os.environ.get("GLIBC_TUNABLES"), kept, flush=True)
out = libc.fdopen(os.dup(1), b"w")
libc.malloc_info(0, out)
libc.fclose(out)
"""
KEPT_BYTES = 50_000  # of the 150,000 that the program frees; some places are taken from the start
OURS = "glibc.malloc.tcache_count=0:glibc.malloc.arena_max=1"


def run_threads_that_free(monkeypatch: pytest.MonkeyPatch, given: str, small: bool = True) -> tuple[str, int, int]:
    """Runs a program in an environment with the allocator's settings `given`. Returns its settings, how many bytes of
    freed blocks were kept for a thread, and the number of heaps. `small`: with the variables that were lacking."""
    monkeypatch.setenv(VARIABLE, given)
    environment = {**os.environ, **(lacking_variables() if small else {})}
    ended = subprocess.run(
        [sys.executable, "-c", THREADS_THAT_FREE], capture_output=True, text=True, check=True, env=environment
    )
    settings, kept = ended.stdout.partition("\n")[0].split(" ")
    return settings, int(kept), ended.stdout.count("<heap nr")


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library")
def test_threads_share_one_heap_and_keep_no_freed_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    _, kept, heaps = run_threads_that_free(monkeypatch, "", small=False)
    assert kept > KEPT_BYTES and heaps > 1
    settings, kept, heaps = run_threads_that_free(monkeypatch, "")
    assert settings == OURS
    assert kept < 1_000 and heaps == 1


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library")
def test_settings_of_the_user_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run_threads_that_free(monkeypatch, "glibc.malloc.check=0")[0] == f"glibc.malloc.check=0:{OURS}"
    settings, kept, heaps = run_threads_that_free(monkeypatch, "glibc.malloc.tcache_count=5")
    assert settings == "glibc.malloc.tcache_count=5:glibc.malloc.arena_max=1"
    assert kept > KEPT_BYTES and heaps == 1


def test_nothing_is_lacking_where_it_is_set_or_another_library_allocates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, OURS)
    assert lacking_variables() == {}
    monkeypatch.delenv(VARIABLE)
    monkeypatch.setattr(freed_memory, "_IS_GLIBC", None)
    assert lacking_variables() == {}


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

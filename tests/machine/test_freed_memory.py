"""All threads allocate from one heap and keep no freed blocks, and memory that one has freed is given back."""

import ctypes
import os
import platform
import resource
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from services.machine import freed_memory
from services.machine.freed_memory import VARIABLE, give_back_freed, keep_giving_back, keep_heap_small

SIZE, COUNT = 100_000, 400  # below the size that glibc maps by itself
THREADS_THAT_FREE = """
import ctypes, os, threading
from services.machine.freed_memory import keep_heap_small
if {small}:
    keep_heap_small()
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


def run_threads_that_free(given: str | None, small: bool = True) -> tuple[str, int, int]:
    """Runs a program that starts with the allocator's settings `given`. Returns its settings in the end, how many bytes
    of freed blocks were kept for a thread, and the number of heaps."""
    environment = {name: value for name, value in os.environ.items() if name != VARIABLE}
    environment |= {VARIABLE: given} if given else {}
    argv = [sys.executable, "-c", THREADS_THAT_FREE.format(small=small)]
    ended = subprocess.run(argv, capture_output=True, text=True, check=True, env=environment)
    settings, kept = ended.stdout.partition("\n")[0].split(" ")
    return settings, int(kept), ended.stdout.count("<heap nr")


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library")
def test_threads_share_one_heap_and_keep_no_freed_blocks() -> None:
    _, kept, heaps = run_threads_that_free(None, small=False)
    assert kept > KEPT_BYTES and heaps > 1
    settings, kept, heaps = run_threads_that_free(None)
    assert settings == OURS
    assert kept < 1_000 and heaps == 1


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library")
def test_settings_of_the_user_stay() -> None:
    assert run_threads_that_free("glibc.malloc.check=0")[0] == f"glibc.malloc.check=0:{OURS}"
    settings, kept, heaps = run_threads_that_free("glibc.malloc.tcache_count=5")
    assert settings == "glibc.malloc.tcache_count=5:glibc.malloc.arena_max=1"
    assert kept > KEPT_BYTES and heaps == 1


def test_an_interpreter_with_privileges_does_not_start_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The variable would be missing after each start."""
    started: list[list[str]] = []
    monkeypatch.setenv(VARIABLE, "")
    monkeypatch.setattr(freed_memory, "_IS_GLIBC", True)
    monkeypatch.setattr(os, "execv", lambda path, argv: started.append(argv))
    for secure, starts in ((1, 0), (0, 1)):
        monkeypatch.setattr(freed_memory, "_LIBC", SimpleNamespace(getauxval=lambda kind, secure=secure: secure))
        keep_heap_small()
        assert len(started) == starts


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

"""What a server remembers of its workers, one process after the other: weight files, KV cache, deaths by memory.

The launcher keeps it in an unnamed file in memory, whose descriptor each worker process inherits: it outlives worker
and engine, and ends with the server. A worker that was started alone remembers it for itself only.
"""

import os
from contextlib import suppress

import msgspec

from engine_core.kv_cache_size import KvCacheSize

SHRINK, MAX_SHRINKS = 0.85, 3  # the KV cache's share of blocks after each time that memory ran out, and how many times
LOWER = "lower --kv-cache-memory-bytes (on a GPU, or --gpu-memory-utilization) or --max-num-batched-tokens"


class WeightFile(msgspec.Struct, frozen=True):
    """A fingerprint of a weight file. Digests are hexadecimal."""

    size: int  # bytes
    mtime_ns: int
    sampled: str  # digest of the header and of samples
    every_byte: str = ""  # digest of the whole file, with --verify-weights


class WorkerRecord(msgspec.Struct, frozen=True):
    weights: dict[str, WeightFile] = {}  # at the first load, by file name
    cache: KvCacheSize | None = None  # that the first worker registered
    shrinks: int = 0  # how often the KV cache got smaller, because memory ran out
    serving: bool = False  # the present worker, or the last one, has registered with an engine
    ended_in_order: bool = False  # the last worker, by a signal that it handled
    limits: tuple[int, int] | None = None  # max_num_seqs and max_num_batched_tokens of the KV cache's engine

    @property
    def num_blocks(self) -> int | None:
        """The blocks that the next KV cache has, if the memory allows them; None: as many as fit."""
        if self.cache is None:
            return None
        return max(self.cache.smallest, int(self.cache.num_blocks * SHRINK**self.shrinks))


class RecordFile:
    """The record in the file of descriptor `fd`; None: in this process only.

    One process at a time changes it: the worker while it runs, the launcher between two workers.
    """

    def __init__(self, fd: int | None) -> None:
        self._fd = fd
        self._content = b""

    def read(self) -> WorkerRecord:
        """Returns the record; an empty one before the first write."""
        content = self._content if self._fd is None else os.pread(self._fd, os.fstat(self._fd).st_size, 0)
        with suppress(msgspec.DecodeError):  # nothing is written yet
            return msgspec.json.decode(content, type=WorkerRecord)
        return WorkerRecord()

    def update(self, **changes: object) -> WorkerRecord:
        """Replaces fields of the record. Returns the new one."""
        record = msgspec.structs.replace(self.read(), **changes)
        content = msgspec.json.encode(record)
        if self._fd is None:
            self._content = content
        else:
            # Blanks hide the rest of a longer record: a process that is killed here leaves one that can be read.
            os.pwrite(self._fd, content.ljust(os.fstat(self._fd).st_size), 0)
        return record

    def memory_ran_out(self, loading: bool = False) -> str:
        """Makes the next KV cache smaller, if that may help. Returns what happens and what to set.

        `loading`: memory ran out before this worker registered.
        """
        before = self.read()
        if before.cache is None or loading:
            return "use a smaller model or --quantization int8, or raise the memory limit"
        after = msgspec.structs.replace(before, shrinks=before.shrinks + 1)
        if before.shrinks == MAX_SHRINKS or after.num_blocks == before.num_blocks:
            return f"the KV cache gets no smaller: {LOWER}, or --max-model-len"
        self.update(shrinks=after.shrinks)
        return f"the next KV cache has {after.num_blocks} of {before.cache.num_blocks} blocks; {LOWER}"

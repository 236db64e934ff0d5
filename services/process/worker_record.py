"""What a server remembers of its workers, one process after the other: weight files, KV cache, deaths by memory.

The launcher keeps it in an unnamed file in memory, whose descriptor each worker process inherits: it outlives worker
and engine, and ends with the server. A worker that was started alone remembers it for itself only.
"""

import os
from contextlib import suppress

import msgspec


class WeightFile(msgspec.Struct, frozen=True):
    """A fingerprint of a weight file. Digests are hexadecimal."""

    size: int  # bytes
    mtime_ns: int
    sampled: str  # digest of the header and of samples
    every_byte: str = ""  # digest of the whole file, with --verify-weights


class FirstCache(msgspec.Struct, frozen=True):
    """The KV cache that the first worker registered."""

    num_blocks: int
    max_model_len: int  # tokens


class WorkerRecord(msgspec.Struct, frozen=True):
    weights: dict[str, WeightFile] = {}  # at the first load, by file name
    cache: FirstCache | None = None
    shrinks: int = 0  # how often memory ran out: each time the KV cache gets smaller
    serving: bool = False  # the present worker, or the last one, has registered with an engine


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

"""The weight files of a checkpoint: whether each is whole, and whether it is the one that this server first loaded.

A fingerprint has the size, the time of the last change and a digest of samples; with --verify-weights also a digest of
every byte. docs/decisions/0048-memory-and-disk.md has its limits.
"""

import hashlib
import json
import logging
import os
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from services.machine import available_cores
from services.process.worker_record import RecordFile, WeightFile
from services.worker.device import out_of_memory
from services.worker.errors import ModelError

log = logging.getLogger(__name__)
LENGTH_BYTES = 8  # of the header, at the start of a safetensors file
MAX_HEADER_BYTES = 100_000_000  # what the safetensors library accepts
SAMPLE_BYTES = 4096
NUM_SAMPLES = 64  # of a file, beside the header and the first bytes of every tensor
PIECE_BYTES = 16 * 2**20  # what a thread hashes at once
_ADVICE = "; put the former file back, or restart the server"


@contextmanager
def opened(file: Path) -> Iterator[Any]:
    """Yields a safetensors file. Raises ModelError, naming it, if it cannot be read; OSError if memory runs out."""
    try:
        with safe_open(file, framework="pt") as tensors:
            yield tensors
    except (SafetensorError, OSError) as error:
        if out_of_memory(error):
            raise
        reason = _not_whole(file) or f"cannot read the weights in {file}: {error}"
        raise ModelError(reason) from error


def _not_whole(file: Path) -> str:
    """Returns which size the file has and which one its header says; empty if they agree or it has no such header."""
    try:
        size = file.stat().st_size
        with file.open("rb") as raw:
            end = LENGTH_BYTES + int.from_bytes(raw.read(LENGTH_BYTES).ljust(LENGTH_BYTES, b"\0"), "little")
            if end > LENGTH_BYTES + MAX_HEADER_BYTES:
                return ""
            header = raw.read(end - LENGTH_BYTES)
        expected, least = end, "at least "
        if 2 + LENGTH_BYTES <= end <= size:
            parts = [value["data_offsets"][1] for name, value in json.loads(header).items() if name != "__metadata__"]
            expected, least = end + max(parts, default=0), ""
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return ""
    if size == expected:
        return ""
    return (
        f"the weight file {file} is not whole: it has {size} bytes, but its header says {least}{expected}:"
        " fetch it again"
    )


class WeightFiles:
    """The weight files of one load, compared with the server's first load."""

    def __init__(self, record: RecordFile, every_byte: bool) -> None:
        """`every_byte`: --verify-weights."""
        self._record = record
        self._every_byte = every_byte
        self._found: dict[Path, WeightFile] = {}

    def version(self, files: list[Path]) -> str:
        """Takes the fingerprints of the files; the server's first ones are recorded. Returns the weights version.

        It is 16 hex digits of a hash of all sizes and digests. Raises ModelError if a file is not the one of the first
        load, and as `opened`.
        """
        self._found = {file: fingerprint(file, self._every_byte) for file in files}
        first = self._record.read().weights
        if first:
            compare(first, self._found)
        else:
            self._record.update(weights={file.name: found for file, found in self._found.items()})
        parts = [(found.size, found.sampled, found.every_byte) for found in self._found.values()]
        return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]

    def check_unchanged(self) -> None:
        """Raises ModelError if a file has been written to since `version`. Call it when the weights are loaded."""
        for file, found in self._found.items():
            now = file.stat()
            if (now.st_size, now.st_mtime_ns) != (found.size, found.mtime_ns):
                raise ModelError(f"the weight file {file} was written to while it was loaded: start again")


def compare(first: dict[str, WeightFile], found: dict[Path, WeightFile]) -> None:
    """Raises ModelError if the files found are not those of the first load.

    Another time of the last change alone is no reason, because copying and `touch` change it: it is logged.
    """
    names = {file.name for file in found}
    if missing := sorted(first.keys() - names):
        raise ModelError(f"the weight file {missing[0]} is gone, which this server loaded at first{_ADVICE}")
    for file, now in found.items():
        before = first.get(file.name)
        if what := "it was not there" if before is None else _difference(before, now):
            raise ModelError(f"the weight file {file} has changed since this server first loaded it: {what}{_ADVICE}")
        if before is not None and now.mtime_ns != before.mtime_ns and not now.every_byte:
            log.warning(
                "the weight file %s has another time of its last change than at this server's first load, but the same"
                " size and the same sampled bytes: it is served; --verify-weights compares every byte",
                file,
            )


def _difference(before: WeightFile, now: WeightFile) -> str:
    if now.size != before.size:
        return f"it had {before.size} bytes and has {now.size}"
    if now.sampled != before.sampled:
        return f"it has the same size, but another digest of sampled bytes ({before.sampled}, now {now.sampled})"
    if now.every_byte != before.every_byte:
        return f"it has the same size, but another digest of all bytes ({before.every_byte}, now {now.every_byte})"
    return ""


def fingerprint(file: Path, every_byte: bool) -> WeightFile:
    """Returns the fingerprint of a safetensors file. `every_byte`: with a digest of all of it. Raises as `opened`."""
    with opened(file), file.open("rb") as raw:
        found = os.fstat(raw.fileno())
        sampled = _sampled(raw.fileno(), found.st_size)
        whole = _every_byte(raw.fileno(), found.st_size) if every_byte else ""
    return WeightFile(found.st_size, found.st_mtime_ns, sampled, whole)


def _sampled(fd: int, size: int) -> str:
    """Returns 16 hex digits of a SHA-256 over the header, the first bytes of every tensor, NUM_SAMPLES blocks of the
    file and its end. Training changes the first bytes of every tensor."""
    length = int.from_bytes(os.pread(fd, LENGTH_BYTES, 0), "little")
    header = os.pread(fd, length, LENGTH_BYTES)
    digest = hashlib.sha256(header)
    for _, value in sorted(json.loads(header).items()):
        if "data_offsets" in value:
            begin, end = value["data_offsets"]
            digest.update(os.pread(fd, min(SAMPLE_BYTES, end - begin), LENGTH_BYTES + length + begin))
    places = random.Random(size)  # the same ones at each load
    for offset in [*sorted(int(places.random() * size) for _ in range(NUM_SAMPLES)), max(0, size - SAMPLE_BYTES)]:
        digest.update(os.pread(fd, SAMPLE_BYTES, offset))
    return digest.hexdigest()[:16]


def _every_byte(fd: int, size: int) -> str:
    """Returns 32 hex digits of a SHA-256 over the SHA-256 of each piece of the file. Hashes on all cores."""

    def piece(offset: int) -> bytes:
        return hashlib.sha256(os.pread(fd, PIECE_BYTES, offset)).digest()

    with ThreadPoolExecutor(available_cores(), "verify-weights") as threads:
        pieces = b"".join(threads.map(piece, range(0, size, PIECE_BYTES)))
    return hashlib.sha256(pieces).hexdigest()[:32]

"""What a server remembers of its workers: every process that has the descriptor reads what the last one wrote."""

import os
import subprocess
import sys

import pytest

from services.machine import unnamed_file
from services.process.worker_record import FirstCache, RecordFile, WeightFile, WorkerRecord

FILES = {f"model-{index}.safetensors": WeightFile(7, 9, "ab", "cd") for index in range(50)}
COUNT = "import sys; from services.process.worker_record import RecordFile; r = RecordFile(int(sys.argv[1]));"
COUNT += "r.update(shrinks=r.read().shrinks + 1)"


@pytest.mark.parametrize("in_a_file", [True, False])
def test_a_record_keeps_what_is_not_changed(in_a_file: bool) -> None:
    fd = unnamed_file("test") if in_a_file else None
    record = RecordFile(fd)
    assert record.read() == WorkerRecord()
    record.update(weights=FILES)
    record.update(cache=FirstCache(5, 80), serving=True)
    assert record.read() == WorkerRecord(FILES, FirstCache(5, 80), 0, True)
    record.update(weights={})
    assert record.read() == WorkerRecord({}, FirstCache(5, 80), 0, True), "a shorter record"
    if fd is not None:
        os.close(fd)


def test_the_record_passes_from_process_to_process() -> None:
    fd = unnamed_file("test")
    RecordFile(fd).update(weights=FILES)
    for _ in range(2):
        subprocess.run([sys.executable, "-c", COUNT, str(fd)], pass_fds=[fd], check=True, timeout=60)
    assert RecordFile(fd).read() == WorkerRecord(FILES, shrinks=2)
    os.close(fd)


def test_without_memfd_the_file_is_on_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "memfd_create", raising=False)
    fd = unnamed_file("test")
    RecordFile(fd).update(shrinks=3)
    assert RecordFile(fd).read().shrinks == 3
    assert os.fstat(fd).st_nlink == 0
    os.close(fd)

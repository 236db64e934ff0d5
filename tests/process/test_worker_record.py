"""What a server remembers of its workers: every process that has the descriptor reads what the last one wrote."""

import os
import subprocess
import sys

import pytest

from engine_core.kv_cache_size import KvCacheSize
from services.machine import unnamed_file
from services.process.worker_record import RecordFile, WeightFile, WorkerRecord

FILES = {f"model-{index}.safetensors": WeightFile(7, 9, "ab", "cd") for index in range(50)}
CACHE = KvCacheSize(5, 80, 5)
COUNT = "import sys; from services.process.worker_record import RecordFile; r = RecordFile(int(sys.argv[1]));"
COUNT += "r.update(shrinks=r.read().shrinks + 1)"


@pytest.mark.parametrize("in_a_file", [True, False])
def test_a_record_keeps_what_is_not_changed(in_a_file: bool) -> None:
    fd = unnamed_file("test") if in_a_file else None
    record = RecordFile(fd)
    assert record.read() == WorkerRecord()
    record.update(weights=FILES)
    record.update(cache=CACHE, serving=True)
    assert record.read() == WorkerRecord(FILES, CACHE, 0, True)
    record.update(weights={})
    assert record.read() == WorkerRecord({}, CACHE, 0, True), "a shorter record"
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


def test_the_kv_cache_shrinks_three_times_and_never_below_one_request() -> None:
    large, small = RecordFile(None), RecordFile(None)
    large.update(cache=KvCacheSize(100, 80, 5), serving=True)
    assert [large.memory_ran_out().partition(";")[0] for _ in range(4)] == [
        "the next KV cache has 85 of 100 blocks",
        "the next KV cache has 72 of 100 blocks",
        "the next KV cache has 61 of 100 blocks",
        "the KV cache gets no smaller: lower --kv-cache-memory-bytes (on a GPU, or --gpu-memory-utilization) or"
        " --max-num-batched-tokens, or --max-model-len",
    ]
    assert (large.read().num_blocks, large.read().shrinks) == (61, 3)
    small.update(cache=KvCacheSize(10, 144, 9), serving=True)
    assert small.memory_ran_out().startswith("the next KV cache has 9 of 10 blocks; lower --kv-cache-memory-bytes")
    assert small.memory_ran_out().startswith("the KV cache gets no smaller")


def test_a_smaller_kv_cache_does_not_help_a_worker_that_loads() -> None:
    record = RecordFile(None)
    assert record.memory_ran_out().startswith("use a smaller model or --quantization int8")
    record.update(cache=CACHE)
    assert record.memory_ran_out(loading=True).startswith("use a smaller model or --quantization int8")
    assert record.read().shrinks == 0

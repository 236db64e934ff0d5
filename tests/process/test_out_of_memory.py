"""An end by the kernel's out-of-memory killer is told apart from other ends, and makes the next worker smaller."""

import signal

import pytest

from engine_core.kv_cache_size import KvCacheSize
from services.process import out_of_memory
from services.process.out_of_memory import OutOfMemoryKills
from services.process.worker_record import RecordFile


class Counter:
    """Stands for the kernel's count."""

    def __init__(self) -> None:
        self.kills = 5

    def __call__(self) -> int:
        return self.kills


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Counter:
    counter = Counter()
    monkeypatch.setattr(out_of_memory, "oom_kills", counter)
    return counter


@pytest.fixture
def record() -> RecordFile:
    record = RecordFile(None)
    record.update(cache=KvCacheSize(100, 80, 5), serving=True)
    return record


def test_only_a_kill_that_the_kernel_counts_is_one(kernel: Counter, record: RecordFile) -> None:
    ends = OutOfMemoryKills(record)
    assert ends.explain("worker", -signal.SIGKILL) == ""
    kernel.kills += 1
    assert ends.explain("worker", 1) == "", "it ended itself"
    assert ends.explain("worker", -signal.SIGKILL) == "", "that kill was another process's"
    kernel.kills += 1
    assert ends.explain("worker", -signal.SIGKILL).startswith(
        " by the kernel, because memory ran out: the next KV cache has 85 of 100 blocks; lower --kv-cache-memory-bytes"
    )
    assert record.read().shrinks == 1


def test_another_role_is_named_without_a_smaller_worker(kernel: Counter, record: RecordFile) -> None:
    ends = OutOfMemoryKills(record)
    kernel.kills += 1
    assert ends.explain("engine", -signal.SIGKILL).endswith("raise the memory limit, or lower --kv-cache-memory-bytes")
    assert record.read().shrinks == 0


def test_a_worker_that_still_loads_is_told_so(kernel: Counter, record: RecordFile) -> None:
    record.update(serving=False)
    ends = OutOfMemoryKills(record)
    kernel.kills += 1
    assert "use a smaller model or --quantization int8" in ends.explain("worker", -signal.SIGKILL)

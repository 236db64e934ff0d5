"""Events and staging of a device, its errors when memory runs out, and the batch sizes of graphs."""

import gc
from contextlib import nullcontext
from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch

from services.worker.device import GRAPH_SIZES, CpuDevice, CudaDevice, Device, out_of_memory

on_a_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (torch.OutOfMemoryError("no memory"), True),
        (RuntimeError("CUDA error: out of memory"), True),
        (RuntimeError("Triton Error [CUDA]: out of memory"), True),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), False),
    ],
)
def test_errors_of_allocator_and_driver_are_told_from_others(error: RuntimeError, expected: bool) -> None:
    assert out_of_memory(error) is expected


def test_cpu_events_are_complete_and_count_the_kernels_between_them() -> None:
    counted = iter([1_000, 4_500])
    device: Device = CpuDevice(lambda: next(counted))
    begin, end = device.record_event(), device.record_event()
    end.synchronize()
    assert begin.query() and end.query()
    assert device.kernel_nanoseconds(begin, end) == 3_500


def test_a_cpu_stages_bytes_and_has_neither_graphs_nor_a_profile_run() -> None:
    device = CpuDevice(lambda: 0)
    buffer = device.staging_buffer(100)
    assert buffer.shape == (100,) and buffer.dtype == torch.uint8 and buffer.device == device.torch_device
    assert not device.graph_sizes and not device.compiles and device.shares_memory
    with pytest.raises(AssertionError, match="no graphs"):
        device.capture(lambda: None)
    with pytest.raises(AssertionError, match="no profile run"):
        device.used_bytes()


def test_graph_sizes_ascend_and_small_batches_get_little_padding() -> None:
    assert list(GRAPH_SIZES) == sorted(set(GRAPH_SIZES))
    assert all(after - before <= max(4, before) for before, after in pairwise(GRAPH_SIZES))
    assert max(GRAPH_SIZES) >= 256


@on_a_gpu
def test_a_graph_repeats_what_was_captured_on_the_same_memory() -> None:
    device = CudaDevice(torch.device("cuda"))
    x, out = torch.zeros(4, device="cuda"), torch.zeros(4, device="cuda")
    replay = device.capture(lambda: out.copy_(x + 1))
    x.fill_(5)
    begin = device.record_event()
    replay()
    end = device.record_event()
    end.synchronize()
    assert out.tolist() == [6] * 4 and end.query() and device.kernel_nanoseconds(begin, end) > 0


def stand_in(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Replaces torch.cuda and the garbage collection by ones that log what is called; returns the log."""
    log: list[str] = []

    class Stream:
        def __init__(self, *_: object) -> None:
            pass

        def wait_stream(self, stream: object) -> None:
            pass

    class Graph:
        def capture_begin(self, **_: object) -> None:
            log.append("begin")

        def capture_end(self) -> None:
            log.append("end")

        def replay(self) -> None:
            log.append("replay")

    replaced = {
        "Stream": Stream,
        "CUDAGraph": Graph,
        "Event": lambda enable_timing: SimpleNamespace(record=lambda: log.append("event")),
        "current_stream": Stream,
        "graph_pool_handle": lambda: None,
        "stream": lambda stream: nullcontext(),
        "synchronize": lambda device: log.append("synchronize"),
    }
    for name, value in replaced.items():
        monkeypatch.setattr(torch.cuda, name, value)
    monkeypatch.setattr(gc, "collect", lambda generation: log.append("collect"))
    return log


def test_within_a_capture_nothing_is_collected_and_nothing_else_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    log = stand_in(monkeypatch)
    device = CudaDevice(torch.device("cuda"))
    log.clear()
    device.capture(lambda: log.append(f"work, collector {'on' if gc.isenabled() else 'off'}"))()
    assert gc.isenabled() and log == [
        "work, collector on", "collect", "synchronize", "begin", "work, collector off", "end", "synchronize", "replay",
    ]  # fmt: skip


def test_after_a_failed_capture_garbage_is_collected_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    log = stand_in(monkeypatch)
    device, results = CudaDevice(torch.device("cuda")), iter([None, RuntimeError("out of memory")] * 2)

    def work() -> None:
        if (error := next(results)) is not None:
            raise error

    for was_enabled in (True, False):
        (gc.enable if was_enabled else gc.disable)()
        try:
            with pytest.raises(RuntimeError, match="out of memory"):
                device.capture(work)
            assert gc.isenabled() is was_enabled and log[-1] == "end"
        finally:
            gc.enable()


def test_a_step_begins_where_its_inputs_are_ready() -> None:
    counted = iter([1_000, 2_000, 4_500])
    device: Device = CpuDevice(lambda: next(counted))
    earlier = device.record_event()
    device.mark_step()
    began, end = device.step_began, device.record_event()
    assert device.kernel_nanoseconds(began, end) == 2_500
    assert earlier.recorded_at < began.recorded_at < end.recorded_at

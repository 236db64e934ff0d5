"""Events and staging of a device, its errors when memory runs out, and the batch sizes of graphs."""

from itertools import pairwise

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

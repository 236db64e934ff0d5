"""What a model runner needs of a device beside its kernels: memory to send from, moments in its queue, graphs, and how
much of its memory is taken.

A graph is a sequence of kernels that was recorded once, with the addresses that it reads and writes, and starts as one.
"""

import gc
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Protocol

import torch
from torch import Tensor

NANO_PER_MILLI = 1e6
# Beyond these a decoding batch is so large that launching its kernels one by one takes less time than they run.
GRAPH_SIZES = (1, 2, 4, *range(8, 257, 8), *range(272, 513, 16))


class DeviceEvent(Protocol):
    """A place in the device's queue: it has passed when all that was queued before it is done."""

    def query(self) -> bool: ...
    def synchronize(self) -> None: ...


class Device(Protocol):
    torch_device: torch.device
    shares_memory: bool  # with the host: what this writes, kernels see
    graph_sizes: Sequence[int]  # of batches that are worth a graph, ascending
    compiles: bool  # kernels at first use, so that the largest steps are tried before there are requests

    def staging_buffer(self, num_bytes: int) -> Tensor:
        """[num_bytes] uint8 on the host, from where copies to the device are asynchronous."""

    def record_event(self) -> DeviceEvent: ...

    def kernel_nanoseconds(self, begin: DeviceEvent, end: DeviceEvent) -> int:
        """Of the time between two moments that have passed, that in which the device had work."""

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        """A graph of `work`, which is run once before, so that whatever is compiled or loaded at first use is.

        Raises an error that is `out_of_memory` when it is.
        """

    def used_bytes(self) -> int:
        """Of its memory, by whomever: what an allocator holds for later is taken."""

    def release_cached_memory(self) -> None:
        """What an allocator holds for later is taken no more."""


def out_of_memory(error: RuntimeError) -> bool:
    """Whether a device's memory ran out: torch's allocator has an error for it, drivers say it in words, where a graph
    is made ready or a kernel loaded."""
    return isinstance(error, torch.OutOfMemoryError) or "out of memory" in str(error)


class HostEvent:
    """On a CPU a launched kernel is done."""

    def __init__(self, kernel_nanoseconds: int) -> None:
        self.kernel_nanoseconds = kernel_nanoseconds

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        pass


class CpuDevice:
    torch_device = torch.device("cpu")
    shares_memory = True
    graph_sizes: Sequence[int] = ()
    compiles = False

    def __init__(self, kernel_nanoseconds: Callable[[], int]) -> None:
        """`kernel_nanoseconds`: the time that the kernels have counted so far (Ops)."""
        self._kernel_nanoseconds = kernel_nanoseconds

    def staging_buffer(self, num_bytes: int) -> Tensor:
        return torch.empty(num_bytes, dtype=torch.uint8)

    def record_event(self) -> HostEvent:
        return HostEvent(self._kernel_nanoseconds())

    def kernel_nanoseconds(self, begin: DeviceEvent, end: DeviceEvent) -> int:
        assert isinstance(begin, HostEvent) and isinstance(end, HostEvent)
        return end.kernel_nanoseconds - begin.kernel_nanoseconds

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        raise AssertionError("a CPU has no graphs")

    def used_bytes(self) -> int:
        raise AssertionError("on a CPU nothing is tried: what a step takes is computed")

    def release_cached_memory(self) -> None:
        pass


class CudaEvent:
    def __init__(self) -> None:
        self.event = torch.cuda.Event(enable_timing=True)
        self.event.record()

    def query(self) -> bool:
        return bool(self.event.query())

    def synchronize(self) -> None:
        self.event.synchronize()


class CudaDevice:
    """All work goes to the current stream; graphs share one pool of memory, for they never run at the same time."""

    shares_memory = False
    graph_sizes: Sequence[int] = GRAPH_SIZES
    compiles = True

    def __init__(self, torch_device: torch.device) -> None:
        self.torch_device = torch_device
        self._pool = torch.cuda.graph_pool_handle()
        self._recording = torch.cuda.Stream(torch_device)  # the default stream cannot be recorded

    def staging_buffer(self, num_bytes: int) -> Tensor:
        return torch.empty(num_bytes, dtype=torch.uint8, pin_memory=True)

    def record_event(self) -> CudaEvent:
        return CudaEvent()

    def kernel_nanoseconds(self, begin: DeviceEvent, end: DeviceEvent) -> int:
        """By the device's clock, from when it came to `begin`: what lies between two steps is not in it."""
        assert isinstance(begin, CudaEvent) and isinstance(end, CudaEvent)
        return int(begin.event.elapsed_time(end.event) * NANO_PER_MILLI)

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        work()  # on the current stream, whose memory is used again
        current = torch.cuda.current_stream(self.torch_device)
        self._recording.wait_stream(current)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(self._recording):
            graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
            try:
                work()
            except BaseException:
                with suppress(RuntimeError):  # the first error says more
                    graph.capture_end()
                raise
            graph.capture_end()
        current.wait_stream(self._recording)
        return graph.replay

    def used_bytes(self) -> int:
        free, total = torch.cuda.mem_get_info(self.torch_device)
        return total - free

    def release_cached_memory(self) -> None:
        gc.collect()
        torch.cuda.empty_cache()

"""What a model runner needs of a device besides kernels: staging buffers, events, graphs, and its used memory.

A graph is a CUDA graph: kernels that are captured once, with their memory addresses, and replayed by one launch. A CPU
has none.
"""

import gc
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Protocol

import torch
from torch import Tensor

NANO_PER_MILLI = 1e6
YOUNG = 1  # the oldest generation of Python's collector that is collected before each capture
# Batch sizes of graphs. A larger decode batch keeps the GPU busy while its kernels are launched one by one.
GRAPH_SIZES = (1, 2, 4, *range(8, 257, 8), *range(272, 513, 16))


class DeviceEvent(Protocol):
    """An event in the device's stream, as torch.cuda.Event: complete when all work launched before it is done.

    `recorded_at`: the host's clock when it was recorded, in nanoseconds (time.perf_counter_ns).
    """

    recorded_at: int

    def query(self) -> bool:
        """Returns whether the event is complete."""

    def synchronize(self) -> None:
        """Waits until the event is complete."""


class Device(Protocol):
    torch_device: torch.device
    shares_memory: bool  # with the host: kernels read the host's tensors
    graph_sizes: Sequence[int]  # batch sizes to capture, ascending
    compiles: bool  # kernels are compiled at first use: a profile run comes before the first request

    @property
    def step_began(self) -> DeviceEvent:
        """The event that the last mark_step recorded."""

    def mark_step(self) -> None:
        """Records the event at which the device's work of a step begins.

        Called when the step's inputs are ready on the host, right before they are copied.
        """

    def staging_buffer(self, num_bytes: int) -> Tensor:
        """Returns a new host tensor [num_bytes] uint8; on CUDA pinned, so that copies from it are asynchronous."""

    def record_event(self) -> DeviceEvent:
        """Records an event after all work launched so far, and returns it."""

    def kernel_nanoseconds(self, begin: DeviceEvent, end: DeviceEvent) -> int:
        """Returns the nanoseconds between two complete events.

        On a GPU all of them, gaps between kernels included; on a CPU only those in compiled kernels.
        """

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        """Runs `work` once as a warm-up, then captures it as a graph. Returns a function that replays the graph.

        Raises RuntimeError if that fails; `out_of_memory` says whether memory was the cause. GPU only.
        """

    def used_bytes(self) -> int:
        """Returns the device memory in use by all processes, torch's cached memory included, in bytes. GPU only."""

    def release_cached_memory(self) -> None:
        """Gives unused cached memory of torch's allocator back to the device; does nothing on a CPU."""


def out_of_memory(error: Exception) -> bool:
    """Returns whether the error means that memory ran out.

    torch's allocator on a GPU and Python have a type for it. The errors of the driver (graph capture, kernel loading)
    and of cuBLAS, those of torch on a CPU and the system's say it in the text.
    """
    told = ("out of memory", "Cannot allocate memory", "CUBLAS_STATUS_ALLOC_FAILED")
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or any(text in str(error) for text in told)


@contextmanager
def collected_before() -> Iterator[None]:
    """Collects recent garbage, then switches the collector off until the end of the `with` block, if it was on.

    A full collection would take about 0.1 s for each graph; release_cached_memory does one when memory runs out.
    """
    gc.collect(YOUNG)
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class HostEvent:
    """A CPU runs kernels synchronously, so its events are always complete.

    `kernel_nanoseconds`: total time in compiled kernels when the event was recorded.
    """

    def __init__(self, kernel_nanoseconds: int) -> None:
        self.kernel_nanoseconds = kernel_nanoseconds
        self.recorded_at = time.perf_counter_ns()

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
        """`kernel_nanoseconds` returns the total time in compiled kernels so far (Ops.kernel_nanoseconds)."""
        self._kernel_nanoseconds = kernel_nanoseconds
        self.step_began = HostEvent(0)

    def mark_step(self) -> None:
        self.step_began = self.record_event()

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
        raise AssertionError("a CPU has no profile run: the peak of a step is computed from shapes")

    def release_cached_memory(self) -> None:
        pass


class CudaEvent:
    def __init__(self) -> None:
        self.event = torch.cuda.Event(enable_timing=True)
        self.event.record()
        self.recorded_at = time.perf_counter_ns()

    def query(self) -> bool:
        return bool(self.event.query())

    def synchronize(self) -> None:
        self.event.synchronize()


class CudaDevice:
    """Uses the current stream, and its own one to capture. All graphs share one memory pool: no two run at once."""

    shares_memory = False
    graph_sizes: Sequence[int] = GRAPH_SIZES
    compiles = True

    def __init__(self, torch_device: torch.device) -> None:
        self.torch_device = torch_device
        self._pool = torch.cuda.graph_pool_handle()
        self._capture_stream = torch.cuda.Stream(torch_device)  # the default stream cannot be captured
        self.step_began = self.record_event()

    def mark_step(self) -> None:
        self.step_began = self.record_event()

    def staging_buffer(self, num_bytes: int) -> Tensor:
        return torch.empty(num_bytes, dtype=torch.uint8, pin_memory=True)

    def record_event(self) -> CudaEvent:
        return CudaEvent()

    def kernel_nanoseconds(self, begin: DeviceEvent, end: DeviceEvent) -> int:
        """Returns the time between the events by the device's clock, gaps between kernels included."""
        assert isinstance(begin, CudaEvent) and isinstance(end, CudaEvent)
        return int(begin.event.elapsed_time(end.event) * NANO_PER_MILLI)

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        work()  # warm-up on the current stream
        current = torch.cuda.current_stream(self.torch_device)
        self._capture_stream.wait_stream(current)
        graph = torch.cuda.CUDAGraph()
        # A collection within a capture may free memory, events or graphs: the driver then gives the capture up.
        with collected_before(), torch.cuda.stream(self._capture_stream):
            torch.cuda.synchronize(self.torch_device)
            graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
            try:
                work()
            except BaseException:
                with suppress(RuntimeError):  # the first error is the cause
                    graph.capture_end()
                raise
            graph.capture_end()
            torch.cuda.synchronize(self.torch_device)
        current.wait_stream(self._capture_stream)
        return graph.replay

    def used_bytes(self) -> int:
        free, total = torch.cuda.mem_get_info(self.torch_device)
        return total - free

    def release_cached_memory(self) -> None:
        gc.collect()
        torch.cuda.empty_cache()

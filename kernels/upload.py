"""Copies weights from memory-mapped files to a device through pinned memory.

Several threads read the page cache while the device copies what other threads have read. A copy directly from mapped
memory would wait for one page at a time.
"""

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext

import torch
from torch import Tensor

PIECE_BYTES = 16 * 1024**2
THREADS = 4


def fill(target: Tensor, parts: Sequence[Tensor]) -> None:
    """Copies `parts` [.., k] on the host, concatenated along rows, into target [rows, k], in target's dtype.

    Waits until the copies are done. Kernels launched later on the current stream see the result.
    """
    copies = _CopyThreads(target.device)
    with ThreadPoolExecutor(THREADS) as threads:
        rows = max(1, PIECE_BYTES // (target.shape[1] * target.element_size()))
        first, pieces = 0, []
        for part in parts:
            for at in range(0, len(part), rows):
                piece = part[at : at + rows]
                pieces.append(threads.submit(copies.copy, target[first : first + len(piece)], piece))
                first += len(piece)
        for done in pieces:
            done.result()
    copies.join()


class _CopyThreads:
    """One CUDA stream and one pinned staging buffer per thread. A buffer is reused once its own last copy is done."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._own = threading.local()
        self._all: list[torch.cuda.Stream] = []
        if device.type == "cuda":
            self._before = torch.cuda.current_stream(device).record_event()

    def copy(self, target: Tensor, piece: Tensor) -> None:
        stream = self._stream()
        if stream is not None:
            stream.synchronize()
        staging = self._staging(target)
        staging.copy_(piece)
        with torch.cuda.stream(stream) if stream is not None else nullcontext():
            target.copy_(staging, non_blocking=True)

    def join(self) -> None:
        for stream in self._all:
            torch.cuda.current_stream(self._device).wait_stream(stream)
            stream.synchronize()  # before the pinned memory is freed

    def _stream(self) -> torch.cuda.Stream | None:
        if self._device.type != "cuda":
            return None
        if not hasattr(self._own, "stream"):
            self._own.stream = torch.cuda.Stream(self._device)
            self._own.stream.wait_event(self._before)  # the target is allocated
            self._all.append(self._own.stream)
        return self._own.stream  # type: ignore[no-any-return]

    def _staging(self, target: Tensor) -> Tensor:
        """Returns this thread's host buffer as a tensor of target's shape and dtype."""
        size = target.numel() * target.element_size()
        if not hasattr(self._own, "memory") or self._own.memory.numel() < size:
            self._own.memory = torch.empty(size, dtype=torch.uint8, pin_memory=self._device.type == "cuda")
        return self._own.memory[:size].view(target.dtype).view(target.shape)  # type: ignore[no-any-return]

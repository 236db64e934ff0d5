"""Copies a step's input arrays to the device in one transfer, to fixed addresses that graphs can read."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from services.worker.device import Device, DeviceEvent

ALIGNMENT = 16  # bytes
IN_FLIGHT = 4  # staging buffers: steps that the host may write ahead of the device


@dataclass
class _Staging:
    memory: Tensor
    fetched: DeviceEvent | None = None  # complete when the copy is done and the buffer can be reused


class StepBuffers:
    """`num_bytes` of device memory for one step's arrays; each step overwrites the one before.

    An array's device address depends only on the sizes of the arrays before it.
    """

    def __init__(self, device: Device, num_bytes: int) -> None:
        self._device = device
        count = 1 if device.shares_memory else IN_FLIGHT
        self._staging = [_Staging(device.staging_buffer(num_bytes)) for _ in range(count)]
        self._memory = self._staging[0].memory
        if not device.shares_memory:
            self._memory = torch.empty(num_bytes, dtype=torch.uint8, device=device.torch_device)
        self._next = 0

    def send(self, arrays: list[npt.NDArray[np.integer]]) -> list[Tensor]:
        """Returns the int32 or int64 arrays as device tensors. Waits only if the host is IN_FLIGHT steps ahead.

        Marks the begin of the step (Device.mark_step) before the copy.
        """
        staging = self._staging[self._next]
        self._next = (self._next + 1) % len(self._staging)
        if staging.fetched is not None:
            staging.fetched.synchronize()
        on_host, spans, end = staging.memory.numpy(), [], 0
        for array in arrays:
            spans.append((end, end + array.nbytes))
            on_host[end : end + array.nbytes] = array.reshape(-1).view(np.uint8)
            end += -(-array.nbytes // ALIGNMENT) * ALIGNMENT
        self._device.mark_step()
        if not self._device.shares_memory:
            self._memory[:end].copy_(staging.memory[:end], non_blocking=True)
            staging.fetched = self._device.record_event()
        return [
            self._memory[first:last].view(_TYPES[array.dtype]).view(array.shape)
            for array, (first, last) in zip(arrays, spans, strict=True)
        ]


_TYPES = {np.dtype(np.int32): torch.int32, np.dtype(np.int64): torch.int64}

"""Asynchronous copies of small values between host and device: the host never waits for the device."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor


def to_device(values: Sequence[Any] | npt.NDArray[Any], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Returns a copy on `device`, as `dtype`. Kernels launched later on the current stream see it complete."""
    host = torch.from_numpy(values.copy()) if isinstance(values, np.ndarray) else torch.tensor(values)
    host = host.to(dtype)
    return host.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else host


def to_host(tensor: Tensor) -> Tensor:
    """Returns a copy on the host, or a CPU tensor itself. It is complete once all work queued so far is done."""
    if tensor.device.type != "cuda":
        return tensor
    return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True).copy_(tensor, non_blocking=True)

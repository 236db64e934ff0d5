"""Small host values on their way to a device and back, without the host ever waiting for what the device does."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor


def to_device(values: Sequence[Any] | npt.NDArray[Any], dtype: torch.dtype, device: torch.device) -> Tensor:
    """A copy on `device`; work that is queued there later finds it complete."""
    host = torch.from_numpy(values.copy()) if isinstance(values, np.ndarray) else torch.tensor(values)
    host = host.to(dtype)
    return host.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else host


def to_host(tensor: Tensor) -> Tensor:
    """A copy that is complete once what is queued on the device by now is done."""
    if tensor.device.type != "cuda":
        return tensor
    return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True).copy_(tensor, non_blocking=True)

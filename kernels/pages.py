"""Large tensors on the host, of pages that the system gives only when they are first written, and huge ones if it can.

A page of 4 KiB costs a fault each: gigabytes of them take seconds, where huge pages take a tenth of that.
"""

import contextlib
import math
import mmap

import torch
from torch import Tensor

HUGE_BYTES = 2 * 1024**2  # a huge page of x86-64, and of aarch64 with small pages of 4 KiB
HUGE_ADVICE: int | None = getattr(mmap, "MADV_HUGEPAGE", None)  # Linux alone can be asked for huge pages


def zeros(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Raises OSError where there is not so much memory. It goes back to the system with the tensor."""
    num_bytes = math.prod(shape) * dtype.itemsize
    if num_bytes < HUGE_BYTES:
        return torch.zeros(shape, dtype=dtype)
    # A page more, so that the tensor can begin where a huge page does.
    memory = mmap.mmap(-1, num_bytes + HUGE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if HUGE_ADVICE is not None:
        with contextlib.suppress(OSError):  # a kernel that was built without them
            memory.madvise(HUGE_ADVICE)
    whole = torch.frombuffer(memory, dtype=torch.uint8)
    begin = -whole.data_ptr() % HUGE_BYTES
    return whole[begin : begin + num_bytes].view(dtype).view(shape)

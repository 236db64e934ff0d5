"""Large zeroed host tensors in anonymous mmap memory, on transparent huge pages if the kernel has them.

Pages are committed at their first write. Page faults on 4 KiB pages cost seconds per several GB; huge pages take a
tenth of that.
"""

import contextlib
import math
import mmap

import torch
from torch import Tensor

HUGE_BYTES = 2 * 1024**2  # huge page size of x86-64, and of aarch64 with 4 KiB pages
HUGE_ADVICE: int | None = getattr(mmap, "MADV_HUGEPAGE", None)  # Linux only


def zeros(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Returns a tensor of zeros, from HUGE_BYTES on in its own mmap, which is unmapped when the tensor is freed.

    Raises OSError if mmap fails.
    """
    num_bytes = math.prod(shape) * dtype.itemsize
    if num_bytes < HUGE_BYTES:
        return torch.zeros(shape, dtype=dtype)
    # One huge page more, so that the tensor can be aligned to a huge page.
    memory = mmap.mmap(-1, num_bytes + HUGE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if HUGE_ADVICE is not None:
        with contextlib.suppress(OSError):  # a kernel built without huge pages
            memory.madvise(HUGE_ADVICE)
    whole = torch.frombuffer(memory, dtype=torch.uint8)
    begin = -whole.data_ptr() % HUGE_BYTES
    return whole[begin : begin + num_bytes].view(dtype).view(shape)

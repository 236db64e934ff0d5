"""Large buffers for the kernels: zeros that take no memory until touched, on huge pages where there are any."""

import mmap

import torch
from torch import Tensor

HUGE_PAGE_BYTES = 2 * 1024**2


def empty_bytes(size: int) -> Tensor:
    """[size] uint8, zeros, aligned to a page; given back to the system with the tensor."""
    if size == 0:
        return torch.empty(0, dtype=torch.uint8)
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if size >= HUGE_PAGE_BYTES and hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=torch.uint8)

"""What the launches of kernels are chosen for: the GPU. No bit depends on it."""

import functools
from dataclasses import dataclass

import torch
from triton.runtime import driver


@dataclass(frozen=True)
class Card:
    capability: int  # compute capability: 90 is sm_90
    processors: int  # streaming multiprocessors
    shared_bytes: int  # shared memory that one program can have

    @property
    def name(self) -> str:
        """The name of its table of tiles (tile_table.py)."""
        return f"sm_{self.capability}-{self.processors}"


H100 = Card(90, 132, 227 * 1024)


@functools.cache
def card_of(device: torch.device) -> Card:
    """Returns the card of a CUDA device. For a CPU, on which Triton interprets kernels: H100's."""
    if device.type != "cuda":
        return H100
    found = torch.cuda.get_device_properties(device)
    index = torch.cuda.current_device() if device.index is None else device.index
    shared_bytes = driver.active.utils.get_device_properties(index)["max_shared_mem"]
    return Card(10 * found.major + found.minor, found.multi_processor_count, shared_bytes)

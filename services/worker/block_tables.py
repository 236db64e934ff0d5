"""Which blocks hold each slot's KV: on the host, where places are computed, and on the device, where kernels look."""

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from engine_core.step_plan import unpack_i32
from kernels.transfer import to_device
from services.worker.device import Device

Ints = npt.NDArray[np.int32]


class BlockTables:
    """[slots, blocks] int32. The device's copy is told of what was appended; on a CPU there is one copy."""

    def __init__(self, max_num_seqs: int, max_blocks: int, device: Device) -> None:
        self._host = np.zeros((max_num_seqs, max_blocks), dtype=np.int32)
        self._lengths = np.zeros(max_num_seqs, dtype=np.int64)
        self._shared = device.shares_memory
        self.on_device: Tensor = torch.from_numpy(self._host)
        if not self._shared:
            self.on_device = torch.zeros(self._host.shape, dtype=torch.int32, device=device.place)
        self._news: list[Ints] = []

    def clear(self, slot: int) -> None:
        self._lengths[slot] = 0

    def append(self, slot: int, block_ids: Ints) -> None:
        first = int(self._lengths[slot])
        last = first + len(block_ids)
        self._host[slot, first:last] = block_ids
        self._lengths[slot] = last
        if not self._shared and len(block_ids):
            places = np.arange(first, last)
            self._news.append(np.stack((np.full(len(block_ids), slot), places, block_ids)))

    def append_rows(self, slots: Ints, offsets: bytes, block_ids: bytes) -> None:
        """As a plan has them: of each row, the blocks between its offset and the next one's."""
        starts, ids = unpack_i32(offsets), unpack_i32(block_ids)
        for row in np.flatnonzero(np.diff(starts)).tolist():
            self.append(int(slots[row]), ids[starts[row] : starts[row + 1]])

    def tell_device(self) -> None:
        """Before the kernels that look. Does not wait."""
        if self._news:
            slots, places, block_ids = to_device(np.concatenate(self._news, axis=1), torch.int64, self.on_device.device)
            self.on_device.index_put_((slots, places), block_ids.int())
            self._news.clear()

    def blocks(self, slots: npt.NDArray[np.integer], places: npt.NDArray[np.integer]) -> Ints:
        found: Ints = self._host[slots, places]
        return found

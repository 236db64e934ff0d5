"""Which blocks hold each slot's KV: on the host, where places are computed, and on the device, where kernels look."""

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from engine_core.step_plan import BadMessage
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
            self.on_device = torch.zeros(self._host.shape, dtype=torch.int32, device=device.torch_device)
        self._pending: list[Ints] = []

    def clear(self, slot: int) -> None:
        self._lengths[slot] = 0

    def append(self, slots: Ints, offsets: Ints, block_ids: Ints) -> None:
        """As a plan has them: to each of the slots, which are different ones, the blocks between its offset and the
        next one's. Raises BadMessage where a request would have more than its longest needs."""
        if not len(block_ids):
            return
        counts = np.diff(offsets)
        if (self._lengths[slots] + counts > self._host.shape[1]).any():
            raise BadMessage(f"a request would have more than {self._host.shape[1]} blocks")
        owners = np.repeat(slots, counts)
        places = np.arange(len(block_ids)) + np.repeat(self._lengths[slots] - offsets[:-1], counts)
        self._host[owners, places] = block_ids
        self._lengths[slots] += counts
        if not self._shared:
            self._pending.append(np.stack((owners, places, block_ids)))

    def num_blocks(self, slots: Ints) -> npt.NDArray[np.int64]:
        """Blocks that each of the slots has."""
        return self._lengths[slots]

    def copy_to_device(self) -> None:
        """Before the kernels that look. Does not wait."""
        if self._pending:
            slots, places, block_ids = to_device(
                np.concatenate(self._pending, axis=1), torch.int64, self.on_device.device
            )
            self.on_device.index_put_((slots, places), block_ids.int())
            self._pending.clear()

    def blocks(self, slots: npt.NDArray[np.integer], places: npt.NDArray[np.integer]) -> Ints:
        found: Ints = self._host[slots, places]
        return found

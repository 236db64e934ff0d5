"""Block tables of all slots, per KV group: on the host, for the slot mapping, and on the device, for attention."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from engine_core.step_plan import BadMessage
from kernels.transfer import to_device
from services.worker.device import Device

Ints = npt.NDArray[np.int32]


class BlockTables:
    """Block ids of each slot's request, [groups, max_num_seqs, max_blocks] int32, on the host and in `on_device`.

    A request has as many blocks in each KV group. Those that its window has left behind keep their old ids, or 0.
    `copy_to_device` copies appended blocks; on a CPU both are the same memory.
    """

    def __init__(self, num_groups: int, max_num_seqs: int, max_blocks: int, device: Device) -> None:
        self._host = np.zeros((num_groups, max_num_seqs, max_blocks), dtype=np.int32)
        self._lengths = np.zeros(max_num_seqs, dtype=np.int64)
        self._shared = device.shares_memory
        self.on_device: Tensor = torch.from_numpy(self._host)
        if not self._shared:
            self.on_device = torch.zeros(self._host.shape, dtype=torch.int32, device=device.torch_device)
        self._pending: list[Ints] = []

    def start(self, slot: int, firsts: Sequence[int], block_ids: Sequence[Ints]) -> None:
        """Replaces the slot's blocks by `block_ids`, per group, from the index that `firsts` has on; empty: from 0.

        Raises BadMessage as `append` does.
        """
        padding = [np.zeros(first, dtype=np.int32) for first in firsts or [0] * len(block_ids)]
        whole = np.stack([np.concatenate(pair) for pair in zip(padding, block_ids, strict=True)])
        self._lengths[slot] = 0
        self.append(np.array([slot]), np.array([0, whole.shape[1]]), whole)

    def append(self, slots: Ints, offsets: Ints, block_ids: Ints) -> None:
        """Appends block_ids[:, offsets[i] : offsets[i + 1]] to slots[i], the slots distinct; [groups, blocks] int32.

        The device gets them at the next copy_to_device.

        Raises BadMessage if a slot would have more blocks than a request of max_model_len needs.
        """
        if not block_ids.shape[1]:
            return
        counts = np.diff(offsets)
        if (self._lengths[slots] + counts > self._host.shape[2]).any():
            raise BadMessage(f"a request would have more than {self._host.shape[2]} blocks")
        rows = np.repeat(slots, counts)
        columns = np.arange(block_ids.shape[1]) + np.repeat(self._lengths[slots] - offsets[:-1], counts)
        self._host[:, rows, columns] = block_ids
        self._lengths[slots] += counts
        if not self._shared:
            self._pending.append(np.concatenate((rows[None], columns[None], block_ids)))

    def num_blocks(self, slots: Ints) -> npt.NDArray[np.int64]:
        """Returns the number of blocks of each of `slots`, in each group, [slots] int64."""
        return self._lengths[slots]

    def copy_to_device(self) -> None:
        """Copies appended blocks to the device's tables, asynchronously. Call it before kernels that read them."""
        if self._pending:
            appended = np.concatenate(self._pending, axis=1)
            rows, columns, *block_ids = to_device(appended, torch.int64, self.on_device.device)
            for table, ids in zip(self.on_device, block_ids, strict=True):
                table.index_put_((rows, columns), ids.int())
            self._pending.clear()

    def blocks(self, slots: npt.NDArray[np.integer], indices: npt.NDArray[np.integer]) -> Ints:
        """Returns the ids of block `indices[i]` of slot `slots[i]`, for each i: [groups, pairs] int32."""
        found: Ints = self._host[:, slots, indices]
        return found

"""The forward pass of a step: copies the step's inputs to the device and computes hidden states, by kernels or a graph.

On a device with graphs, a pure decode batch (StepInputs.is_decode) of at most the largest size is padded to the next
size and replays its graph. With batch-invariant kernels, padding changes no bit.
"""

import logging
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from engine_core.step_plan import MAX_SCORED_TOKENS
from kernels.interface import AttentionInputs
from services.worker.device import Device, out_of_memory
from services.worker.input_batch import InputBatch, StepInputs, dummy_inputs, empty_inputs
from services.worker.models.decoder import Decoder, KvCache
from services.worker.step_buffers import StepBuffers

log = logging.getLogger(__name__)
BYTES_PER_TOKEN, BYTES_PER_ROW = 3 * 8, 3 * 8 + 3 * 4  # of a step's input arrays
ALIGNMENT_BYTES = 4096  # for the alignment of the arrays
PROFILE_TOKENS = (2, 8, 40)  # of one prompt: attention with one tile of queries, and with several


@dataclass(frozen=True)
class DeviceInputs:
    """A step's inputs on the device; shapes as in StepInputs, but `slot_mapping` is [T] per KV group."""

    token_slots: Tensor
    positions: Tensor
    slot_mapping: list[Tensor]
    logits_indices: Tensor
    sampled_slots: Tensor
    sampled_positions: Tensor
    request_slots: Tensor
    query_start_loc: Tensor
    seq_lens: Tensor
    num_decodes: int
    max_query_len: int
    max_seq_len: int


class Forward:
    def __init__(
        self,
        decoder: Decoder,
        cache: KvCache,
        batch: InputBatch,
        device: Device,
        max_num_batched_tokens: int,
        max_model_len: int,
        block_size: int,
    ) -> None:
        self._decoder = decoder
        self._cache = cache
        self._batch = batch
        self._device = device
        self._max_num_batched_tokens = max_num_batched_tokens
        self._max_model_len = max_model_len
        self._num_groups = num_groups = len(decoder.kv_layout.windows)
        self._block_size = block_size
        self.max_rows = rows = min(len(batch.slots), max_num_batched_tokens)  # sampled by one step
        num_bytes = (
            (BYTES_PER_TOKEN + 8 * (num_groups - 1)) * max_num_batched_tokens + BYTES_PER_ROW * rows + ALIGNMENT_BYTES
        )
        num_bytes += 8 * (MAX_SCORED_TOKENS + len(batch.slots))  # of logits_indices
        self._buffers = StepBuffers(device, num_bytes)
        self._sizes = sorted({min(size, rows) for size in device.graph_sizes})
        self._graphs: dict[int, Callable[[], None] | None] = {}  # None: not captured for lack of memory
        most = self._sizes[-1] if self._sizes else 0
        self._hidden = torch.empty(
            most, decoder.description.hidden_size, dtype=decoder.dtype, device=device.torch_device
        )

    def run(self, inputs: StepInputs) -> tuple[Tensor, DeviceInputs]:
        """Returns hidden states [S + Q, hidden] of the tokens `logits_indices`, and the inputs on the device.

        The next run may overwrite both. Writes the KV of all tokens. Captures the graph of the batch's size if missing.
        """
        count = len(inputs.request_slots)
        index = bisect_left(self._sizes, count)
        size = self._sizes[index] if inputs.is_decode and index < len(self._sizes) else None
        if size is not None and size not in self._graphs:
            self._capture(size)
        replay = None if size is None else self._graphs[size]
        if size is None or replay is None:
            device_inputs = self._send(inputs, int(inputs.seq_lens.max()))
            return self._compute(device_inputs), device_inputs
        device_inputs = self._send(inputs.padded(size), self._max_model_len)
        replay()
        return self._hidden[:count], device_inputs

    def profile_run(self) -> Tensor:
        """Computes prompts of few and of many tokens; captures the largest graph and those of sizes 2**n.

        Runs before the first request. Returns hidden states [1, hidden] of one token.
        """
        for size in self.missing_graph_sizes:
            if size == self._sizes[-1] or size.bit_count() == 1:
                self._capture(size)
        longest = self._max_model_len
        most = min(self._max_num_batched_tokens, len(self._batch.slots) * longest)
        classes = self._decoder.row_classes(most)
        hidden = [
            self._compute(self._send(dummy_inputs(count, longest, self._block_size, self._num_groups), longest))
            for count in sorted({most, *(min(count, most) for count in PROFILE_TOKENS), *classes})
        ]
        return hidden[0]

    @property
    def missing_graph_sizes(self) -> list[int]:
        """Sizes neither captured nor given up, descending: smaller graphs reuse the memory of larger ones."""
        return [size for size in reversed(self._sizes) if size not in self._graphs]

    def capture_next_graph(self) -> bool:
        """Captures the largest missing graph, or gives up all missing ones if memory runs out.

        Returns False if none was missing.
        """
        missing = self.missing_graph_sizes
        if missing:
            self._capture(missing[0])
        return bool(missing)

    def _capture(self, size: int) -> None:
        """Captures the graph of a batch of `size`. If memory runs out, gives up all graphs that are still missing."""
        device_inputs = self._send(empty_inputs(self._num_groups).padded(size), self._max_model_len)
        if self._try_capture(size, device_inputs):
            return
        self._device.release_cached_memory()  # cached memory of other steps cannot be used by a graph's pool
        if not self._try_capture(size, device_inputs):
            missing = self.missing_graph_sizes
            log.warning("out of memory while capturing a graph of size %d: sizes %s run without graphs", size, missing)
            self._graphs.update(dict.fromkeys(missing))

    def _try_capture(self, size: int, device_inputs: DeviceInputs) -> bool:
        try:
            self._graphs[size] = self._device.capture(lambda: self._compute_into(self._hidden[:size], device_inputs))
        except RuntimeError as error:
            if not out_of_memory(error):
                raise
        return size in self._graphs

    def _send(self, inputs: StepInputs, max_seq_len: int) -> DeviceInputs:
        """Copies inputs and appended blocks to the device; returns the inputs there. `max_seq_len`, in tokens, is how
        much of the block tables the kernels read; graphs always take max_model_len."""
        self._batch.tables.copy_to_device()
        # Graph inputs come first, because an array's address depends on the sizes of the arrays before it. All arrays
        # are aligned to 16 bytes: Triton compiles another kernel for pointers that are not.
        arrays: list[npt.NDArray[np.integer]] = [
            inputs.token_slots, inputs.positions, inputs.logits_indices, inputs.request_slots, inputs.query_start_loc,
            inputs.seq_lens, *inputs.slot_mapping, inputs.sampled_slots, inputs.sampled_positions,
        ]  # fmt: skip
        (
            token_slots, positions, logits_indices, request_slots, query_start_loc, seq_lens, *slot_mapping,
            sampled_slots, sampled_positions,
        ) = self._buffers.send(arrays)  # fmt: skip
        longest = int(np.diff(inputs.query_start_loc).max(initial=0))
        return DeviceInputs(
            token_slots=token_slots,
            positions=positions,
            slot_mapping=slot_mapping,
            logits_indices=logits_indices,
            sampled_slots=sampled_slots,
            sampled_positions=sampled_positions,
            request_slots=request_slots,
            query_start_loc=query_start_loc,
            seq_lens=seq_lens,
            num_decodes=inputs.num_decodes,
            max_query_len=longest,
            max_seq_len=max_seq_len,
        )

    def _compute_into(self, hidden: Tensor, device_inputs: DeviceInputs) -> None:
        hidden.copy_(self._compute(device_inputs))

    def _compute(self, device_inputs: DeviceInputs) -> Tensor:
        width = -(-device_inputs.max_seq_len // self._block_size)
        slots, on_device = device_inputs.request_slots, self._batch.tables.on_device
        tables = [table[:, :width].index_select(0, slots) for table in on_device]
        attention = [
            AttentionInputs(
                slot_mapping=slot_mapping,
                block_tables=table,
                query_start_loc=device_inputs.query_start_loc,
                seq_lens=device_inputs.seq_lens,
                num_decodes=device_inputs.num_decodes,
                max_query_len=device_inputs.max_query_len,
                max_seq_len=device_inputs.max_seq_len,
            )
            for slot_mapping, table in zip(device_inputs.slot_mapping, tables, strict=True)
        ]
        input_ids = self._batch.token_ids[device_inputs.token_slots, device_inputs.positions].long()
        return self._decoder.forward(
            input_ids, device_inputs.positions, self._cache, attention, device_inputs.logits_indices
        )

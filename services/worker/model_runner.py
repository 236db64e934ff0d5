"""Runs step plans: updates the batch, computes the forward pass, samples, builds the result. No sockets.

`launch` starts a plan, `collect` waits for its result. On a GPU the next plan can be launched in between, because
sampled tokens stay on the device and the next step reads them there. On a CPU, `launch` is synchronous.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from engine_core.step_plan import SamplingParams, StepPlan, StepResult, pack_i32
from kernels.interface import DRAW
from services.worker.device import Device, DeviceEvent
from services.worker.forward import Forward
from services.worker.input_batch import InputBatch, StepInputs
from services.worker.models.decoder import Decoder
from services.worker.plan_check import PlanCheck
from services.worker.sampler import (
    MAX_LOGPROBS,
    NO_LOGPROBS,
    AdjustedRow,
    Sampled,
    SampleRows,
    draw_of,
    has_penalty,
    sample,
)

Ints = npt.NDArray[np.integer]
PROFILE_ROWS = (1, 17, 65, 2**31)  # sampled rows in the profile run: each size class of products; capped at all rows
GREEDY = SamplingParams(max_tokens=1, temperature=0.0)
EVERYTHING = SamplingParams(
    max_tokens=1, temperature=1.0, top_p=0.9, top_k=50, min_p=0.001, repetition_penalty=1.1, presence_penalty=0.1,
    frequency_penalty=0.1, min_tokens=1, eos_token_ids=(0,), logprobs=MAX_LOGPROBS,
)  # fmt: skip


@dataclass(frozen=True)
class Launched:
    """A launched plan. `sampled`, on the host, is complete once the event `done` is."""

    plan: StepPlan
    handles: Ints  # [S]: of the sampled rows
    output_indices: Ints  # [S]
    sampled: Sampled
    began: DeviceEvent
    done: DeviceEvent


class ModelRunner:
    def __init__(self, decoder: Decoder, batch: InputBatch, forward: Forward, device: Device, check: PlanCheck) -> None:
        self._check = check
        self._decoder = decoder
        self._batch = batch
        self._forward = forward
        self._device = device

    def execute(self, plan: StepPlan) -> StepResult:
        """Launches a plan, waits for its result and returns it. Raises BadMessage as `launch` does."""
        return self.collect(self.launch(plan))

    @torch.inference_mode()
    def launch(self, plan: StepPlan) -> Launched:
        """Launches a plan and returns it, on a GPU without waiting for its result.

        Raises BadMessage for an invalid plan, or one that does not follow from the last one. The runner cannot be used
        after that.
        """
        self._check(plan)
        inputs = self._batch.apply(plan)
        began = self._device.record_event()
        hidden, device_inputs = self._forward.run(inputs)
        sampled = sample(self._decoder.logits(hidden), self._rows(inputs), self._decoder.ops)
        handles = self._batch.slots.handles[inputs.sampled_slots]
        self._batch.append(inputs, device_inputs.sampled_slots, device_inputs.sampled_positions, sampled.token_ids)
        on_host = sampled.to_host()
        return Launched(plan, handles, inputs.output_indices, on_host, began, self._device.record_event())

    @torch.inference_mode()
    def profile_run(self) -> None:
        """Runs the largest steps, and smaller ones that use other kernels, and captures some graphs. Waits for them.

        Called before the first request.
        """
        hidden = self._forward.profile_run()
        for count in sorted({min(rows, self._forward.max_rows) for rows in PROFILE_ROWS}):
            logits = self._decoder.logits(hidden.expand(count, -1).contiguous())
            for sampling in (GREEDY, EVERYTHING):
                sample(logits, self._dummy_rows(sampling, count), self._decoder.ops).to_host()
        self._device.record_event().synchronize()

    @property
    def num_missing_graphs(self) -> int:
        """Number of graph sizes that are neither captured nor given up for lack of memory."""
        return len(self._forward.missing_graph_sizes)

    @torch.inference_mode()
    def capture_next_graph(self) -> bool:
        """Forward.capture_next_graph: returns False if no graph was missing. Called while no plan runs."""
        return self._forward.capture_next_graph()

    def kernel_nanoseconds(self, launched: Launched) -> int:
        """Returns a completed plan's nanoseconds.

        On a GPU from its first to its last event, gaps included; on a CPU only those in compiled kernels.
        """
        return self._device.kernel_nanoseconds(launched.began, launched.done)

    def collect(self, launched: Launched) -> StepResult:
        """Waits for a plan and returns its result. A row with NaN or infinite logits becomes an error."""
        launched.done.synchronize()
        sampled, handles = launched.sampled, launched.handles
        healthy = sampled.healthy.numpy()
        good = slice(None) if healthy.all() else healthy
        widths, logprob_ids, logprobs = sampled.columns(healthy)
        return StepResult(
            epoch=launched.plan.epoch,
            step_id=launched.plan.step_id,
            handles=pack_i32(handles[good]),
            start_indices=pack_i32(launched.output_indices[good]),
            counts=pack_i32(np.ones(healthy.sum())),
            token_ids=pack_i32(sampled.token_ids.numpy()[good]),
            logprob_widths=pack_i32(widths[good]),
            logprob_token_ids=pack_i32(logprob_ids),
            logprobs=logprobs.astype("<f4").tobytes(),
            errors=[(handle, "the model's logits are NaN or infinite") for handle in handles[~healthy].tolist()],
        )

    def _dummy_rows(self, sampling: SamplingParams, count: int) -> SampleRows:
        """Returns `count` rows with these parameters for the profile run, each of a request of full length."""
        draws = np.array([draw_of(sampling, 0, 0, 0)] * count, dtype=DRAW)
        num_top = NO_LOGPROBS if sampling.logprobs is None else sampling.logprobs
        rows = range(count) if has_penalty(sampling) else ()
        adjusted = {row: AdjustedRow(sampling, 0, *self._batch.token_ids[row, 1:].tensor_split(2)) for row in rows}
        return SampleRows(draws, np.full(count, num_top, dtype=np.int32), adjusted)

    def _rows(self, inputs: StepInputs) -> SampleRows:
        slots, indices = inputs.sampled_slots, inputs.output_indices
        draws = self._batch.slots.draws[slots]
        draws["index"] = indices
        adjusted = {
            row: self._adjusted_row(int(slots[row]), int(inputs.sampled_positions[row]), int(indices[row]))
            for row in self._batch.slots.adjusted(slots, indices)
        }
        return SampleRows(draws, self._batch.slots.num_top[slots], adjusted)

    def _adjusted_row(self, slot: int, num_tokens: int, output_index: int) -> AdjustedRow:
        sampling = self._batch.slots.sampling(slot)
        tokens = self._batch.token_ids[slot, : num_tokens if has_penalty(sampling) else 0]
        prompt = int(self._batch.slots.num_prompt_tokens[slot])
        return AdjustedRow(sampling, output_index, tokens[:prompt], tokens[prompt:])

"""Runs step plans: updates the batch, computes the forward pass, samples, builds the result. No sockets.

`launch` starts a plan, `collect` waits for its result. On a GPU the next plan can be launched in between, because
sampled tokens stay on the device and the next step reads them there. On a CPU, `launch` is synchronous.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from engine_core.step_plan import StepPlan, StepResult, pack_i32
from services.worker.device import Device, DeviceEvent
from services.worker.forward import Forward
from services.worker.input_batch import InputBatch
from services.worker.models.decoder import Decoder
from services.worker.plan_check import PlanCheck
from services.worker.profile_sampling import profile_sampling
from services.worker.sampler import FAULTS, Sampled, SampleRows, sample

Ints = npt.NDArray[np.integer]
PROFILE_ROWS = (1, 17, 65, 2**31)  # sampled rows in the profile run: each size class of products; capped at all rows


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
        sampled = self._sample(self._decoder.logits(hidden), self._batch.sample_rows(inputs))
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
            for sampling in profile_sampling(logits.shape[1], self._check.max_logprobs):
                self._sample(logits, self._batch.dummy_rows(sampling, count)).to_host()
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
        """Waits for a plan and returns its result. A row with one of FAULTS becomes an error."""
        launched.done.synchronize()
        sampled, handles = launched.sampled, launched.handles
        faults = sampled.faults.numpy()
        healthy = faults == 0
        good = slice(None) if healthy.all() else healthy
        widths, logprob_ids, logprobs = sampled.columns(healthy)
        failed = [FAULTS[fault] for fault in faults[~healthy].tolist()]
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
            errors=[(handle, fault.message) for handle, fault in zip(handles[~healthy].tolist(), failed, strict=True)],
            error_causes=[fault.cause for fault in failed],
        )

    def _sample(self, logits: Tensor, rows: SampleRows) -> Sampled:
        return sample(logits, rows, self._batch.logits, self._decoder.ops)

"""Runs plans: batch state, forward pass, sampling, result. Nothing here talks to anybody.

A plan is launched, and its result collected later: on a GPU the next plan can be queued behind it meanwhile, for the
tokens that it samples stay on the device and are found there. On a CPU a launched plan is done.
"""

from dataclasses import dataclass

import numpy as np
import torch

from engine_core.step_plan import SamplingParams, StepPlan, StepResult, pack_i32
from services.worker.device import Device, Moment
from services.worker.forward import Forward
from services.worker.input_batch import InputBatch, StepInputs
from services.worker.models.decoder import Decoder
from services.worker.sampler import Sampled, SampleRow, has_penalty, sample

TRIAL_ROWS = (1, 17, 65, 2**31)  # sampled at once: products of few rows, of some, of many, of all


@dataclass(frozen=True)
class Launched:
    """A plan on its way. `sampled` is complete once `done` has passed."""

    plan: StepPlan
    handles: list[int]  # of the rows that sample
    output_indices: list[int]
    sampled: Sampled
    began: Moment
    done: Moment


class ModelRunner:
    def __init__(self, decoder: Decoder, batch: InputBatch, forward: Forward, device: Device) -> None:
        self._decoder = decoder
        self._batch = batch
        self._forward = forward
        self._device = device
        self._no_tokens = batch.token_ids[0, :0]

    def execute(self, plan: StepPlan) -> StepResult:
        """Launches a plan and waits for it. Raises PlanError."""
        return self.collect(self.launch(plan))

    @torch.inference_mode()
    def launch(self, plan: StepPlan) -> Launched:
        """Does not wait for the device. Raises PlanError when the plan does not follow from the one before it."""
        inputs = self._batch.apply(plan)
        began = self._device.mark()
        hidden, sent = self._forward.run(inputs)
        sampled = sample(self._decoder.logits(hidden), self._rows(inputs), self._decoder.ops)
        handles = [self._batch.slot(index).handle for index in inputs.sampled_slots.tolist()]
        self._batch.append(inputs, sent.sampled_slots, sent.sampled_places, sampled.token_ids)
        on_host = sampled.to_host()
        return Launched(plan, handles, inputs.output_indices.tolist(), on_host, began, self._device.mark())

    @torch.inference_mode()
    def try_out(self) -> bool:
        """Runs what a device with graphs compiles at first use, before there are requests: a step's deadline does not
        allow for that. False where nothing is to be compiled."""
        if not self._device.graph_sizes:
            return False
        hidden = self._forward.try_out()
        for rows in TRIAL_ROWS:
            logits = self._decoder.logits(hidden.expand(min(rows, len(self._batch.slots)), -1).contiguous())[:1]
        for temperature in (0.0, 1.0):
            sampling = SamplingParams(max_tokens=1, temperature=temperature, top_k=2, top_p=0.9, min_p=0.1)
            row = SampleRow(sampling, 0, 0, 0, self._no_tokens, self._no_tokens)
            sample(logits, [row], self._decoder.ops)
        self._device.mark().wait()
        return True

    @torch.inference_mode()
    def record_one(self) -> bool:
        """Readies the device for one more size of batches; False when it is ready for all. For idle moments."""
        return self._forward.record_one()

    def kernel_nanoseconds(self, launched: Launched) -> int:
        """The time that a plan which is done kept the device busy."""
        return self._device.kernel_nanoseconds(launched.began, launched.done)

    def collect(self, launched: Launched) -> StepResult:
        """Waits for the plan. A row whose logits are not numbers ends its own request; the others never notice."""
        launched.done.wait()
        sampled, handles = launched.sampled, launched.handles
        healthy = sampled.healthy.tolist()
        good = [row for row, fine in enumerate(healthy) if fine]
        token_ids, logprobs = sampled.token_ids.tolist(), sampled.rows()
        found = [logprobs[row] for row in good]
        return StepResult(
            epoch=launched.plan.epoch,
            step_id=launched.plan.step_id,
            handles=pack_i32([handles[row] for row in good]),
            start_indices=pack_i32([launched.output_indices[row] for row in good]),
            counts=pack_i32([1] * len(good)),
            token_ids=pack_i32([token_ids[row] for row in good]),
            logprob_widths=pack_i32([len(entry.token_ids) if entry else 0 for entry in found]),
            logprob_token_ids=pack_i32([token_id for entry in found if entry for token_id in entry.token_ids]),
            logprobs=np.array([value for entry in found if entry for value in entry.values], dtype="<f4").tobytes(),
            errors=[
                (handles[row], "the model's output is not a number") for row, fine in enumerate(healthy) if not fine
            ],
        )

    def _rows(self, inputs: StepInputs) -> list[SampleRow]:
        rows = []
        places = (array.tolist() for array in (inputs.sampled_slots, inputs.sampled_places, inputs.output_indices))
        for index, num_tokens, output_index in zip(*places, strict=True):
            slot = self._batch.slot(index)
            prompt = output = self._no_tokens
            if has_penalty(slot.sampling):
                tokens = self._batch.token_ids[index, :num_tokens]
                prompt, output = tokens[: slot.num_prompt_tokens], tokens[slot.num_prompt_tokens :]
            rows.append(SampleRow(slot.sampling, slot.seed, slot.choice, output_index, prompt, output))
        return rows

"""Runs plans: batch state, forward pass, sampling, result. Nothing here talks to anybody.

A plan is launched, and its result collected later: on a GPU the next plan can be queued behind it meanwhile, for the
tokens that it samples stay on the device and are found there. On a CPU a launched plan is done.
"""

from dataclasses import dataclass

import numpy as np
import torch

from engine_core.step_plan import StepPlan, StepResult, pack_i32
from services.worker.input_batch import InputBatch, StepInputs
from services.worker.models.decoder import Decoder, KvCache
from services.worker.sampler import Sampled, SampleRow, sample


@dataclass(frozen=True)
class Launched:
    """A plan on its way. `sampled` is complete once `done` has come to pass."""

    plan: StepPlan
    handles: list[int]  # of the rows that sample
    output_indices: list[int]
    sampled: Sampled
    done: torch.Event | None
    in_kernels: int  # nanoseconds, as far as the kernels count them

    @property
    def is_done(self) -> bool:
        return self.done is None or self.done.query()


class ModelRunner:
    def __init__(self, decoder: Decoder, cache: KvCache, batch: InputBatch) -> None:
        self._decoder = decoder
        self._cache = cache
        self._batch = batch

    def execute(self, plan: StepPlan) -> StepResult:
        """Launches a plan and waits for it. Raises PlanError."""
        return self.collect(self.launch(plan))

    @torch.inference_mode()
    def launch(self, plan: StepPlan) -> Launched:
        """Does not wait for the device. Raises PlanError when the plan does not follow from the one before it."""
        before = self._decoder.ops.kernel_nanoseconds()
        inputs = self._batch.apply(plan)
        logits = self._decoder.forward(
            inputs.input_ids, inputs.positions, self._cache, inputs.attention, inputs.logit_indices
        )
        sampled = sample(logits, self._rows(inputs), self._decoder.ops)
        handles = [self._batch.slot(index).handle for index in inputs.sampled_slots]
        self._batch.append(inputs.sampled_slots, sampled.token_ids)
        on_host, done = sampled.to_host(), None
        if self._decoder.device.type == "cuda":
            done = torch.Event(self._decoder.device)
            done.record()
        in_kernels = self._decoder.ops.kernel_nanoseconds() - before
        return Launched(plan, handles, inputs.output_indices, on_host, done, in_kernels)

    def collect(self, launched: Launched) -> StepResult:
        """Waits for the plan. A row whose logits are not numbers ends its own request; the others never notice."""
        if launched.done is not None:
            launched.done.synchronize()
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
        for index, output_index in zip(inputs.sampled_slots, inputs.output_indices, strict=True):
            slot = self._batch.slot(index)
            tokens = self._batch.token_ids[index, : slot.num_tokens]
            prompt, output = tokens[: slot.num_prompt_tokens], tokens[slot.num_prompt_tokens :]
            rows.append(SampleRow(slot.sampling, slot.seed, slot.choice, output_index, prompt, output))
        return rows

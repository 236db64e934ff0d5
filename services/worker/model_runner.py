"""Runs one plan at a time: batch state, forward pass, sampling, result. Nothing here waits or talks to anybody."""

import numpy as np
import torch

from engine_core.step_plan import StepPlan, StepResult, pack_i32
from services.worker.input_batch import InputBatch, StepInputs
from services.worker.models.decoder import Decoder, KvCache
from services.worker.sampler import RowLogprobs, SampleRow, sample


class ModelRunner:
    def __init__(self, decoder: Decoder, cache: KvCache, batch: InputBatch) -> None:
        self._decoder = decoder
        self._cache = cache
        self._batch = batch

    @torch.inference_mode()
    def execute(self, plan: StepPlan) -> StepResult:
        """Raises PlanError when the plan does not follow from the one before it."""
        inputs = self._batch.apply(plan)
        hidden = self._decoder.forward(inputs.input_ids, inputs.positions, self._cache, inputs.attention)
        logits = self._decoder.logits(hidden[inputs.logit_indices])
        healthy = torch.isfinite(logits).all(dim=-1).tolist()
        token_ids, logprobs = sample(torch.nan_to_num(logits) if not all(healthy) else logits, self._rows(inputs))
        for slot, token_id in zip(inputs.sampled_slots, token_ids, strict=True):
            self._batch.append(slot, token_id)
        return self._result(plan, inputs, token_ids, logprobs, healthy)

    def _rows(self, inputs: StepInputs) -> list[SampleRow]:
        rows = []
        for index, output_index in zip(inputs.sampled_slots, inputs.output_indices, strict=True):
            slot = self._batch.slot(index)
            tokens = self._batch.token_ids[index, : slot.num_tokens]
            prompt, output = tokens[: slot.num_prompt_tokens], tokens[slot.num_prompt_tokens :]
            rows.append(SampleRow(slot.sampling, slot.seed, slot.choice, output_index, prompt, output))
        return rows

    def _result(
        self,
        plan: StepPlan,
        inputs: StepInputs,
        token_ids: list[int],
        logprobs: list[RowLogprobs | None],
        healthy: list[bool],
    ) -> StepResult:
        """A row whose logits are not numbers ends its own request; the others never notice."""
        handles = [self._batch.slot(index).handle for index in inputs.sampled_slots]
        good = [row for row, fine in enumerate(healthy) if fine]
        found = [logprobs[row] for row in good]
        return StepResult(
            epoch=plan.epoch,
            step_id=plan.step_id,
            handles=pack_i32([handles[row] for row in good]),
            start_indices=pack_i32([inputs.output_indices[row] for row in good]),
            counts=pack_i32([1] * len(good)),
            token_ids=pack_i32([token_ids[row] for row in good]),
            logprob_widths=pack_i32([len(entry.token_ids) if entry else 0 for entry in found]),
            logprob_token_ids=pack_i32([token_id for entry in found if entry for token_id in entry.token_ids]),
            logprobs=np.array([value for entry in found if entry for value in entry.values], dtype="<f4").tobytes(),
            errors=[
                (handles[row], "the model's output is not a number") for row, fine in enumerate(healthy) if not fine
            ],
        )

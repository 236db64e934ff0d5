"""Runs step plans: updates the batch, computes the forward pass, samples, builds the result. No sockets.

A plan has two stages, and then `collect` waits for its result. `forward` launches the forward pass, `sample` what
follows. On a GPU the next plan can be launched before that, because sampled tokens stay on the device and the next step
reads them there. But `sample` with a grammar waits for the results of the plans before, whose tokens its masks need. On
a CPU, all is synchronous.
"""

from collections import deque
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from engine_core.step_plan import StepPlan, StepResult, pack_i32
from services.worker.device import Device, DeviceEvent
from services.worker.forward import DeviceInputs, Forward
from services.worker.grammar_masks import GrammarMasks
from services.worker.grammar_rows import GrammarRows
from services.worker.input_batch import InputBatch, StepInputs
from services.worker.models.decoder import Decoder
from services.worker.plan_check import PlanCheck
from services.worker.prepared_grammars import PreparedGrammars
from services.worker.profile_sampling import profile_sampling
from services.worker.prompt_logprobs import Scores, score
from services.worker.sampler import FAULTS, Fault, Sampled, SampleRows, sample

Ints = npt.NDArray[np.integer]


@dataclass(frozen=True)
class Forwarded:
    """A plan whose forward pass is launched, and no later one."""

    plan: StepPlan
    inputs: StepInputs
    device_inputs: DeviceInputs
    logits: Tensor  # [S, vocab] float32
    scores: Scores | None  # None: no prompt token gets logprobs
    grammars: GrammarRows | None  # None: no sampled row has a grammar
    began: DeviceEvent


@dataclass(frozen=True)
class Launched:
    """A launched plan. `sampled`, on the host, is complete once the event `done` is."""

    plan: StepPlan
    handles: Ints  # [S]: of the sampled rows
    output_indices: Ints  # [S]
    sampled: Sampled
    scores: Scores | None
    grammars: GrammarRows | None
    began: DeviceEvent
    done: DeviceEvent


class ModelRunner:
    def __init__(
        self,
        decoder: Decoder,
        batch: InputBatch,
        forward: Forward,
        device: Device,
        check: PlanCheck,
        grammars: PreparedGrammars,
        masks: GrammarMasks,
    ) -> None:
        self.grammars = grammars
        self._masks = masks
        self._behind: deque[Launched] = deque()  # plans whose grammars have not gone on to their tokens
        self._check = check
        self._decoder = decoder
        self._batch = batch
        self._forward = forward
        self._device = device

    def execute(self, plan: StepPlan) -> StepResult:
        """Launches a plan, waits for its result and returns it. Raises BadMessage as `launch` does."""
        return self.collect(self.launch(plan))

    def launch(self, plan: StepPlan) -> Launched:
        """Launches both stages of a plan and returns it. Raises BadMessage as `forward` does."""
        return self.sample(self.forward(plan))

    @torch.inference_mode()
    def forward(self, plan: StepPlan) -> Forwarded:
        """Launches a plan's forward pass, on a GPU without waiting for anything. `sample` must follow.

        Raises BadMessage for an invalid plan, or one that does not follow from the last one. The runner cannot be used
        after that.
        """
        self._check(plan)
        inputs = self._batch.apply(plan)
        self.grammars.apply(plan)
        hidden, device_inputs = self._forward.run(inputs)
        began = self._device.step_began  # not the host's work before: it would count as kernel time
        hidden, scored = inputs.split(hidden)
        scores = self._score(scored, inputs) if scored is not None else None
        logits = self._decoder.logits(hidden)
        return Forwarded(plan, inputs, device_inputs, logits, scores, self.grammars.rows(inputs.sampled_slots), began)

    @torch.inference_mode()
    def sample(self, forwarded: Forwarded) -> Launched:
        """Launches the rest of a plan and returns it. With grammars, waits for the plans before; else for nothing."""
        inputs, on_device, grammars = forwarded.inputs, forwarded.device_inputs, forwarded.grammars
        masks = None
        if grammars is not None:
            while self._behind:
                self._advance_grammars()
            masks = self._masks.fill(grammars)
        sampled = self._sample(forwarded.logits, self._batch.sample_rows(inputs, masks))
        handles = self._batch.slots.handles[inputs.sampled_slots]
        self._batch.append(inputs, on_device.sampled_slots, on_device.sampled_positions, sampled.token_ids)
        on_host, scores = sampled.to_host(), forwarded.scores
        launched = Launched(
            plan=forwarded.plan,
            handles=handles,
            output_indices=inputs.output_indices,
            sampled=on_host,
            scores=scores.to_host() if scores is not None else None,
            grammars=grammars,
            began=forwarded.began,
            done=self._device.record_event(),
        )
        if grammars is not None:
            self._behind.append(launched)
        return launched

    @torch.inference_mode()
    def profile_run(self) -> None:
        """Runs the largest steps, and smaller ones that use other kernels, and captures some graphs. Waits for them.

        Called before the first request.
        """
        hidden = self._forward.profile_run()
        most = self._forward.max_rows
        for count in sorted({most, *self._decoder.head_row_classes(most)}):
            logits = self._decoder.logits(hidden.expand(count, -1).contiguous())
            for sampling in profile_sampling(logits.shape[1], self._check.max_logprobs):
                self._sample(logits, self._batch.dummy_rows(sampling, count, self._masks.dummy(count))).to_host()
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

        On a GPU from the copy of its inputs to its last event, gaps between kernels included. What a new request copies
        before is not counted. On a CPU only nanoseconds in compiled kernels.
        """
        return self._device.kernel_nanoseconds(launched.began, launched.done)

    def launch_nanoseconds(self, launched: Launched) -> int:
        """Returns the host's nanoseconds between the same two events: it launched the plan's kernels.

        If they are about as many as kernel_nanoseconds, the device waited for launches. With grammars they include the
        wait for the results of the plans before.
        """
        return launched.done.recorded_at - launched.began.recorded_at

    def collect(self, launched: Launched) -> StepResult:
        """Waits for a plan and returns its result. A row with one of FAULTS or a grammar's fault becomes an error.

        Plans are collected in their order.
        """
        launched.done.synchronize()
        if self._behind and self._behind[0] is launched:
            self._advance_grammars()
        sampled, handles, faults = launched.sampled, launched.handles, self._faults(launched)
        healthy = np.ones(len(handles), dtype=np.bool_)
        healthy[list(faults)] = False
        good = healthy if faults else slice(None)
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
            errors=[(int(handles[row]), fault.message) for row, fault in faults.items()],
            error_causes=[fault.cause for fault in faults.values()],
            completed=launched.grammars.completed if launched.grammars is not None else [],
            prompt_logprobs=launched.scores.by_request() if launched.scores is not None else [],
        )

    def _score(self, hidden: Tensor, inputs: StepInputs) -> Scores:
        assert inputs.scored is not None
        slots, batch = inputs.scored.slots, self._batch
        widths, handles = batch.prompt_logprobs.widths[slots], batch.slots.handles[slots]
        return score(hidden, inputs.scored, widths, handles, batch.token_ids, self._decoder, self._forward.max_rows)

    def _advance_grammars(self) -> None:
        """Waits for the first plan that is behind, and goes on with its grammars."""
        launched = self._behind.popleft()
        launched.done.synchronize()
        assert launched.grammars is not None
        launched.grammars.advance(launched.sampled.token_ids.numpy(), launched.sampled.faults.numpy())

    @staticmethod
    def _faults(launched: Launched) -> dict[int, Fault]:
        """Returns the faults of a plan that is done, by row in ascending order."""
        codes = launched.sampled.faults.numpy()
        faults = {row: FAULTS[codes[row]] for row in np.flatnonzero(codes).tolist()}
        if launched.grammars is None or not launched.grammars.faults:
            return faults
        return dict(sorted((faults | launched.grammars.faults).items()))

    def _sample(self, logits: Tensor, rows: SampleRows) -> Sampled:
        return sample(logits, rows, self._batch.logits, self._decoder.ops)

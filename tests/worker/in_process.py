"""The engine's scheduler and the worker's model runner in one process, without sockets."""

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from engine_core.events import SchedulerStats
from engine_core.kv_cache_manager import KVCacheManager
from engine_core.plan_builder import PlanBuilder
from engine_core.request_check import NewChoice, make_request
from engine_core.scheduler import Scheduler
from engine_core.scheduler_config import SchedulerConfig
from engine_core.step_plan import PromptLogprobs, SamplingParams, StepResult
from engine_core.worker_messages import BatchLimits
from kernels.interface import Ops
from services.options.declarations import WorkerOptions
from services.worker.building import build_runner
from services.worker.device import Device
from services.worker.facts import model_facts
from services.worker.loading import LoadedModel, load_model
from services.worker.phases import Phases
from tests.fakes import ROOT_KEY


@dataclass
class Answer:
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)  # of each token; empty unless asked for
    prompt_logprobs: list[PromptLogprobs] = field(default_factory=list)
    error: str = ""
    param: str = ""  # at fault for the error


class InProcess:
    """The scheduler and the model runner of the checkpoint at `path`. `ops` and `device` replace the worker's choice;
    `model` is an already loaded one."""

    def __init__(
        self,
        path: Path,
        options: WorkerOptions,
        limits: BatchLimits,
        prefix_caching: bool = True,
        ops: Ops | None = None,
        model: LoadedModel | None = None,
        device: Device | None = None,
    ) -> None:
        self.model = model or load_model(path, options, ops)
        self.runner, self.shape = build_runner(self.model, options, limits, Phases(), device)
        self.facts = model_facts(self.model, options, self.shape)
        kv = KVCacheManager(self.shape.num_blocks, self.shape.block_size, self.facts.kv_groups, prefix_caching)
        self.scheduler = Scheduler(
            kv,
            PlanBuilder(1, len(self.facts.kv_groups)),
            SchedulerConfig(limits.max_num_seqs, limits.max_num_batched_tokens),
        )
        self.answers: dict[int, Answer] = {}

    @property
    def stats(self) -> SchedulerStats:
        return self.scheduler.stats()

    def add(self, prompt: list[int], sampling: SamplingParams, seed: int = 0) -> Answer:
        """Queues a request and returns its answer, which grows with each step."""
        handle = len(self.answers)
        self.answers[handle] = answer = Answer()
        new = NewChoice(handle, 0, prompt, [], sampling, seed, "", None)
        assert self.scheduler.add(make_request(new, self.facts, ROOT_KEY)) is None
        return answer

    def step(self) -> bool:
        """Runs one step. Returns False if there is nothing to schedule."""
        plan = self.scheduler.schedule()
        if plan is None:
            return False
        self.take(self.runner.execute(plan))
        return True

    def take(self, result: StepResult) -> None:
        """Adds a step's result to the requests' answers."""
        events = self.scheduler.update(result)
        for scored in events.prompt_logprobs:
            self.answers[scored.handle].prompt_logprobs.append(scored)
        for new in events.new_tokens:
            answer = self.answers[new.handle]
            answer.token_ids += new.token_ids
            if new.logprobs is not None:
                answer.logprobs += np.reshape(new.logprobs.values, (-1, new.logprobs.width))[:, 0].tolist()
        for finished in events.finished:
            answer = self.answers[finished.handle]
            answer.error, answer.param = finished.stop.message, finished.stop.param

    def complete(
        self, prompts: list[list[int]], sampling: SamplingParams, seeds: list[int] | None = None
    ) -> list[Answer]:
        """Runs all prompts in one batch. Returns their answers in order. Raises AssertionError if one has an error."""
        answers = [
            self.add(prompt, sampling, seed) for prompt, seed in zip(prompts, seeds or [0] * len(prompts), strict=True)
        ]
        while self.step():
            pass
        errors = [answer.error for answer in answers if answer.error]
        assert not errors, errors[0]
        return answers

"""The scheduler and the model runner in one process, with grammars, which are prepared between two steps."""

from typing import Any

from engine_core.events import Finished
from engine_core.request_check import NewChoice, make_request
from engine_core.step_plan import SamplingParams, StepPlan, StepResult, pack_i32
from engine_core.worker_messages import Prepare
from services.worker.grammar_source import GrammarSource, prepare
from services.worker.model_runner import Launched
from tests.fakes import ROOT_KEY
from tests.worker.in_process import Answer, InProcess


class GrammarEngine(InProcess):
    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._source = GrammarSource(self.model.checkpoint, self.facts.vocab_size)
        self.completed: list[int] = []  # handles

    def ask(
        self, prompt: list[int], sampling: SamplingParams, grammar: str, seed: int = 0, output: list[int] | None = None
    ) -> Answer:
        """Queues a request, resumed after `output`, and returns its answer, which grows with each step."""
        handle = len(self.answers)
        self.answers[handle] = answer = Answer()
        new = NewChoice(handle, 0, prompt, output or [], sampling, seed, "", None, grammar=grammar)
        assert self.scheduler.add(make_request(new, self.facts, ROOT_KEY)) is None
        return answer

    def schedule(self) -> StepPlan | None:
        for request in self.scheduler.prepare():
            output = request.output_token_ids
            message = Prepare(1, request.handle, request.grammar, pack_i32(output))
            answer = prepare(message, self._source, self.runner.grammars, output)
            if (
                ended := self.scheduler.prepared(answer.handle, answer.error, is_complete=answer.is_complete)
            ) is not None:
                self._end(ended)
        return self.scheduler.schedule()

    def step(self) -> bool:
        plan = self.schedule()
        if plan is not None:
            self.take(self.runner.execute(plan))
        return plan is not None

    def run(self) -> None:
        while self.step():
            pass

    def run_ahead(self) -> None:
        """Runs all requests, each plan before the result of the last one is back."""
        launched: list[Launched] = []
        while self.scheduler.has_unfinished:
            plan = self.schedule()
            if plan is not None:
                launched.append(self.runner.launch(plan))
            if launched and (plan is None or len(launched) == 2):
                self.take(self.runner.collect(launched.pop(0)))
        for one in launched:
            self.take(self.runner.collect(one))

    def take(self, result: StepResult) -> None:
        super().take(result)
        self.completed += result.completed

    def _end(self, finished: Finished) -> None:
        answer = self.answers[finished.handle]
        answer.error, answer.param = finished.stop.message, finished.stop.param

"""The order of a worker's work: what is launched before a result is sent, with grammars and without."""

from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from services.process.progress_page import Progress
from services.telemetry.tracing import set_up_tracing
from services.worker.engine_link import EngineGone
from services.worker.step_loop import StepLoop
from services.worker.telemetry import StepSpans, WorkerMetrics


class Gpu:
    """A link and a model runner that log what is done. A step is done after a poll in vain."""

    def __init__(self, plans: list[tuple[int, bool]]) -> None:
        """`plans` are (step id, has a row with a grammar); all have been sent."""
        self._plans = [self._plan(*plan) for plan in plans]
        self._done: set[int] = set()
        self.log: list[str] = []

    @staticmethod
    def _plan(step_id: int, has_grammar: bool) -> Any:
        return SimpleNamespace(step_id=step_id, has_grammar=has_grammar, deadline_ms=0, traceparent="")

    num_missing_graphs = 0

    def poll_plan(self, timeout_ms: int = 0) -> Any:
        if self._plans:
            return self._plans.pop(0)
        if timeout_ms:
            raise EngineGone
        self._done |= {int(line.split()[1]) for line in self.log if line.startswith("sample")}
        return None

    def forward(self, plan: Any) -> Any:
        self.log.append(f"forward {plan.step_id}")
        return SimpleNamespace(plan=plan, grammars=plan if plan.has_grammar else None)

    def sample(self, forwarded: Any) -> Any:
        self.log.append(f"sample {forwarded.plan.step_id}")
        done = SimpleNamespace(query=lambda: forwarded.plan.step_id in self._done)
        return SimpleNamespace(plan=forwarded.plan, done=done)

    def collect(self, launched: Any) -> Any:
        return launched.plan.step_id

    def kernel_nanoseconds(self, launched: Any) -> int:
        return 1

    def launch_nanoseconds(self, launched: Any) -> int:
        return 1

    def done(self, result: int) -> None:
        self.log.append(f"send {result}")


def logged(monkeypatch: pytest.MonkeyPatch, *plans: tuple[int, bool]) -> list[str]:
    monkeypatch.setattr(WorkerMetrics, "step", lambda *_: None)
    monkeypatch.setattr(StepSpans, "step", lambda *_: None)
    gpu: Any = Gpu(list(plans))
    spans = StepSpans(set_up_tracing("worker", None))
    loop = StepLoop(gpu, gpu, WorkerMetrics(CollectorRegistry()), spans, Progress())
    with pytest.raises(EngineGone):
        loop.run()
    loop.close()
    return list(gpu.log)


def test_without_grammars_the_next_step_is_launched_before_the_result(monkeypatch: pytest.MonkeyPatch) -> None:
    assert logged(monkeypatch, (1, False), (2, False)) == [
        "forward 1", "sample 1", "forward 2", "sample 2", "send 1", "send 2",
    ]  # fmt: skip


def test_a_step_with_grammars_is_sampled_after_the_results_before_it_are_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    assert logged(monkeypatch, (1, True), (2, False), (3, True), (4, False)) == [
        "forward 1", "sample 1", "forward 2", "sample 2",
        "forward 3", "send 1", "send 2", "sample 3",
        "forward 4", "sample 4", "send 3", "send 4",
    ]  # fmt: skip

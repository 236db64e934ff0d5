"""An engine that goes while a step runs, as it can where a device computes by itself, takes nothing of the worker."""

import signal
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from services.telemetry.tracing import set_up_tracing
from services.worker import service
from services.worker.engine_link import EngineGone
from services.worker.telemetry import StepSpans, WorkerMetrics

DEADLINE_MS = 600_000


class OnePlan:
    """The end of a link: a plan, then nobody."""

    def __init__(self) -> None:
        self._plans = [SimpleNamespace(deadline_ms=DEADLINE_MS)]

    def poll_plan(self) -> Any:
        if not self._plans:
            assert signal.getitimer(signal.ITIMER_REAL)[0] > 0, "nobody watches the step"
            raise EngineGone("the engine is gone")
        return self._plans.pop()


class NeverDone:
    def launch(self, plan: Any) -> Any:
        return SimpleNamespace(plan=plan, done=SimpleNamespace(query=lambda: False))


def test_nobody_watches_a_step_whose_engine_is_gone() -> None:
    tracing = set_up_tracing("worker", None)
    link: Any = OnePlan()
    runner: Any = NeverDone()
    with pytest.raises(EngineGone):
        service._run_plans(link, runner, WorkerMetrics(CollectorRegistry()), StepSpans(tracing))
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)

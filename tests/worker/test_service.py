"""A worker serves one engine after the other: it keeps only the model, and survives an engine that dies in a step."""

import signal
import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from engine_core.worker_messages import BatchLimits
from services.options.declarations import WorkerOptions
from services.telemetry.tracing import set_up_tracing
from services.worker import service
from services.worker.building import build_runner
from services.worker.engine_link import EngineGone, EngineLink
from services.worker.prepared_grammars import PreparedGrammars
from services.worker.telemetry import StepSpans, WorkerMetrics
from tests.checkpoints import make_qwen3

NUM_ENGINES = 3
DEADLINE_MS = 600_000


class ShortEngine(EngineLink):
    """A link to an engine that dies as soon as the worker is registered."""

    num_connected = 0

    def hello(self) -> None:
        type(self).num_connected += 1
        if self.num_connected > NUM_ENGINES:
            raise SystemExit

    def limits(self) -> BatchLimits:
        return BatchLimits(1, 2, 64)

    def register(self, facts: Any) -> None:
        pass

    def poll_plan(self) -> None:
        raise EngineGone("lost the connection to the engine")


def test_an_engines_kv_cache_is_freed_before_the_next_one_is_allocated(
    tmp_path: Path, socket_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[weakref.ref[Any]] = []

    def build(*args: Any) -> Any:
        assert not any(runner() for runner in made), "an earlier engine's KV cache is still allocated"
        runner, shape = build_runner(*args)
        made.append(weakref.ref(runner))
        return runner, shape

    # Log records would keep the runner alive through their arguments.
    monkeypatch.setattr(service.log, "disabled", True)
    monkeypatch.setattr(service, "EngineLink", ShortEngine)
    monkeypatch.setattr(service, "build_runner", build)
    options = WorkerOptions(
        engine=f"ipc://{socket_dir}/engine", model=str(make_qwen3(tmp_path / "model")), device="cpu"
    )
    tracing = set_up_tracing("worker", None)
    with pytest.raises(SystemExit):
        service._run(options, None, WorkerMetrics(CollectorRegistry()), StepSpans(tracing))
    assert len(made) == NUM_ENGINES


class OnePlan(EngineLink):
    """A link that receives one plan, then loses its engine."""

    def __init__(self, endpoint: str) -> None:
        super().__init__(endpoint)
        self._plans = [SimpleNamespace(deadline_ms=DEADLINE_MS)]

    def poll_plan(self) -> Any:
        if not self._plans:
            assert signal.getitimer(signal.ITIMER_REAL)[0] > 0, "the watchdog is not armed"
            raise EngineGone("lost the connection to the engine")
        return self._plans.pop()


class NeverDone:
    """A model runner with a step that never completes."""

    grammars = PreparedGrammars(1)

    def forward(self, plan: Any) -> Any:
        return SimpleNamespace(plan=plan, grammars=None)

    def sample(self, forwarded: Any) -> Any:
        return SimpleNamespace(plan=forwarded.plan, done=SimpleNamespace(query=lambda: False))


def test_the_watchdog_is_disarmed_when_the_engine_is_gone(socket_dir: Path) -> None:
    tracing = set_up_tracing("worker", None)
    link = OnePlan(f"ipc://{socket_dir}/engine")
    runner: Any = NeverDone()
    source: Any = None  # no grammar is prepared
    with pytest.raises(EngineGone):
        service._run_plans(link, runner, source, WorkerMetrics(CollectorRegistry()), StepSpans(tracing))
    link.close()
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)

"""A worker outlives its engines, and keeps nothing of one but the model."""

import weakref
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from engine_core.worker_messages import BatchLimits
from services.options.declarations import WorkerOptions
from services.telemetry.tracing import set_up_tracing
from services.worker import service
from services.worker.building import build_runner
from services.worker.engine_link import EngineGone
from services.worker.telemetry import StepSpans, WorkerMetrics
from tests.checkpoints import make_qwen3

NUM_ENGINES = 3


class ShortEngine:
    """The end of a link whose engine goes as soon as the worker is registered."""

    num_met = 0

    def __init__(self, endpoint: str, secret: None) -> None:
        pass

    def hello(self) -> None:
        type(self).num_met += 1
        if self.num_met > NUM_ENGINES:
            raise SystemExit

    def limits(self) -> BatchLimits:
        return BatchLimits(1, 2, 64)

    def register(self, facts: Any) -> None:
        pass

    def poll_plan(self) -> None:
        raise EngineGone("the engine is gone")

    def close(self) -> None:
        pass


def test_a_new_engines_cache_does_not_meet_the_old_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[weakref.ref[Any]] = []

    def build(*args: Any) -> Any:
        assert not any(runner() for runner in made), "an earlier engine's KV cache is still there"
        runner, shape = build_runner(*args)
        made.append(weakref.ref(runner))
        return runner, shape

    monkeypatch.setattr(service.log, "disabled", True)  # pytest would keep the records, and with them what they tell of
    monkeypatch.setattr(service, "EngineLink", ShortEngine)
    monkeypatch.setattr(service, "build_runner", build)
    options = WorkerOptions(model=str(make_qwen3(tmp_path / "model")), device="cpu")
    tracing = set_up_tracing("worker", None)
    with pytest.raises(SystemExit):
        service._run(options, None, WorkerMetrics(CollectorRegistry()), StepSpans(tracing))
    assert len(made) == NUM_ENGINES

"""A worker serves one engine after the other: it keeps only the model, and survives an engine that dies in a step."""

import gc
import os
import signal
import weakref
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
from prometheus_client import CollectorRegistry

from engine_core.kv_cache_size import KvCacheSize
from engine_core.worker_messages import BatchLimits, ModelFacts
from services.options.declarations import WorkerOptions
from services.process.progress_page import Progress
from services.process.worker_record import RecordFile
from services.telemetry.tracing import set_up_tracing
from services.worker import service
from services.worker.building import build_runner
from services.worker.engine_link import EngineGone, EngineLink, EngineRefused
from services.worker.errors import ModelError
from services.worker.loading import load_model
from services.worker.phases import Phases
from services.worker.prepared_grammars import PreparedGrammars
from services.worker.telemetry import StepSpans, WorkerMetrics
from tests.checkpoints import make_qwen3

NUM_ENGINES = 3
DEADLINE_MS = 600_000


class ShortEngine(EngineLink):
    """A link to an engine that dies as soon as the worker is registered."""

    num_connected = 0
    hellos: ClassVar[list[bool]] = []  # whether each said that no request had killed the worker before

    def hello(self, *, is_intact: bool = False) -> None:
        self.hellos.append(is_intact)
        type(self).num_connected += 1
        if self.num_connected > NUM_ENGINES:
            raise SystemExit

    def limits(self) -> BatchLimits:
        return BatchLimits(1, 2, 64)

    def register(self, facts: ModelFacts) -> None:
        self.is_registered, self.facts = True, facts

    def poll_plan(self) -> None:
        raise EngineGone("lost the connection to the engine")


def test_an_engines_kv_cache_is_freed_before_the_next_one_is_allocated(
    tmp_path: Path, socket_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[weakref.ref[Any]] = []

    def build(*args: Any, **kwargs: Any) -> Any:
        assert not any(runner() for runner in made), "an earlier engine's KV cache is still allocated"
        runner, shape = build_runner(*args, **kwargs)
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
        service._run(
            options, None, WorkerMetrics(CollectorRegistry()), StepSpans(tracing), Progress(), RecordFile(None)
        )
    assert len(made) == NUM_ENGINES
    assert ShortEngine.hellos == [False, *[True] * NUM_ENGINES], "it lost its connection, and nothing else"


class NextEngine(ShortEngine):
    """A link with one hello."""

    hellos: ClassVar[list[bool]] = []
    num_connected = NUM_ENGINES


def test_a_worker_says_that_the_one_before_ended_in_order(socket_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a signal that it handled: no request had killed it."""
    fd = os.memfd_create("record")
    options = WorkerOptions(engine=f"ipc://{socket_dir}/engine", device="cpu", record_fd=fd)
    monkeypatch.setattr(service, "EngineLink", NextEngine)
    with pytest.raises(SystemExit):
        service._serve(options, Progress())
    assert RecordFile(fd).read().ended_in_order
    with pytest.raises(SystemExit):
        service._serve(options, Progress())
    monkeypatch.setattr(NextEngine, "hello", lambda self, is_intact: 1 / 0)  # it crashes
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            service._serve(options, Progress())
        assert not RecordFile(fd).read().ended_in_order
    assert NextEngine.hellos == [False, True]
    os.close(fd)


OLD = KvCacheSize(num_blocks=9, max_model_len=48, smallest=3)


class OldEngine(ShortEngine):
    """A link to an engine that has had a worker before."""

    told = OLD

    def limits(self) -> BatchLimits:
        return BatchLimits(1, 2, 64, self.told)


class OtherEngine(OldEngine):
    """A link to an engine that accepts another length."""

    told = KvCacheSize(num_blocks=30, max_model_len=64, smallest=4)


class WiderEngine(ShortEngine):
    """A link to an engine with other options, which has had none."""

    def limits(self) -> BatchLimits:
        return BatchLimits(1, 4, 64)


def test_the_kv_cache_has_the_size_that_the_engine_knows(tmp_path: Path, socket_dir: Path) -> None:
    """The worker was started alone, and anew: it has no record of the first one."""
    path = make_qwen3(tmp_path / "model")
    options = WorkerOptions(engine=f"ipc://{socket_dir}/engine", model=str(path), device="cpu")
    model, record, sizes = load_model(path, options), RecordFile(None), []
    for made in (OldEngine, ShortEngine, OtherEngine, WiderEngine):
        link = made(options.engine)
        service._register(link, model, options, record, Phases())
        sizes.append(link.facts.kv_cache_size)
        link.close()
    assert sizes[0] == sizes[1] == OLD
    assert sizes[2] == OtherEngine.told
    assert sizes[3] == KvCacheSize(num_blocks=4 * 32, max_model_len=512, smallest=32), "other limits, another size"


def test_an_engine_beside_which_a_worker_starts_with_other_options(tmp_path: Path, socket_dir: Path) -> None:
    """The KV cache may be smaller, down to one request; requests may be no longer and no shorter."""
    path = make_qwen3(tmp_path / "model")
    options = WorkerOptions(engine=f"ipc://{socket_dir}/engine", model=str(path), device="cpu")
    model = load_model(path, options)
    link = OldEngine(options.engine)

    def register(**changes: int) -> KvCacheSize:
        service._register(link, model, replace(options, **changes), RecordFile(None), Phases())
        return link.facts.kv_cache_size

    per_block = 2 * 16 * 2 * 2 * 16 * 4
    for blocks, expected in ((20, 9), (9, 9), (8, 8), (3, 3), (1, 3)):
        assert register(kv_cache_memory_bytes=blocks * per_block).num_blocks == expected
    for length in (47, 49):
        with pytest.raises(ModelError, match=f"of up to 48 tokens.* or the model say {length}: restart the engine"):
            register(max_model_len=length)
    assert register(max_model_len=48) == OLD
    link.close()


class NoMemory(ShortEngine):
    """A link to an engine with a plan that takes more memory than there is."""

    hellos: ClassVar[list[bool]] = []

    def poll_plan(self) -> None:
        torch.empty(2**62, dtype=torch.uint8)


def test_a_worker_without_memory_registers_again_with_fewer_blocks_until_it_cannot(
    tmp_path: Path, socket_dir: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    made: list[int] = []
    alive: list[weakref.ref[Any]] = []

    def build(*args: Any, **kwargs: Any) -> Any:
        assert not any(runner() for runner in alive), "an earlier KV cache is still allocated"
        runner, shape = build_runner(*args, **kwargs)
        alive.append(weakref.ref(runner))
        made.append(shape.num_blocks)
        return runner, shape

    monkeypatch.setattr(service, "EngineLink", NoMemory)
    monkeypatch.setattr(NoMemory, "num_connected", -NUM_ENGINES)
    monkeypatch.setattr(service, "build_runner", build)
    options = WorkerOptions(
        engine=f"ipc://{socket_dir}/engine", model=str(make_qwen3(tmp_path / "model")), device="cpu"
    )
    gc.collect()
    gc.disable()  # no cycle may keep the KV cache until the collector comes
    try:
        with pytest.raises(ModelError, match="memory ran out .*Cannot allocate.*: the KV cache gets no smaller: lower"):
            service._run(
                options,
                None,
                WorkerMetrics(CollectorRegistry()),
                StepSpans(set_up_tracing("worker", None)),
                Progress(),
                RecordFile(None),
            )
    finally:
        gc.enable()
    assert not any(NoMemory.hellos), "a request may have made it run out of memory"
    assert made == [int(made[0] * 0.85**count) for count in range(4)]
    lines = [line for line in caplog.messages if line.startswith("memory ran out (")]
    assert [
        f"the next KV cache has {blocks} of {made[0]}" in line for blocks, line in zip(made[1:], lines, strict=True)
    ]


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
        service._run_plans(link, runner, source, WorkerMetrics(CollectorRegistry()), StepSpans(tracing), Progress())
    link.close()
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_a_connection_that_fails_before_the_registration_changes_nothing(
    tmp_path: Path, socket_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Refused, because the engine has not noticed yet that the worker was lost: it still only lost its connection."""

    class Refusing(ShortEngine):
        hellos: ClassVar[list[bool]] = []

        def limits(self) -> BatchLimits:
            if len(self.hellos) == 2:
                raise EngineRefused("this engine already has a worker")
            if len(self.hellos) == 4:
                raise SystemExit
            return super().limits()

    monkeypatch.setattr(service, "EngineLink", Refusing)
    monkeypatch.setattr(Refusing, "num_connected", -NUM_ENGINES)
    monkeypatch.setattr(service, "FIRST_RETRY_SECONDS", 0.0)
    options = WorkerOptions(
        engine=f"ipc://{socket_dir}/engine", model=str(make_qwen3(tmp_path / "model")), device="cpu"
    )
    tracing = set_up_tracing("worker", None)
    with pytest.raises(SystemExit):
        service._run(
            options, None, WorkerMetrics(CollectorRegistry()), StepSpans(tracing), Progress(), RecordFile(None)
        )
    assert Refusing.hellos == [False, True, True, True]

"""An engine process from its options: its health follows the worker, and errors end it with their reason."""

import asyncio
import contextlib
import os
import signal
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from engine_core.scheduler import Scheduler
from engine_core.scheduler_config import SchedulerConfig
from engine_core.worker_messages import ModelFacts
from services.engine import service
from services.engine.replay import main as replay
from services.engine.service import busy_loop_config
from services.errors import Fatal
from services.machine import authority
from services.machine.listen import listen
from services.options.declarations import EngineOptions
from services.process.progress_page import Progress
from services.rpc.transport import open_channel
from services.worker.engine_link import EngineGone, EngineLink
from tests.e2e.harness import PLAIN_HTTP, wait_for
from tests.fakes import FakeWorker, make_facts

FACTS = make_facts()
PATIENCE = 20.0


class Engine:
    """A running engine in this event loop, and a worker in a thread."""

    def __init__(self, folder: Path, **options: Any) -> None:
        self.endpoint = f"ipc://{folder}/worker.sock"
        self.address = f"unix:{folder}/engine.sock"
        self.options = EngineOptions(listen=self.address, worker=self.endpoint, **options)
        self.task = asyncio.create_task(service.serve(self.options, Progress()))

    @contextlib.asynccontextmanager
    async def worker(self, facts: ModelFacts = FACTS) -> AsyncIterator[None]:
        """A worker that answers plans until the block ends."""
        stopping = threading.Event()
        thread = threading.Thread(target=serve_plans, args=(self.endpoint, facts, stopping))
        thread.start()
        try:
            yield
        finally:
            stopping.set()
            await asyncio.to_thread(thread.join, PATIENCE)
            assert not thread.is_alive()

    async def is_ready(self, expected: bool) -> None:
        """Waits until the health service says so."""
        async with open_channel(self.address) as channel, asyncio.timeout(PATIENCE):
            stub: Any = health_pb2_grpc.HealthStub(channel)
            async for answer in stub.Watch(health_pb2.HealthCheckRequest(), wait_for_ready=True):
                if (answer.status == health_pb2.HealthCheckResponse.SERVING) is expected:
                    return

    async def ends(self) -> None:
        """Waits until the engine ends; raises its error."""
        async with asyncio.timeout(PATIENCE):
            await self.task


def serve_plans(endpoint: str, facts: ModelFacts, stopping: threading.Event) -> None:
    link = EngineLink(endpoint)
    try:
        link.hello()
        link.limits()
        link.register(facts)
        worker = FakeWorker(facts)
        while not stopping.wait(0.005):
            if (plan := link.poll_plan()) is not None:
                link.done(worker.execute(plan))
    except (EngineGone, Fatal):
        pass
    finally:
        link.close()


@pytest.fixture
async def start(socket_dir: Path) -> AsyncIterator[Callable[..., Engine]]:
    engines: list[Engine] = []

    def start_one(**options: Any) -> Engine:
        engines.append(Engine(socket_dir, **options))
        return engines[-1]

    yield start_one
    for engine in engines:
        engine.task.cancel()
        await asyncio.gather(engine.task, return_exceptions=True)


async def test_the_engine_is_ready_while_it_has_a_worker(
    start: Callable[..., Engine], caplog: pytest.LogCaptureFixture
) -> None:
    front = listen(None, 0)
    address = authority(*front.getsockname()[:2])
    engine = start(metrics_fd=front.detach(), resume_wait=0.5)

    async def statuses() -> list[int]:
        """Of /live, /ready and /health. /health also waits for the next worker, for half a second."""
        urls = [f"http://{address}/{path}" for path in ("live", "ready", "health")]
        return [(await asyncio.to_thread(httpx.get, url, **PLAIN_HTTP)).status_code for url in urls]

    await engine.is_ready(False)
    assert await statuses() == [200, 503, 503]
    async with engine.worker():
        await engine.is_ready(True)
        assert await statuses() == [200, 200, 200]
    await engine.is_ready(False)
    async with asyncio.timeout(PATIENCE):
        while await statuses() != [200, 503, 503]:
            pass
    assert "worker lost: the worker is no longer connected; requests wait until a worker registers" in caplog.text
    async with engine.worker(make_facts(num_blocks=FACTS.num_blocks + 1)):
        await engine.is_ready(True)
    assert not engine.task.done()


async def test_a_worker_with_another_model_ends_the_engine(start: Callable[..., Engine]) -> None:
    engine = start()
    async with engine.worker():
        await engine.is_ready(True)
    await engine.is_ready(False)
    async with engine.worker(make_facts(weights_version="other")):
        with pytest.raises(Fatal, match="the new worker has another model"):
            await engine.ends()


async def test_an_error_in_the_busy_loop_ends_the_engine_and_leaves_a_recording(
    start: Callable[..., Engine], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def break_down(scheduler: Scheduler) -> None:
        raise ValueError("a bug")

    monkeypatch.setattr(Scheduler, "schedule", break_down)
    engine = start(flight_recorder_dir=str(tmp_path / "records"))
    async with engine.worker():
        with pytest.raises(Fatal, match="a bug"):
            await engine.ends()
    (path,) = (tmp_path / "records").iterdir()
    assert replay([str(path)]) == 0


async def test_sigusr1_writes_a_recording_and_the_engine_goes_on(
    start: Callable[..., Engine], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    engine = start(flight_recorder_dir=str(tmp_path / "records"))
    async with engine.worker():
        await engine.is_ready(True)
        os.kill(os.getpid(), signal.SIGUSR1)
        folder = tmp_path / "records"
        await asyncio.to_thread(
            wait_for, lambda: any(path.stat().st_size for path in folder.iterdir()), "the recording", PATIENCE
        )
        assert not engine.task.done()
    (path,) = (tmp_path / "records").iterdir()
    assert path.stat().st_mode & 0o777 == 0o600
    assert replay([str(path)]) == 0
    assert capsys.readouterr().out == "0 plans replayed, all equal to the recorded ones\n"


@pytest.mark.parametrize(("async_scheduling", "steps_in_flight"), [(True, 2), (False, 1)])
def test_the_options_of_the_busy_loop(async_scheduling: bool, steps_in_flight: int) -> None:
    config = busy_loop_config(
        EngineOptions(
            max_num_seqs=3,
            max_num_batched_tokens=77,
            long_prefill_token_threshold=9,
            scheduling_policy="priority",
            enable_prefix_caching=False,
            async_scheduling=async_scheduling,
            step_timeout=12.0,
        )
    )
    assert config.scheduler == SchedulerConfig(3, 77, 9, by_priority=True)
    assert (config.prefix_caching, config.steps_in_flight, config.step_timeout) == (False, steps_in_flight, 12.0)
